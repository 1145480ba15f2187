"""The best unbiased channel under a privacy constraint, by linear programming.

Derivation: `docs/theory/design.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from scipy import sparse

from randquant._internal import validate
from randquant._internal.formatting import round_up
from randquant.channels.channel import MAX_MAGNITUDE, Channel, from_probabilities
from randquant.mechanisms.design_programme import (
    Conditions,
    Group,
    InfeasibleError,
    Limits,
    Matrix,
    MeanError,
    Objective,
    Part,
    PerspectiveLimit,
    Solution,
    Tangents,
    Value,
    WorstVariance,
    search,
    solve,
)
from randquant.privacy.certificates.coordinate import (
    Certificate,
    MetricCertificate,
    certify,
    certify_metric,
)

__all__ = [
    "Constraint",
    "Design",
    "Fisher",
    "Metric",
    "Pure",
    "Renyi",
    "least_epsilon",
    "named_constraint",
    "optimal",
]


# Constraints of a design: pure or Rényi divergence, metric privacy, or Fisher information.
#
# A constraint is a value. The search for levels and rows uses its `limits`, which add tangents
# where a solution violates the constraint. All levels and inputs are in units of clip. Derivations:
# `docs/theory/design.md`.

RELATIVE_STEPS_BELOW_TARGET = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
"""Relative distances below the target epsilon, tried in turn until the channel in integers has a
certificate that meets the target. The first is the least that float64 and the solver resolve; a
target that the last one does not meet is too fine for integers of 62 bits."""


class Constraint(Protocol):
    """A bound on the privacy loss of one coordinate."""

    slacks: ClassVar[Sequence[float]]
    """Relative distances below the bound, tried in turn until the integers meet it."""

    @property
    def epsilon(self) -> float:
        """The bound, > 0, at most 40."""
        ...

    def certify(self, channel: Channel) -> Certificate | MetricCertificate:
        """Certify a finished channel: the same kind of bound, proven for its integers."""
        ...

    def limits(self) -> Limits:
        """Return the constraint as rows of a linear programme, without any tangents yet."""
        ...

    def grids(self, inputs: int) -> list[int]:
        """Return numbers of vertices for the successive stages of a search for levels."""
        ...


def named_constraint(name: str, epsilon: float, order: float | None = None) -> Constraint:
    """Return the constraint that a command line or a mechanism's parameters name.

    Args:
        name: `pure`, `renyi`, `l1`, `l2` or `fisher`.
        epsilon: its bound.
        order: Rényi order, for `renyi` alone.

    Raises:
        ValueError, TypeError: the name is unknown, a number is out of bounds or of the wrong kind,
            or an order is given to another constraint than `renyi`.

    Example:
        >>> named_constraint("renyi", 1.0, order=2)
        Renyi(epsilon=1.0, order=2.0)
    """
    validate.choice("constraint", name, ("pure", "renyi", "l1", "l2", "fisher"))
    if (name == "renyi") != (order is not None):
        raise ValueError(
            "Expected order exactly with constraint='renyi', got "
            f"constraint={name!r}, order={order}."
        )
    if order is not None:
        return Renyi(epsilon, order)
    if name in ("l1", "l2"):
        return Metric(epsilon, name)
    return Pure(epsilon) if name == "pure" else Fisher(epsilon)


@dataclass(frozen=True, slots=True)
class Pure:
    """Pure epsilon: p_v(i) <= exp(epsilon)·p_w(i) for all inputs v, w and codes i.

    Args:
        epsilon: in nats, > 0, at most 40.

    Raises:
        ValueError, TypeError: epsilon is out of bounds or not a number.
    """

    epsilon: float
    slacks: ClassVar[Sequence[float]] = RELATIVE_STEPS_BELOW_TARGET

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        _check_epsilon(self.epsilon)

    def certify(self, channel: Channel) -> Certificate:
        return certify(channel)

    def limits(self) -> Limits:
        return Fixed(self._part)

    def grids(self, inputs: int) -> list[int]:
        # Coarse grids first: most programmes of a search only sort its starting points.
        return [min(vertices, inputs) for vertices in (9, 33, inputs)]

    def _part(self, vertices: int, codes: int, slack: float) -> Part:
        # One lower bound for each code, l_i <= p_vi <= exp(epsilon)·l_i: two rows for each
        # probability, instead of one for each pair of probabilities.
        return _within_ratio(vertices, codes, math.exp(self.epsilon * (1 - slack)))


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric privacy: a bound on the change of log-likelihoods with the input.

    Args:
        epsilon: > 0, at most 40.
        geometry: `l1`: by at most epsilon·|x - x'|/clip between any inputs. `l2`: by at most
            epsilon·(x - x')^2/clip^2 between vertices, as MVU has it.

    Raises:
        ValueError, TypeError: epsilon is out of bounds or not a number, or geometry is neither.
    """

    epsilon: float
    geometry: Literal["l1", "l2"]
    slacks: ClassVar[Sequence[float]] = RELATIVE_STEPS_BELOW_TARGET

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        _check_epsilon(self.epsilon)
        validate.choice("geometry", self.geometry, ("l1", "l2"))

    def certify(self, channel: Channel) -> MetricCertificate:
        return certify_metric(channel, self.geometry)

    def limits(self) -> Limits:
        return Fixed(self._part)

    def grids(self, inputs: int) -> list[int]:
        # The final grid only: the bound between vertices depends on their distance.
        return [inputs]

    def _part(self, vertices: int, codes: int, slack: float) -> Part:
        # The ratio of neighbouring rows in both directions, which implies the bound for all other
        # pairs: distances add up, and squares of distances more than that.
        step = 2 / (vertices - 1)
        limit = self.epsilon * (1 - slack)
        # Within a cell rows are linear, so their log changes fastest at the smaller end.
        ratio = 1 + limit * step if self.geometry == "l1" else math.exp(limit * step**2)
        lower, upper = _ends(vertices, codes)
        nothing = sparse.csr_array((lower.shape[0], 0))
        right = np.zeros(lower.shape[0])
        return Part([
            Conditions("positive", upper - ratio * lower, nothing, right),
            Conditions("positive", lower - ratio * upper, nothing, right),
        ])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fixed:
    """Limits without tangents, which `part` builds from vertices, codes and slack."""

    part: Callable[[int, int, float], Part]

    def parts(self, vertices: np.ndarray, codes: int, slack: float) -> list[Part]:
        return [self.part(len(vertices), codes, slack)]

    def refine(self, table: np.ndarray, slack: float) -> bool:
        return False

    def forget(self, multipliers: Sequence[np.ndarray]) -> None:
        pass


