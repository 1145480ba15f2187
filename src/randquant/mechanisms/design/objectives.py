"""Objectives of a design: an average error over the input, or the worst variance.

All levels, inputs and errors are in units of clip.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy import sparse

from randquant.channels.channel import Channel
from randquant.channels.exact_moments import moments
from randquant.mechanisms.design.programme import Conditions, Part, Solution

TRACE = 1e-7
"""Relative excess of a variance over the bound from which on its input is added."""


class Objective(Protocol):
    """An objective over tables of probabilities for given vertices and levels."""

    degree: int

    def cost(self, vertices: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """(V, m): the objective's linear part."""
        ...

    def parts(self, vertices: np.ndarray, levels: np.ndarray) -> list[Part]:
        """Conditions of the objective itself."""
        ...

    def refine(self, vertices: np.ndarray, levels: np.ndarray, solution: Solution) -> bool:
        """Add conditions that the solution violates; return whether any was added."""
        ...

    def forget(self) -> None:
        """Drop all conditions that were added."""
        ...

    def slope(self, vertices: np.ndarray, levels: np.ndarray, solution: Solution) -> np.ndarray:
        """(m,): derivative by each level for a fixed table; the objective's part is the last."""
        ...

    def measure(self, channel: Channel) -> float:
        """The objective of a finished channel, in its own units."""
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
        """Coefficient of each probability in the mean, exact."""
        return self._weigh(vertices, levels, lambda error: np.abs(error) ** self.degree)

    def parts(self, vertices: np.ndarray, levels: np.ndarray) -> list[Part]:
        """No conditions: the objective is linear."""
        return []

    def refine(self, vertices: np.ndarray, levels: np.ndarray, solution: Solution) -> bool:
        """Nothing to add."""
        return False

    def forget(self) -> None:
        """Nothing was added."""

    def slope(self, vertices: np.ndarray, levels: np.ndarray, solution: Solution) -> np.ndarray:
        """Mean of the error's derivative."""
        weights = self._weigh(
            vertices,
            levels,
            lambda error: np.sign(error) if self.degree == 1 else 2 * error,
        )
        return (weights * solution.table).sum(axis=0)

    def measure(self, channel: Channel) -> float:
        """The channel's exact mean error."""
        exact = moments(channel)
        if self.density is None:
            return exact.mae if self.degree == 1 else exact.mse
        at = exact.mae_at if self.degree == 1 else exact.mse_at
        return float(np.mean(at(np.clip(channel.clip * self.density, -channel.clip, channel.clip))))

    def _weigh(self, vertices: np.ndarray, levels: np.ndarray, function) -> np.ndarray:
        """(V, m): mean over x of hat_v(x) · function(level_i - x)."""
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
        """Zero: the objective is the bound in `parts`."""
        return np.zeros((len(vertices), len(levels)))

    def parts(self, vertices: np.ndarray, levels: np.ndarray) -> list[Part]:
        """E[level^2 | x] - x^2 <= bound at every point."""
        middles = (vertices[:-1] + vertices[1:]) / 2
        x = self._used = np.unique(np.concatenate([vertices, middles, *self.points]))
        table = _mixing(vertices, x, levels**2)
        own = -np.ones((len(x), 1))
        rows = Conditions("positive", table, sparse.csr_array(own), x**2)
        return [Part([rows], upper=np.array([np.max(levels**2)]), cost=np.ones(1))]

    def refine(self, vertices: np.ndarray, levels: np.ndarray, solution: Solution) -> bool:
        """Add the inputs at which the variance exceeds the bound."""
        second = solution.table @ levels**2
        variance = second - vertices**2
        width = np.diff(vertices)
        # (1-t)·a + t·b + t(1-t)·width^2 is largest at t = 1/2 + (b - a)/(2·width^2)
        part = np.clip(0.5 + np.diff(variance) / (2 * width**2), 0, 1)
        at = (1 - part) * variance[:-1] + part * variance[1:] + part * (1 - part) * width**2
        violating = (vertices[:-1] + part * width)[at > solution.value * (1 + TRACE)]
        if violating.size:
            self.points.append(violating)
        return bool(violating.size)

    def forget(self) -> None:
        """Drop the points; they are found again quickly."""
        self.points.clear()

    def slope(self, vertices: np.ndarray, levels: np.ndarray, solution: Solution) -> np.ndarray:
        """Derivative of E[level^2 | x] at the points that bind."""
        weight = solution.multipliers[-1][0]
        per_code = _mixing(vertices, self._used, np.ones(len(levels)))
        shares = (weight @ per_code).reshape(solution.table.shape)
        return (shares * solution.table).sum(axis=0) * 2 * levels

    def measure(self, channel: Channel) -> float:
        """The channel's largest variance."""
        return moments(channel).variance_max


def _hat_sums(
    vertices: np.ndarray, x: np.ndarray, weight: np.ndarray, cell: np.ndarray | None = None
) -> np.ndarray:
    """(V, m): sum over the points x of hat_v(x) · weight, (n, m)."""
    hats = _hats(vertices, x, cell)
    return np.asarray(hats.T @ weight)


def _hats(vertices: np.ndarray, x: np.ndarray, cell: np.ndarray | None = None):
    """(n, V) sparse: how the row at each x mixes the rows of the vertices."""
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
    """(n, V·m) sparse: Σ_i per_code_i · p_i(x) as a function of the table."""
    return sparse.csr_array(sparse.kron(_hats(vertices, x), per_code[None, :]))
