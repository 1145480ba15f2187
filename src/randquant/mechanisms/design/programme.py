"""Linear programmes over a table of probabilities, solved with a proven lower bound.

The variables are the table, (V, m) row by row, followed by the own variables of each part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import sparse

Matrix = Any
"""A sparse matrix or array of scipy."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions on right - table·p - own·y, with p the table and y the part's own variables.

    Attributes:
        kind: `zero`, or `positive`: each entry >= 0.
        table: (k, V·m) coefficients.
        own: (k, n) coefficients of the part's own n variables.
        right: (k,).
    """

    kind: Literal["zero", "positive"]
    table: Matrix
    own: Matrix
    right: np.ndarray


@dataclass(frozen=True, slots=True)
class Part:
    """Conditions with variables of their own.

    Attributes:
        rows: the conditions.
        upper: (n,) upper bounds of the part's own variables, which are >= 0.
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
        blocks += [(rows, Entries.of(rows, int(start))) for rows in part.rows]
    point, duals = _highs(objective, blocks)
    bound, reduced = 0.0, objective.copy()
    for (rows, wide), dual in zip(blocks, duals, strict=True):
        # right - wide·x is zero, or non-negative like dual: their product is >= 0.
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
    def of(cls, rows: Conditions, start: int) -> Entries:
        """Of conditions whose part's own variables begin at `start`."""
        table, own = rows.table.tocoo(), rows.own.tocoo()
        return cls(
            np.concatenate([table.data, own.data]),
            np.concatenate([table.coords[0], own.coords[0]]),
            np.concatenate([table.coords[1], own.coords[1] + start]),
        )


def _stacked(blocks: Sequence[tuple[Conditions, Entries]], total: int) -> Matrix:
    """All conditions of one kind as one matrix: sparse matrices are slow to make one by one."""
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
        of_kind = [(rows, wide) for rows, wide in blocks if rows.kind == kind]
        if of_kind:
            stacked[kind] = _stacked(of_kind, objective.size)
            right[kind] = np.concatenate([rows.right for rows, _ in of_kind])
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
