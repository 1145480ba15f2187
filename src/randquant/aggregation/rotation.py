"""A public random rotation, which spreads a vector evenly over its coordinates.

Derivation: `docs/theory/additive.md`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numba
import numpy as np

from randquant._internal import validate
from randquant.channels.keys import Key

# The compiled Walsh-Hadamard transform: a cache-sized part at a time, then across parts.

_PART = 2**14  # doubles: 128 KiB, what a second-level cache holds


@numba.njit(nogil=True, cache=True)
def hadamard(x: np.ndarray, divisor: float) -> None:
    """Transform x (n,) float64 or float32 in place, n a power of two, and divide by a divisor.

    It computes the textbook's sums and differences in the same order, but takes the first four
    steps in registers and then two steps at a time, so that it passes over memory less often.
    """
    size = x.shape[0]
    part = min(size, _PART)
    for start in range(0, size, part):
        block = x[start : start + part]
        last = divisor if size == part else 1.0
        if size <= 16:
            _later_steps(block, 1, last)
        else:
            _first_four_steps(block)
            _later_steps(block, 16, last)
    _later_steps(x, part, divisor)


@numba.njit(nogil=True, cache=True)
def _two_steps(a, b, c, d):
    sum_low, difference_low = a + b, a - b
    sum_high, difference_high = c + d, c - d
    return (
        sum_low + sum_high,
        difference_low + difference_high,
        sum_low - sum_high,
        difference_low - difference_high,
    )


@numba.njit(nogil=True, cache=True)
def _first_four_steps(x):
    for start in range(0, x.shape[0], 16):
        t = x[start : start + 16]
        a0, a1, a2, a3 = _two_steps(t[0], t[1], t[2], t[3])
        b0, b1, b2, b3 = _two_steps(t[4], t[5], t[6], t[7])
        c0, c1, c2, c3 = _two_steps(t[8], t[9], t[10], t[11])
        d0, d1, d2, d3 = _two_steps(t[12], t[13], t[14], t[15])
        t[0], t[4], t[8], t[12] = _two_steps(a0, b0, c0, d0)
        t[1], t[5], t[9], t[13] = _two_steps(a1, b1, c1, d1)
        t[2], t[6], t[10], t[14] = _two_steps(a2, b2, c2, d2)
        t[3], t[7], t[11], t[15] = _two_steps(a3, b3, c3, d3)


@numba.njit(nogil=True, cache=True)
def _later_steps(x, half, divisor):
    # All steps between entries at least `half` apart; the last one divides by the divisor.
    size = x.shape[0]
    while 4 * half <= size:
        by = divisor if 8 * half > size else 1.0
        for base in range(0, size, 4 * half):
            a = x[base : base + half]
            b = x[base + half : base + 2 * half]
            c = x[base + 2 * half : base + 3 * half]
            d = x[base + 3 * half : base + 4 * half]
            if by == 1.0:
                for j in range(half):
                    sum_low, difference_low = a[j] + b[j], a[j] - b[j]
                    sum_high, difference_high = c[j] + d[j], c[j] - d[j]
                    a[j], c[j] = sum_low + sum_high, sum_low - sum_high
                    b[j] = difference_low + difference_high
                    d[j] = difference_low - difference_high
            else:
                for j in range(half):
                    sum_low, difference_low = a[j] + b[j], a[j] - b[j]
                    sum_high, difference_high = c[j] + d[j], c[j] - d[j]
                    a[j], c[j] = (sum_low + sum_high) / by, (sum_low - sum_high) / by
                    b[j] = (difference_low + difference_high) / by
                    d[j] = (difference_low - difference_high) / by
        half *= 4
    if 2 * half <= size:
        for base in range(0, size, 2 * half):
            a, b = x[base : base + half], x[base + half : base + 2 * half]
            for j in range(half):
                a[j], b[j] = (a[j] + b[j]) / divisor, (a[j] - b[j]) / divisor


@dataclass(frozen=True, slots=True)
class Rotation:
    """Randomised Hadamard rotation of d coordinates, padded with zeros to a power of two.

    Args:
        dimension: d, coordinates of a vector, 1 to 2**30.
        seed: whole number that clients and server share. It is public, and privacy does not rest
            on it; it spreads every vector that was chosen independently of the seed.

    Guarantees:
        `forward` keeps inner products and L2 norms, and `inverse(forward(x))` is x, both up to
        float64 rounding. Both are linear: the inverse of a sum is the sum of inverses.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Ailon and Chazelle 2006 (fast Johnson-Lindenstrauss); Suresh et al. 2017, section 3.

    Example:
        >>> rotation = Rotation(dimension=3, seed=0)
        >>> rotation.size, rotation.inverse(rotation.forward(np.array([3.0, 0.0, 4.0]))).round(12)
        (4, array([3., 0., 4.]))
    """

    dimension: int
    seed: int

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.whole("dimension", self.dimension, low=1, high=2**30)
        validate.whole("seed", self.seed, low=0, high=2**64 - 1)

    @property
    def size(self) -> int:
        # The smallest power of two that holds the dimension: the transform needs one.
        return 1 << (self.dimension - 1).bit_length()

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Rotate vectors (..., d) to (..., size), float64."""
        full = np.zeros((*x.shape[:-1], self.size))
        np.multiply(
            x, _signs(self.seed, self.size)[: self.dimension], out=full[..., : self.dimension]
        )
        return _hadamard_in_place(full)

    def inverse(self, y: np.ndarray) -> np.ndarray:
        """Rotate vectors (..., size) back to (..., d), float64, without the padding."""
        full = _hadamard_in_place(np.array(y, dtype=np.float64, order="C"))[..., : self.dimension]
        return full * _signs(self.seed, self.size)[: self.dimension]


@functools.lru_cache(maxsize=8)
def _signs(seed: int, size: int) -> np.ndarray:
    words = Key.from_seed(seed).fold_in("rotation").words(-(-size // 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=size, bitorder="little")
    signs = 1.0 - 2.0 * bits
    signs.setflags(write=False)
    return signs


def _hadamard_in_place(x: np.ndarray) -> np.ndarray:
    size = x.shape[-1]
    for row in x.reshape(-1, size):
        hadamard(row, math.sqrt(size))
    return x
