"""What a design must keep: pure or Rényi divergence, metric privacy, or Fisher information.

All levels and inputs are in units of clip. Derivations: `docs/theory/design.md`.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
from scipy import sparse

from randquant.certify import Certificate, certify
from randquant.channel import Channel
from randquant.design.programme import Matrix, Part, Rows
from randquant.geometry import MetricCertificate, certify_metric

SLACKS = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
"""Share of the target by which a programme aims below it, tried until the integers certify."""

TRACE = 1e-7
"""Share of epsilon by which a solution may exceed it before a programme is extended."""


class Constraint(Protocol):
    """A bound on the loss of privacy, over tables of probabilities."""

    epsilon: float
    slacks: ClassVar[Sequence[float]]

    def parts(self, vertices: np.ndarray, codes: int, slack: float) -> list[Part]:
        """The bound, lowered by a share `slack`, as rows of a programme."""
        ...

    def refine(self, table: np.ndarray, slack: float) -> bool:
        """Take up what the table violates; whether anything was taken up."""
        ...

    def forget(self, multipliers: Sequence[np.ndarray]) -> None:
        """Drop what was taken up and did not bind, given its rows' multipliers."""
        ...

    def certify(self, channel: Channel) -> Certificate | MetricCertificate:
        """Certify a finished channel."""
        ...


@dataclass
class Pure:
    """Pure epsilon: l_i <= p_vi <= exp(epsilon)·l_i, one lower bound per code."""

    epsilon: float
    slacks: ClassVar[Sequence[float]] = SLACKS

    def parts(self, vertices: np.ndarray, codes: int, slack: float) -> list[Part]:
        """Two rows for each probability, instead of one for each pair of rows."""
        return [_within_ratio(len(vertices), codes, math.exp(self.epsilon * (1 - slack)))]

    def refine(self, table: np.ndarray, slack: float) -> bool:
        """Nothing is left out."""
        return False

    def forget(self, multipliers: Sequence[np.ndarray]) -> None:
        """Nothing was taken up."""

    def certify(self, channel: Channel) -> Certificate:
        """Order infinity, all pairs."""
        return certify(channel)


@dataclass
class Metric:
    """Metric privacy, between neighbouring vertices: all other pairs follow by steps.

    `l1`: log-likelihoods change by at most epsilon·|x - x'| between any inputs. `l2`: by at most
    epsilon·(x - x')^2 between vertices, as MVU has it.
    """

    epsilon: float
    geometry: str
    slacks: ClassVar[Sequence[float]] = SLACKS

    def parts(self, vertices: np.ndarray, codes: int, slack: float) -> list[Part]:
        """The ratio of neighbouring rows is bounded both ways."""
        step = 2 / (len(vertices) - 1)
        limit = self.epsilon * (1 - slack)
        # Within a cell rows are linear: their log changes fastest at the smaller end.
        ratio = 1 + limit * step if self.geometry == "l1" else math.exp(limit * step**2)
        lower, upper = _ends(len(vertices), codes)
        nothing = sparse.csr_array((lower.shape[0], 0))
        right = np.zeros(lower.shape[0])
        return [
            Part([
                Rows("positive", upper - ratio * lower, nothing, right),
                Rows("positive", lower - ratio * upper, nothing, right),
            ])
        ]  # fmt: skip

    def refine(self, table: np.ndarray, slack: float) -> bool:
        """Nothing is left out."""
        return False

    def forget(self, multipliers: Sequence[np.ndarray]) -> None:
        """Nothing was taken up."""

    def certify(self, channel: Channel) -> MetricCertificate:
        """In units of clip, like epsilon here."""
        return certify_metric(channel, self.geometry)


Group = tuple[int, int]


