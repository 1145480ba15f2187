"""Convex constraints as linear programmes: tangents are added where a solution violates them.

All levels and inputs are in units of clip. Derivations: `docs/theory/design.md`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy import sparse

from randquant.mechanisms.design.programme import Conditions, Matrix, Part

TRACE = 1e-7
"""Relative excess of a solution over epsilon from which on a programme is extended."""


class Limits(Protocol):
    """The state of a constraint during one design."""

    def parts(self, vertices: np.ndarray, codes: int, slack: float) -> list[Part]:
        """The bound, lowered by a relative `slack`, as conditions of a programme."""
        ...

    def refine(self, table: np.ndarray, slack: float) -> bool:
        """Add conditions that the table violates; return whether any was added."""
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
        """Groups to start with."""

    @abstractmethod
    def worst(self, table: np.ndarray) -> list[Group]:
        """Groups that exceed the limit most, if any does."""

    @abstractmethod
    def forms(self, groups: Sequence[Group], vertices: int) -> tuple[Matrix, Matrix]:
        """u and w of each group as mixtures of the table's rows, (groups, V) each."""

    @abstractmethod
    def log_slope(self, ratio: np.ndarray, slack: float) -> np.ndarray:
        """log|f(r)/r| - log(limit): a term, in units of the limit, is u·exp(this)."""

    @abstractmethod
    def largest_ratio(self, u: np.ndarray) -> np.ndarray:
        """The ratio at which a single term is four times the limit."""

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
        """Σ_i t_i <= 1 in units of the limit, with t_i at least each of its tangents."""
        if not self.cuts:
            self.cuts += [(group, np.ones(codes)) for group in self.curve.first(len(vertices))]
        groups = sorted({group for group, _ in self.cuts})
        place = {group: number for number, group in enumerate(groups)}
        number = np.array([place[group] for group, _ in self.cuts])
        ratio = np.array([ratios for _, ratios in self.cuts])
        slope = np.exp(self.curve.log_slope(ratio, slack)) * np.sign(ratio)
        steep, level = self.curve.power * slope, (1 - self.curve.power) * slope * ratio
        scale = np.maximum(1.0, np.maximum(np.abs(steep), np.abs(level)))
        one = sparse.eye_array(codes)

        def spread(weight: np.ndarray, form: Matrix) -> Matrix:
            return sparse.diags_array((weight / scale).reshape(-1)) @ sparse.kron(form, one)

        u, w = self.curve.forms(groups, len(vertices))
        table = spread(steep, u[number]) + spread(level, w[number])
        chosen = sparse.csr_array(sparse.eye_array(len(groups)))[number]
        tangents = Conditions(
            "positive", table, -spread(np.ones_like(steep), chosen), np.zeros(table.shape[0])
        )
        sums = sparse.kron(sparse.eye_array(len(groups)), np.ones((1, codes)))
        nothing = sparse.csr_array((len(groups), table.shape[1]))
        limits = Conditions("positive", nothing, sums, np.ones(len(groups)))
        return [Part([tangents, limits], upper=np.ones(len(groups) * codes))]

    def refine(self, table: np.ndarray, slack: float) -> bool:
        """Add tangents of the groups that exceed the limit by more than TRACE."""
        groups = sorted({*self.curve.worst(table), *(group for group, _ in self.cuts)})
        u, w = (np.asarray(form @ table) for form in self.curve.forms(groups, len(table)))
        most = self.curve.largest_ratio(np.maximum(np.abs(u), 1e-300))
        ratio = np.where(u == 0, 0.0, np.clip(u / np.maximum(w, 1e-300), -most, most))
        with np.errstate(divide="ignore"):
            terms = np.where(u == 0, 0.0, np.abs(u) * np.exp(self.curve.log_slope(ratio, slack)))
        over = terms.sum(axis=1) > 1 + TRACE * self.curve.power
        self.cuts += [(groups[k], ratio[k]) for k in np.flatnonzero(over)]
        return bool(over.any())

    def forget(self, multipliers: Sequence[np.ndarray]) -> None:
        """Drop tangents that do not bind; a later programme adds them again if needed."""
        codes = self.cuts[0][1].size
        binds = multipliers[0].reshape(-1, codes).max(axis=1) > 0
        self.cuts = [self.cuts[k] for k in np.flatnonzero(binds)]
