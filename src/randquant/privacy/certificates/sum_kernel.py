"""Compiled loops over pairs of inputs: curvature and moments of sums, and bounds of boxes of pairs.

For rows p and q of a sum's law, r = p/q: the moment M = sum q r^a and the curvature
S = sum slope^2 C(p, q), C(p, q) = G(r)/q, both with a proven relative error. G is that of
`docs/theory/vector.md`; derivation and rounding: `docs/theory/vector-sums.md`, Propositions 7 to 9,
15, 20 and 21.

`evaluate` works in logarithms, for any probabilities; `evaluate_plain` is faster where all powers
are floats; `bounds_of_boxes` interpolates between the corners of boxes.
"""

from __future__ import annotations

import math

import numba
import numpy as np

# Compiled code is cached on disk and recompiled only when this file changes: every constant that it
# uses is therefore defined here.
BOX_PARTS = 16
"""Parts into which a box is cut, each way, where corners are interpolated. In each part the least
distance counts, so twice as many would halve what that loses, in four times the time."""

NEGLIGIBLE_TERM_DEPTH = 90.0
"""Terms that are e to this below the largest are left out, and counted (Proposition 21)."""

SERIES_LIMIT_INVERSE, SERIES_TERM_COUNT = 32.0, 9
"""Where |r - 1|(order + 1) is at most 1/32, G(r) is summed as a series, since its closed form would
cancel there. Each of the 9 terms is at most 1/96 of the one before: what is left is below a unit
(Proposition 15)."""


@numba.njit(nogil=True, cache=True, error_model="numpy")
def evaluate(
    rows, logs, scale, most, steep, first, second, low, high, order, error, curvature, excess
):
    """Compute curvature and moments of pairs of points, of probabilities rows·e^scale.

    Args:
        rows, logs: (P, L), and their logarithms; within the range of floats.
        scale: (L,) logarithm of each outcome's common factor, however small.
        most: (L,) upper bound of the logarithm of max(slope^2, 4) over a row.
        steep: (V - 1, L) slopes of `rows`, rounded up.
        first, second: (N,) the points of each pair.
        low, high: (N,) the first of the cells between them or touching them, and one past the last.
        order: in (1, inf).
        error: relative, of the rows; negative if differences are to be lowered by it.
        curvature: (N,) is set to the largest sum of slope^2 C(p, q) of these cells, or infinity.
        excess: (N,) is set to log(M - 1).
    """
    above, length = order - 1.0, rows.shape[1]
    reach = 1.0 / (SERIES_LIMIT_INVERSE * (order + 1.0))
    factors = (order - 2.0 - np.arange(SERIES_TERM_COUNT)) / (np.arange(SERIES_TERM_COUNT) + 3.0)
    mass, inverse = np.exp(scale), 1.0 / rows
    powers, growth, terms = np.empty(length), np.empty(length), np.empty(length)
    rest = (
        4.0
        * length
        * (order + 1.0 / above)
        / reach**2
        * math.exp(-NEGLIGIBLE_TERM_DEPTH)
        * (error >= 0)
    )
    raised = 2.5 * error + math.copysign(2.0**-50, error)
    for pair in range(first.shape[0]):
        i, j = first[pair], second[pair]
        p, q, over, top = rows[i], rows[j], inverse[j], 0.0
        for z in range(length):
            powers[z] = above * (logs[i, z] - logs[j, z]) + scale[z]
            top = max(top, powers[z])
        # theory/vector-sums.md, Proposition 21: what outcomes at either end may add is in `rest`.
        begin, end = 0, length
        while (
            begin < end
            and max(powers[begin], scale[begin]) + most[begin] < top - NEGLIGIBLE_TERM_DEPTH
        ):
            begin += 1
        while (
            begin < end
            and max(powers[end - 1], scale[end - 1]) + most[end - 1] < top - NEGLIGIBLE_TERM_DEPTH
        ):
            end -= 1
        # The same Proposition: all over e^top, so that nothing overflows.
        shrunk = math.exp(-top)
        for z in range(begin, end):
            ratio, weight = p[z] * over[z], mass[z] * shrunk
            z1 = ratio - 1.0
            # theory/vector-sums.md, Proposition 15.
            if abs(z1) <= reach:
                series = 1.0
                for k in range(SERIES_TERM_COUNT - 1, -1, -1):
                    series = 1.0 + factors[k] * z1 * series
                growth[z] = 0.5 * order * series * weight
            else:
                grown = ratio * (math.exp(powers[z] - top) - weight) / above - z1 * weight
                growth[z] = max(grown, 0.0) / (z1 * z1)
            # theory/vector-sums.md, Propositions 7 and 9: squares of rare outcomes underflow.
            change = max(abs(p[z] - q[z]) + raised * max(p[z], q[z]), 0.0)
            terms[z] = change * over[z] * growth[z] * change
        excess[pair] = math.log(above * (_total(terms[begin:end]) + rest)) + top
        curvature[pair] = 0.0
        for cell in range(low[pair], high[pair]):
            slope = steep[cell]
            for z in range(begin, end):
                terms[z] = slope[z] * over[z] * growth[z] * slope[z]
            curvature[pair] = max(curvature[pair], (_total(terms[begin:end]) + rest) / shrunk)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def evaluate_plain(rows, grown, steep, first, second, low, high, order, error, curvature, excess):
    """Do the same as `evaluate`, faster, where powers of ratios and probabilities are all floats.

    Args:
        rows: (P, L) probabilities.
        grown: (P, L) their powers of order - 1, divided by those of one point.
        steep, first, second, low, high, order, error, curvature, excess: see `evaluate`.
    """
    above, length = order - 1.0, rows.shape[1]
    reach = 1.0 / (SERIES_LIMIT_INVERSE * (order + 1.0))
    factors = (order - 2.0 - np.arange(SERIES_TERM_COUNT)) / (np.arange(SERIES_TERM_COUNT) + 3.0)
    inverse, fallen = 1.0 / rows, 1.0 / grown
    growth, terms = np.empty(length), np.empty(length)
    for pair in range(first.shape[0]):
        i, j = first[pair], second[pair]
        p, q, over, up, down = rows[i], rows[j], inverse[j], grown[i], fallen[j]
        # Without a branch, so that processors take several outcomes at once.
        for z in range(length):
            ratio = p[z] * over[z]
            z1 = ratio - 1.0
            # theory/vector-sums.md, Proposition 15.
            series = 1.0
            for k in range(SERIES_TERM_COUNT - 1, -1, -1):
                series = 1.0 + factors[k] * z1 * series
            wide = (ratio * (up[z] * down[z] - 1.0) / above - z1) / (z1 * z1)
            growth[z] = over[z] * (0.5 * order * series if abs(z1) <= reach else wide)
        for z in range(length):
            change = abs(p[z] - q[z]) + (2.5 * error + 2.0**-50) * max(p[z], q[z])
            terms[z] = change * growth[z] * change
        excess[pair] = math.log(above * _total(terms))
        curvature[pair] = 0.0
        for cell in range(low[pair], high[pair]):
            slope = steep[cell]
            for z in range(length):
                terms[z] = slope[z] * growth[z] * slope[z]
            curvature[pair] = max(curvature[pair], _total(terms))


