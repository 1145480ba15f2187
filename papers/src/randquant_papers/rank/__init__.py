"""A whole update as the index of one coordinate, drawn by its rank: a mechanism of local trust.

A user of `randquant`'s protocol of mechanisms for whole updates; see `papers/docs/rank.md`.
"""

from randquant_papers.rank.designs import (
    LARGEST_TOTAL,
    GroupRotation,
    RankTable,
    gain,
    graded,
    spread_size,
    top_sum,
    two_levels,
)
from randquant_papers.rank.mechanism import (
    MAX_SORTED_COORDINATES,
    RankMechanism,
    draw_below,
    graded_rank,
    index_at,
    place_of,
    ranks_of,
)
from randquant_papers.rank.release import RankRelease

__all__ = [
    "LARGEST_TOTAL",
    "MAX_SORTED_COORDINATES",
    "GroupRotation",
    "RankMechanism",
    "RankRelease",
    "RankTable",
    "draw_below",
    "gain",
    "graded",
    "graded_rank",
    "index_at",
    "place_of",
    "ranks_of",
    "spread_size",
    "top_sum",
    "two_levels",
]
