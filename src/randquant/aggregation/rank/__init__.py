"""A whole update in three bytes: the index of a coordinate, drawn by its rank.

`mechanism` encodes and decodes; `table` has the certified weights of ranks, `release` what they
reveal in a run, `designs` and `blocks` the best tables. Derivation: `docs/theory/rank.md`.
"""
