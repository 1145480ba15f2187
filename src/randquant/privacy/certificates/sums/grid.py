"""All pairs of inputs at once, on a grid that is cut finer where that decides.

Derivation and rounding: `docs/theory/vector-sums.md`, Propositions 15 and 20.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from randquant.privacy.certificates.sums.pairs_kernel import bounds_of_boxes
from randquant.privacy.divergence import UNIT

LEAST_PARTS, MOST_PARTS = 8, 2048
"""Parts between the ends of the inputs: at first, about, and at most."""

NEAR = 8
"""Points more parts apart are bounded by their moments alone."""

SOME = 8
"""Of how many laws one is looked at to see where a grid must be finer."""

Values = tuple[np.ndarray, np.ndarray]
"""Of pairs of points: the largest curvature of the cells between them; log moments."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The way from end to end of the inputs, each of its cells cut into equal parts.

    Attributes:
        inputs: (V,) vertices.
        counts: (V - 1,) how many parts each cell has: powers of two, so that positions are exact.
        cells: (P,) the cell of each part.
        positions: (P + 1,) where in its cell each part begins; 1 at the very end.
        widths: (P,) of the parts.
    """

    inputs: np.ndarray
    counts: np.ndarray
    cells: np.ndarray
    positions: np.ndarray
    widths: np.ndarray

    @classmethod
    def of(cls, inputs: np.ndarray, counts: np.ndarray) -> Parts:
        """Cut the cells between `inputs` into so many parts."""
        cells = np.repeat(np.arange(len(counts)), counts)
        positions = np.concatenate([*[np.arange(n) / n for n in counts.tolist()], [1.0]])
        return cls(inputs, counts, cells, positions, np.repeat(np.diff(inputs) / counts, counts))


class PairGrid:
    """Points from end to end of the inputs, all vertices among them, and pairs of them.

    Attributes:
        parts: what lies between the points.
        boxes: (P, P), which pairs of parts are looked at.
        first, second: (N,) the points of each pair, corners of those boxes.
        used: (M,) all of these points, rising.
        pairs: where in `used` the points of each pair are.
        low, high: (N,) the first of the cells between or beside the points of each pair, and one
            past the last; the same for far pairs, of which no curvature is wanted.
    """

    def __init__(self, parts: Parts, order: float, boxes: np.ndarray):
        """Look at some boxes of pairs of parts; the order is in (1, inf)."""
        self.parts, self.order, self.boxes = parts, order, boxes
        corners = np.zeros((len(parts.positions),) * 2, dtype=bool)
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
        last = len(parts.cells) - 1
        left, right = np.minimum(self.first, self.second), np.maximum(self.first, self.second)
        self.low = parts.cells[np.maximum(left - 1, 0)]
        # theory/vector-sums.md, Proposition 15.
        near = right - left <= NEAR
        self.high = np.where(near, parts.cells[np.minimum(right, last)] + 1, self.low)

    @classmethod
    def whole(cls, inputs: np.ndarray, order: float) -> PairGrid:
        """All pairs, coarsely."""
        reach = float(inputs[-1] - inputs[0])
        parts = np.maximum(LEAST_PARTS * np.diff(inputs) / reach, 1.0)
        counts = 2 ** np.log2(parts).round().astype(int)
        return cls(Parts.of(inputs, counts), order, np.ones((counts.sum(),) * 2, dtype=bool))

    def only(self, boxes: np.ndarray) -> PairGrid:
        """Some boxes only."""
        return PairGrid(self.parts, self.order, boxes)

    def finer(self, boxes: np.ndarray) -> PairGrid:
        """Some boxes only, and their parts cut in half."""
        # Powers of two stay such, and every part lies in one of the grid before.
        parts = self.parts
        touched = np.unique(parts.cells[boxes.any(axis=0) | boxes.any(axis=1)])
        counts = parts.counts.copy()
        counts[touched] *= 2
        times = (counts // parts.counts)[parts.cells]
        halves = np.repeat(np.repeat(boxes, times, 0), times, 1)
        return PairGrid(Parts.of(parts.inputs, counts), self.order, halves)

    @property
    def work(self) -> int:
        """How many sums over outcomes there are."""
        return int((self.high - self.low).sum()) + 2 * len(self.first)

    def turned(self, values: np.ndarray) -> np.ndarray:
        """Values of the mirrored pairs; inputs and boxes must be symmetric."""
        last = len(self.parts.cells)
        return values[self._index[last - self.first, last - self.second]]

    def at_points(self, rows: np.ndarray) -> np.ndarray:
        """Laws at the points that are in some pair, from those at the vertices."""
        cells = self.parts.cells
        at = np.append(cells, cells[-1])[self.used]
        part = self.parts.positions[self.used, None]
        # theory/vector.md, Proposition 10: a mix with positive parts.
        return (1 - part) * rows[at] + part * rows[at + 1]

    def bent(self, rows: np.ndarray, error: float) -> float:
        """Factor of curvature between points, whose laws are known within a relative error."""
        if not 2 < self.order < 3:  # all else is convex in p: theory/vector.md, Proposition 4
            return 1.0
        part = np.diff(np.log(rows), axis=0)[np.diff(self.used) == 1]
        # Of a rare group every outcome may be left out: then nothing is bent.
        spread = float(np.abs(part).max(initial=0.0)) + 4 * error
        return math.cosh(spread / 2 * (1 + 64 * UNIT)) ** (2 * (self.order - 2)) * (1 + 512 * UNIT)

    def bounds(self, values: Values) -> np.ndarray:
        """(P, P): at least the divergence over squared distance of all pairs in a box, or 0.

        Args:
            values: infinite curvature bounds nothing.
        """
        curvature, logs = values
        a, b = np.nonzero(self.boxes)
        corners = np.stack([[self._index[a + i, b + j] for j in (0, 1)] for i in (0, 1)])
        corners = np.moveaxis(corners, -1, 0)
        steep = np.where(self.high > self.low, curvature, np.inf)[corners]
        # theory/vector-sums.md, Proposition 20: a power of M that is convex in either input.
        grown = np.expm1(logs / max(self.order - 1, 1.0))[corners]
        found = np.zeros(self.boxes.shape)
        found[a, b] = bounds_of_boxes(steep, grown, a, b, self.parts.widths, self.order)
        # The same Proposition: powers and their inverse.
        return found * (1 + (2**13 + 16 * self.order) * UNIT)

    def attained(self, values: Values) -> float:
        """About the largest that pairs of points have: no bound from these values is below it."""
        curvature, logs = values
        at = self.parts.inputs[0] + np.append(0.0, np.cumsum(self.parts.widths))
        square = (at[self.first] - at[self.second]) ** 2
        apart = square > 0
        far = logs[apart] / ((self.order - 1) * square[apart])
        return float(max(far.max(initial=0.0), curvature[~apart].max(initial=0.0)))


def searched(
    grid: PairGrid,
    evaluate: Callable[[PairGrid, int], Values],
    attained: float,
    outcomes: float,
    mirrored: bool,
    most: float,
    loose: float,
) -> float:
    """Bound divergence over squared distance in boxes, which are cut finer where that decides.

    Args:
        grid: the boxes.
        evaluate: values of a grid's pairs of points; of about every so many laws, where its second
            argument is not 1. Curvature may be infinite; where a moment is not finite, nothing is
            bounded.
        attained: at most the bound.
        outcomes: how many there are, in all that is evaluated.
        mirrored: whether `evaluate` wants grids that are their own mirror images.
        most: sums over outcomes, times outcomes, that may be computed, about.
        loose: boxes whose bound is no more than this share above what pairs have are not cut.

    Returns:
        An upper bound; what `evaluate` leaves out of a curvature is not in it.
    """
    settled, goal, work = 0.0, 0.0, 0.0
    while True:
        # Where to cut is judged by some of the laws, which bounds nothing.
        values = evaluate(grid, SOME)
        goal = max(goal, (1 + loose) * max(attained, grid.attained(values)))
        wide = ~(grid.bounds(values) <= goal) & grid.boxes
        wide |= wide[::-1, ::-1] & mirrored
        finer = grid.finer(wide)
        last = work + finer.work * outcomes > most or len(finer.parts.cells) > MOST_PARTS
        # theory/vector-sums.md, Proposition 20: every pair is in a box that counts.
        rest = grid.only(grid.boxes if last else grid.boxes & ~wide)
        work += rest.work * outcomes
        values = evaluate(rest, 1)
        if np.isnan(values[0]).any() or not np.isfinite(values[1]).all():
            return math.inf
        bounds = rest.bounds(values)
        if last:
            return max(settled, float(bounds.max()))
        # Of all laws some may be worse than was judged: boxes that are cut once more.
        more = bounds > goal * (1 + loose)
        settled = max(settled, float(bounds.max(where=~more, initial=0.0)))
        wide |= more | more[::-1, ::-1] & mirrored
        if not wide.any():
            return settled
        grid = grid.finer(wide)
