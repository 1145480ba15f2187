"""Which coordinate has a given rank by magnitude, without sorting them all."""

from __future__ import annotations

import numba
import numpy as np

SORTED = 2**12
"""Up to so many coordinates are sorted, which is faster there."""

_BINS = 2**16  # by the first 16 bits of a float's magnitude: 32 to a power of two


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