class Curved(PerspectiveLimit):
    """A constraint whose tangents are added as a design needs them."""

    slacks: ClassVar[Sequence[float]] = RELATIVE_STEPS_BELOW_TARGET[3:]

    def limits(self) -> Limits:
        return Tangents(self)

    def grids(self, inputs: int) -> list[int]:
        # A coarse grid only: each programme with tangents is solved several times.
        return [min(9, inputs)]


@dataclass(frozen=True)
class Renyi(Curved):
    """Rényi divergence: Σ_i p_vi^order·p_wi^(1-order) <= exp((order-1)·epsilon).

    Groups are pairs of vertices.

    Args:
        epsilon: in nats, > 0, at most 40.
        order: above 1, at most 1000.

    Raises:
        ValueError, TypeError: an argument is out of bounds or not a number.
    """

    epsilon: float
    order: float

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        _check_epsilon(self.epsilon)
        validate.real("order", self.order, above=1, high=1000)

    @property
    def power(self) -> float:
        return self.order

    def first(self, vertices: int) -> list[Group]:
        # Each vertex paired with either end, in both orders: mostly the worst pairs.
        ends = [(v, end) for v in range(vertices) for end in (0, vertices - 1) if v != end]
        return sorted({*ends, *((b, a) for a, b in ends)})

    def worst(self, table: np.ndarray) -> list[Group]:
        # The worst partner of each vertex, in the log domain: powers of order 1000 would overflow.
        log = np.log(np.maximum(table, 1e-300))
        partners = []
        for vertex, row in enumerate(log):
            exponents = np.where(
                table[vertex] > 0, self.order * row + (1 - self.order) * log, -np.inf
            )
            largest = exponents.max(axis=1)
            sums = largest + np.log(np.exp(exponents - largest[:, None]).sum(axis=1))
            partners.append(int(sums.argmax()))
        return [(v, partner) for v, partner in enumerate(partners) if v != partner]

    def forms(self, groups: Sequence[Group], vertices: int) -> tuple[Matrix, Matrix]:
        identity = sparse.csr_array(sparse.eye_array(vertices))
        first, second = np.array(groups).T
        return identity[first], identity[second]

    def log_slope(self, ratio: np.ndarray, slack: float) -> np.ndarray:
        log = np.log(np.maximum(ratio, 1e-300))
        return (self.order - 1) * (log - self.epsilon * (1 - slack))

    def largest_ratio(self, u: np.ndarray) -> np.ndarray:
        # Where u·r^(order-1) = 4·limit, within float64.
        return np.exp(np.minimum(self.epsilon + np.log(4 / u) / (self.order - 1), 700.0))

    def certify(self, channel: Channel) -> Certificate:
        return certify(channel, self.order)


