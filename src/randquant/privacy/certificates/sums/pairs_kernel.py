"""Compiled: curvature and moments of pairs of points of a grid, and the bounds of its boxes.

Derivation and rounding: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import math

import numba
import numpy as np

FINER = 16
"""Boxes of the grid are cut into so many parts, each way, where curvature is interpolated."""

RARE = 90.0
"""Terms that are e to this below the largest are left out, and counted."""

REACH, TERMS = 32.0, 9
"""Where |r - 1|(order + 1) is at most 1/REACH, G(r) is summed as a series of so many terms."""


@numba.njit(nogil=True, cache=True, error_model="numpy")
def curvatures(rows, grown, steep, first, second, low, start, order, error, out, moments):
    """Sums of slope_k^2 C(p_i, p_j) over outcomes, for cells k between points i and j, or beside.

    Args:
        rows: (P, L) probabilities at the points.
        grown: (P, L) powers order - 1 of them, over those of one point.
        steep: (V - 1, L) slopes, rounded up.
        first, second, low: (N,) i, j and the first of their cells.
        start: (N + 1,) where the cells of each pair begin in `out`.
        error: relative, of the probabilities.
        out: gets the sums.
        moments: (N,), gets the sums of (p_i - p_j)^2 C(p_i, p_j); (0,) where they are not wanted.
    """
    inverse, fallen = 1.0 / rows, 1.0 / grown
    growth, terms = np.empty(rows.shape[1]), np.empty(rows.shape[1])
    for pair in range(first.shape[0]):
        i, j = first[pair], second[pair]
        p, q, over = rows[i], rows[j], inverse[j]
        _grow(p, over, grown[i], fallen[j], order, growth)
        if moments.shape[0]:
            # theory/vector-sums.md, Propositions 9 and 11: raised; of rare outcomes neither
            # squares underflow nor quotients overflow.
            for z in range(terms.shape[0]):
                change = abs(p[z] - q[z]) + (2.5 * error + 2.0**-50) * max(p[z], q[z])
                terms[z] = change * over[z] * growth[z] * change
            moments[pair] = _total(terms)
        for at in range(start[pair], start[pair + 1]):
            slope = steep[low[pair] + at - start[pair]]
            for z in range(terms.shape[0]):
                terms[z] = slope[z] * over[z] * growth[z] * slope[z]
            out[at] = _total(terms)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _grow(p, over, grown, fallen, order, out):
    """G of p/q, outcome by outcome; without a branch, so that processors take several at once."""
    reach, above = 1.0 / (REACH * (order + 1.0)), order - 1.0
    factors = (order - 2.0 - np.arange(TERMS)) / (np.arange(TERMS) + 3.0)
    for z in range(out.shape[0]):
        ratio = p[z] * over[z]
        z1 = ratio - 1.0
        # theory/vector-sums.md, Proposition 18.
        series = 1.0
        for k in range(TERMS - 1, -1, -1):
            series = 1.0 + factors[k] * z1 * series
        wide = (ratio * (grown[z] * fallen[z] - 1.0) / above - z1) / (z1 * z1)
        out[z] = 0.5 * order * series if abs(z1) <= reach else wide


@numba.njit(nogil=True, cache=True, error_model="numpy")
def scaled_curvatures(
    rows, logs, scale, most, steep, first, second, low, start, order, error, out, excess
):
    """As `curvatures`, of probabilities rows·e^scale, however small, and of any ratio.

    Args:
        rows, logs: (P, L), and their logarithms; within the range of floats.
        scale: (L,) of each outcome.
        most: (L,) the logarithm of at least the square of slopes, and 1, over a row.
        steep: (V - 1, L) slopes of `rows`, rounded up.
        first, second, low, start, order, error: as there.
        out: gets the sums; infinite where they are beyond floats.
        excess: (N,), gets the logarithms of moments less 1.
    """
    above, length = order - 1.0, rows.shape[1]
    reach = 1.0 / (REACH * (order + 1.0))
    factors = (order - 2.0 - np.arange(TERMS)) / (np.arange(TERMS) + 3.0)
    mass, inverse = np.exp(scale), 1.0 / rows
    powers, growth, terms = np.empty(length), np.empty(length), np.empty(length)
    rest = 4.0 * length * (order + 1.0 / above) / reach**2 * math.exp(-RARE)
    for pair in range(first.shape[0]):
        i, j = first[pair], second[pair]
        p, q, over, top = rows[i], rows[j], inverse[j], 0.0
        for z in range(length):
            powers[z] = above * (logs[i, z] - logs[j, z]) + scale[z]
            top = max(top, powers[z])
        # theory/vector-sums.md, Proposition 24: outcomes that count, in between.
        begin, end = 0, length
        while begin < end and max(powers[begin], scale[begin]) + most[begin] < top - RARE:
            begin += 1
        while begin < end and max(powers[end - 1], scale[end - 1]) + most[end - 1] < top - RARE:
            end -= 1
        # The same Proposition: all over e^top, so that nothing overflows.
        shrunk = math.exp(-top)
        for z in range(begin, end):
            ratio, weight = p[z] * over[z], mass[z] * shrunk
            z1 = ratio - 1.0
            if abs(z1) <= reach:
                series = 1.0
                for k in range(TERMS - 1, -1, -1):
                    series = 1.0 + factors[k] * z1 * series
                growth[z] = 0.5 * order * series * weight
            else:
                grown = ratio * (math.exp(powers[z] - top) - weight) / above - z1 * weight
                growth[z] = max(grown, 0.0) / (z1 * z1)
            # As in `curvatures`.
            change = abs(p[z] - q[z]) + (2.5 * error + 2.0**-50) * max(p[z], q[z])
            terms[z] = change * over[z] * growth[z] * change
        excess[pair] = math.log(above * (_total(terms[begin:end]) + rest)) + top
        for at in range(start[pair], start[pair + 1]):
            slope = steep[low[pair] + at - start[pair]]
            for z in range(begin, end):
                terms[z] = slope[z] * over[z] * growth[z] * slope[z]
            out[at] = (_total(terms[begin:end]) + rest) / shrunk


@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "nsz"})
def _total(terms):
    # A sum of positive terms: in whatever order, it costs one unit a term.
    total = 0.0
    for z in range(terms.shape[0]):
        total += terms[z]
    return total


@numba.njit(nogil=True, cache=True, error_model="numpy")
def bounds_of_boxes(curvature, grown, index, start, low, boxes, widths, cells, order):
    """The bound of divergence over squared distance of each box.

    Args:
        curvature: of the cells between, or beside, the points of each pair; infinite if unknown.
        grown: (N,) convex powers of moments, less 1; finite.
        index, start, low, boxes, widths, cells: of the grid.
    """
    parts, above = len(cells), order - 1.0
    # theory/vector-sums.md, Proposition 23: powers of S and M that are convex in either input.
    powers = 1.0 / max(order - 2.0, 1.0), 1.0 / max(above, 1.0)
    found, steep, corners = np.zeros((parts, parts)), np.zeros((2, 2)), np.zeros((2, 2))
    for a in range(parts):
        for b in range(parts):
            if not boxes[a, b]:
                continue
            left, right = min(a, b), max(a, b)
            close = True
            for i in range(2):
                for j in range(2):
                    pair = index[a + i, b + j]
                    corners[i, j] = grown[pair]
                    close &= start[pair] < start[pair + 1]
                    at = start[pair] - low[pair]
                    if close:
                        steep[i, j] = _steepest(curvature, at, left, right, widths, cells)
                        close &= steep[i, j] < math.inf
            # Widths add up, where a difference of positions would cancel.
            between = widths[left + 1 : right].sum()
            found[a, b] = _inside(
                steep ** powers[0],
                corners,
                close,
                a - b,
                between,
                widths[a],
                widths[b],
                powers,
                above,
            )
    return found


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _inside(steep, grown, close, ahead, between, first, second, powers, above):
    """The largest bound in one box.

    Args:
        steep, grown: (2, 2) at its corners: powers of curvature, and of moments, less 1.
        close: whether curvature is known.
        ahead: by how many parts x is ahead of x'.
        between: the way between their parts.
        first, second: widths of the parts of x and x'.
        powers: which powers.
        above: order - 1.
    """
    best = 0.0
    for i in range(FINER):
        for j in range(FINER):
            # theory/vector-sums.md, Proposition 23: both are at most the bilinear mix of corners.
            most, apart = 0.0, 0.0
            for k in range(2):
                for m in range(2):
                    s, t = (i + k) / FINER, (j + m) / FINER
                    most, apart = max(most, _mix(steep, s, t)), max(apart, _mix(grown, s, t))
            if ahead < 0:
                near = between + first * ((FINER - 1 - i) / FINER) + second * (j / FINER)
            elif ahead > 0:
                near = between + first * (i / FINER) + second * ((FINER - 1 - j) / FINER)
            else:
                near = first * (max(abs(i - j) - 1, 0) / FINER)
            # The way is a sum of positive parts: within T + 8 units; a shorter one gives more.
            near *= 1 - 2.0**-40
            scale, bound = above * near * near, math.inf
            if close:
                bound = most ** (1.0 / powers[0])
                if scale * bound > 1e-9:
                    bound = math.log1p(scale * bound) / scale
            if ahead != 0 and scale > 0.0:
                bound = min(bound, math.log1p(apart) / powers[1] / scale)
            best = max(best, bound)
    return best


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _steepest(curvature, at, left, right, widths, cells):
    """The mean of the curvature of cells, at most, over a way between parts `left` and `right`."""
    # theory/vector-sums.md, Proposition 18: the mean over the way, at each corner's curvatures, is
    # largest where the way ends at a corner, from the near or far side of either part.
    most = 0.0
    for near in range(2):
        for far in range(2):
            begin, end = left + near, right + far
            if left == right:
                begin, end = left, left + 1
            way, total = 0.0, 0.0
            for part in range(begin, end):
                way += widths[part]
                total += widths[part] * curvature[at + cells[part]]
            if way > 0.0:
                most = max(most, total / way)
    return most


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _mix(corners, s, t):
    low = (1 - t) * corners[0, 0] + t * corners[0, 1]
    return (1 - s) * low + s * ((1 - t) * corners[1, 0] + t * corners[1, 1])
