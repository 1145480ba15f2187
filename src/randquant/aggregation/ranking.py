"""Exact draws of a rank, and the index that has it. Derivation: `docs/theory/rank.md`."""

from __future__ import annotations

import numpy as np

from randquant.aggregation.selection import place_of
from randquant.channels.keys import Key
from randquant.privacy.certificates.rank import RankTable


def draw_below(limit: int, key: Key, count: int = 1) -> np.ndarray:
    """Draw whole numbers below a limit of at most 2**62, exactly uniformly: (count,) uint64.

    Example:
        >>> draw_below(1, Key.from_seed(0), 2)
        array([0, 0], dtype=uint64)
    """
    # theory/rank.md, Proposition 2: beyond the largest multiple of the limit words are redrawn.
    last = np.uint64(2**64 // limit * limit - 1)
    kept, start = np.empty(0, dtype=np.uint64), 0
    while kept.size < count:
        asked = count + count % 2  # a cipher block holds two words
        words = key.words(asked, start)
        kept, start = np.concatenate([kept, words[words <= last]]), start + asked
    return kept[:count] % np.uint64(limit)


def ranks_of(table: RankTable, units: np.ndarray) -> np.ndarray:
    """Map units below the table's total to ranks, 0 the best: as many units as the rank weighs.

    Example:
        >>> ranks_of(RankTable((1, 3), (5, 1)), np.arange(8))
        array([0, 0, 0, 0, 0, 1, 2, 3])
    """
    weights = np.array(table.weights, dtype=np.int64)
    ends = np.cumsum(np.array(table.counts, dtype=np.int64) * weights)
    units = units.astype(np.int64)
    level = np.searchsorted(ends, units, side="right")
    before = units - (ends - np.array(table.counts) * weights)[level]
    return np.array(table.starts)[level] + before // weights[level]


def index_at(vector: np.ndarray, rank: int) -> int:
    """Find which index has a rank among the coordinates of a vector and their negatives.

    Args:
        vector: (D,) float64, finite.
        rank: 0 to 2D - 1; 0 is the largest.

    Returns:
        j for coordinate j, D + j for its negative. Equal magnitudes are in order of j, and 0 is
        positive: every index has exactly one rank.

    Example:
        >>> [index_at(np.array([1.0, -3.0]), rank) for rank in range(4)]
        [3, 0, 2, 1]
    """
    size = vector.size
    at = place_of(vector, min(rank, 2 * size - 1 - rank))
    negative = (vector[at] < 0) != (rank >= size)
    return at + size * int(negative)