@dataclass(frozen=True)
class Fisher(Curved):
    """Fisher information of the code about x/clip: Σ_i slope_i^2/p_i <= epsilon at every input.

    Within a cell it is convex in x, so that the cell's two ends suffice. Groups are (cell, end).

    Args:
        epsilon: > 0, at most 40.

    Raises:
        ValueError, TypeError: epsilon is out of bounds or not a number.
    """

    epsilon: float

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        _check_epsilon(self.epsilon)

    @property
    def power(self) -> float:
        return 2.0

    def first(self, vertices: int) -> list[Group]:
        return [(cell, end) for cell in range(vertices - 1) for end in (0, 1)]

    def worst(self, table: np.ndarray) -> list[Group]:
        # All of them: they are few.
        return self.first(len(table))

    def forms(self, groups: Sequence[Group], vertices: int) -> tuple[Matrix, Matrix]:
        # u is the slope within the cell, w the row at its end.
        identity = sparse.csr_array(sparse.eye_array(vertices))
        cell, end = np.array(groups).T
        slope = (identity[cell + 1] - identity[cell]) * ((vertices - 1) / 2)
        return slope, identity[cell + end]

    def log_slope(self, ratio: np.ndarray, slack: float) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(np.abs(ratio)) - math.log(self.epsilon * (1 - slack))

    def largest_ratio(self, u: np.ndarray) -> np.ndarray:
        return 4 * self.epsilon / u

    def certify(self, channel: Channel) -> MetricCertificate:
        return certify_metric(channel, "fisher")


def _check_epsilon(epsilon: float) -> None:
    validate.real("epsilon", epsilon, above=0, high=40)


@functools.lru_cache(maxsize=16)
def _within_ratio(vertices: int, codes: int, ratio: float) -> Part:
    identity = sparse.eye_array(vertices * codes)
    lower = sparse.kron(np.ones((vertices, 1)), sparse.eye_array(codes))
    right = np.zeros(vertices * codes)
    rows = [
        Conditions("positive", -identity, lower, right),
        Conditions("positive", identity, -ratio * lower, right),
    ]
    return Part(rows, upper=np.ones(codes))


