"""The search for levels: gradient descent on the optimal error, from several starts.

The derivative of the optimum by a level follows from the programme's multipliers. The result is the
best of the local optima that are found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from randquant._internal.progress import report

NEAREST = 1e-6
"""Smallest distance of two levels, in units of clip."""

STARTS = 8
"""Starting points of a search over more than one number."""

STEPS = 40
"""Most programmes solved from one starting point, at each stage."""

BEST = 3
"""How many of the best points enter the second stage; each later stage takes one fewer."""

ROUGHLY = 1e-5
"""Relative gain of a step at which the first stage ends: it only sorts the starting points."""

Value = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""From (m,) levels to the optimum and its (m,) derivative; infinite if there is no solution."""


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
        symmetric: whether levels are symmetric about 0.
        lattice: whether levels are evenly spaced.

    Returns:
        (m,) increasing levels.
    """
    from scipy.optimize import minimize

    least, reach = within[0], within[1] - count * NEAREST  # room to move levels apart
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
            return 1e6, np.zeros(free.size)
        return optimum, shape[order].T @ slope

    points = _starts(shape, least, reach)
    stages = [stages[0], *(stages[1:] or stages)]
    for stage, value in enumerate(stages):
        optima = []
        for done, point in enumerate(points):
            report(f"levels, stage {stage + 1} of {len(stages)}", done, len(points))
            options = {"maxfun": STEPS} | ({} if stage else {"ftol": ROUGHLY})
            optima.append(
                minimize(descend, point, (value,), "L-BFGS-B", True, bounds=bounds, options=options)
            )
        optima.sort(key=lambda solved: solved.fun)
        points = [solved.x for solved in optima[: max(1, BEST - stage)]]
    return place(points[0])[0]


def _shape(count: int, *, symmetric: bool, lattice: bool) -> np.ndarray:
    """(m, n): the levels as linear functions of the n numbers that are searched."""
    if lattice:
        along = np.linspace(-1, 1, count)
        sides = np.stack([(1 - along) / 2, (1 + along) / 2], axis=1)
        return along[:, None] if symmetric else sides
    if not symmetric:
        return np.eye(count)
    upper = np.eye(count)[:, count - count // 2 :]
    return upper - upper[::-1]


def _starts(shape: np.ndarray, least: float, reach: float) -> list[np.ndarray]:
    """Even spacings and random points whose outermost levels are far enough out."""
    count, free = shape.shape
    generator = np.random.default_rng(0)
    if free == 1:
        return [np.array([s]) for s in np.geomspace(1.05 * least, min(reach, 6 * least), 6)]
    starts = []
    for number in range(STARTS):
        outer = min(reach, least * generator.uniform(1.02, 2.0))
        levels = np.sort(generator.uniform(-outer, outer, count))
        if number == 0:
            levels = np.linspace(-outer, outer, count)
        levels[0], levels[-1] = -outer, outer
        starts.append(np.linalg.lstsq(shape, levels, rcond=None)[0])
    return starts


def _apart(levels: np.ndarray) -> np.ndarray:
    """Increasing levels: those that (nearly) coincide are moved outward from the middle."""
    apart, middle = levels.copy(), (len(levels) - 1) // 2
    for i in range(middle + 1, len(levels)):
        apart[i] = max(apart[i], apart[i - 1] + NEAREST)
    for i in range(middle - 1, -1, -1):
        apart[i] = min(apart[i], apart[i + 1] - NEAREST)
    return apart
