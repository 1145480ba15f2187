"""Three tools for sums of codes: binomial counts, channels made of bits, and grids of inputs.

The problem: bounds of sums average over how many of the other clients draw from a common law
(a binomial number), are simplest where a code is itself a sum of bits, and have to hold for all
pairs of a client's inputs, of which there are infinitely many.

The bounds are proven in `docs/theory/sums.md`, Proposition 10 (binomial probabilities), and in
`docs/theory/vector-sums.md`, Propositions 11, 12 and 14 (bits), 15, 20 and 23 (pairs on a grid).

From top to bottom: `LogBinomial`; `Bits` and `linearised`, which read bits off a channel's rows;
`PairGrid` and `bound_by_refinement`, which bound divergence over squared distance in boxes of pairs
and cut those boxes finer that decide the bound.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from randquant.channels.channel import EVEN_SHARE, Channel
from randquant.privacy.certificates.sum_kernel import bounds_of_boxes
from randquant.privacy.divergence import UNIT

# Binomial probabilities with a proven error deep into the tails: how many clients or blocks draw
# from a common law. The tails count: at high orders a moment is largest where hardly anybody does.

UNLIKELY_LOG_PROBABILITY = -9.0
"""Below this (1 in 8,100) values are grouped coarsely: such a group weighs little in a mean."""

COARSE_GROUP_PARTS = 6
"""A coarse group reaches down to 5/6 of its end: each counts the least value in it, so twice as
many parts would be tighter in the tail, with twice as many groups."""

FINE_GROUP_SCALE = 0.7
"""Standard deviations in a group of likely values."""


@dataclass(frozen=True, slots=True)
class LogBinomial:
    """Upper bounds of a binomial variable's probabilities, as logarithms.

    Attributes:
        trials: the variable K is at most this.
        first: logs[i] is an upper bound of log P(K = first + i).
        logs: (w,) float64; a value outside this window is less likely than the window's nearer end.
        deviation: the standard deviation of K, roughly.
        slack: how far each of the logs may be above the truth.
    """

    trials: int
    first: int
    logs: np.ndarray
    deviation: float
    slack: float

    @staticmethod
    def from_share(trials: int, share: int, denominator: int, depth: float) -> LogBinomial:
        """Bound the probabilities of K successes of trials with probability share/denominator.

        Args:
            trials: >= 0.
            share, denominator: whole numbers, so that the probability is exact.
            depth: the window holds all values whose probability is at least e^-depth times that
                of the likeliest.
        """
        if share == 0 or share == denominator or trials == 0:
            logs = np.full(min(trials, 1) + 1, -math.inf)
            certain = share == denominator
            logs[-1 if certain else 0] = 0.0
            return LogBinomial(trials, max(trials - 1, 0) if certain else 0, logs, 0.0, 0.0)
        success, failure = share / denominator, (denominator - share) / denominator
        mode = min(int((trials + 1) * success), trials)
        deviation = math.sqrt(trials * success * failure)
        width = int(2 * deviation * math.sqrt(2 * depth)) + 2 * int(depth) + 10
        first, last = max(mode - width, 0), min(mode + width, trials)
        k = np.arange(first, last, dtype=np.float64)
        # theory/sums.md, Proposition 10: exact integers, 5 roundings, the logarithm.
        step = np.log((trials - k) / (k + 1) * (success / failure))  # from k to k + 1
        at = mode - first
        # Summed outward from the mode, where rounding starts at 0 and grows with the depth.
        logs = np.concatenate([-np.cumsum(step[:at][::-1])[::-1], [0.0], np.cumsum(step[at:])])
        # theory/sums.md, Proposition 10: the longest step counts once more, see there.
        deepest = float(np.abs(logs).max()) + float(np.abs(step).max(initial=0.0))
        error = 1.01 * UNIT * len(logs) * (deepest + 32)
        # The window's probabilities sum to at most 1.
        total = math.log(float(np.exp(logs).sum())) - (len(logs) + 32) * UNIT
        inside = np.flatnonzero(logs >= -depth)
        logs = logs[inside[0] : inside[-1] + 1] - total + 3 * error
        return LogBinomial(trials, first + int(inside[0]), logs, deviation, 6 * error)

    @property
    def last(self) -> int:
        return self.first + len(self.logs) - 1

    def below(self, value: int) -> float:
        """Return an upper bound of log P(K < value)."""
        # Outside the window no value is likelier than its nearer end.
        tail = _log(min(value, self.first)) + float(self.logs[0])
        inside = self.logs[: max(value - self.first, 0)]
        beyond = _log(max(min(value, self.trials + 1) - self.last - 1, 0)) + float(self.logs[-1])
        return _log_sum_above(np.append(inside, [tail, beyond]))

    def groups(self) -> list[tuple[int, int, float]]:
        """Cut 0..trials into groups: (least, greatest, log of at least its mass), largest first.

        They are fine where K is likely, and coarse below; what is below the window is one group.
        With h decreasing, E[h(K)] is at most sum mass·h(least).
        """
        groups, end = [], self.trials + 1
        fine_width = max(int(FINE_GROUP_SCALE * self.deviation), 1)
        # Values from two deviations above the mode on form one group: they hide hardly more than
        # its least value does.
        high = self.first + int(self.logs.argmax()) + int(2 * self.deviation) + 2
        while end > 0:
            # Any cuts are valid (theory/sums.md, Proposition 4).
            likely = self.below(end) > UNLIKELY_LOG_PROBABILITY
            width = fine_width if likely else max(end // COARSE_GROUP_PARTS, fine_width)
            start = min(end, high) - width
            start = max(start, self.first) if end > self.first else 0
            mass = self._log_mass_between(start, end)
            if mass > -math.inf:
                groups.append((start, end - 1, mass))
            end = start
        return groups

    def _log_mass_between(self, start: int, end: int) -> float:
        # Bounds log P(start <= K < end): values outside the window are no likelier than its nearer
        # end.
        low, high = max(start - self.first, 0), max(end - self.first, 0)
        before = _log(max(min(end, self.first) - start, 0)) + float(self.logs[0])
        after = _log(max(end - max(start, self.last + 1), 0)) + float(self.logs[-1])
        # A probability: rounding may not bring it above 1.
        return min(_log_sum_above(np.append(self.logs[low:high], [before, after])), 0.0)


def _log(count: int) -> float:
    # 1e-15 is 9 units. The spare units of `_log_sum_above` pay for the rest of the logarithm's
    # error: it is added to the logarithm at a window's end, which is below -29 if there are values
    # outside. With the next step that is below -60, and steps differ by log 4 at most.
    return math.log(count) + 1e-15 if count > 0 else -math.inf


def _log_sum_above(logs: np.ndarray) -> float:
    top = float(logs.max(initial=-math.inf))
    if top == -math.inf:
        return top
    total = top + math.log(float(np.exp(logs - top).sum()))
    # theory/sums.md, Proposition 10: 16 of 32 units are spared for sums of such logarithms.
    return total + UNIT * (len(logs) + 32) * (1 + abs(total))


# Channels whose code is a sum of independent bits, read off their rows.
#
# Derivation: `docs/theory/vector-sums.md`, "Sums of bits". The bits' probabilities are guessed from
# the means; then every row is compared with its binomial law in whole numbers, and the difference
# found is part of the bound. So a wrong guess makes a bound loose, not false.

SCALE = 2**62
"""Denominator of the bits' probabilities."""