def _ends(vertices: int, codes: int) -> tuple[Matrix, Matrix]:
    # The rows at the lower and at the upper end of each cell, as linear functions of the table.
    one = sparse.eye_array(codes)
    lower = sparse.eye_array(vertices - 1, vertices)
    upper = sparse.eye_array(vertices - 1, vertices, k=1)
    return sparse.csr_array(sparse.kron(lower, one)), sparse.csr_array(sparse.kron(upper, one))


ObjectiveName = Literal["mae", "mse", "worst_variance"]

MAX_EXTENSIONS = 100
"""Most times that a programme is extended by conditions that its solution violates. If all are
used, the certificate may miss the target, and the next lower aim is tried."""

MIN_CODE_PROBABILITY = 1e-8
"""A code that every input sends with a smaller probability counts as never sent: it is due to the
solver's tolerance of 1e-10, and the ratios of such probabilities would spoil the certificate."""


@dataclass(frozen=True, slots=True)
class Design:
    """An optimal channel, with a bound of its distance to the optimum.

    Attributes:
        channel: the channel, in integers.
        certificate: its certified epsilon, at most the target.
        objective: what was minimised.
        value: the channel's exact objective.
        dual_bound: no unbiased channel on these levels and vertices that meets the constraint has
            a smaller objective (up to float64 rounding of the bound).
        gap: largest possible distance to the optimum, value - dual_bound.
    """

    channel: Channel
    certificate: Certificate | MetricCertificate
    objective: ObjectiveName
    value: float
    dual_bound: float

    @property
    def gap(self) -> float:
        return self.value - self.dual_bound


def optimal(
    clip: float,
    values: Sequence[float] | np.ndarray | None = None,
    *,
    constraint: Constraint,
    objective: ObjectiveName = "mae",
    inputs: int | None = None,
    density: Sequence[float] | np.ndarray | None = None,
    levels: int | None = None,
    reach: float | None = None,
    symmetric: bool = True,
    lattice: bool = False,
) -> Design:
    """Find the unbiased channel with the least error that meets a privacy constraint.

    Args:
        clip: per-coordinate clipping threshold, within [1e-30, 1e30].
        values: 2 to 256 increasing levels, beyond [-clip, clip] on both sides; or give `levels`
            instead.
        constraint: bound per coordinate: `Pure(epsilon)` and `Renyi(epsilon, order)`, in nats;
            `Metric(epsilon, "l1")` or `"l2"`: log-likelihoods change by at most
            epsilon·|x - x'|/clip, or between vertices by at most epsilon·(x - x')^2/clip^2;
            `Fisher(epsilon)`: the Fisher information about x/clip is at most epsilon.
        objective: `mae` or `mse`, averaged over the input, or `worst_variance`, the largest
            variance over all inputs.
        inputs: V, evenly spaced vertices between which inputs are dithered, 2 to 1000; by default
            33, or 129 if levels are searched.
        density: samples of the input, within [-clip, clip], over which errors are averaged; by
            default the input is uniform on [-clip, clip].
        levels: number of levels to search for, 2 to 32, instead of `values`.
        reach: largest magnitude of a searched level, in the units of clip; required for `mae`.
        symmetric: True for searched levels that are symmetric about 0. Others can be slightly
            better.
        lattice: True for searched levels that are evenly spaced, so that sums of codes decode.

    Returns:
        A Design. Searched levels are a local optimum, the best of several starts; rows are optimal
        for their levels.

    Guarantees:
        The certified epsilon of the integer channel is at most the target.
        The channel is unbiased up to rounding (`moments(channel).bias_max`).
        No channel on the same levels and vertices is better by more than `gap`.

    Raises:
        ValueError: an argument is out of bounds, or no unbiased channel on these levels meets the
            target (the error names the least epsilon).

    References:
        Chaudhuri, Guo and Rabbat 2022 (MVU) state the programme with all pairs of rows; here one
        lower bound per code replaces the pairs.

    Example:
        >>> from randquant.mechanisms.design import Pure
        >>> design = optimal(clip=1.0, values=[-3, -0.5, 0.5, 3], constraint=Pure(1.0))
        >>> round(design.value, 4), design.certificate.epsilon.upper <= 1.0, design.gap < 1e-6
        (1.7009, True, True)
        >>> design = optimal(clip=1.0, levels=2, constraint=Pure(1.0), objective="mse")
        >>> [round(float(value), 4) for value in design.channel.values], round(design.value, 4)
        ([-2.164, 2.164], 4.3494)
    """
    clip = validate.real("clip", clip, low=1e-30, high=1e30)
    validate.flag("symmetric", symmetric)
    validate.flag("lattice", lattice)
    if (values is None) == (levels is None):
        raise ValueError(
            "Expected either values or a number of levels to search for, not both, got "
            f"values={validate.shown(values)} and levels={levels}."
        )
    searching = {"reach": reach is not None, "symmetric": not symmetric, "lattice": lattice}
    if values is not None and any(searching.values()):
        raise ValueError(
            "Expected no settings of a search for levels with values, got "
            f"{', '.join(name for name, is_set in searching.items() if is_set)}: values are taken "
            "as they are."
        )
    default_inputs = 33 if levels is None else 129
    inputs = default_inputs if inputs is None else inputs
    inputs = validate.whole("inputs", inputs, low=2, high=1000)
    validate.answers("constraint", constraint, "a constraint such as Pure(1.0)", "limits")
    limits, goal = constraint.limits(), _objective(objective, density, clip)
    # In units of clip, the programme is well scaled for every clip.
    vertices = np.linspace(-1, 1, inputs)
    if levels is None:
        grid = _levels(values) / clip
    else:
        grid = _searched(
            constraint,
            limits,
            goal,
            levels,
            reach and reach / clip,
            inputs,
            symmetric=symmetric,
            lattice=lattice,
        )
    _check_feasible(constraint, grid, vertices)
    return _finished(constraint, limits, goal, objective, grid, vertices, clip)


