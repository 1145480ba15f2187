"""Constraints of a design: pure or Rényi divergence, metric privacy, or Fisher information.

A constraint is a value. The search for levels and rows uses its `limits`, which add tangents where
a solution violates the constraint. All levels and inputs are in units of clip. Derivations:
`docs/theory/design.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
from scipy import sparse

from randquant._internal import validate
from randquant.channels.channel import Channel
from randquant.mechanisms.design.programme import Conditions, Matrix, Part
from randquant.mechanisms.design.tangents import Group, Limits, PerspectiveLimit, Tangents
from randquant.privacy.certificates.coordinate import Certificate, certify
from randquant.privacy.certificates.metric import MetricCertificate, certify_metric

SLACKS = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
"""Relative slacks below the target epsilon, tried in turn until the integers certify."""


class Constraint(Protocol):
    """A bound on the privacy loss of one coordinate."""

    slacks: ClassVar[Sequence[float]]
    """Relative slacks below the bound, tried in turn until the integers certify."""

    @property
    def epsilon(self) -> float:
        """The bound, > 0, at most 40."""
        ...

    def certify(self, channel: Channel) -> Certificate | MetricCertificate:
        """Certify a finished channel."""
        ...

    def limits(self) -> Limits:
        """The constraint as rows of a linear programme, without any tangents yet."""
        ...

    def grids(self, inputs: int) -> list[int]:
        """Numbers of vertices of the successive stages of a search for levels."""
        ...


def constraint_of(name: str, epsilon: float, order: float | None = None) -> Constraint:
    """Return the constraint that a command line or a mechanism's parameters name.

    Args:
        name: `pure`, `renyi`, `l1`, `l2` or `fisher`.
        epsilon: its bound.
        order: Rényi order, for `renyi` alone.

    Raises:
        ValueError, TypeError: the name is unknown, a number is out of bounds or of the wrong kind,
            or an order is given to another constraint than `renyi`.

    Example:
        >>> constraint_of("renyi", 1.0, order=2)
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
    slacks: ClassVar[Sequence[float]] = SLACKS

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        _check_epsilon(self.epsilon)

    def certify(self, channel: Channel) -> Certificate:
        """At order infinity, for all pairs of inputs."""
        return certify(channel)

    def limits(self) -> Limits:
        """One lower bound per code: l_i <= p_vi <= exp(epsilon)·l_i."""
        return Fixed(self._part)

    def grids(self, inputs: int) -> list[int]:
        """Coarse grids first."""
        return [min(vertices, inputs) for vertices in (9, 33, inputs)]

    def _part(self, vertices: int, codes: int, slack: float) -> Part:
        """Two rows for each probability, instead of one for each pair of rows."""
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
    slacks: ClassVar[Sequence[float]] = SLACKS

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        _check_epsilon(self.epsilon)
        validate.choice("geometry", self.geometry, ("l1", "l2"))

    def certify(self, channel: Channel) -> MetricCertificate:
        """In units of clip, like epsilon here."""
        return certify_metric(channel, self.geometry)

    def limits(self) -> Limits:
        """Bounds between neighbouring vertices, which imply those for all other pairs."""
        return Fixed(self._part)

    def grids(self, inputs: int) -> list[int]:
        """The final grid only: the bound between vertices depends on their distance."""
        return [inputs]

    def _part(self, vertices: int, codes: int, slack: float) -> Part:
        """Bound the ratio of neighbouring rows in both directions."""
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
    """Limits without tangents: `part` builds them all from vertices, codes and slack."""

    part: Callable[[int, int, float], Part]

    def parts(self, vertices: np.ndarray, codes: int, slack: float) -> list[Part]:
        """All conditions."""
        return [self.part(len(vertices), codes, slack)]

    def refine(self, table: np.ndarray, slack: float) -> bool:
        """Nothing to add."""
        return False

    def forget(self, multipliers: Sequence[np.ndarray]) -> None:
        """Nothing was added."""