MAX_BINOMIAL_ERROR = 2.0**-20
"""Rows that differ more from binomial laws than this, relatively, are not taken for sums of bits.
The weights of PBM are within 2**-34 (`vector-sums.md`, Proposition 21)."""

ROUND_UP_FACTOR = 1 + 2.0**-36
"""Outward rounding of factors that are formed from positive terms."""


@dataclass(frozen=True, slots=True)
class Bits:
    """The bits that every code of a channel is a sum of, up to a relative error.

    Every row is a mixture of laws of sums of `trials` bits that are each at one of two ends.

    Attributes:
        trials: number of bits in a code.
        ends: two rows of whole numbers: the law of a bit at either end.
        error: largest relative difference between a weight and that of the mixture.
        even: the share of codes that are drawn evenly from all codes, 0 or EVEN_SHARE.
        mirrored: whether one end is the mirror image of the other.
    """

    trials: int
    ends: tuple[np.ndarray, np.ndarray]
    error: float
    even: float
    mirrored: bool

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def from_channel(channel: Channel) -> Bits | None:
        """Read the bits off a channel's rows; None if its codes are not (nearly) sums of bits."""
        rows = np.unique(channel.weights, axis=0)
        if channel.levels == 2 or len(rows) == 2:
            # theory/vector-sums.md, Propositions 2 and 14: every row is a mix of two, exactly.
            ends = rows[0], rows[-1]
            return Bits(1, ends, 0.0, 0.0, np.array_equal(ends[0], ends[1][::-1]))
        # A binomial law of a bit that is not certain has no impossible code.
        if not rows.all():
            return None
        readings = [Bits._read(rows, channel.denominator, even) for even in (0.0, EVEN_SHARE)]
        valid = (bits for bits in readings if bits)
        return min(valid, key=lambda bits: bits.error, default=None)

    @staticmethod
    def _read(rows: np.ndarray, total: int, even: float) -> Bits | None:
        trials = rows.shape[1] - 1
        chances, error = [], 0.0
        for row in rows.tolist():
            mean = sum(code * weight for code, weight in enumerate(row)) / total
            chance = round((mean - even * trials / 2) / (1 - even) / trials * SCALE)
            # theory/vector-sums.md, Proposition 14: however the probability was read, the row is
            # compared with its law in exact integers.
            if not 0 < chance < SCALE:
                return None
            error = max(error, _binomial_error(row, total, chance, even))
            if error > MAX_BINOMIAL_ERROR:
                return None
            chances.append(chance)
        # theory/vector-sums.md, Proposition 11: every bit is a mix of two at the ends.
        low, high = min(chances), max(chances)
        # Nearly mirrored ends are moved outward until they are mirrored, which halves the work:
        # bits between wider ends are mixtures of these as well.
        if abs(low + high - SCALE) <= 2**12:
            low = min(low, SCALE - high)
            high = SCALE - low
        ends = np.array([[SCALE - low, low], [SCALE - high, high]])
        return Bits(trials, (ends[0], ends[1]), error, even, low + high == SCALE)


