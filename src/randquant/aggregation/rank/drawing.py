"""Exact draws of a rank, and the index that has it. Derivation: `docs/theory/rank.md`."""

from __future__ import annotations

import numba
import numpy as np

from randquant.aggregation.rank.table import RankTable
from randquant.channels.keys import Key

SORTED = 2**12
"""Up to so many coordinates are sorted, which is faster there."""

_BINS = 2**16  # by the first 16 bits of a float's magnitude: 32 to a power of two


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


def place_of(vector: np.ndarray, place: int) -> int:
    """Find the coordinate with so many magnitudes before its own.

    Args:
        vector: (D,) floats, finite; widened to float64, which is exact.
        place: 0 for the largest magnitude, to D - 1.

    Returns:
        Its index; equal magnitudes are in order of their indices, so that every coordinate has one
        place.

    Example:
        >>> [place_of(np.array([2.0, -5.0, -2.0]), place) for place in range(3)]
        [1, 0, 2]
    """
    vector = np.asarray(vector, dtype=np.float64)
    if vector.size <= SORTED:
        return int(np.argsort(-np.abs(vector), kind="stable")[place])
    indices, before = _in_bin(vector.view(np.uint64), place)
    order = np.argsort(-np.abs(vector[indices]), kind="stable")
    return int(indices[order[place - before]])


@numba.njit(nogil=True, cache=True)
def _in_bin(bits: np.ndarray, place: int) -> tuple[np.ndarray, int]:
    """(indices, before): those whose bin holds the place, and how many magnitudes are in larger."""
    # Of floats that are not negative the order is that of their bits: first the sign goes.
    sign, shift = np.uint64(1), np.uint64(48)
    counts = np.zeros(_BINS, dtype=np.int64)
    for word in bits:
        counts[(word << sign) >> shift] += 1
    at, before = _BINS - 1, 0
    while before + counts[at] <= place:
        before += counts[at]
        at -= 1
    indices = np.empty(counts[at], dtype=np.int64)
    found = 0
    for index in range(bits.size):
        if (bits[index] << sign) >> shift == np.uint64(at):
            indices[found] = index
            found += 1
    return indices, before