class Curved(PerspectiveLimit):
    """A constraint whose tangents are added as a design needs them."""

    slacks: ClassVar[Sequence[float]] = SLACKS[3:]

    def limits(self) -> Limits:
        """No tangents yet."""
        return Tangents(self)

    def grids(self, inputs: int) -> list[int]:
        """A coarse grid only: curved constraints are slow."""
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
        """f(r) = r^order."""
        return self.order

    def first(self, vertices: int) -> list[Group]:
        """Each vertex paired with either end, in both orders."""
        ends = [(v, end) for v in range(vertices) for end in (0, vertices - 1) if v != end]
        return sorted({*ends, *((b, a) for a, b in ends)})

    def worst(self, table: np.ndarray) -> list[Group]:
        """The worst partner of each vertex."""
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
        """The two rows of each pair."""
        every = sparse.csr_array(sparse.eye_array(vertices))
        first, second = np.array(groups).T
        return every[first], every[second]

    def log_slope(self, ratio: np.ndarray, slack: float) -> np.ndarray:
        """(order - 1)·(log r - epsilon)."""
        log = np.log(np.maximum(ratio, 1e-300))
        return (self.order - 1) * (log - self.epsilon * (1 - slack))

    def largest_ratio(self, u: np.ndarray) -> np.ndarray:
        """u·r^(order-1) = 4·limit."""
        return np.exp(np.minimum(self.epsilon + np.log(4 / u) / (self.order - 1), 700.0))

    def certify(self, channel: Channel) -> Certificate:
        """At this order, for all pairs of inputs."""
        return certify(channel, self.order)


@dataclass(frozen=True)
class Fisher(Curved):
    """Fisher information of the code about x/clip: Σ_i slope_i^2/p_i <= epsilon at every input.

    Within a cell it is convex in x, so that the cell's two ends suffice: groups are (cell, end).

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
        """f(r) = r^2."""
        return 2.0

    def first(self, vertices: int) -> list[Group]:
        """Both ends of every cell."""
        return [(cell, end) for cell in range(vertices - 1) for end in (0, 1)]

    def worst(self, table: np.ndarray) -> list[Group]:
        """All ends of all cells."""
        return self.first(len(table))

    def forms(self, groups: Sequence[Group], vertices: int) -> tuple[Matrix, Matrix]:
        """The slope within the cell, and the row at its end."""
        every = sparse.csr_array(sparse.eye_array(vertices))
        cell, end = np.array(groups).T
        return (every[cell + 1] - every[cell]) * ((vertices - 1) / 2), every[cell + end]

    def log_slope(self, ratio: np.ndarray, slack: float) -> np.ndarray:
        """log|r| - log(epsilon)."""
        with np.errstate(divide="ignore"):
            return np.log(np.abs(ratio)) - math.log(self.epsilon * (1 - slack))

    def largest_ratio(self, u: np.ndarray) -> np.ndarray:
        """|u·r| = 4·limit."""
        return 4 * self.epsilon / u

    def certify(self, channel: Channel) -> MetricCertificate:
        """In units of clip, like epsilon here."""
        return certify_metric(channel, "fisher")


def _check_epsilon(epsilon: float) -> None:
    validate.real("epsilon", epsilon, above=0, high=40)


@functools.lru_cache(maxsize=16)
def _within_ratio(vertices: int, codes: int, ratio: float) -> Part:
    every = sparse.eye_array(vertices * codes)
    lower = sparse.kron(np.ones((vertices, 1)), sparse.eye_array(codes))
    right = np.zeros(vertices * codes)
    rows = [
        Conditions("positive", -every, lower, right),
        Conditions("positive", every, -ratio * lower, right),
    ]
    return Part(rows, upper=np.ones(codes))


def _ends(vertices: int, codes: int) -> tuple[Matrix, Matrix]:
    """The rows at the lower and at the upper end of each cell, as functions of the table."""
    one = sparse.eye_array(codes)
    lower = sparse.eye_array(vertices - 1, vertices)
    upper = sparse.eye_array(vertices - 1, vertices, k=1)
    return sparse.csr_array(sparse.kron(lower, one)), sparse.csr_array(sparse.kron(upper, one))