def least_epsilon(
    clip: float,
    values: Sequence[float] | np.ndarray,
    constraint: Constraint,
    inputs: int = 33,
) -> float:
    """Return the least epsilon of any unbiased channel on these levels; infinite without any.

    Rounding every code at random to the two outermost levels, without bias, is post-processing and
    raises no divergence. So the channel on these two levels alone has the least epsilon.

    Args:
        clip, values, inputs: as in `optimal`.
        constraint: as in `optimal`; its own epsilon is ignored.

    Example:
        >>> from randquant.mechanisms.design import Pure
        >>> round(least_epsilon(1.0, [-3.0, 3.0], Pure(1.0)), 6)  # log(4/2)
        0.693147
    """
    clip = validate.real("clip", clip, low=1 / MAX_MAGNITUDE, high=MAX_MAGNITUDE)
    grid = validate.array("values", values)
    inputs = validate.whole("inputs", inputs, low=2, high=1000)
    validate.answers("constraint", constraint, "a constraint such as Pure(1.0)", "certify")
    if grid.ndim != 1 or grid.size < 2 or not np.isfinite(grid).all():
        raise ValueError(f"Expected values to be two finite numbers or more, got {values!r}.")
    lowest, highest = float(grid.min()) / clip, float(grid.max()) / clip
    if lowest >= -1 or highest <= 1:
        return math.inf
    vertices = np.linspace(-1, 1, inputs)
    up = (vertices - lowest) / (highest - lowest)
    rows = np.stack([1 - up, up], axis=1)
    two_levels = from_probabilities(vertices, np.array([lowest, highest]), rows)
    return constraint.certify(two_levels).epsilon.upper


def _objective(name: str, density: Any, clip: float) -> Objective:
    validate.choice("objective", name, ("mae", "mse", "worst_variance"))
    if name == "worst_variance":
        if density is not None:
            raise ValueError(
                f"Expected no density, got {validate.shown(density)}: the worst variance is over "
                "all inputs."
            )
        return WorstVariance()
    samples = None
    if density is not None:
        samples = validate.array("density", density).reshape(-1) / clip
        if samples.size == 0 or not (np.abs(samples) <= 1).all():
            raise ValueError(
                f"Expected density to hold samples of the input within [-{clip:g}, {clip:g}]: "
                "clip them first."
            )
    return MeanError(1 if name == "mae" else 2, samples)


