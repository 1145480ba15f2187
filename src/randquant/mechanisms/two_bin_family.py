"""The two-bin family: pick a bin on either side of the input, then round between them.

ERM picks near bins exponentially more often; OPTM has the least mean absolute error under pure
epsilon. Derivation: `docs/theory/optm.md`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant._internal.formatting import round_up
from randquant.channels.channel import MAX_MAGNITUDE, Channel, from_probabilities
from randquant.mechanisms.registry import (
    CLIP,
    DENSITY,
    EPSILON,
    REACH,
    VALUES,
    CoordinateFamily,
    MechanismRecord,
    Tuning,
    UpdateFamily,
    UpdateSetting,
    even_values,
    few_margins,
    margins,
    six_digits,
)
from randquant.privacy.certificates.coordinate import certify

MAX_ROUNDING_STEP = 1e-12
"""Largest difference of a row's two limits at a bin that counts as rounding, and not as a jump. Far
above float64 rounding, and far below any step that a mechanism means to have."""


def two_bins(
    clip: float,
    bins: Sequence[float] | np.ndarray,
    left: Sequence[Sequence[float] | np.ndarray],
    right: Sequence[Sequence[float] | np.ndarray],
) -> Channel:
    """Select one bin at or below the input and one above it, then round between them, unbiased.

    Args:
        clip: c, per-coordinate clipping threshold, > 0.
        bins: B_1 < … < B_m, what the codes decode to; 2 to 256, covering [-clip, clip].
        left: for each of the m - 1 intervals [bins[j], bins[j+1]], the selection distribution of
            the lower bin: (j + 1,) probabilities of bins[0] … bins[j].
        right: likewise for the upper bin: (m - 1 - j,) probabilities of bins[j+1] … bins[m-1].

    Returns:
        A Channel whose vertices are ±clip and the bins between them. A bin is a jump if the rows of
        its two intervals differ there.

    Guarantees:
        Unbiased up to float64 rounding; if a bin lies inside ±clip by less than 1e-9·clip, up to
        that distance (`moments(channel).bias_max` includes it).

    Raises:
        ValueError, TypeError: bins do not increase or do not cover [-clip, clip], a distribution
            has the wrong length or does not sum to 1 within 1e-9.

    References:
        The OPTM and ERM paper, Algorithm 1 and equation 4.

    Example:
        >>> import randquant as rq
        >>> channel = two_bins(1.0, [-2, 0, 2], left=[[1], [0.5, 0.5]], right=[[0.5, 0.5], [1]])
        >>> [float(w / channel.denominator) for w in channel.weights[0]]
        [0.625, 0.25, 0.125]
    """
    clip = validate.real(
        "clip", clip, above=0, high=MAX_MAGNITUDE, why="clip is the largest magnitude sent"
    )
    grid = checked_bins(bins, clip)
    lower = _distributions("left", left, [j + 1 for j in range(len(grid) - 1)])
    upper = _distributions("right", right, [len(grid) - 1 - j for j in range(len(grid) - 1)])
    # A bin just inside ±clip would make a cell too narrow for float64 inputs: it counts as ±clip
    # itself, whose row is then that of the bin.
    inner = [j for j in range(len(grid)) if abs(grid[j]) < clip * (1 - 1e-9)]
    first = int(np.searchsorted(grid, -clip * (1 - 1e-9), side="right")) - 1
    last = int(np.searchsorted(grid, clip * (1 - 1e-9), side="left")) - 1
    inputs, rows = [-clip], [_two_bin_row(max(-clip, grid[first]), first, grid, lower, upper)]
    for j in inner:
        before = _two_bin_row(grid[j], j - 1, grid, lower, upper)
        after = _two_bin_row(grid[j], j, grid, lower, upper)
        # Both limits of a jump are rows: the certificate then covers inputs on either side of it.
        continuous = np.abs(before - after).max() <= MAX_ROUNDING_STEP
        sides = [after] if continuous else [before, after]
        inputs += [grid[j]] * len(sides)
        rows += sides
    inputs.append(clip)
    rows.append(_two_bin_row(min(clip, grid[last + 1]), last, grid, lower, upper))
    return from_probabilities(np.array(inputs), grid, np.array(rows))


def erm(clip: float, bins: Sequence[float] | np.ndarray, gamma: float) -> Channel:
    """Exponential randomised mechanism: a two-bin mechanism that prefers near bins exponentially.

    The lower bin B_i of the interval [B_j, B_{j+1}] is selected with probability proportional to
    exp(-gamma·(B_j - B_i) / (2(B_j - B_1))), the upper one likewise from B_{j+1} to B_m.

    Args:
        clip: c, per-coordinate clipping threshold, > 0.
        bins: B_1 < … < B_m, 2 to 256, covering [-clip, clip]; symmetric in the paper, any here.
        gamma: γ >= 0, up to 100; larger keeps the output nearer the input.

    Returns:
        A Channel; most bins inside [-clip, clip] are jumps.

    Guarantees:
        Unbiased up to float64 rounding.
        The same integers on every IEEE 754 machine (exponentials are computed in decimal).

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        The OPTM and ERM paper, equation 2. Its Theorem 1 fails for small margins:
        `papers/docs/errata.md`.

    Example:
        >>> import numpy as np, randquant as rq
        >>> channel = erm(clip=1.0, bins=np.linspace(-2, 2, 16), gamma=1.0)
        >>> round(rq.certify(channel).epsilon.upper, 4)
        2.9267
    """
    gamma = validate.real("gamma", gamma, low=0, high=100, why="weights are exp(-gamma/2) and up")
    clip = validate.real("clip", clip, above=0, high=MAX_MAGNITUDE)
    grid = checked_bins(bins, clip)
    cells = range(len(grid) - 1)
    left = [_exponential(gamma, grid[j] - grid[: j + 1]) for j in cells]
    right = [_exponential(gamma, grid[j + 1 :] - grid[j + 1]) for j in cells]
    return two_bins(clip, grid, left, right)


def _exponential(gamma: float, distances: np.ndarray) -> np.ndarray:
    # Probabilities proportional to exp(-gamma·distance / (2·largest distance)).
    # A lone bin has distance 0 and gets all the probability, whatever it is divided by.
    reach = distances.max() if distances.max() > 0 else 1.0
    exponents = -gamma * (distances / reach) / 2
    weights = np.array([_exp(float(e)) for e in exponents])
    return weights / np.add.accumulate(weights)[-1]


@lru_cache(maxsize=1 << 14)  # evenly spaced bins repeat their exponents
def _exp(exponent: float) -> float:
    # In decimal: the C library's exponential differs in its last bit from machine to machine.
    return float(Context(prec=30).exp(Decimal(exponent)))


def checked_bins(bins: Sequence[float] | np.ndarray, clip: float) -> np.ndarray:
    """Return (m,) float64 bins, or raise ValueError unless they increase and cover ±clip."""
    grid = validate.array("bins", bins)
    if grid.ndim != 1 or not 2 <= grid.size <= 256 or not np.isfinite(grid).all():
        raise ValueError(f"Expected 2 to 256 finite bins, got {bins!r}.")
    decreasing = np.flatnonzero(np.diff(grid) <= 0)
    if decreasing.size:
        j = int(decreasing[0])
        raise ValueError(
            f"Expected bins in increasing order, got {grid[j + 1]:g} after {grid[j]:g}."
        )
    if grid[0] > -clip or grid[-1] < clip:
        raise ValueError(
            f"Expected bins that cover [-{clip:g}, {clip:g}], got [{grid[0]:g}, {grid[-1]:g}]: "
            "inputs beyond the bins cannot be sent without bias."
        )
    return grid


def _distributions(
    name: str, rows: Sequence[Sequence[float] | np.ndarray], lengths: list[int]
) -> list[np.ndarray]:
    tables = [validate.array(name, row) for row in validate.listed(name, rows)]
    if [table.shape for table in tables] != [(length,) for length in lengths]:
        raise ValueError(
            f"Expected {name} to hold distributions of lengths {lengths}, one for each interval, "
            f"got {[list(table.shape) for table in tables]}."
        )
    for j, table in enumerate(tables):
        if not ((table >= 0).all() and abs(table.sum() - 1) <= 1e-9):
            raise ValueError(f"Expected {name}[{j}] to be >= 0 and to sum to 1, got {table}.")
    return [table / np.add.accumulate(table)[-1] for table in tables]


def _two_bin_row(
    x: float, cell: int, grid: np.ndarray, left: list[np.ndarray], right: list[np.ndarray]
) -> np.ndarray:
    # The code's distribution at x in the interval `cell` (equation 4).
    below, above = grid[: cell + 1, None], grid[None, cell + 1 :]
    pair = left[cell][:, None] * right[cell][None, :]
    up = pair * ((x - below) / (above - below))
    down = pair * ((above - x) / (above - below))
    return np.concatenate([_ordered_sum(down.T), _ordered_sum(up)])


def _ordered_sum(terms: np.ndarray) -> np.ndarray:
    # Over the first axis, from first to last: NumPy's own sum adds in an order that depends on the
    # machine, and a different bit would be a different channel.
    return np.add.accumulate(terms, axis=0)[-1]


def _erm_updates(setting: UpdateSetting) -> UpdateFamily:
    clip, levels = setting.clip, setting.levels
    return UpdateFamily(
        lambda t: {"clip": clip, "bins": even_values(clip * t, levels), "gamma": 1.0},
        reach=(1.01, 1e12),
        start=lambda deviation: 2 * deviation / clip,
    )


# OPTM's programme: selection probabilities on given bins, by linear programmes in trust regions.
#
# All in units of clip. Derivation: `docs/theory/optm.md`.

START_COUNT = 8
"""Starting points of the search, which has several local optima. The search
takes time in proportion; fewer starts miss the best optimum more often."""

MAX_STEPS = 60
"""Most linear programmes solved from one starting point. Searches end earlier, by the width of
their box or a small gain; this bounds the time of those that do not."""

MIN_BOX_WIDTH = 1e-9
"""Relative width of a box of selection probabilities at which a search ends: in a smaller one the
solver's tolerance, 1e-10, would hide any gain."""

