"""All pairs of inputs at once, on a grid: the curvature of a sum, from its laws at the vertices.

Derivation and rounding: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.sums.rounding import slack
from randquant.privacy.divergence import UNIT

FINER = 8
"""Boxes of the grid are cut into so many parts, each way, where curvature is interpolated."""

LOOSE = 2.0**-6
"""How far the cut of the grid may put a bound above the best pair, about."""

REACH, TERMS = 32.0, 9
"""Where |r - 1|(order + 1) is at most 1/REACH, G(r) is summed as a series of so many terms."""

LEAST_PARTS, FEW_PARTS, MOST_PARTS = 6, 20, 96
"""Parts between the ends of the inputs: at least, at least where it can be afforded, at most."""

MANY, NEAR, FAR = 16, 24, 1e280
"""Of more than MANY cells, points more than NEAR parts apart are bounded by their moments alone:
curvature, which each cell between them would have, is set to FAR."""

CHEAP, WORK = 1.2e7, 1.2e8
"""Curvatures of one outcome that may be computed: for a finer grid than need be, and at most."""


class PairGrid:
    """Points from end to end of the inputs, all vertices among them, and every pair of them.

    Attributes:
        parts: how many parts there are between the points.
    """

    def __init__(self, inputs: np.ndarray, order: float, curvature: float, outcomes: float):
        """A grid that is as fine as it must be, and as can be afforded.

        Args:
            inputs: (V,) vertices.
            order: in (1, inf).
            curvature: about what will be found.
            outcomes: how many there are, in all that is evaluated.
        """
        self.inputs, self.order = inputs, order
        reach = float(inputs[-1] - inputs[0])
        # How fine it is decides how tight the bound is, not whether it holds: a first step loses a
        # quarter of (order - 1)·S·h^2 over parts^2, relatively, far pairs more.
        parts = math.sqrt((order - 1) * curvature * reach**2 / (2 * LOOSE))
        parts = min(max(parts, FEW_PARTS, math.sqrt(CHEAP / outcomes)), MOST_PARTS)
        parts = min(parts, max(math.sqrt(WORK / outcomes), LEAST_PARTS))
        # A power of two: positions in a cell are exact.
        counts = [
            2 ** max(round(math.log2(max(parts * width / reach, 1.0))), 0)
            for width in np.diff(inputs).tolist()
        ]
        self.cells = np.repeat(np.arange(len(counts)), counts)
        self.positions = np.concatenate([*[np.arange(n) / n for n in counts], [1.0]])
        self.widths = np.repeat(np.diff(inputs) / counts, counts)
        self.parts = len(self.cells)

    def evaluate(self, lines: CellLines, loss: float) -> tuple[np.ndarray, np.ndarray]:
        """Curvature of each cell at each pair of points, and their moments less 1, over order - 1.

        Args:
            lines: laws of all outcomes at the vertices.
            loss: at least the log of the largest ratio of two laws at one outcome.

        Returns:
            (T, T, V - 1) and (T, T), rounded up; cells that are not between two points are left
            out. What `lines` leaves out of a curvature is not in it.
        """
        order, at = self.order, np.append(self.cells, self.cells[-1])
        part = self.positions[:, None]
        # theory/vector.md, Proposition 10: a mix with positive parts.
        rows = (1 - part) * lines.weights[at] + part * lines.weights[at + 1]
        found = np.zeros((len(at), len(lines.inputs) - 1, len(at)))
        pairs = np.zeros((len(at), len(at)))
        laws, steep = np.ascontiguousarray(rows.T), np.ascontiguousarray(lines.slopes().T)
        places = np.arange(len(at))
        near = NEAR if len(lines.inputs) > MANY + 1 else len(at)
        _curvatures(laws, steep, self.cells, order, lines.error, near, found, pairs)
        curvature, moments = np.ascontiguousarray(found.transpose(2, 0, 1)), pairs.T
        curvature[np.abs(places[:, None] - places) > near] = FAR
        # theory/vector-sums.md, Proposition 18: `slack` of each term, what powers cost beside,
        # and a sum of so many.
        raised = 1 + slack(lines.error, loss, order) + (rows.shape[1] + 64) * UNIT
        raised += 4000 * (order + 1) * (20 * loss + 6) * UNIT * max(1, 1 / (order - 1))
        if 2 < order < 3:  # the one case that is not convex in p: theory/vector.md, Proposition 4
            spread = float(np.abs(np.diff(np.log(rows), axis=0)).max()) + 4 * lines.error
            bent = math.cosh(spread / 2 * (1 + 64 * UNIT)) ** (2 * (order - 2))
            curvature *= bent * (1 + 512 * UNIT)
        # theory/vector-sums.md, Proposition 10: what is left out of a moment.
        return curvature * raised, moments * raised + 1.1 * lines.missing / (order - 1)

    def bound(self, curvature: np.ndarray, moments: np.ndarray) -> float:
        """At least the divergence over squared distance of any pair of inputs."""
        found = _largest(curvature, moments, self.widths, self.cells, self.order - 1)
        return float(found) * (1 + 128 * UNIT)


def all_pairs(lines: CellLines, order: float, loss: float) -> float:
    """Bound divergence over squared distance for all pairs of inputs.

    Args:
        lines: laws of all outcomes at the vertices.
        order: in (1, inf).
        loss: at least the log of the largest ratio of two laws at one outcome.

    Returns:
        An upper bound; what `lines` leaves out of a curvature is not in it.
    """
    grid = PairGrid(lines.inputs, order, lines.close(order), lines.weights.shape[1])
    return grid.bound(*grid.evaluate(lines, loss))


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _curvatures(rows, steep, cells, order, error, near, out, moments):
    """Add up slope_k^2 C(p_i, p_j) over outcomes, for cells k between points i and j, or beside.

    Args:
        rows: (L, T) probabilities at the points.
        steep: (L, V - 1) slopes, rounded up.
        cells: (T - 1,) the cell of each part.
        error: relative, of the probabilities.
        near: points more parts apart are left out of `out`.
        out: (T, V - 1, T), filled with zeros; j comes first and i last.
        moments: (T, T), filled with zeros: gets the sums of (p_i - p_j)^2 C(p_i, p_j), j first.
    """
    above, count, wide = order - 1.0, rows.shape[1], steep.shape[1]
    powers, inverse, g = np.empty(count), np.empty(count), np.empty(count)
    # Which points at the left of a cell or at its ends, or at the right: others lie beyond it.
    least = np.array([np.searchsorted(cells, k) for k in range(wide)])
    most = np.array([np.searchsorted(cells, k, side="right") for k in range(wide)])
    for z in range(rows.shape[0]):
        for i in range(count):
            inverse[i] = 1.0 / rows[z, i]
            powers[i] = above * math.log(rows[z, i] * (1.0 / rows[z, 0]))
        grown, fallen = np.exp(powers), np.exp(-powers)
        for j in range(count):
            _weights(rows[z], inverse[j], grown, fallen[j], powers, powers[j], order, g)
            # Over points side by side, which takes the processor half as long as over cells.
            here = rows[z, j]
            for i in range(count):
                change = abs(rows[z, i] - here)
                change += (2.5 * error + 2.0**-50) * max(rows[z, i], here)
                # Raised as in theory/vector-sums.md, Proposition 9; squares could underflow.
                moments[j, i] += change * g[i] * change
            for k in range(wide):
                first = max(0 if least[k] <= j else least[k], j - near)
                last = min(count - 1 if j <= most[k] else most[k], j + near)
                for i in range(first, last + 1):
                    out[j, k, i] += steep[z, k] * g[i] * steep[z, k]


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _weights(row, inverse, grown, fallen, powers, power, order, g):
    """Fill g with C(p_i, p_j) for all i, j being the point of `inverse`, `fallen` and `power`."""
    reach, above = 1.0 / (REACH * (order + 1.0)), order - 1.0
    for i in range(len(row)):
        ratio = row[i] * inverse
        z1 = ratio - 1.0
        # theory/vector-sums.md, Proposition 18. Both ways for each, where both are cheap.
        close = 1.0
        for k in range(TERMS - 1, -1, -1):
            close = 1.0 + (order - (2.0 + k)) / (k + 3.0) * z1 * close
        close *= 0.5 * order
        far = close
        if order >= 2.0:
            far = (ratio * (grown[i] * fallen - 1.0) / above - z1) / (z1 * z1)
        elif abs(z1) > reach:
            far = (ratio * math.expm1(powers[i] - power) / above - z1) / (z1 * z1)
        g[i] = (close if abs(z1) <= reach else far) * inverse


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _largest(curvature, moments, widths, cells, above):
    """The largest bound of divergence over squared distance, over all boxes of the grid."""
    # theory/vector-sums.md, Proposition 18: the mean over the way, at each corner's curvatures, is
    # largest where the way ends at a corner.
    parts, best = len(cells), 0.0
    mixed = np.zeros((2, 2))
    for a in range(parts):
        for b in range(parts):
            low, high = min(a, b), max(a, b)
            mixed[:] = 0.0
            for i in range(2):
                for j in range(2):
                    for near in range(2):
                        for far in range(2):
                            # Inputs from the box's near or far side: the way between them.
                            begin, end = low + near, high + far
                            if low == high:
                                begin, end = low, low + 1
                            way, total = 0.0, 0.0
                            for p in range(begin, end):
                                way += widths[p]
                                total += widths[p] * curvature[a + i, b + j, cells[p]]
                            if way > 0.0:
                                mixed[i, j] = max(mixed[i, j], total / way)
            corners = moments[a : a + 2, b : b + 2]
            between = widths[low + 1 : high].sum()
            best = max(best, _inside(mixed, corners, a - b, between, widths[a], widths[b], above))
    return best


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _inside(mixed, corners, ahead, between, first, second, above):
    """The largest bound in one box.

    Args:
        mixed, corners: (2, 2) curvature and moments at its corners.
        ahead: by how many parts x is ahead of x'.
        between: the way between their parts.
        first, second: widths of the parts of x and x'.
        above: order - 1.
    """
    # theory/vector-sums.md, Proposition 18: both are at most the bilinear mix of the corners.
    best = 0.0
    for i in range(FINER):
        for j in range(FINER):
            steep, moment = 0.0, 0.0
            for k in range(2):
                for m in range(2):
                    s, t = (i + k) / FINER, (j + m) / FINER
                    steep = max(steep, _mix(mixed, s, t))
                    moment = max(moment, _mix(corners, s, t))
            if ahead < 0:
                near = between + first * ((FINER - 1 - i) / FINER) + second * (j / FINER)
            elif ahead > 0:
                near = between + first * (i / FINER) + second * ((FINER - 1 - j) / FINER)
            else:
                near = first * (max(abs(i - j) - 1, 0) / FINER)
            # The way is a sum of positive parts: within T + 8 units; a shorter one gives more.
            near *= 1 - 2.0**-40
            scale = above * near * near
            if near > 0.0 and scale * steep > 1e-9:
                # Two bounds of M - 1 over order - 1.
                least = min(steep * near * near, moment) if ahead != 0 else steep * near * near
                best = max(best, math.log1p(above * least) / scale)
            else:
                best = max(best, steep)
    return best


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _mix(corners, s, t):
    low = (1 - t) * corners[0, 0] + t * corners[0, 1]
    return (1 - s) * low + s * ((1 - t) * corners[1, 0] + t * corners[1, 1])
