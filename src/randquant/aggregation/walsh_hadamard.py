"""The compiled Walsh-Hadamard transform: a cache-sized part at a time, then across parts."""

from __future__ import annotations

import numba
import numpy as np

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
        here = x[start : start + part]
        last = divisor if size == part else 1.0
        if size <= 16:
            _steps(here, 1, last)
        else:
            _first_four_steps(here)
            _steps(here, 16, last)
    _steps(x, part, divisor)


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
    """The steps within groups of sixteen."""
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
def _steps(x, half, divisor):
    """All steps between entries at least `half` apart; the last one divides by the divisor."""
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
