"""The linear programme of a design: its table, objectives, tangents and levels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from randquant._internal.progress import report
from randquant.channels.channel import Channel, moments

# Linear programmes over a table of probabilities, solved with a proven lower bound.
#
# The variables are the table, (V, m) row by row, followed by the extra variables of each part.

Matrix = Any
"""A sparse matrix or array of scipy."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions on right - table·p - extra·y, with p the table and y the part's extra variables.

    Attributes:
        kind: `zero`, or `positive`: each entry >= 0.
        table: (k, V·m) coefficients.
        extra: (k, n) coefficients of the part's n extra variables.
        right: (k,) right-hand sides.
    """

    kind: Literal["zero", "positive"]
    table: Matrix
    extra: Matrix
    right: np.ndarray


@dataclass(frozen=True, slots=True)
class Part:
    """Conditions that may have extra variables.

    Attributes:
        rows: the conditions.
        upper: (n,) upper bounds of the part's extra variables, which are >= 0.
        cost: (n,) their coefficients in the objective; zero by default.
    """

    rows: Sequence[Conditions]
    upper: np.ndarray = field(default_factory=lambda: np.zeros(0))
    cost: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution with its dual bound.

    Attributes:
        table: (V, m) probabilities, feasible up to the solver's tolerance.
        multipliers: for each part, for each of its rows, one multiplier per condition.
        bound: no feasible point has a smaller objective (up to float64 rounding).
        value: the objective at the solution.
    """

    table: np.ndarray
    multipliers: list[list[np.ndarray]]
    bound: float
    value: float


class InfeasibleError(ValueError):
    """The programme has no solution, or the solver did not find it."""


def solve(cost: np.ndarray, parts: Sequence[Part]) -> Solution:
    """Minimise cost·p + Σ part.cost·y over p, y >= 0 under the rows of all parts.

    Args:
        cost: (V, m) objective of the table.
        parts: conditions; together they must imply that every probability is at most 1.

    Returns:
        A Solution.

    Raises:
        InfeasibleError: the solver reports that there is no solution, or finds none.
    """
    starts = np.cumsum([cost.size, *(part.upper.size for part in parts)])
    total = int(starts[-1])
    objective = np.zeros(total)
    objective[: cost.size] = cost.reshape(-1)
    upper = np.ones(total)
    blocks: list[tuple[Conditions, Entries]] = []
    for part, start in zip(parts, starts, strict=False):
        end = start + part.upper.size
        upper[start:end] = part.upper
        objective[start:end] = 0.0 if part.cost is None else part.cost
        blocks += [(rows, Entries.from_conditions(rows, int(start))) for rows in part.rows]
    point, duals = _highs(objective, blocks)
    bound, reduced = 0.0, objective.copy()
    for (rows, wide), dual in zip(blocks, duals, strict=True):
        # For any feasible x, right - wide·x is zero, or non-negative like dual: their product is
        # >= 0, and subtracting it from the objective gives a lower bound, whatever the duals are.
        bound -= float(rows.right @ dual)
        reduced += np.bincount(wide.column, wide.data * dual[wide.row], total)
    bound += float((np.minimum(reduced, 0.0) * upper).sum())
    remaining = iter(duals)
    return Solution(
        table=point[: cost.size].reshape(cost.shape),
        multipliers=[[next(remaining) for _ in part.rows] for part in parts],
        bound=bound,
        value=float(objective @ point),
    )


class Entries(NamedTuple):
    """Coefficients of conditions over all variables of the programme, one entry each."""

    data: np.ndarray
    row: np.ndarray
    column: np.ndarray

    @classmethod
    def from_conditions(cls, rows: Conditions, start: int) -> Entries:
        # The extra variables of the conditions' part begin at column `start`.
        table, extra = rows.table.tocoo(), rows.extra.tocoo()
        return cls(
            np.concatenate([table.data, extra.data]),
            np.concatenate([table.coords[0], extra.coords[0]]),
            np.concatenate([table.coords[1], extra.coords[1] + start]),
        )