def _levels(values: Any) -> np.ndarray:
    levels = validate.array("values", values)
    if levels.ndim != 1 or not 2 <= levels.size <= 256 or not np.isfinite(levels).all():
        raise ValueError(f"Expected 2 to 256 finite values, got {values!r}.")
    if (np.diff(levels) <= 0).any():
        raise ValueError(f"Expected values in increasing order, got {list(values)}.")
    return levels


def _check_feasible(bound: Constraint, levels: np.ndarray, vertices: np.ndarray) -> None:
    least = least_epsilon(1.0, levels, bound, len(vertices))
    if math.isinf(least):
        raise ValueError(
            "Expected values beyond [-clip, clip] on both sides, got an outermost one inside: an "
            "input at that end would be sent as one code with certainty."
        )
    if bound.epsilon <= least * (1 + 1e-6):
        raise ValueError(
            f"Expected epsilon above {round_up(least)}, the least of any unbiased channel on these "
            f"values, got epsilon={bound.epsilon}: raise it, or move the outermost values outward."
        )


def _searched(
    bound: Constraint,
    limits: Limits,
    goal: Objective,
    count: int,
    reach: float | None,
    inputs: int,
    *,
    symmetric: bool,
    lattice: bool,
) -> np.ndarray:
    # In units of clip.
    count = validate.whole("levels", count, low=2, high=32)
    least = _least_reach(bound, inputs)
    if reach is None:
        if goal.degree == 1:
            raise ValueError(
                "Expected a reach, the largest magnitude of a level: without one the best mean "
                f"absolute error sends a level to infinity. It must exceed {least:.6g} clip."
            )
        reach = 20 * least
    if reach <= least * (1 + 1e-6):
        raise ValueError(
            f"Expected reach above {least:.6g} clip, the least with which any unbiased channel "
            f"has this epsilon, got {reach:.6g} clip: raise reach or epsilon."
        )

    def value_at(vertices: int) -> Value:
        grid = np.linspace(-1, 1, vertices)

        def value(levels: np.ndarray) -> tuple[float, np.ndarray]:
            try:
                solution = _solved(limits, goal, levels, grid, 0.0)
            except InfeasibleError:
                return math.inf, np.zeros(count)
            return solution.value, _slope(goal, levels, grid, solution)

        return value

    return search(
        [value_at(vertices) for vertices in bound.grids(inputs)],
        count,
        (least * (1 + 2e-6), reach),
        symmetric=symmetric,
        lattice=lattice,
    )


def _least_reach(bound: Constraint, inputs: int) -> float:
    # The smallest magnitude of two symmetric levels that meet the target, by bisection, rounded up.
    low, high = 1.0, 2.0
    while least_epsilon(1.0, [-high, high], bound, inputs) > bound.epsilon:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if least_epsilon(1.0, [-middle, middle], bound, inputs) > bound.epsilon:
            low = middle
        else:
            high = middle
    return high


def _solved(
    limits: Limits, goal: Objective, levels: np.ndarray, vertices: np.ndarray, slack: float
) -> Solution:
    # Solves the programme, adds the conditions that the solution violates, and repeats. Each of
    # these programmes is a relaxation, so that the dual bound holds wherever it stops.
    unbiased, cost = _unbiased(vertices, levels), goal.cost(vertices, levels)
    goal.forget()
    extensions = 0
    while True:
        limit_parts = limits.parts(vertices, len(levels), slack)
        solution = solve(cost, [unbiased, *limit_parts, *goal.parts(vertices, levels)])
        extended = limits.refine(_present(solution.table), slack)
        extended |= goal.refine(vertices, levels, solution)
        extensions += 1
        if not extended or extensions == MAX_EXTENSIONS:
            break
    limits.forget(solution.multipliers[1])
    return solution


