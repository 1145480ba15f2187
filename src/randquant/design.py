"""The best unbiased channel on given levels under pure epsilon, by linear programming.

Derivation: `docs/theory/design.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from randquant import _validate
from randquant.certify import Certificate, certify
from randquant.channel import Channel
from randquant.moments import moments
from randquant.probabilities import from_probabilities

Objective = Literal["mae", "mse"]

SLACKS = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5)
"""How far below the target the programme aims, tried in turn until the integers certify."""


@dataclass(frozen=True, slots=True)
class Design:
    """An optimal channel, and how far from optimal it can be at most.

    Attributes:
        channel: the channel, in integers.
        certificate: its pure epsilon, at most the target.
        objective: what was minimised: `mae` or `mse`, input uniform on [-clip, clip].
        value: the channel's own exact average of it.
        dual_bound: no unbiased channel on these levels and vertices, with an epsilon up to the
            target, has a smaller average (but for float64 rounding of the bound).
    """

    channel: Channel
    certificate: Certificate
    objective: Objective
    value: float
    dual_bound: float

    @property
    def gap(self) -> float:
        """value - dual_bound: an upper bound of what is lost to rounding."""
        return self.value - self.dual_bound


def optimal(
    clip: float,
    values: Sequence[float] | np.ndarray,
    epsilon: float,
    objective: Objective = "mae",
    inputs: int = 33,
) -> Design:
    """Find the unbiased channel on given levels with the least error under pure epsilon.

    Args:
        clip: per-coordinate clipping threshold, within [1e-30, 1e30].
        values: 2 to 256 increasing levels that reach beyond [-clip, clip] on both sides.
        epsilon: target, in nats, per coordinate, > 0.
        objective: `mae` or `mse`, averaged over an input uniform on [-clip, clip].
        inputs: V, evenly spaced vertices, between which inputs are dithered; 2 to 1000.

    Returns:
        A Design.

    Guarantees:
        The certified epsilon of the integer channel is at most the target.
        The channel is unbiased but for rounding (`moments(channel).bias_max`).
        No channel of the same kind is better by more than `gap`.

    Raises:
        ValueError: an argument is out of bounds, or no unbiased channel on these levels has so
            small an epsilon (the least possible one is named).

    References:
        Chaudhuri, Guo and Rabbat 2022 (MVU) for the programme with all pairs of rows; here one
        lower bound per code replaces the pairs.

    Example:
        >>> design = optimal(clip=1.0, values=[-3, -0.5, 0.5, 3], epsilon=1.0)
        >>> round(design.value, 4), design.certificate.epsilon.upper <= 1.0, design.gap < 1e-6
        (1.7009, True, True)
    """
    clip = _validate.real("clip", clip, low=1e-30, high=1e30)
    inputs = _validate.whole("inputs", inputs, low=2, high=1000)
    epsilon = _validate.real("epsilon", epsilon, above=0, high=40)
    _validate.choice("objective", objective, ("mae", "mse"))
    # In units of clip: the programme is then well scaled whatever the clip.
    levels = _levels(values) / clip
    _check_feasible(levels, epsilon)
    vertices = np.linspace(-1, 1, inputs)
    cost = _cost(vertices, levels, power=1 if objective == "mae" else 2)
    unit = clip if objective == "mae" else clip**2
    bound = _dual_bound(_solve(vertices, levels, epsilon, cost), vertices, levels, epsilon, cost)
    for slack in SLACKS:
        solved = _solve(vertices, levels, epsilon - slack * min(1, epsilon), cost)
        rows = _repaired(solved.x[: cost.size].reshape(cost.shape), vertices, levels)
        channel = from_probabilities(clip * vertices, clip * levels, rows)
        certificate = certify(channel)
        if certificate.epsilon.upper <= epsilon:
            value = getattr(moments(channel), objective)
            return Design(channel, certificate, objective, value, float(bound * unit))
    raise ValueError(
        f"Expected a target that integers of 62 bits can meet, got epsilon={epsilon}: "
        "take fewer inputs or a larger epsilon."
    )


def least_epsilon(clip: float, values: Sequence[float] | np.ndarray) -> float:
    """The smallest epsilon of any unbiased channel on these levels; infinite if there is none.

    An unbiased channel has E[level - lowest | x] = x - lowest, and epsilon bounds the ratio of
    such expectations of a non-negative quantity; likewise from above. Two codes, the outermost,
    attain it.

    Example:
        >>> round(least_epsilon(1.0, [-3.0, 3.0]), 6)  # log(4/2)
        0.693147
    """
    lowest, highest = float(min(values)), float(max(values))
    if lowest >= -clip or highest <= clip:
        return math.inf
    return math.log(max((clip - lowest) / (-clip - lowest), (highest + clip) / (highest - clip)))


def _levels(values: Sequence[float] | np.ndarray) -> np.ndarray:
    levels = np.array(values, dtype=np.float64)
    if levels.ndim != 1 or not 2 <= levels.size <= 256 or not np.isfinite(levels).all():
        raise ValueError(f"Expected 2 to 256 finite values, got {values!r}.")
    if (np.diff(levels) <= 0).any():
        raise ValueError(f"Expected values in increasing order, got {list(values)}.")
    return levels


def _check_feasible(levels: np.ndarray, epsilon: float) -> None:
    least = least_epsilon(1.0, levels)
    if math.isinf(least):
        raise ValueError(
            "Expected values that reach beyond [-clip, clip] on both sides, got some that do "
            "not: an input at the end would be sent as one certain code."
        )
    if epsilon <= least * (1 + 1e-6):
        raise ValueError(
            f"Expected epsilon above {least:.6g}, the least of any unbiased channel on these "
            f"values, got epsilon={epsilon}: raise it, or move the outermost values outward."
        )


def _cost(vertices: np.ndarray, levels: np.ndarray, power: int) -> np.ndarray:
    """(V, m) weight of each probability in the average error, exact (Simpson on each piece)."""
    cost = np.zeros((len(vertices), len(levels)))
    points = np.unique(np.concatenate([vertices, levels[np.abs(levels) < 1]]))
    left, right = points[:-1], points[1:]
    cell = np.searchsorted(vertices, (left + right) / 2) - 1
    for x, share in ((left, 1 / 6), ((left + right) / 2, 4 / 6), (right, 1 / 6)):
        part = (x - vertices[cell]) / (vertices[cell + 1] - vertices[cell])
        error = np.abs(levels - x[:, None]) ** power * (share * (right - left) / 2)[:, None]
        np.add.at(cost, cell, (1 - part)[:, None] * error)
        np.add.at(cost, cell + 1, part[:, None] * error)
    return cost


def _constraints(
    vertices: np.ndarray, levels: np.ndarray, epsilon: float
) -> tuple[Any, Any, np.ndarray]:
    """Inequalities (<= 0), equalities and their right-hand side, over (rows, lower bounds)."""
    count, codes = len(vertices), len(levels)
    every = sparse.eye_array(count * codes)
    lower = sparse.kron(np.ones((count, 1)), sparse.eye_array(codes))
    ratio = sparse.block_array([[-every, lower], [every, -math.exp(epsilon) * lower]])
    per_row = sparse.eye_array(count)
    sums = sparse.kron(per_row, np.ones((1, codes)))
    means = sparse.kron(per_row, levels[None, :])
    rows = sparse.block_array([[sums], [means]])
    none = sparse.csr_array((2 * count, codes))
    equal = sparse.block_array([[rows, none]])
    return (
        sparse.csr_array(ratio),
        sparse.csr_array(equal),
        np.concatenate([np.ones(count), vertices]),
    )


def _solve(vertices: np.ndarray, levels: np.ndarray, epsilon: float, cost: np.ndarray) -> Any:
    ratio, equal, right = _constraints(vertices, levels, epsilon)
    solved = linprog(
        np.concatenate([cost.reshape(-1), np.zeros(len(levels))]),
        A_ub=ratio,
        b_ub=np.zeros(ratio.shape[0]),
        A_eq=equal,
        b_eq=right,
        bounds=(0, None),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if solved.status != 0:
        raise ValueError(
            f"Expected the linear programme to be solved, HiGHS says: {solved.message}"
        )
    return solved


def _dual_bound(
    solved: Any,
    vertices: np.ndarray,
    levels: np.ndarray,
    epsilon: float,
    cost: np.ndarray,
) -> float:
    """A lower bound of the optimum from the multipliers, whatever their small infeasibility.

    All variables lie in [0, 1], so a reduced cost of -t costs the bound at most t.
    """
    ratio, equal, right = _constraints(vertices, levels, epsilon)
    pressure = np.minimum(solved.ineqlin.marginals, 0.0)
    price = solved.eqlin.marginals
    full = np.concatenate([cost.reshape(-1), np.zeros(len(levels))])
    reduced = full - ratio.T @ pressure - equal.T @ price
    return float(right @ price + np.minimum(reduced, 0.0).sum())


def _repaired(rows: np.ndarray, vertices: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Rows with sum 1 and mean x exactly (to rounding), each entry changed by a tiny ratio."""
    rows = np.maximum(rows, 0.0)
    for _ in range(2):
        centred = levels - vertices[:, None]
        total, first = rows.sum(axis=1), (rows * centred).sum(axis=1)
        second = (rows * centred**2).sum(axis=1)
        # rows·(a + b·centred) with sum 1 and mean 0
        determinant = total * second - first**2
        a, b = second / determinant, -first / determinant
        rows = rows * (a[:, None] + b[:, None] * centred)
    return rows / rows.sum(axis=1, keepdims=True)
