"""Compiled: convolution of laws, and curvature that two laws attain."""

from __future__ import annotations

import math

import numba
import numpy as np

NEGLIGIBLE = 1e-307
"""Products below it are left out of a convolution; processors take long over smaller ones."""

SERIES = 14
"""Terms of the series of G near 1; what they leave out is below one unit where they are used."""

LARGEST_POWER = 600.0
"""Powers of a ratio are cut off at e to this, which only lowers G."""


@numba.njit(nogil=True, cache=True, error_model="numpy")
def convolved(first, second):
    """Convolve two laws (n,), (m,): sums of at most min(n, m) products, one rounding for each."""
    if first.shape[0] < second.shape[0]:
        first, second = second, first
    n, m = first.shape[0], second.shape[0]
    # Four factors at a time, several outcomes at once: zeros around spare all special cases.
    # Loops instead of slices: numba takes seconds to compile an assignment of arrays.
    factors, padded = np.zeros(m + (-m) % 4), np.zeros(n + 6)
    for i in range(m):
        factors[i] = second[i]
    for i in range(n):
        padded[i + 3] = first[i]
    # The largest of `padded` up to each place, and from it on.
    before, after = padded.copy(), padded.copy()
    for i in range(1, n + 6):
        before[i] = max(before[i - 1], before[i])
        after[n + 5 - i] = max(after[n + 6 - i], after[n + 5 - i])
    out = np.zeros(n + factors.shape[0] - 1)
    start, stop = 0, n + 3
    for j in range(0, factors.shape[0], 4):
        a, b, c, d = factors[j], factors[j + 1], factors[j + 2], factors[j + 3]
        # theory/vector-sums.md, Proposition 8: smaller products, which take long, are left out.
        least = NEGLIGIBLE / max(a, b, c, d, NEGLIGIBLE)
        while start > 0 and before[start + 2] >= least:
            start -= 1
        while start < stop and before[start + 3] < least:
            start += 1
        while stop < n + 3 and after[stop] >= least:
            stop += 1
        while stop > start and after[stop - 1] < least:
            stop -= 1
        some, into = padded[start : stop + 3], out[j + start : j + stop]
        for i in range(into.shape[0]):
            into[i] += a * some[i + 3] + b * some[i + 2] + c * some[i + 1] + d * some[i]
    return out[: n + m - 1]


@numba.njit(nogil=True, cache=True, error_model="numpy")
def attained(first, second, keep, error, order, parts, out):
    """Fill out (parts + 1, parts + 1): at most sum_z d(z)^2 C(p_i(z), p_j(z)), at every order.

    Args:
        first, second: (L,) laws, each entry within a relative `error` of the truth.
        keep: entries below it in both laws are left out.
        order, parts: p_i = first + i/parts · (second - first); C of `docs/theory/vector.md`.
    """
    out[:] = 0.0
    p, inverse = np.empty(parts + 1), np.empty(parts + 1)
    reach, above = 1.0 / (8.0 * (order + 1.0)), order - 1.0
    for z in range(first.shape[0]):
        a, b = first[z], second[z]
        if max(a, b) < keep:
            continue
        change = b - a
        # theory/vector-sums.md, Proposition 9: errors of both laws, 1.25 times counted.
        steep = max(abs(change) - 2.5 * error * max(a, b), 0.0)
        for i in range(parts + 1):
            # A mix with positive parts: within 3 units of itself, however much larger an end is.
            p[i] = (parts - i) / parts * a + i / parts * b
            inverse[i] = 1.0 / p[i]
        for i in range(parts + 1):
            for j in range(parts + 1):
                ratio = p[i] * inverse[j]
                z1 = ratio - 1.0
                # theory/vector.md, Proposition 11.
                if abs(z1) <= reach:
                    series = 1.0
                    for k in range(SERIES - 1, -1, -1):
                        series = 1.0 + (order - (2.0 + k)) / (k + 3.0) * z1 * series
                    g = 0.5 * order * series
                else:
                    # theory/vector-sums.md, Proposition 6.
                    power = min(above * math.log(ratio), LARGEST_POWER)
                    g = (ratio * math.expm1(power) / above - z1) / (z1 * z1)
                out[i, j] += steep * inverse[j] * steep * g  # a square could underflow
