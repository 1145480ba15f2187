"""All pairs of inputs at once, on a grid: the curvature of a sum, from its laws at the vertices.

Derivation and rounding: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.sums.pairs_kernel import bounds_of_boxes, curvatures
from randquant.privacy.certificates.sums.rounding import slack, spent
from randquant.privacy.divergence import UNIT

LOOSE = 2.0**-6
"""Boxes whose bound is no more than this share above what pairs of points have are not cut."""

LEAST_PARTS, MOST_PARTS = 8, 2048
"""Parts between the ends of the inputs: at first, about, and at most."""

NEAR = 8
"""Points more parts apart are bounded by their moments alone."""

WORK, CHEAP, SOME = 8e8, 1.2e8, 8
"""Curvatures of one outcome that may be computed, about: for all laws of a sum, and for a single
one; and of how many laws one is looked at to see where a grid must be finer."""

Values = tuple[np.ndarray, np.ndarray]
"""Of pairs of points: curvature of the cells between them, one pair after the other; moments less
1, over order - 1, or logarithms of moments."""


class PairGrid:
    """Points from end to end of the inputs, all vertices among them, and pairs of them.

    Attributes:
        counts: (V - 1,) into how many parts each cell is cut.
        boxes: (P, P), which pairs of parts are looked at.
        first, second: (N,) the points of each pair, corners of those boxes.
        used: (M,) all of these points, rising.
        pairs: where in `used` the points of each pair are.
        low, start: (N,), (N + 1,) the first of the cells between or beside the points of each
            pair, and where these begin in an array of all.
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
        self.used = np.unique([self.first, self.second])
        self.pairs = (
            np.searchsorted(self.used, self.first), np.searchsorted(self.used, self.second),
        )  # fmt: skip
        self._index = np.full(corners.shape, -1)
        self._index[corners] = np.arange(len(self.first))
        # Cells between two points, or beside them.
        last = len(self.cells) - 1
        left, right = np.minimum(self.first, self.second), np.maximum(self.first, self.second)
        self.low = self.cells[np.maximum(left - 1, 0)]
        several = self.cells[np.minimum(right, last)] - self.low + 1
        # Far pairs have none: theory/vector-sums.md, Proposition 18.
        several[right - left > NEAR] = 0
        self.start = np.append(0, np.cumsum(several))

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
        return int(self.start[-1]) + 2 * len(self.first)

    def turned(self, values: Values) -> Values:
        """Values of the mirrored pairs, cells mirrored too; inputs and boxes must be symmetric."""
        last = len(self.cells)
        mirror = self._index[last - self.first, last - self.second]
        size = np.diff(self.start)
        # theory/vector-sums.md, Proposition 19: from the last cell of the mirrored pair backwards.
        ends = np.repeat(self.start[1:][mirror] - 1 + self.start[:-1], size)
        return values[0][ends - np.arange(self.start[-1])], values[1][mirror]

    def rows(self, weights: np.ndarray) -> np.ndarray:
        """Laws at the points that are in some pair, from those at the vertices."""
        at = np.append(self.cells, self.cells[-1])[self.used]
        part = self.positions[self.used, None]
        # theory/vector.md, Proposition 10: a mix with positive parts.
        return (1 - part) * weights[at] + part * weights[at + 1]

    def evaluate(self, lines: CellLines, loss: float) -> Values:
        """Values of all pairs of points, not in logarithms.

        Args:
            lines: laws of all outcomes at the vertices.
            loss: at least the log of the largest ratio of two laws at one outcome.

        Returns:
            Both rounded up. What `lines` leaves out of a curvature is not in it.
        """
        if not len(self.first):
            return np.zeros(0), np.zeros(0)
        order, rows = self.order, self.rows(lines.weights)
        # Powers of ratios are quotients of these: logarithms for each point, none for each pair.
        grown = np.exp((order - 1) * np.log(rows / rows[0]))
        curvature, moments = np.empty(self.start[-1]), np.empty(len(self.first))
        curvatures(
            rows, grown, lines.slopes(), *self.pairs, self.low, self.start, order, lines.error,
            curvature, moments,
        )  # fmt: skip
        # theory/vector-sums.md, Proposition 18.
        raised = 1 + slack(lines.error, loss, order) + spent(rows.shape[1], loss, order)
        curvature *= self.bent(rows, lines.error)
        # theory/vector-sums.md, Proposition 10: what is left out of a moment.
        return curvature * raised, moments * raised + 1.1 * lines.missing / (order - 1)

    def bent(self, rows: np.ndarray, error: float) -> float:
        """Factor of curvature between points, whose laws are known within a relative error."""
        if not 2 < self.order < 3:  # all else is convex in p: theory/vector.md, Proposition 4
            return 1.0
        part = np.diff(np.log(rows), axis=0)[np.diff(self.used) == 1]
        # Of a rare group every outcome may be left out: then nothing is bent.
        spread = float(np.abs(part).max(initial=0.0)) + 4 * error
        return math.cosh(spread / 2 * (1 + 64 * UNIT)) ** (2 * (self.order - 2)) * (1 + 512 * UNIT)

    def logged(self, values: Values) -> Values:
        """Moments in logarithms."""
        return values[0], np.log1p((self.order - 1) * values[1])

    def bounds(self, values: Values) -> np.ndarray:
        """(P, P): at least the divergence over squared distance of all pairs in a box, or 0.

        Args:
            values: moments in logarithms; infinite curvature bounds nothing.
        """
        curvature, logs = values
        # theory/vector-sums.md, Proposition 23: a power of M that is convex in either input.
        grown = np.expm1(logs / max(self.order - 1, 1.0))
        found = bounds_of_boxes(
            curvature, grown, self._index, self.start, self.low, self.boxes, self.widths,
            self.cells, self.order,
        )  # fmt: skip
        # theory/vector-sums.md, Proposition 23: powers and their inverse.
        return found * (1 + (2**13 + 16 * self.order) * UNIT)

    def attained(self, values: Values) -> float:
        """About the largest that pairs of points have: no bound from these values is below it."""
        curvature, logs = values
        at = self.inputs[0] + np.append(0.0, np.cumsum(self.widths))
        square = (at[self.first] - at[self.second]) ** 2
        apart = square > 0
        far = logs[apart] / ((self.order - 1) * square[apart])
        same = np.repeat(~apart, np.diff(self.start))
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
        attained, outcomes, mirrored, most: as in `searched`.

    Returns:
        An upper bound; what `evaluate` leaves out of a curvature is not in it.
    """

    def logged(grid: PairGrid, every: int) -> Values:
        values = evaluate(grid, every)
        # What is beyond floats bounds nothing.
        whole = all(np.isfinite(some).all() for some in values)
        return grid.logged(values) if whole else (values[0], np.full(len(values[1]), np.nan))

    return searched(PairGrid.whole(inputs, order), logged, attained, outcomes, mirrored, most)


def searched(
    grid: PairGrid,
    evaluate: Callable[[PairGrid, int], Values],
    attained: float,
    outcomes: float,
    mirrored: bool = False,
    most: float = WORK,
) -> float:
    """Bound divergence over squared distance in boxes, which are cut finer where that decides.

    Args:
        grid: the boxes.
        evaluate: values of a grid's pairs of points, moments in logarithms; of about every so many
            laws, where its second argument is not 1. Curvature may be infinite; where a moment is
            not finite, nothing is bounded.
        attained: at most the bound.
        outcomes: how many there are, in all that is evaluated.
        mirrored: whether `evaluate` wants grids that are their own mirror images.
        most: curvatures of one outcome that may be computed, about.

    Returns:
        An upper bound; what `evaluate` leaves out of a curvature is not in it.
    """
    settled, goal, work = 0.0, 0.0, 0.0
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
        if np.isnan(values[0]).any() or not np.isfinite(values[1]).all():
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