def linearised(channel: Channel) -> tuple[Channel, float] | None:
    """Replace a channel of two codes by one whose probability is linear in the input.

    Returns:
        (channel, distance): one cell from -1 to 1 whose ends have the smallest and the largest
        probability, and the smallest distance at which two inputs of the original channel can have
        these. None if the channel has more codes, jumps, or a code that is never sent.
    """
    widths, weights = np.diff(channel.inputs), channel.weights
    constant = bool((weights == weights[0]).all())
    if channel.levels != 2 or constant or widths.min() <= 0 or not weights.all():
        return None
    # theory/vector-sums.md, Proposition 14: whole numbers, and a step over the steepest slope.
    chances = [int(weight) * (SCALE // channel.denominator) for weight in weights[:, 1]]
    steps = np.array([abs(b - a) / SCALE for a, b in itertools.pairwise(chances)])
    low, high = min(chances), max(chances)
    ends = np.array([[SCALE - low, low], [SCALE - high, high]], dtype=np.int64)
    distance = (high - low) / SCALE / float((steps / widths).max())
    return Channel(np.array([-1.0, 1.0]), np.array([-1.0, 1.0]), ends, SCALE), distance


def _binomial_error(row: list[int], total: int, chance: int, even: float) -> float:
    """Bound the relative difference between a row and a binomial law with an even share.

    Args:
        row, total: whole numbers.
        chance: probability of a bit, over SCALE.
        even: share of codes that are drawn evenly.
    """
    trials, worst = len(row) - 1, 0.0
    # A float is a quotient of integers, so both sides are compared over one denominator, exactly.
    numerator, denominator = even.as_integer_ratio()
    unit = SCALE**trials * (trials + 1) * denominator
    even_part = SCALE**trials * numerator * total
    for code, weight in enumerate(row):
        law = math.comb(trials, code) * chance**code * (SCALE - chance) ** (trials - code)
        exact = law * (trials + 1) * (denominator - numerator) * total + even_part
        worst = max(worst, abs(weight * unit - exact) / exact)
    return worst * ROUND_UP_FACTOR


# All pairs of inputs at once, on a grid that is cut finer where that decides the bound.
#
# Derivation and rounding: `docs/theory/vector-sums.md`, Propositions 15 and 20.

LEAST_PARTS, MOST_PARTS = 8, 2048
"""Parts between the ends of the inputs: at first, about, and at most."""

MAX_CURVATURE_PARTS = 8
"""Pairs more parts apart than this are bounded by their moments alone: curvature is the better
bound for close pairs only, and costs a sum over outcomes for every cell between."""

LAW_SAMPLE_STEP = 8
"""One in this many laws is evaluated to decide where a grid must be finer. All are evaluated for
the bound."""

Values = tuple[np.ndarray, np.ndarray]
"""For pairs of points: the largest curvature of the cells between them; log moments."""

MIN_SIDE = 2.0**-20
"""Parts shorter than this, in units of their cell, are not cut."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The range of inputs, each of its cells cut into parts.

    Attributes:
        inputs: (V,) vertices.
        cells: (P,) the cell of each part.
        positions: (P + 1,) where in its cell each part begins; 1 at the upper end of the range.
            They are dyadic, hence exact.
    """

    inputs: np.ndarray
    cells: np.ndarray
    positions: np.ndarray

    @property
    def sides(self) -> np.ndarray:
        # (P,) in units of the cell, exact.
        ends_cell = np.append(np.diff(self.cells) > 0, True)
        return np.where(ends_cell, 1.0, self.positions[1:]) - self.positions[:-1]

    @property
    def widths(self) -> np.ndarray:
        return self.sides * np.diff(self.inputs)[self.cells]

    @property
    def places(self) -> np.ndarray:
        # (P + 1,) the points, from the middle: mirror images have exactly opposite places.
        widths = self.widths
        before, behind = np.cumsum(widths), np.cumsum(widths[::-1])[::-1]
        return (np.append(0.0, before) - np.append(behind, 0.0)) / 2

    @property
    def wide(self) -> np.ndarray:
        # (P,) bool: what the encoder makes of 0, for example, is too short for a cut to matter.
        return self.sides > MIN_SIDE

    def halved(self, boxes: np.ndarray) -> tuple[Parts, np.ndarray]:
        """Halve the parts of all cells that these boxes (P, P) touch; return the boxes so cut."""
        wide = self.wide
        touched = self.cells[(boxes.any(axis=0) | boxes.any(axis=1)) & wide]
        cut = np.isin(self.cells, touched) & wide
        starts, times = np.repeat(self.positions[:-1], 1 + cut), 1 + cut
        starts[(np.cumsum(times) - 1)[cut]] += self.sides[cut] / 2
        parts = Parts(self.inputs, np.repeat(self.cells, times), np.append(starts, 1.0))
        return parts, np.repeat(np.repeat(boxes, times, 0), times, 1)


class PairGrid:
    """A grid of inputs that contains all vertices, and the pairs of its points to evaluate.

    Attributes:
        parts: what lies between the points.
        boxes: (P, P) bool, the pairs of parts that are bounded.
        first, second: (N,) the points of each pair, corners of those boxes.
        used: (M,) all of these points, rising.
        pairs: where in `used` the points of each pair are.
        low, high: (N,) the first of the cells between the points of each pair or touching them, and
            one past the last; equal for distant pairs, whose curvature is not needed.
    """

    def __init__(self, parts: Parts, order: float, boxes: np.ndarray, farthest: float = math.inf):
        """Select those boxes (P, P) bool that have pairs no farther apart; order is in (1, inf)."""
        self.parts, self.order, self.farthest, self.places = parts, order, farthest, parts.places
        # theory/vector-sums.md, Proposition 23: sums of widths are right to 2**-36 of the range.
        least = self.places[:-1, None] - self.places[1:]
        reach = farthest + 2.0**-36 * float(parts.inputs[-1] - parts.inputs[0])
        self.boxes = boxes = boxes & (np.maximum(least, least.T) <= reach)
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
        # theory/vector-sums.md, Proposition 15: a point may be a vertex, and the slopes on both
        # sides of it count.
        close = right - left <= MAX_CURVATURE_PARTS
        self.high = np.where(close, parts.cells[np.minimum(right, last)] + 1, self.low)

    @classmethod
    def whole(
        cls,
        inputs: np.ndarray,
        order: float,
        zero: tuple[int, float, float] | None = None,
        farthest: float = math.inf,
    ) -> PairGrid:
        """Return a coarse grid of all pairs of inputs that count.

        Args:
            inputs: (V,) vertices.
            order: in (1, inf).
            zero: a cell, and two positions in it between which one input of each pair lies; None
                if any pair counts.
            farthest: pairs that are farther apart do not count.
        """
        length = float(inputs[-1] - inputs[0])
        counts = 2 ** np.log2(np.maximum(LEAST_PARTS * np.diff(inputs) / length, 1.0)).round()
        starts = [np.arange(count) / count for count in counts.tolist()]
        cell, low, high = zero or (0, 0.0, 1.0)
        if zero is not None:
            # theory/vector-sums.md, Proposition 23: a part of its own, of no width if 0 is exact.
            starts[cell] = np.sort([*np.setdiff1d(starts[cell], [low, high]), low, high])
        cells = np.repeat(np.arange(len(starts)), [len(each) for each in starts])
        parts = Parts(inputs, cells, np.append(np.concatenate(starts), 1.0))
        one_side = np.full(len(cells), zero is None)
        one_side[np.searchsorted(cells, cell) + np.searchsorted(starts[cell], low)] = True
        return cls(parts, order, one_side[:, None] | one_side, farthest)

    @property
    def cuttable(self) -> np.ndarray:
        # (P, P) bool: boxes that `finer` makes smaller.
        wide = self.parts.wide
        return wide[:, None] | wide

    def only(self, boxes: np.ndarray) -> PairGrid:
        return PairGrid(self.parts, self.order, boxes, self.farthest)

    def finer(self, boxes: np.ndarray) -> PairGrid:
        """Return a grid of these boxes only, their parts cut in half."""
        parts, halves = self.parts.halved(boxes)
        return PairGrid(parts, self.order, halves, self.farthest)

    @property
    def work(self) -> int:
        # Sums over outcomes: one for each curvature of a cell, and two moments for each pair.
        return int((self.high - self.low).sum()) + 2 * len(self.first)

    def mirrored_values(self, values: np.ndarray) -> np.ndarray:
        """Return the values of the mirrored pairs; inputs and boxes must be symmetric."""
        last = len(self.parts.cells)
        return values[self._index[last - self.first, last - self.second]]

    def at_points(self, rows: np.ndarray) -> np.ndarray:
        """Interpolate laws at the vertices (V, L) to those at the used points (M, L)."""
        cells = self.parts.cells
        at = np.append(cells, cells[-1])[self.used]
        part = self.parts.positions[self.used, None]
        # theory/vector.md, Proposition 10: a mix with positive parts.
        return (1 - part) * rows[at] + part * rows[at + 1]

    def convexity_factor(self, rows: np.ndarray, error: float) -> float:
        """Bound by how much curvature may exceed the interpolation between points.

        Args:
            rows: (M, L) laws at the used points.
            error: relative, of the rows.
        """
        if not 2 < self.order < 3:  # all else is convex in p: theory/vector.md, Proposition 4
            return 1.0
        change = np.diff(np.log(rows), axis=0)[np.diff(self.used) == 1]
        # An unlikely component may have had all its outcomes left out: then there is no change.
        spread = float(np.abs(change).max(initial=0.0)) + 4 * error
        return math.cosh(spread / 2 * (1 + 64 * UNIT)) ** (2 * (self.order - 2)) * (1 + 512 * UNIT)

    def bounds(self, values: Values) -> np.ndarray:
        """Bound divergence over squared distance in every box from the values at its corners.

        Args:
            values: infinite curvature bounds nothing.

        Returns:
            (P, P) upper bounds for all pairs in a box; 0 where no box is selected.
        """
        curvature, logs = values
        a, b = np.nonzero(self.boxes)
        corners = np.stack([[self._index[a + i, b + j] for j in (0, 1)] for i in (0, 1)])
        corners = np.moveaxis(corners, -1, 0)
        steep = np.where(self.high > self.low, curvature, np.inf)[corners]
        # theory/vector-sums.md, Proposition 20: a power of M that is convex in either input.
        grown = np.expm1(logs / max(self.order - 1, 1.0))[corners]
        bounds = np.zeros(self.boxes.shape)
        bounds[a, b] = bounds_of_boxes(steep, grown, a, b, self.parts.widths, self.order)
        # The same Proposition: powers and their inverse.
        return bounds * (1 + (2**13 + 16 * self.order) * UNIT)

    def attained(self, values: Values) -> float:
        """Estimate the largest divergence over squared distance that pairs of points have."""
        curvature, logs = values
        # No bound from these values is below it, so it says which boxes need not be cut.
        gap = np.abs(self.places[self.first] - self.places[self.second])
        # Of closer points, as on both sides of 0, a moment is mostly its allowance for rounding: it
        # would hide what must be cut.
        least = MIN_SIDE * np.diff(self.parts.inputs).min()
        distant = (gap > least) & (gap <= self.farthest)
        ratios = logs[distant] / ((self.order - 1) * gap[distant] ** 2)
        return float(max(ratios.max(initial=0.0), curvature[gap == 0].max(initial=0.0)))


def bound_by_refinement(
    grid: PairGrid,
    evaluate: Callable[[PairGrid, int], Values],
    attained: float,
    outcomes: float,
    mirrored: bool,
    max_work: float,
    tolerance: float,
) -> float:
    """Bound divergence over squared distance for all pairs, cutting boxes that decide the bound.

    Args:
        grid: the boxes to begin with.
        evaluate: returns the values of a grid's pairs of points, from every k-th law, k its second
            argument. Curvature may be infinite; where a moment is not finite, nothing is bounded.
        attained: a lower end: no bound is below it.
        outcomes: number of outcomes, in all that is evaluated.
        mirrored: whether `evaluate` needs grids that are their own mirror images.
        max_work: sums over outcomes, times outcomes, that may be computed, roughly.
        tolerance: boxes whose bound exceeds the largest value of a pair by at most this share are
            not cut.

    Returns:
        An upper bound; it does not contain what `evaluate` leaves out of a curvature.
    """
    settled, goal, work = 0.0, 0.0, 0.0
    while True:
        # A sample of the laws decides where to cut; it bounds nothing.
        values = evaluate(grid, LAW_SAMPLE_STEP)
        goal = max(goal, (1 + tolerance) * max(attained, grid.attained(values)))
        cuttable = grid.boxes & grid.cuttable
        to_cut = ~(grid.bounds(values) <= goal) & cuttable
        to_cut |= to_cut[::-1, ::-1] & mirrored
        finer = grid.finer(to_cut)
        too_much = work + finer.work * outcomes > max_work
        last = too_much or len(finer.parts.cells) > MOST_PARTS
        # theory/vector-sums.md, Proposition 20: every pair is in a box that counts. Boxes that are
        # not cut are bounded now, by all laws; the others in a later pass.
        rest = grid.only(grid.boxes if last else grid.boxes & ~to_cut)
        work += rest.work * outcomes
        values = evaluate(rest, 1)
        if np.isnan(values[0]).any() or not np.isfinite(values[1]).all():
            return math.inf
        bounds = rest.bounds(values)
        if last:
            return max(settled, float(bounds.max()))
        # Laws outside the sample may be worse: such boxes are cut after all.
        missed = (bounds > goal * (1 + tolerance)) & cuttable
        settled = max(settled, float(bounds.max(where=~missed, initial=0.0)))
        to_cut |= missed | missed[::-1, ::-1] & mirrored
        if not to_cut.any():
            return settled
        grid = grid.finer(to_cut)
