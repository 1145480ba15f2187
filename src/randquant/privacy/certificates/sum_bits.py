"""Sums of one bit: binomial laws, shares of even codes, and grids of inputs."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from randquant.channels.channel import EVEN, Channel
from randquant.privacy.certificates.sum_kernel import bounds_of_boxes
from randquant.privacy.divergence import UNIT

# Binomial probabilities with a proven error deep into the tails: how many draw from a shape.
#
# Derivations: `docs/theory/sums.md`.

UNLIKELY, COARSE, PART = -9.0, 6, 0.7
"""Logarithm of a probability below which values are grouped coarsely, by such a part of them; how
many standard deviations are in a group of likelier ones."""


@dataclass(frozen=True, slots=True)
class LogBinomial:
    """A binomial variable K, its probabilities rounded up, in logarithms.

    Attributes:
        trials: K is at most this.
        first: logs[i] is at least log P(K = first + i).
        logs: (w,) float64; a value outside this window is less likely than its nearer end.
        deviation: the standard deviation of K, roughly.
        slack: how far each of the logs may be above the truth.
    """

    trials: int
    first: int
    logs: np.ndarray
    deviation: float
    slack: float

    @staticmethod
    def of(trials: int, share: int, denominator: int, depth: float) -> LogBinomial:
        """K of `trials` trials, each successful with probability share/denominator.

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
        """The end of the window."""
        return self.first + len(self.logs) - 1

    def below(self, value: int) -> float:
        """log of at least P(K < value)."""
        # Outside the window no value is likelier than its nearer end.
        tail = _log(min(value, self.first)) + float(self.logs[0])
        inside = self.logs[: max(value - self.first, 0)]
        beyond = _log(max(min(value, self.trials + 1) - self.last - 1, 0)) + float(self.logs[-1])
        return _log_sum(np.append(inside, [tail, beyond]))

    def groups(self) -> list[tuple[int, int, float]]:
        """Cut 0..trials into groups: (least, greatest, log of at least its mass), largest first.

        They are fine where K is likely, and coarse below; what is below the window is one group.
        With h decreasing, E[h(K)] is at most sum mass·h(least).
        """
        found, end = [], self.trials + 1
        wide = max(int(PART * self.deviation), 1)
        # More than these are about as good as these.
        high = self.first + int(self.logs.argmax()) + int(2 * self.deviation) + 2
        while end > 0:
            # Any cuts are valid (theory/sums.md, Proposition 4).
            likely = self.below(end) > UNLIKELY
            start = min(end, high) - (wide if likely else max(end // COARSE, wide))
            start = max(start, self.first) if end > self.first else 0
            mass = self._between(start, end)
            if mass > -math.inf:
                found.append((start, end - 1, mass))
            end = start
        return found

    def _between(self, start: int, end: int) -> float:
        """log of at least P(start <= K < end)."""
        low, high = max(start - self.first, 0), max(end - self.first, 0)
        before = _log(max(min(end, self.first) - start, 0)) + float(self.logs[0])
        after = _log(max(end - max(start, self.last + 1), 0)) + float(self.logs[-1])
        # A probability: rounding may not bring it above 1.
        return min(_log_sum(np.append(self.logs[low:high], [before, after])), 0.0)


def _log(count: int) -> float:
    # 1e-15 is 9 units; the rest of its error is in the spare units of `_log_sum`, for it stands
    # beside a window's end, whose logarithm is below -29 where values lie outside: with the next
    # step it is below -60, and steps differ by log 4 at most.
    return math.log(count) + 1e-15 if count > 0 else -math.inf


def _log_sum(logs: np.ndarray) -> float:
    """log of the sum of e^logs, rounded up."""
    top = float(logs.max(initial=-math.inf))
    if top == -math.inf:
        return top
    total = top + math.log(float(np.exp(logs - top).sum()))
    # theory/sums.md, Proposition 10: 16 of 32 units are spared for sums of such logarithms.
    return total + UNIT * (len(logs) + 32) * (1 + abs(total))


# Channels whose code is a sum of independent bits, read off their rows.
#
# Derivation: `docs/theory/vector-sums.md`, "Sums of bits".

SCALE = 2**62
"""Denominator of the bits' probabilities."""

LARGEST_ERROR = 2.0**-20
"""Rows further from binomial laws than this, relatively, are not taken for sums of bits."""

GROW = 1 + 2.0**-36
"""Outward rounding of factors that are formed from positive terms."""


@dataclass(frozen=True, slots=True)
class Bits:
    """Units at one of two ends, whose sums every client's code is a mix of, up to rounding.

    Attributes:
        trials: how many of them a code is the sum of.
        ends: two rows of whole numbers: the law of a unit at either end.
        error: no weight is further than this from the mix's, relatively.
        even: the share of all codes that is spread evenly, 0 or EVEN.
        mirrored: whether one end is the mirror image of the other.
    """

    trials: int
    ends: tuple[np.ndarray, np.ndarray]
    error: float
    even: float
    mirrored: bool

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def of(channel: Channel) -> Bits | None:
        """Read them off the rows; None if they are not (nearly) such sums."""
        rows = np.unique(channel.weights, axis=0)
        if channel.levels == 2 or len(rows) == 2:
            # theory/vector-sums.md, Propositions 2 and 14: every row is a mix of two, exactly.
            ends = rows[0], rows[-1]
            return Bits(1, ends, 0.0, 0.0, np.array_equal(ends[0], ends[1][::-1]))
        if not rows.all():
            return None
        some = [Bits._sum(rows, channel.denominator, even) for even in (0.0, EVEN)]
        return min((each for each in some if each), key=lambda each: each.error, default=None)

    @staticmethod
    def _sum(rows: np.ndarray, total: int, even: float) -> Bits | None:
        trials = rows.shape[1] - 1
        chances, error = [], 0.0
        # Exact integers: what is left of a bit's probability is how far rows are off.
        for row in rows.tolist():
            mean = sum(code * weight for code, weight in enumerate(row)) / total
            chance = round((mean - even * trials / 2) / (1 - even) / trials * SCALE)
            # theory/vector-sums.md, Proposition 14: whatever they are read off as, rows are
            # compared.
            if not 0 < chance < SCALE:
                return None
            error = max(error, _off(row, total, chance, even))
            if error > LARGEST_ERROR:
                return None
            chances.append(chance)
        # theory/vector-sums.md, Proposition 11: every bit is a mix of two at the ends.
        low, high = min(chances), max(chances)
        if abs(low + high - SCALE) <= 2**12:  # nearly mirrored: what is further out covers more
            low = min(low, SCALE - high)
            high = SCALE - low
        ends = np.array([[SCALE - low, low], [SCALE - high, high]])
        return Bits(trials, (ends[0], ends[1]), error, even, low + high == SCALE)


def straightened(channel: Channel) -> tuple[Channel, float] | None:
    """One bit for the codes of a channel that has two; None where it has more, or jumps.

    Returns:
        A channel of inputs -1 to 1 whose ends have the least and the largest probability; and the
        narrowest way between two inputs that have these.
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
    narrowest = (high - low) / SCALE / float((steps / widths).max())
    return Channel(np.array([-1.0, 1.0]), np.array([-1.0, 1.0]), ends, SCALE), narrowest


def _off(row: list[int], total: int, bit: int, even: float) -> float:
    """How far a row is from a binomial law, partly spread evenly, at most: relatively, rounded up.

    All are exact integers.
    """
    trials, worst = len(row) - 1, 0.0
    spread, parts = even.as_integer_ratio()
    unit = SCALE**trials * (trials + 1) * parts
    evenly = SCALE**trials * spread * total
    for code, weight in enumerate(row):
        law = math.comb(trials, code) * bit**code * (SCALE - bit) ** (trials - code)
        exact = law * (trials + 1) * (parts - spread) * total + evenly
        worst = max(worst, abs(weight * unit - exact) / exact)
    return worst * GROW


# All pairs of inputs at once, on a grid that is cut finer where that decides.
#
# Derivation and rounding: `docs/theory/vector-sums.md`, Propositions 15 and 20.

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