MIN_CODE_PROBABILITY = 1e-7
"""A code that every input sends with a smaller probability is removed from the selections: it is
due to the solver's tolerance, and its ratios would spoil the certificate."""

Selections = tuple[list[np.ndarray], list[np.ndarray]]
"""Left and right selection distributions, one of each for every cell with inputs."""


@dataclass(frozen=True)
class SelectionProblem:
    """The optimisation problem over selection probabilities on given bins.

    Attributes:
        bins: (m,) increasing.
        cells: (j, low, high): inputs in [low, high] lie between bins j and j + 1.
        weights: by cell, (2, m): coefficient in the error of a code's probability at either end.
    """

    bins: np.ndarray
    cells: list[tuple[int, float, float]]
    weights: list[np.ndarray]

    @classmethod
    def on_bins(cls, bins: np.ndarray, samples: tuple[float, ...] | None) -> SelectionProblem:
        # Only cells with inputs have selections that matter.
        edges = [(max(low, -1.0), min(high, 1.0)) for low, high in itertools.pairwise(bins)]
        cells = [(j, low, high) for j, (low, high) in enumerate(edges) if low < high]
        points = None if samples is None else np.array(samples)
        weights = [_weights(bins, low, high, points) for _, low, high in cells]
        return cls(bins, cells, weights)

    def shares(self, j: int, x: float) -> np.ndarray:
        """Return (j + 1, m - 1 - j): probability of rounding x down, by left and right bin."""
        left, right = self.bins[: j + 1, None], self.bins[None, j + 1 :]
        return (right - x) / (right - left)

    def maps(self, cell: int, x: float, selections: Selections) -> tuple[np.ndarray, np.ndarray]:
        """Return derivatives of the code's distribution at x by the left and right selections.

        The distribution is bilinear: it is the first matrix, (m, j + 1), times the left selections,
        and also the second, (m, m - 1 - j), times the right ones.
        """
        j = self.cells[cell][0]
        left, right = selections[0][cell], selections[1][cell]
        down = self.shares(j, x)
        by_left = np.vstack([np.diag(down @ right), (right[None, :] * (1 - down)).T])
        by_right = np.vstack([left[:, None] * down, np.diag(left @ (1 - down))])
        return by_left, by_right

    def rows(self, selections: Selections) -> list[np.ndarray]:
        # By cell, (2, m): the code's distribution at the cell's ends (limits from inside). Within a
        # cell it is linear, so that the ends decide error and epsilon.
        return [
            np.stack([self.maps(k, x, selections)[0] @ selections[0][k] for x in (low, high)])
            for k, (_, low, high) in enumerate(self.cells)
        ]

    def error(self, selections: Selections) -> float:
        """Compute the mean absolute error, exactly."""
        rows = self.rows(selections)
        return float(sum((w * row).sum() for w, row in zip(self.weights, rows, strict=True)))

    def epsilon(self, selections: Selections) -> float:
        """Return the largest log ratio of a code's largest to its smallest probability."""
        high, low = self._extremes(selections)
        used = high > 0
        with np.errstate(divide="ignore"):
            return float(np.log(high[used] / low[used]).max())

    def excess(self, selections: Selections, ratio: float) -> float:
        """Return the largest violation: a code's largest probability - ratio · its smallest."""
        high, low = self._extremes(selections)
        return float(np.max(high - ratio * low))

    def _extremes(self, selections: Selections) -> tuple[np.ndarray, np.ndarray]:
        table = np.concatenate(self.rows(selections))
        return table.max(axis=0), table.min(axis=0)

    def joint(
        self, selections: Selections, ratio: float, width: float, price: float
    ) -> Selections | None:
        """Solve the programme linearised at the selections, with both sides free within a box.

        Constraints may be violated by one common amount, at a cost of `price` per unit.
        """
        # The box is relative to each probability, plus 0.02, so that zeros can grow again.
        parts = [side[k] for k in range(len(self.cells)) for side in selections]
        low = np.concatenate([np.maximum(0, p - width * (p + 0.02)) for p in parts])
        high = np.concatenate([np.minimum(1, p + width * (p + 0.02)) for p in parts])
        blocks = []
        for k, (_, start, end) in enumerate(self.cells):
            matrices = [np.hstack(self.maps(k, x, selections)) for x in (start, end)]
            # The product rule counts the distribution at the selections twice.
            constants = [self.maps(k, x, selections)[0] @ selections[0][k] for x in (start, end)]
            blocks.append((matrices, constants))
        solved = self._solve(blocks, parts, low, high, ratio, price)
        if solved is None:
            return None
        pieces = np.split(solved, np.cumsum([len(p) for p in parts])[:-1])
        return pieces[0::2], pieces[1::2]

    def one_side(
        self, selections: Selections, ratio: float, price: float, side: int = 0
    ) -> Selections | None:
        """Solve the programme exactly for one side (0 is left), with the other side fixed.

        Constraints may be violated by one common amount, at a cost of `price` per unit.
        """
        parts = selections[side]
        blocks = []
        for k, (_, low, high) in enumerate(self.cells):
            matrices = [self.maps(k, x, selections)[side] for x in (low, high)]
            blocks.append((matrices, [np.zeros(1)] * 2))
        upper = np.concatenate([np.ones(len(p)) if math.isfinite(price) else p > 0 for p in parts])
        solved = self._solve(blocks, parts, 0 * upper, upper, ratio, price)
        if solved is None:
            return None
        pieces = np.split(np.maximum(solved, 0), np.cumsum([len(p) for p in parts])[:-1])
        pieces = [piece / piece.sum() for piece in pieces]
        return (pieces, selections[1]) if side == 0 else (selections[0], pieces)

    def _solve(self, blocks, parts, low, high, ratio, price) -> np.ndarray | None:
        from scipy.optimize import linprog

        codes, count = len(self.bins), len(low)
        # The last but one unknowns are the least probability of each code.
        cost, above, limits = np.zeros(count + codes + 1), [], []
        sums, first = np.zeros((len(parts), count + codes + 1)), 0
        per_cell = len(parts) // len(self.cells)
        for k, (matrices, constants) in enumerate(blocks):
            for part in range(per_cell * k, per_cell * (k + 1)):
                last = first + len(parts[part])
                sums[part, first:last] = 1
                first = last
            columns = slice(first - matrices[0].shape[1], first)
            # Least probability <= probability <= ratio · least probability + violation: two rows
            # for each code at each end, instead of one for each pair of ends.
            for matrix, constant, weight in zip(matrices, constants, self.weights[k], strict=True):
                cost[columns] += weight @ matrix
                block = np.zeros((2, codes, count + codes + 1))
                block[0, :, columns], block[1, :, columns] = matrix, -matrix
                block[0, :, count:-1], block[1, :, count:-1] = -ratio * np.eye(codes), np.eye(codes)
                block[0, :, -1] = -1
                above.append(block.reshape(2 * codes, -1))
                limits.append(np.concatenate([constant + np.zeros(codes)] * 2))
                limits[-1][codes:] *= -1
        exceeding = 0.0 if math.isinf(price) else None
        cost[-1] = 0.0 if math.isinf(price) else price
        solved: Any = linprog(
            cost,
            A_ub=np.concatenate(above),
            b_ub=np.concatenate(limits),
            A_eq=sums,
            b_eq=np.ones(len(parts)),
            bounds=[*zip(low, high, strict=True), *[(0, None)] * codes, (0, exceeding)],
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        return solved.x[:count] if solved.status == 0 else None

    def present(self, selections: Selections) -> Selections:
        """Return the selections without codes of negligible probability."""
        used = np.concatenate(self.rows(selections)).max(axis=0) > MIN_CODE_PROBABILITY
        left, right = [], []
        for k, (j, _, _) in enumerate(self.cells):
            for side, mask, out in ((0, used[: j + 1], left), (1, used[j + 1 :], right)):
                kept = np.where(mask, np.maximum(selections[side][k], 0), 0)
                out.append(kept / kept.sum())
        return left, right

    def everywhere(self, selections: Selections) -> Selections:
        """Return selections for every interval between bins: the nearest bins if without inputs."""
        intervals = len(self.bins) - 1
        left = [np.eye(j + 1)[j] for j in range(intervals)]
        right = [np.eye(intervals - j)[0] for j in range(intervals)]
        for (j, _, _), below, above in zip(self.cells, *selections, strict=True):
            left[j], right[j] = below, above
        return left, right

    def start(self, number: int) -> Selections:
        """Return a starting point: near the outermost bins, whose epsilon is least, or random."""
        generator = np.random.default_rng(number)
        left, right = [], []
        for j, _, _ in self.cells:
            for length, outermost, out in (
                (j + 1, 0, left),
                (len(self.bins) - 1 - j, -1, right),
            ):
                # Squares of exponentials are very unequal, so that random starts prefer different
                # bins.
                part = np.ones(length) if number < 2 else generator.exponential(size=length) ** 2
                part /= part.sum()
                outer = np.zeros(length)
                outer[outermost] = 1
                out.append(part if number == 1 else 0.5 * outer + 0.5 * part)
        return left, right


def best(problem: SelectionProblem, epsilon: float, starts: int = START_COUNT) -> Selections | None:
    """Return the selections of least error over several starts; None if none meets epsilon."""
    ratio, best = math.exp(epsilon), None
    for number in range(starts):
        selections = _descend(problem, problem.start(number), ratio)
        # The penalty makes violations dear, not impossible: a search may end in one. Up to this
        # size it is the solver's rounding, which `_on_bins` repairs.
        if problem.excess(selections, ratio) > 1e-7:
            continue
        if best is None or problem.error(selections) < problem.error(best):
            best = selections
    return best


def _descend(problem: SelectionProblem, selections: Selections, ratio: float) -> Selections:
    # Successive linear programmes in boxes that grow after success and shrink after failure. At
    # this price a violation costs more than it gains.
    price = 50 * float(np.abs(problem.bins).max())

    def merit(at: Selections) -> float:
        return problem.error(at) + price * max(0.0, problem.excess(at, ratio))

    width, current = 0.5, merit(selections)
    for step in range(MAX_STEPS):
        trial = problem.joint(selections, ratio, width, price)
        if trial is not None:  # the programme of one side is exact, and corrects the linear model
            trial = problem.one_side(trial, ratio, price, side=step % 2) or trial
        trial_merit = math.inf if trial is None else merit(trial)
        if trial is not None and trial_merit < current:
            gain = current - trial_merit
            selections, current, width = trial, trial_merit, min(1.0, 2 * width)
            # Not after an even step, which was exact for the left side only: the right one may
            # gain.
            if gain < 1e-8 * current and step % 2:
                break
        else:
            # Faster than it grows: a search that only fails ends after fifteen steps.
            width /= 4
        if width < MIN_BOX_WIDTH:
            break
    return selections


def _weights(bins: np.ndarray, low: float, high: float, samples: np.ndarray | None) -> np.ndarray:
    # (2, m): mean over the input in one cell of the weight of either end times |bin - x|.
    if samples is None:
        x = np.array([low, (low + high) / 2, high])
        mass = (high - low) / 2 * np.array([1, 4, 1]) / 6  # Simpson's rule is exact here
    else:
        # Like an input, a sample at an inner bin belongs to the cell above it.
        x = samples[(samples >= low) & ((samples < high) | (high == 1.0))]
        mass = np.full(len(x), 1 / len(samples))
    part = (x - low) / (high - low)
    error = np.abs(bins - x[:, None]) * mass[:, None]
    return np.stack([(1 - part) @ error, part @ error])


RELATIVE_STEPS_BELOW_TARGET = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
"""Relative distances below the target epsilon, tried in turn until the channel in integers has a
certificate that meets the target. The first is about the solver's tolerance; a target that the last
one does not meet is too fine for integers of 62 bits."""


def optm(
    clip: float,
    bins: int | Sequence[float] | np.ndarray,
    epsilon: float,
    density: Sequence[float] | np.ndarray | None = None,
    reach: float | None = None,
) -> Channel:
    """Optimal randomised quantisation: selection distributions of least mean absolute error.

    Args:
        clip: c, per-coordinate clipping threshold, within [1e-30, 1e30].
        bins: increasing values of the codes, beyond [-clip, clip] on both sides; or the number of
            bins, 2 to 16, whose positions are then searched too: symmetric unless density is given.
        epsilon: target pure epsilon per coordinate, in nats, > 0.
        density: samples of the input, over which the error is averaged (Theorem 4); by default the
            input is uniform. They are clipped to [-clip, clip].
        reach: largest magnitude of a bin, in the units of clip, if bins is a number.

    Returns:
        A two-bin Channel. Its error is the least of several local optima: the problem is bilinear
        in the left and the right selections. A channel of `design.optimal` on the same bins is at
        least as good, since it is not restricted to pairs of selections.

    Guarantees:
        The certified epsilon is at most the target. Unbiased up to rounding.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind, or no unbiased
            mechanism on these bins meets the target (the error names the least epsilon).

    References:
        The OPTM and ERM paper, section 4: Theorems 3 to 6, Algorithm 2.

    Example:
        >>> import randquant as rq
        >>> channel = optm(clip=1.0, bins=[-3, -0.5, 0.5, 3], epsilon=1.0)
        >>> round(rq.moments(channel).mae, 4), rq.certify(channel).epsilon.upper <= 1.0
        (1.8771, True)
    """
    clip = validate.real("clip", clip, low=1e-30, high=1e30)
    epsilon = validate.real("epsilon", epsilon, low=1e-12, high=40)
    samples = None if density is None else _samples(density, clip)
    count_or_values = validate.number(bins)
    if isinstance(count_or_values, int):
        count = validate.whole("bins", count_or_values, low=2, high=16)
        return _on_searched_bins(clip, count, epsilon, samples, _reach(reach, clip))
    if reach is not None:
        raise ValueError(
            f"Expected reach only where bins is a number of bins to search for, got reach={reach} "
            f"and bins={validate.shown(bins)}."
        )
    grid = tuple(float(value) for value in checked_bins(count_or_values, clip) / clip)
    return _on_bins(clip, grid, epsilon, samples)


@functools.lru_cache(maxsize=64)
def _on_bins(
    clip: float,
    bins: tuple[float, ...],
    epsilon: float,
    samples: tuple[float, ...] | None,
) -> Channel:
    # On fixed bins: it aims lower until the certificate of the integers meets the target.
    from randquant.mechanisms.design import Pure, least_epsilon

    least = least_epsilon(1.0, bins, Pure(epsilon))
    if epsilon <= least * (1 + 1e-6):
        raise ValueError(
            f"Expected epsilon above {round_up(least)}, the least of any unbiased mechanism on "
            f"these bins, got epsilon={epsilon}: raise it, or move the outermost bins outward."
        )
    problem = SelectionProblem.on_bins(np.array(bins), samples)
    for slack in RELATIVE_STEPS_BELOW_TARGET:
        selections = best(problem, epsilon * (1 - slack))
        if selections is None:
            raise ValueError(
                f"Expected epsilon further above {round_up(least)}, the least of any unbiased "
                f"mechanism on these bins, got epsilon={epsilon}: no start of the search met it; "
                "raise it, or move the outermost bins outward."
            )
        # Half of the slack is for this repair, the other half for rounding to integers.
        ratio = math.exp(epsilon * (1 - slack / 2))
        repaired = problem.one_side(problem.present(selections), ratio, math.inf)
        if repaired is None:
            continue
        channel = two_bins(clip, clip * problem.bins, *problem.everywhere(repaired))
        if certify(channel).epsilon.upper <= epsilon:
            return channel
    raise ValueError(
        f"Expected a target that integers of 62 bits can meet, got epsilon={epsilon}: move the "
        "outermost bins outward, or raise it."
    )


@functools.lru_cache(maxsize=16)
def _on_searched_bins(
    clip: float,
    count: int,
    epsilon: float,
    samples: tuple[float, ...] | None,
    reach: float,
) -> Channel:
    # A simplex search from a few spacings: the error has no derivative where optima change.
    from scipy.optimize import minimize

    least = 1 / math.tanh(epsilon / 2)
    if reach <= least * (1 + 1e-3):
        raise ValueError(
            f"Expected reach above {least * (1 + 1e-3):.6g} clip, near the least with which any "
            f"unbiased mechanism has this epsilon, got {reach:.6g} clip: raise reach or epsilon."
        )
    half = count // 2
    symmetric = samples is None

    def place(free: np.ndarray) -> np.ndarray:
        if not symmetric:
            return np.sort(np.clip(free, -reach, reach))
        upper = np.sort(np.clip(np.abs(free), 0, reach))
        return np.concatenate([-upper[::-1], [0.0] * (count % 2), upper])

    def error(free: np.ndarray) -> float:
        bins = place(free)
        if min(np.diff(bins)) < 1e-3 or min(-bins[0], bins[-1]) < least * (1 + 1e-3):
            # Finite, since the search subtracts values to see when it should end, and the
            # difference of two infinities is no number.
            return 1e6
        problem = SelectionProblem.on_bins(bins, samples)
        # Two starts rank a spacing; the spacing that wins gets all START_COUNT in `_on_bins`.
        selections = best(problem, epsilon, starts=2)
        return 1e6 if selections is None else problem.error(selections)

    optimum = None
    for outer in sorted({reach, min(reach, 1.15 * least), min(reach, 1.5 * least)}):
        start = np.linspace(-outer, outer, count)
        if symmetric:
            start = start[count - half :]
        else:  # inner bins start at quantiles of the input
            start[1:-1] = np.quantile(samples, np.arange(1, count - 1) / (count - 1))
        solved = minimize(error, start, method="Nelder-Mead", options={"maxfev": 50 * half})
        if optimum is None or solved.fun < optimum.fun:
            optimum = solved
    return _on_bins(clip, tuple(place(optimum.x)), epsilon, samples)  # type: ignore[union-attr]


def _samples(density: Any, clip: float) -> tuple[float, ...]:
    samples = validate.array("density", density).reshape(-1)
    if samples.size == 0 or not np.isfinite(samples).all():
        raise ValueError("Expected density to hold finite samples of the input, at least one.")
    return tuple(np.clip(samples / clip, -1, 1).tolist())


def _reach(reach: float | None, clip: float) -> float:
    if reach is None:
        raise ValueError(
            "Expected a reach, the largest magnitude of a bin: without one the best mean absolute "
            "error sends a bin to infinity."
        )
    return validate.real("reach", reach, above=clip) / clip


RECORDS = (
    MechanismRecord(
        "erm",
        erm,
        help={"clip": CLIP, "bins": VALUES, "gamma": "how strongly near bins are preferred, >= 0"},
        example={"clip": 1.5, "bins": [-3.0, -1.0, 1.0, 3.0], "gamma": 1.0},
        tuning=Tuning(
            coordinate=CoordinateFamily(
                lambda target: {"margin": margins(target), "gamma": [0.0, 1.0, 3.0, 10.0, 100.0]},
                lambda target, at: {
                    "clip": target.clip,
                    "bins": target.even_values(at["margin"]),
                    "gamma": six_digits(at["gamma"]),
                },
            ),
            update=_erm_updates,
            slow=("aggregate",),
        ),
        place=3,
    ),
    MechanismRecord(
        "optm",
        optm,
        help={
            "clip": CLIP,
            "bins": f"{VALUES}, or how many to search for",
            "epsilon": EPSILON,
            "density": DENSITY,
            "reach": REACH,
        },
        example={"clip": 1.5, "bins": [-3.0, -1.0, 1.0, 3.0], "epsilon": 1.5},
        tuning=Tuning(
            coordinate=CoordinateFamily(
                lambda target: {"margin": few_margins(target)},
                lambda target, at: {
                    "clip": target.clip,
                    "bins": target.even_values(at["margin"]),
                    "epsilon": target.epsilon,
                },
            ),
            slow=("coordinate",),
        ),
        place=4,
    ),
)