class Curved(ABC):
    """A limit on sums of perspectives, Σ_i w_i·f(u_i / w_i), u and w linear in the table.

    Each term is convex, hence the largest of its tangents f'(r)·u + (f(r) - r·f'(r))·w over all r.
    Tangents are taken up at the ratios where a solution exceeds the limit: a linear programme
    again, whose dual bound holds whatever tangents there are.
    """

    epsilon: float
    slacks: ClassVar[Sequence[float]] = SLACKS[3:]
    _cuts: list[tuple[Group, np.ndarray]]

    @abstractmethod
    def first(self, vertices: int) -> list[Group]:
        """Groups to begin with."""

    @abstractmethod
    def worst(self, table: np.ndarray) -> list[Group]:
        """Groups that may exceed the limit most."""

    @abstractmethod
    def forms(self, groups: Sequence[Group], vertices: int) -> tuple[Matrix, Matrix]:
        """u and w of each group, (groups, V) each: how they mix the rows of the table."""

    @abstractmethod
    def log_slope(self, ratio: np.ndarray, slack: float) -> np.ndarray:
        """log|f(r)/r| - log(limit): a term is u·exp(this) limits."""

    @abstractmethod
    def largest_ratio(self, u: np.ndarray) -> np.ndarray:
        """The ratio at which a single term reaches four limits."""

    @property
    @abstractmethod
    def power(self) -> float:
        """f(r) = |r|^power."""

    def parts(self, vertices: np.ndarray, codes: int, slack: float) -> list[Part]:
        """With t_i at least every tangent taken up, in units of the limit: Σ_i t_i <= 1."""
        if not self._cuts:
            self._cuts += [(group, np.ones(codes)) for group in self.first(len(vertices))]
        groups = sorted({group for group, _ in self._cuts})
        place = {group: number for number, group in enumerate(groups)}
        number = np.array([place[group] for group, _ in self._cuts])
        ratio = np.array([ratios for _, ratios in self._cuts])
        slope = np.exp(self.log_slope(ratio, slack)) * np.sign(ratio)
        steep, level = self.power * slope, (1 - self.power) * slope * ratio
        scale = np.maximum(1.0, np.maximum(np.abs(steep), np.abs(level)))
        one = sparse.eye_array(codes)

        def spread(weight: np.ndarray, form: Matrix) -> Matrix:
            return sparse.diags_array((weight / scale).reshape(-1)) @ sparse.kron(form, one)

        u, w = self.forms(groups, len(vertices))
        table = spread(steep, u[number]) + spread(level, w[number])
        chosen = sparse.csr_array(sparse.eye_array(len(groups)))[number]
        tangents = Rows(
            "positive", table, -spread(np.ones_like(steep), chosen), np.zeros(table.shape[0])
        )
        sums = sparse.kron(sparse.eye_array(len(groups)), np.ones((1, codes)))
        nothing = sparse.csr_array((len(groups), table.shape[1]))
        limits = Rows("positive", nothing, sums, np.ones(len(groups)))
        return [Part([tangents, limits], upper=np.ones(len(groups) * codes))]

    def refine(self, table: np.ndarray, slack: float) -> bool:
        """Take up tangents of the groups that exceed the limit by more than a trace."""
        groups = sorted({*self.worst(table), *(group for group, _ in self._cuts)})
        u, w = (np.asarray(form @ table) for form in self.forms(groups, len(table)))
        most = self.largest_ratio(np.maximum(np.abs(u), 1e-300))
        ratio = np.where(u == 0, 0.0, np.clip(u / np.maximum(w, 1e-300), -most, most))
        with np.errstate(divide="ignore"):
            terms = np.where(u == 0, 0.0, np.abs(u) * np.exp(self.log_slope(ratio, slack)))
        over = terms.sum(axis=1) > 1 + TRACE * self.power
        self._cuts += [(groups[k], ratio[k]) for k in np.flatnonzero(over)]
        return bool(over.any())

    def forget(self, multipliers: Sequence[np.ndarray]) -> None:
        """Drop tangents that did not bind: a later programme takes them up again if it must."""
        codes = self._cuts[0][1].size
        binds = multipliers[0].reshape(-1, codes).max(axis=1) > 0
        self._cuts = [self._cuts[k] for k in np.flatnonzero(binds)]


@dataclass
class Renyi(Curved):
    """Rényi divergence: Σ_i p_vi^order·p_wi^(1-order) <= exp((order-1)·epsilon).

    Groups are pairs of vertices.
    """

    epsilon: float
    order: float
    _cuts: list[tuple[Group, np.ndarray]] = field(default_factory=list)

    @property
    def power(self) -> float:
        """f(r) = r^order."""
        return self.order

    def first(self, vertices: int) -> list[Group]:
        """Each vertex with either end, both ways."""
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
        return [(v, other) for v, other in enumerate(partners) if v != other]

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
        """At this order, all pairs."""
        return certify(channel, self.order)


@dataclass
class Fisher(Curved):
    """Fisher information of the code about x: Σ_i slope_i^2/p_i <= epsilon at every input.

    Within a cell it is convex in x, so the cell's two ends suffice: groups are (cell, end).
    """

    epsilon: float
    _cuts: list[tuple[Group, np.ndarray]] = field(default_factory=list)

    @property
    def power(self) -> float:
        """f(r) = r^2."""
        return 2.0

    def first(self, vertices: int) -> list[Group]:
        """Both ends of every cell."""
        return [(cell, end) for cell in range(vertices - 1) for end in (0, 1)]

    def worst(self, table: np.ndarray) -> list[Group]:
        """All of them."""
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


@functools.lru_cache(maxsize=8)
def _within_ratio(vertices: int, codes: int, ratio: float) -> Part:
    every = sparse.eye_array(vertices * codes)
    lower = sparse.kron(np.ones((vertices, 1)), sparse.eye_array(codes))
    right = np.zeros(vertices * codes)
    rows = [
        Rows("positive", -every, lower, right),
        Rows("positive", every, -ratio * lower, right),
    ]
    return Part(rows, upper=np.ones(codes))


def _ends(vertices: int, codes: int) -> tuple[Matrix, Matrix]:
    """The rows at the lower and at the upper end of each cell, as functions of the table."""
    one = sparse.eye_array(codes)
    lower = sparse.eye_array(vertices - 1, vertices)
    upper = sparse.eye_array(vertices - 1, vertices, k=1)
    return sparse.csr_array(sparse.kron(lower, one)), sparse.csr_array(sparse.kron(upper, one))