@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "nsz"})
def _total(terms):
    # A sum of positive terms: in whatever order, it costs one unit a term.
    total = 0.0
    for z in range(terms.shape[0]):
        total += terms[z]
    return total


@numba.njit(nogil=True, cache=True, error_model="numpy")
def bounds_of_boxes(steep, grown, first, second, widths, order):
    """Bound divergence over squared distance in each of B boxes.

    Args:
        steep: (B, 2, 2) curvature at the corners; infinite if unknown.
        grown: (B, 2, 2) convex powers of moments, less 1; finite.
        first, second: (B,) the parts in which x and x' are.
        widths: (P,) of all parts.
        order: in (1, inf).
    """
    # theory/vector-sums.md, Proposition 20: powers of S and M that are convex in either input.
    power, other, above = 1.0 / max(order - 2.0, 1.0), 1.0 / max(order - 1.0, 1.0), order - 1.0
    bounds, corners = np.zeros(steep.shape[0]), np.zeros((2, 2))
    for box in range(steep.shape[0]):
        # Curvature bounds the box only if it is known at all four corners.
        a, b, curved, between = first[box], second[box], True, 0.0
        # Widths add up, where a difference of positions would cancel.
        for part in range(min(a, b) + 1, max(a, b)):
            between += widths[part]
        for i in range(2):
            for j in range(2):
                curved &= steep[box, i, j] < math.inf
                corners[i, j] = steep[box, i, j] ** power
        for i in range(BOX_PARTS):
            for j in range(BOX_PARTS):
                most, apart = 0.0, 0.0
                for k in range(2):
                    for m in range(2):
                        s, t = (i + k) / BOX_PARTS, (j + m) / BOX_PARTS
                        most = max(most, _mix(corners, s, t))
                        apart = max(apart, _mix(grown[box], s, t))
                # The least distance of two inputs in this part of the box.
                if a < b:
                    least = widths[a] * ((BOX_PARTS - 1 - i) / BOX_PARTS) + widths[b] * (
                        j / BOX_PARTS
                    )
                elif a > b:
                    least = widths[a] * (i / BOX_PARTS) + widths[b] * (
                        (BOX_PARTS - 1 - j) / BOX_PARTS
                    )
                else:
                    least = widths[a] * (max(abs(i - j) - 1, 0) / BOX_PARTS)
                # A sum of positive parts: within T + 8 units; a shorter distance gives a larger
                # bound.
                least = (between + least) * (1 - 2.0**-40)
                scale, bound = above * least * least, math.inf
                if curved:
                    bound = most ** (1.0 / power)
                    if scale * bound > 1e-9:
                        bound = math.log1p(scale * bound) / scale
                if a != b and scale > 0.0:
                    bound = min(bound, math.log1p(apart) / other / scale)
                bounds[box] = max(bounds[box], bound)
    return bounds


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _mix(corners, s, t):
    low = (1 - t) * corners[0, 0] + t * corners[0, 1]
    return (1 - s) * low + s * ((1 - t) * corners[1, 0] + t * corners[1, 1])