def _slope(
    goal: Objective, levels: np.ndarray, vertices: np.ndarray, solution: Solution
) -> np.ndarray:
    # (m,): derivative of the optimum by each level. By the envelope theorem the table counts as
    # fixed: levels occur in the conditions on the means, and in the objective.
    multipliers = solution.multipliers[0][1]
    by_means = (multipliers[:, None] * solution.table).sum(axis=0)
    return by_means + goal.slope(vertices, levels, solution)


def _unbiased(vertices: np.ndarray, levels: np.ndarray) -> Part:
    # Each row is a distribution whose mean is its vertex: a constraint and not a penalty, so that
    # the channel is unbiased at all inputs.
    sums, nothing = _row_sums(len(vertices), len(levels))
    means = sparse.coo_array(
        (np.tile(levels, len(vertices)), (sums.coords[0], sums.coords[1])), shape=sums.shape
    )
    return Part([
        Conditions("zero", sums, nothing, np.ones(len(vertices))),
        Conditions("zero", means, nothing, vertices),
    ])  # fmt: skip


@functools.lru_cache(maxsize=16)
def _row_sums(vertices: int, codes: int) -> tuple[Any, Any]:
    # A matrix that sums each row of a table, and one without columns. Cached, since a search asks
    # for the same sizes thousands of times.
    sums = sparse.coo_array(sparse.kron(sparse.eye_array(vertices), np.ones((1, codes))))
    return sums, sparse.coo_array((vertices, 0))


def _finished(
    bound: Constraint,
    limits: Limits,
    goal: Objective,
    name: ObjectiveName,
    levels: np.ndarray,
    vertices: np.ndarray,
    clip: float,
) -> Design:
    # In integers: it aims lower until the certificate of these integers meets the target. So no
    # guarantee depends on the solver.
    dual_bound = _solved(limits, goal, levels, vertices, 0.0).bound
    for slack in bound.slacks:
        table = _solved(limits, goal, levels, vertices, slack).table
        rows = _repaired(table, vertices, levels)
        channel = from_probabilities(clip * vertices, clip * levels, rows)
        certificate = bound.certify(channel)
        if certificate.epsilon.upper <= bound.epsilon:
            unit = clip**goal.degree
            return Design(channel, certificate, name, goal.measure(channel), dual_bound * unit)
    raise ValueError(
        f"Expected a target that integers of 62 bits can meet, got epsilon={bound.epsilon}: "
        "take fewer inputs or a larger epsilon."
    )


def _repaired(table: np.ndarray, vertices: np.ndarray, levels: np.ndarray) -> np.ndarray:
    # Rows with sum 1 and mean x, up to rounding. Each entry changes by a tiny factor, hence also
    # the ratios that the certificate depends on. A second pass removes the first one's rounding.
    rows = _present(table)
    for _ in range(2):
        centred = levels - vertices[:, None]
        total, first = rows.sum(axis=1), (rows * centred).sum(axis=1)
        second = (rows * centred**2).sum(axis=1)
        # rows·(a + b·centred) with sum 1 and mean 0
        determinant = total * second - first**2
        solvable = determinant > 1e-9 * second  # else the row has all its mass at one level
        determinant = np.where(solvable, determinant, 1.0)
        a, b = np.where(solvable, second, 1.0) / determinant, -first * solvable / determinant
        rows = rows * (a[:, None] + b[:, None] * centred)
    return rows / rows.sum(axis=1, keepdims=True)


def _present(table: np.ndarray) -> np.ndarray:
    # Without codes whose probabilities are only due to the solver's tolerance.
    rows = np.maximum(table, 0.0)
    rows[:, rows.max(axis=0) < MIN_CODE_PROBABILITY] = 0.0
    return rows
