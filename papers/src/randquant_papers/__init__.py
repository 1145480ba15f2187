"""The papers' experiments, on public names of `randquant` only."""
