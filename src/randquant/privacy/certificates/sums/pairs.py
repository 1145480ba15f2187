"""All pairs of inputs at once, on a grid: the curvature of a sum, from its laws at the vertices.

Derivation and rounding: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numba
import numpy as np

from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.sums.rounding import slack
from randquant.privacy.divergence import UNIT

FINER = 16
"""Boxes of the grid are cut into so many parts, each way, where curvature is interpolated."""

LOOSE = 2.0**-6
"""Boxes whose bound is no more than this share above what pairs of points have are not cut."""

REACH, TERMS = 32.0, 9
"""Where |r - 1|(order + 1) is at most 1/REACH, G(r) is summed as a series of so many terms."""

LEAST_PARTS, MOST_PARTS = 8, 2048
"""Parts between the ends of the inputs: at first, about, and at most."""

NEAR = 8
"""Points more parts apart are bounded by their moments alone."""

WORK, CHEAP, SOME = 8e8, 1.2e8, 8
"""Curvatures of one outcome that may be computed, about: for all laws of a sum, and for a single
one; and of how many laws one is looked at to see where a grid must be finer."""

Values = tuple[np.ndarray, np.ndarray]
"""Of pairs of points: curvature of the cells between them, one pair after the other; moments less
1, over order - 1."""


class PairGrid:
    """Points from end to end of the inputs, all vertices among them, and pairs of them.

    Attributes:
        counts: (V - 1,) into how many parts each cell is cut.
        boxes: (P, P), which pairs of parts are looked at.
        first, second: (N,) the points of each pair, corners of those boxes.
    """

    def __init__(self, inputs: np.ndarray, order: float, counts: np.ndarray, boxes: np.ndarray):
        """A grid of some boxes.

        Args:
            inputs: (V,) vertices.
            order: in (1, inf).
            counts, boxes: see above; powers of two, so that positions in a cell are exact.
        """
        self.inputs, self.order, self.counts, self.boxes = inputs, order, counts, boxes
        self.cells = np.repeat(np.arange(len(counts)), counts)
        self.positions = np.concatenate([*[np.arange(n) / n for n in counts.tolist()], [1.0]])
        self.widths = np.repeat(np.diff(inputs) / counts, counts)
        corners = np.zeros((len(self.positions),) * 2, dtype=bool)
        for i in (0, 1):
            for j in (0, 1):
                rows, columns = slice(i, i + len(boxes)), slice(j, j + len(boxes))
                corners[rows, columns] |= boxes
        self.first, self.second = np.nonzero(corners)
        self._index = np.full(corners.shape, -1)
        self._index[corners] = np.arange(len(self.first))
        # Cells between two points, or beside them.
        last = len(self.cells) - 1
        left, right = np.minimum(self.first, self.second), np.maximum(self.first, self.second)
        self._low = self.cells[np.maximum(left - 1, 0)]
        several = self.cells[np.minimum(right, last)] - self._low + 1
        # Far pairs have none: theory/vector-sums.md, Proposition 18.
        several[right - left > NEAR] = 0
        self._start = np.append(0, np.cumsum(several))

    @classmethod
    def whole(cls, inputs: np.ndarray, order: float) -> PairGrid:
        """All pairs, coarsely."""
        reach = float(inputs[-1] - inputs[0])
        parts = np.maximum(LEAST_PARTS * np.diff(inputs) / reach, 1.0)
        counts = 2 ** np.log2(parts).round().astype(int)
        return cls(inputs, order, counts, np.ones((counts.sum(),) * 2, dtype=bool))

    def only(self, boxes: np.ndarray) -> PairGrid:
        """Some boxes only."""
        return PairGrid(self.inputs, self.order, self.counts, boxes)

    def finer(self, boxes: np.ndarray) -> PairGrid:
        """Some boxes only, and their parts cut in half."""
        # Powers of two stay such, and every part lies in one of the grid before.
        touched = np.unique(self.cells[boxes.any(axis=0) | boxes.any(axis=1)])
        counts = self.counts.copy()
        counts[touched] *= 2
        times = (counts // self.counts)[self.cells]
        return PairGrid(
            self.inputs, self.order, counts, np.repeat(np.repeat(boxes, times, 0), times, 1)
        )

    @property
    def work(self) -> int:
        """How many curvatures of one outcome there are."""
        return int(self._start[-1]) + 2 * len(self.first)

    def turned(self, values: Values) -> Values:
        """Values of the mirrored pairs, cells mirrored too; inputs and boxes must be symmetric."""
        last = len(self.cells)
        mirror = self._index[last - self.first, last - self.second]
        size = np.diff(self._start)
        # theory/vector-sums.md, Proposition 19: from the last cell of the mirrored pair backwards.
        ends = np.repeat(self._start[1:][mirror] - 1 + self._start[:-1], size)
        return values[0][ends - np.arange(self._start[-1])], values[1][mirror]

    def evaluate(self, lines: CellLines, loss: float) -> Values:
        """Values of all pairs of points.

        Args:
            lines: laws of all outcomes at the vertices.
            loss: at least the log of the largest ratio of two laws at one outcome.

        Returns:
            Both rounded up. What `lines` leaves out of a curvature is not in it.
        """
        order, used = self.order, np.unique([self.first, self.second])
        at = np.append(self.cells, self.cells[-1])[used]
        part = self.positions[used, None]
        # theory/vector.md, Proposition 10: a mix with positive parts.
        rows = (1 - part) * lines.weights[at] + part * lines.weights[at + 1]
        curvature, moments = np.zeros(self._start[-1]), np.zeros(len(self.first))
        laws, steep = np.ascontiguousarray(rows.T), np.ascontiguousarray(lines.slopes().T)
        pairs = np.searchsorted(used, self.first), np.searchsorted(used, self.second)
        _curvatures(
            laws, steep, *pairs, self._low, self._start, order, lines.error, curvature, moments
        )
        # theory/vector-sums.md, Proposition 18: `slack` of each term, what powers cost beside,
        # and a sum of so many.
        raised = 1 + slack(lines.error, loss, order) + (rows.shape[1] + 64) * UNIT
        raised += 4000 * (order + 1) * (20 * loss + 6) * UNIT * max(1, 1 / (order - 1))
        if 2 < order < 3:  # the one case that is not convex in p: theory/vector.md, Proposition 4
            part = np.diff(np.log(rows), axis=0)[np.diff(used) == 1]
            spread = float(np.abs(part).max(initial=0.0)) + 4 * lines.error
            bent = math.cosh(spread / 2 * (1 + 64 * UNIT)) ** (2 * (order - 2))
            curvature *= bent * (1 + 512 * UNIT)
        # theory/vector-sums.md, Proposition 10: what is left out of a moment.
        return curvature * raised, moments * raised + 1.1 * lines.missing / (order - 1)

    def bounds(self, values: Values) -> np.ndarray:
        """(P, P): at least the divergence over squared distance of all pairs in a box, or 0."""
        found = _bounds(
            *values, self._index, self._start, self._low, self.boxes, self.widths, self.cells,
            self.order,
        )  # fmt: skip
        # theory/vector-sums.md, Proposition 23: powers and their inverse.
        return found * (1 + (2**13 + 16 * self.order) * UNIT)

    def attained(self, values: Values) -> float:
        """About the largest that pairs of points have: no bound from these values is below it."""
        curvature, moments = values
        at = self.inputs[0] + np.append(0.0, np.cumsum(self.widths))
        square = (at[self.first] - at[self.second]) ** 2
        apart = square > 0
        far = np.log1p((self.order - 1) * moments[apart]) / ((self.order - 1) * square[apart])
        same = np.repeat(~apart, np.diff(self._start))
        return float(max(far.max(initial=0.0), curvature[same].max(initial=0.0)))


def refined(
    inputs: np.ndarray,
    order: float,
    evaluate: Callable[[PairGrid, int], Values],
    attained: float,
    outcomes: float,
    mirrored: bool = False,
    most: float = WORK,
) -> float:
    """Bound divergence over squared distance, on a grid that is cut finer where that decides.

    Args:
        inputs: (V,) vertices.
        order: in (1, inf).
        evaluate: values of a grid's pairs of points, as `PairGrid.evaluate`; about those, of every
            so many laws, where its second argument is not 1.
        attained: at most the bound.
        outcomes: how many there are, in all that is evaluated.
        mirrored: whether `evaluate` wants grids that are their own mirror images.
        most: curvatures of one outcome that may be computed, about.

    Returns:
        An upper bound; what `evaluate` leaves out of a curvature is not in it.
    """
    grid, settled, goal, work = PairGrid.whole(inputs, order), 0.0, 0.0, 0.0
    while True:
        # Where to cut is judged by some of the laws, which bounds nothing.
        values = evaluate(grid, SOME)
        goal = max(goal, (1 + LOOSE) * max(attained, grid.attained(values)))
        loose = ~(grid.bounds(values) <= goal) & grid.boxes
        loose |= loose[::-1, ::-1] & mirrored
        finer = grid.finer(loose)
        last = work + finer.work * outcomes > most or len(finer.cells) > MOST_PARTS
        # theory/vector-sums.md, Proposition 23: every pair is in a box that counts.
        rest = grid.only(grid.boxes if last else grid.boxes & ~loose)
        work += rest.work * outcomes
        values = evaluate(rest, 1)
        if not all(np.isfinite(some).all() for some in values):
            return math.inf
        bounds = rest.bounds(values)
        if last:
            return max(settled, float(bounds.max()))
        # Of all laws some may be worse than was judged: boxes that are cut once more.
        more = bounds > goal * (1 + LOOSE)
        settled = max(settled, float(bounds.max(where=~more, initial=0.0)))
        loose |= more | more[::-1, ::-1] & mirrored
        if not loose.any():
            return settled
        grid = grid.finer(loose)


def all_pairs(lines: CellLines, order: float, loss: float) -> float:
    """Bound divergence over squared distance for all pairs of inputs.

    Args:
        lines: laws of all outcomes at the vertices.
        order: in (1, inf).
        loss: at least the log of the largest ratio of two laws at one outcome.

    Returns:
        An upper bound; what `lines` leaves out of a curvature is not in it.
    """

    def evaluate(grid: PairGrid, _: int) -> Values:
        return grid.evaluate(lines, loss)

    close, outcomes = lines.close(order), lines.weights.shape[1]
    return refined(lines.inputs, order, evaluate, close, outcomes, most=CHEAP)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _curvatures(rows, steep, first, second, low, start, order, error, out, moments):
    """Add up slope_k^2 C(p_i, p_j) over outcomes, for cells k between points i and j, or beside.

    Args:
        rows: (L, T) probabilities at the points.
        steep: (L, V - 1) slopes, rounded up.
        first, second, low: (N,) i, j and the first of their cells.
        start: (N + 1,) where the cells of each pair begin in `out`.
        error: relative, of the probabilities.
        out: filled with zeros.
        moments: (N,), filled with zeros: gets the sums of (p_i - p_j)^2 C(p_i, p_j).
    """
    reach, above, count = 1.0 / (REACH * (order + 1.0)), order - 1.0, rows.shape[1]
    powers, inverse = np.empty(count), np.empty(count)
    factors = (order - 2.0 - np.arange(TERMS)) / (np.arange(TERMS) + 3.0)
    for z in range(rows.shape[0]):
        for i in range(count):
            inverse[i] = 1.0 / rows[z, i]
            powers[i] = above * math.log(rows[z, i] * (1.0 / rows[z, 0]))
        grown, fallen = np.exp(powers), np.exp(-powers)
        for pair in range(first.shape[0]):
            i, j = first[pair], second[pair]
            p, q = rows[z, i], rows[z, j]
            ratio = p * inverse[j]
            z1 = ratio - 1.0
            # theory/vector-sums.md, Proposition 18.
            if abs(z1) <= reach:
                g = 1.0
                for k in range(TERMS - 1, -1, -1):
                    g = 1.0 + factors[k] * z1 * g
                g *= 0.5 * order
            elif order >= 2.0:
                g = (ratio * (grown[i] * fallen[j] - 1.0) / above - z1) / (z1 * z1)
            else:
                g = (ratio * math.expm1(powers[i] - powers[j]) / above - z1) / (z1 * z1)
            # theory/vector-sums.md, Propositions 9 and 11: raised; of rare outcomes neither
            # squares underflow nor quotients overflow.
            change = abs(p - q) + (2.5 * error + 2.0**-50) * max(p, q)
            moments[pair] += change * inverse[j] * g * change
            begin, shift = start[pair], low[pair] - start[pair]
            for at in range(begin, start[pair + 1]):
                slope = steep[z, at + shift]
                out[at] += slope * inverse[j] * g * slope


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _bounds(curvature, moments, index, start, low, boxes, widths, cells, order):
    """The bound of divergence over squared distance of each box."""
    parts, above = len(cells), order - 1.0
    # theory/vector-sums.md, Proposition 23: powers of S and M that are convex in either input.
    powers = 1.0 / max(order - 2.0, 1.0), 1.0 / max(above, 1.0)
    found, steep, grown = np.zeros((parts, parts)), np.zeros((2, 2)), np.zeros((2, 2))
    for a in range(parts):
        for b in range(parts):
            if not boxes[a, b]:
                continue
            left, right = min(a, b), max(a, b)
            close = True
            for i in range(2):
                for j in range(2):
                    pair = index[a + i, b + j]
                    grown[i, j] = math.expm1(powers[1] * math.log1p(above * moments[pair]))
                    close &= start[pair] < start[pair + 1]
                    at = start[pair] - low[pair]
                    if close:
                        steep[i, j] = _steepest(curvature, at, left, right, widths, cells)
            between = widths[left + 1 : right].sum()
            found[a, b] = _inside(
                steep ** powers[0],
                grown,
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