def _stacked(blocks: Sequence[tuple[Conditions, Entries]], total: int) -> Matrix:
    # All conditions of one kind as one matrix: making one for each and stacking them is slow.
    starts = np.cumsum([0, *(rows.right.size for rows, _ in blocks)])
    data = np.concatenate([entries.data for _, entries in blocks])
    column = np.concatenate([entries.column for _, entries in blocks])
    row = np.concatenate(
        [entries.row + start for (_, entries), start in zip(blocks, starts, strict=False)]
    )
    return sparse.csr_array((data, (row, column)), shape=(int(starts[-1]), total))


def _highs(
    objective: np.ndarray, blocks: Sequence[tuple[Conditions, Entries]]
) -> tuple[np.ndarray, list[np.ndarray]]:
    from scipy.optimize import linprog

    stacked, right = {}, {}
    for kind in ("positive", "zero"):
        same_kind = [(rows, wide) for rows, wide in blocks if rows.kind == kind]
        if same_kind:
            stacked[kind] = _stacked(same_kind, objective.size)
            right[kind] = np.concatenate([rows.right for rows, _ in same_kind])
    solved: Any = linprog(
        objective,
        A_ub=stacked.get("positive"),
        b_ub=right.get("positive"),
        A_eq=stacked.get("zero"),
        b_eq=right.get("zero"),
        bounds=(0, None),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if solved.status != 0:
        raise InfeasibleError(
            f"Expected the linear programme to be solved, HiGHS says: {solved.message}"
        )
    # HiGHS reports the derivative of the optimum by the right-hand side: the opposite sign.
    marginals = {
        "positive": np.maximum(-solved.ineqlin.marginals, 0),
        "zero": -solved.eqlin.marginals,
    }
    used, duals = {"positive": 0, "zero": 0}, []
    for rows, _ in blocks:
        first = used[rows.kind]
        used[rows.kind] = first + rows.right.size
        duals.append(marginals[rows.kind][first : used[rows.kind]])
    return solved.x, duals


# Convex constraints as linear programmes: tangents are added where a solution violates them.
#
# All levels and inputs are in units of clip. Derivations: `docs/theory/design.md`.


# Objectives of a design: an average error over the input, or the worst variance.
#
# All levels, inputs and errors are in units of clip.

MAX_RELATIVE_EXCESS = 1e-7
"""Largest relative excess of a solution over epsilon for which a programme is not extended. It is
below the first step under the target of a curved constraint, 1e-6; with much less, extensions would
follow the solver's tolerance of 1e-10."""


class Limits(Protocol):
    """The state of a constraint during one design."""

    def parts(self, vertices: np.ndarray, codes: int, slack: float) -> list[Part]:
        """Return the bound, lowered by a relative `slack`, as conditions of a programme."""
        ...

    def refine(self, table: np.ndarray, slack: float) -> bool:
        """Add conditions that the table violates; return True if any was added."""
        ...

    def forget(self, multipliers: Sequence[np.ndarray]) -> None:
        """Drop added conditions that do not bind, given their multipliers."""
        ...


Group = tuple[int, int]


class PerspectiveLimit(ABC):
    """A limit on sums of perspectives, Σ_i w_i·f(u_i / w_i), with u and w linear in the table.

    Each term is convex, hence the largest of its tangents f'(r)·u + (f(r) - r·f'(r))·w over all r.
    Tangents are added at the ratios where a solution exceeds the limit. This remains a linear
    programme, whose dual bound is valid for any set of tangents.
    """

    @abstractmethod
    def first(self, vertices: int) -> list[Group]:
        """Return groups to start with."""

    @abstractmethod
    def worst(self, table: np.ndarray) -> list[Group]:
        """Return groups that exceed the limit most, if any does."""

    @abstractmethod
    def forms(self, groups: Sequence[Group], vertices: int) -> tuple[Matrix, Matrix]:
        """Return u and w of each group as mixtures of the table's rows, (groups, V) each."""

    @abstractmethod
    def log_slope(self, ratio: np.ndarray, slack: float) -> np.ndarray:
        """Return log|f(r)/r| - log(limit): a term, in units of the limit, is u·exp(this)."""

    @abstractmethod
    def largest_ratio(self, u: np.ndarray) -> np.ndarray:
        """Return the ratio at which a single term is four times the limit."""

    @property
    @abstractmethod
    def power(self) -> float:
        """f(r) = |r|^power."""


@dataclass(slots=True)
class Tangents:
    """The tangents of a curved constraint that one design has added so far."""

    curve: PerspectiveLimit
    cuts: list[tuple[Group, np.ndarray]] = field(default_factory=list)

    def parts(self, vertices: np.ndarray, codes: int, slack: float) -> list[Part]:
        # Σ_i t_i <= 1 in units of the limit, with t_i at least each of its tangents.
        if not self.cuts:
            self.cuts += [(group, np.ones(codes)) for group in self.curve.first(len(vertices))]
        groups = sorted({group for group, _ in self.cuts})
        numbers = {group: number for number, group in enumerate(groups)}
        number = np.array([numbers[group] for group, _ in self.cuts])
        ratio = np.array([ratios for _, ratios in self.cuts])
        slope = np.exp(self.curve.log_slope(ratio, slack)) * np.sign(ratio)
        u_weight, w_weight = self.curve.power * slope, (1 - self.curve.power) * slope * ratio
        # Rows of similar size: HiGHS judges violations in absolute numbers.
        scale = np.maximum(1.0, np.maximum(np.abs(u_weight), np.abs(w_weight)))
        one = sparse.eye_array(codes)

        def by_code(weight: np.ndarray, form: Matrix) -> Matrix:
            return sparse.diags_array((weight / scale).reshape(-1)) @ sparse.kron(form, one)

        u, w = self.curve.forms(groups, len(vertices))
        table = by_code(u_weight, u[number]) + by_code(w_weight, w[number])
        chosen = sparse.csr_array(sparse.eye_array(len(groups)))[number]
        tangents = Conditions(
            "positive", table, -by_code(np.ones_like(u_weight), chosen), np.zeros(table.shape[0])
        )
        sums = sparse.kron(sparse.eye_array(len(groups)), np.ones((1, codes)))
        nothing = sparse.csr_array((len(groups), table.shape[1]))
        limits = Conditions("positive", nothing, sums, np.ones(len(groups)))
        return [Part([tangents, limits], upper=np.ones(len(groups) * codes))]

    def refine(self, table: np.ndarray, slack: float) -> bool:
        """Add tangents of the groups that exceed the limit by more than MAX_RELATIVE_EXCESS."""
        groups = sorted({*self.curve.worst(table), *(group for group, _ in self.cuts)})
        u, w = (np.asarray(form @ table) for form in self.curve.forms(groups, len(table)))
        # Where w is zero the ratio is infinite: a tangent at a finite one excludes this point, too.
        largest = self.curve.largest_ratio(np.maximum(np.abs(u), 1e-300))
        ratio = np.where(u == 0, 0.0, np.clip(u / np.maximum(w, 1e-300), -largest, largest))
        with np.errstate(divide="ignore"):
            terms = np.where(u == 0, 0.0, np.abs(u) * np.exp(self.curve.log_slope(ratio, slack)))
        over = terms.sum(axis=1) > 1 + MAX_RELATIVE_EXCESS * self.curve.power
        self.cuts += [(groups[k], ratio[k]) for k in np.flatnonzero(over)]
        return bool(over.any())

    def forget(self, multipliers: Sequence[np.ndarray]) -> None:
        # Tangents that do not bind: a later programme adds them again if needed, and is smaller.
        codes = self.cuts[0][1].size
        binds = multipliers[0].reshape(-1, codes).max(axis=1) > 0
        self.cuts = [self.cuts[k] for k in np.flatnonzero(binds)]


class Objective(Protocol):
    """An objective over tables of probabilities for given vertices and levels."""

    degree: int

    def cost(self, vertices: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """Return the objective's linear part: (V, m)."""
        ...

    def parts(self, vertices: np.ndarray, levels: np.ndarray) -> list[Part]:
        """Return the conditions of the objective itself."""
        ...

    def refine(self, vertices: np.ndarray, levels: np.ndarray, solution: Solution) -> bool:
        """Add conditions that the solution violates; return True if any was added."""
        ...

    def forget(self) -> None:
        """Drop all conditions that were added."""
        ...

    def slope(self, vertices: np.ndarray, levels: np.ndarray, solution: Solution) -> np.ndarray:
        """Return (m,): the derivative by each level for a fixed table.

        The multipliers of the objective's conditions are the last ones of the solution.
        """
        ...

    def measure(self, channel: Channel) -> float:
        """Compute the objective of a finished channel, in the channel's units."""
        ...


@dataclass(slots=True)
class MeanError:
    """Mean of |decoded - x| (power 1) or of its square (power 2).

    Attributes:
        degree: 1 or 2, the power.
        density: samples of x, over which the mean is taken; None for x uniform on [-1, 1].
    """

    degree: int
    density: np.ndarray | None = None

    def cost(self, vertices: np.ndarray, levels: np.ndarray) -> np.ndarray:
        return self._weigh(vertices, levels, lambda error: np.abs(error) ** self.degree)

    def parts(self, vertices: np.ndarray, levels: np.ndarray) -> list[Part]:
        return []  # the objective is linear

    def refine(self, vertices: np.ndarray, levels: np.ndarray, solution: Solution) -> bool:
        return False

    def forget(self) -> None:
        pass

    def slope(self, vertices: np.ndarray, levels: np.ndarray, solution: Solution) -> np.ndarray:
        # The mean of the error's derivative.
        weights = self._weigh(
            vertices,
            levels,
            lambda error: np.sign(error) if self.degree == 1 else 2 * error,
        )
        return (weights * solution.table).sum(axis=0)

    def measure(self, channel: Channel) -> float:
        # From the integers of the channel, and not from the solver's table.
        exact = moments(channel)
        if self.density is None:
            return exact.mae if self.degree == 1 else exact.mse
        error_at = exact.mae_at if self.degree == 1 else exact.mse_at
        samples = np.clip(channel.clip * self.density, -channel.clip, channel.clip)
        return float(np.mean(error_at(samples)))

    def _weigh(self, vertices: np.ndarray, levels: np.ndarray, function) -> np.ndarray:
        # (V, m): mean over x of hat_v(x) · function(level_i - x).
        if self.density is not None:
            return _hat_sums(
                vertices, self.density, function(levels - self.density[:, None])
            ) / len(self.density)
        # Simpson's rule is exact: on each piece the integrand is a polynomial of degree <= 3.
        points = np.unique(np.concatenate([vertices, levels[np.abs(levels) < 1]]))
        left, right = points[:-1], points[1:]
        cell = np.searchsorted(vertices, (left + right) / 2) - 1
        total = np.zeros((len(vertices), len(levels)))
        inside = (left + right)[:, None] / 2
        for x, share in ((left, 1 / 6), ((left + right) / 2, 4 / 6), (right, 1 / 6)):
            error = levels - x[:, None]
            # At a level itself, use the sign inside the piece instead of zero.
            error = np.where(error == 0, np.sign(levels - inside) * 1e-300, error)
            weight = function(error) * (share * (right - left) / 2)[:, None]
            total += _hat_sums(vertices, x, weight, cell)
        return total


@dataclass(slots=True)
class WorstVariance:
    """The largest variance over all inputs.

    Within a cell E[level^2 | x] is linear and E[level | x] = x, so the variance is a concave
    parabola; the programme bounds it at the points where earlier solutions had a maximum.
    """

    degree: int = 2
    points: list[np.ndarray] = field(default_factory=list)
    _used: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def cost(self, vertices: np.ndarray, levels: np.ndarray) -> np.ndarray:
        # The objective is the bound of the variance, an extra variable in `parts`.
        return np.zeros((len(vertices), len(levels)))

    def parts(self, vertices: np.ndarray, levels: np.ndarray) -> list[Part]:
        # E[level^2 | x] - x^2 <= bound at every point.
        middles = (vertices[:-1] + vertices[1:]) / 2
        x = self._used = np.unique(np.concatenate([vertices, middles, *self.points]))
        table = _mixing(vertices, x, levels**2)
        bound = -np.ones((len(x), 1))
        rows = Conditions("positive", table, sparse.csr_array(bound), x**2)
        return [Part([rows], upper=np.array([np.max(levels**2)]), cost=np.ones(1))]

    def refine(self, vertices: np.ndarray, levels: np.ndarray, solution: Solution) -> bool:
        """Add the inputs at which the variance exceeds the bound."""
        second = solution.table @ levels**2
        variance = second - vertices**2
        width = np.diff(vertices)
        # (1-t)·a + t·b + t(1-t)·width^2 is largest at t = 1/2 + (b - a)/(2·width^2)
        t = np.clip(0.5 + np.diff(variance) / (2 * width**2), 0, 1)
        largest = (1 - t) * variance[:-1] + t * variance[1:] + t * (1 - t) * width**2
        exceeds = largest > solution.value * (1 + MAX_RELATIVE_EXCESS)
        violating = (vertices[:-1] + t * width)[exceeds]
        if violating.size:
            self.points.append(violating)
        return bool(violating.size)

    def forget(self) -> None:
        # For other levels other points matter, and the programme is smaller without the old ones.
        self.points.clear()

    def slope(self, vertices: np.ndarray, levels: np.ndarray, solution: Solution) -> np.ndarray:
        # The derivative of E[level^2 | x] at the points that bind.
        weight = solution.multipliers[-1][0]
        per_code = _mixing(vertices, self._used, np.ones(len(levels)))
        shares = (weight @ per_code).reshape(solution.table.shape)
        return (shares * solution.table).sum(axis=0) * 2 * levels

    def measure(self, channel: Channel) -> float:
        return moments(channel).variance_max


def _hat_sums(
    vertices: np.ndarray, x: np.ndarray, weight: np.ndarray, cell: np.ndarray | None = None
) -> np.ndarray:
    # (V, m): sum over the n points x of hat_v(x) · weight, which is (n, m).
    hats = _hats(vertices, x, cell)
    return np.asarray(hats.T @ weight)


def _hats(vertices: np.ndarray, x: np.ndarray, cell: np.ndarray | None = None):
    # (n, V) sparse: the row at each x as a mixture of the rows of the vertices.
    if cell is None:
        cell = np.clip(np.searchsorted(vertices, x, side="right") - 1, 0, len(vertices) - 2)
    part = (x - vertices[cell]) / (vertices[cell + 1] - vertices[cell])
    index = np.arange(len(x))
    return sparse.csr_array(
        (
            np.concatenate([1 - part, part]),
            (np.concatenate([index, index]), np.concatenate([cell, cell + 1])),
        ),
        shape=(len(x), len(vertices)),
    )


def _mixing(vertices: np.ndarray, x: np.ndarray, per_code: np.ndarray):
    # (n, V·m) sparse: Σ_i per_code_i · p_i(x) as a linear function of the table.
    return sparse.csr_array(sparse.kron(_hats(vertices, x), per_code[None, :]))


# The search for levels: gradient descent on the optimal error, from several starts.
#
# The derivative of the optimum by a level follows from the programme's multipliers. The result is
# the best of the local optima that are found.

MIN_LEVEL_DISTANCE = 1e-6
"""Smallest distance of two levels, in units of clip: levels of a channel must increase, and those
that coincide in an optimum are moved apart by this. It changes the error by as little."""

START_COUNT = 8
"""Starting points of a search over more than one number. Its time is proportional to it; with half
as many, the best optimum is missed more often."""

MAX_STEPS = 40
"""Most programmes solved from one starting point, at each stage."""

SECOND_STAGE_COUNT = 3
"""Number of best points that enter the second stage; each later stage takes one fewer. With one
only, the second best after a rough stage, which may end best, would be lost."""

ROUGH_RELATIVE_STEP = 1e-5
"""Relative gain of a step at which the first stage ends: it only sorts the starting points."""

Value = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""Function from (m,) levels to the optimum and its (m,) derivative; infinite without a solution."""


def search(
    stages: Sequence[Value],
    count: int,
    within: tuple[float, float],
    *,
    symmetric: bool,
    lattice: bool,
) -> np.ndarray:
    """Find levels with a small optimal error.

    Args:
        stages: the optimum as a function of the levels, from coarse to fine: every start descends
            roughly on the first, the best few continue on the next ones, or on the only one.
        count: m, number of levels.
        within: smallest and largest magnitude of the outermost levels.
        symmetric: True for levels that are symmetric about 0.
        lattice: True for levels that are evenly spaced.

    Returns:
        (m,) increasing levels.
    """
    from scipy.optimize import minimize

    least, reach = within[0], within[1] - count * MIN_LEVEL_DISTANCE  # room to move levels apart
    shape = _shape(count, symmetric=symmetric, lattice=lattice)
    bounds = [(-reach, reach)] * shape.shape[1]
    if symmetric:
        bounds[-1] = (least, reach)

    def place(free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        levels = np.clip(shape @ free, -reach, reach)
        order = np.argsort(levels, kind="stable")
        return _apart(levels[order]), order

    def descend(free: np.ndarray, value: Value) -> tuple[float, np.ndarray]:
        levels, order = place(free)
        optimum, slope = value(levels)
        if not np.isfinite(optimum):
            return 1e6, np.zeros(free.size)  # L-BFGS-B steps back, and cannot do so from infinity
        return optimum, shape[order].T @ slope

    points = _starts(shape, least, reach)
    stages = [stages[0], *(stages[1:] or stages)]
    for stage, value in enumerate(stages):
        optima = []
        for done, point in enumerate(points):
            report(f"levels, stage {stage + 1} of {len(stages)}", done, len(points))
            options = {"maxfun": MAX_STEPS} | ({} if stage else {"ftol": ROUGH_RELATIVE_STEP})
            optima.append(
                minimize(descend, point, (value,), "L-BFGS-B", True, bounds=bounds, options=options)
            )
        optima.sort(key=lambda solved: solved.fun)
        points = [solved.x for solved in optima[: max(1, SECOND_STAGE_COUNT - stage)]]
    return place(points[0])[0]


def _shape(count: int, *, symmetric: bool, lattice: bool) -> np.ndarray:
    # (m, n): the levels as linear functions of the n numbers that are searched.
    if lattice:
        positions = np.linspace(-1, 1, count)
        two_ends = np.stack([(1 - positions) / 2, (1 + positions) / 2], axis=1)
        return positions[:, None] if symmetric else two_ends
    if not symmetric:
        return np.eye(count)
    upper = np.eye(count)[:, count - count // 2 :]
    return upper - upper[::-1]


def _starts(shape: np.ndarray, least: float, reach: float) -> list[np.ndarray]:
    # Even spacings and random points whose outermost levels are far enough out. The seed is fixed,
    # so that the same arguments give the same channel.
    count, free = shape.shape
    generator = np.random.default_rng(0)
    if free == 1:
        return [np.array([s]) for s in np.geomspace(1.05 * least, min(reach, 6 * least), 6)]
    starts = []
    for number in range(START_COUNT):
        outer = min(reach, least * generator.uniform(1.02, 2.0))
        levels = np.sort(generator.uniform(-outer, outer, count))
        if number == 0:
            levels = np.linspace(-outer, outer, count)
        levels[0], levels[-1] = -outer, outer
        starts.append(np.linalg.lstsq(shape, levels, rcond=None)[0])
    return starts


def _apart(levels: np.ndarray) -> np.ndarray:
    # Levels that (nearly) coincide are moved outward from the middle, so that all increase.
    apart, middle = levels.copy(), (len(levels) - 1) // 2
    for i in range(middle + 1, len(levels)):
        apart[i] = max(apart[i], apart[i - 1] + MIN_LEVEL_DISTANCE)
    for i in range(middle - 1, -1, -1):
        apart[i] = min(apart[i], apart[i + 1] - MIN_LEVEL_DISTANCE)
    return apart
