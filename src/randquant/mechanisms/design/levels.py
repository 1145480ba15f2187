"""The search for levels: local descent from many starts, along the derivative of the optimum.

By how much the optimum changes with a level follows from the programme's multipliers; what is found
is a local optimum, the best of all starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

NEAREST = 1e-6
"""Least distance of two levels, in units of clip."""

STARTS = 12
"""How many points the search starts from where more than one number is searched."""

STEPS = 40
"""Most optima computed on the way from one point to its local optimum, at each stage."""

BEST = 3
"""How many of the best points go on to the second stage; one fewer to each stage after it."""

Value = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""From (m,) levels to the optimum and its (m,) derivative; infinite where nothing is feasible."""


def search(
    stages: Sequence[Value],
    count: int,
    within: tuple[float, float],
    *,
    symmetric: bool,
    lattice: bool,
) -> np.ndarray:
    """Find levels with a small optimum.

    Args:
        stages: the optimum at given levels, coarse and then fine: every start descends the first,
            the best few go on along the next.
        count: m, how many levels.
        within: least and greatest magnitude of the outermost levels.
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
        found, slope = value(levels)
        if not np.isfinite(found):
            return 1e6, np.zeros(free.size)
        return found, shape[order].T @ slope

    points = _starts(shape, least, reach)
    for stage, value in enumerate(stages):
        found = [
            minimize(
                descend, point, (value,), "L-BFGS-B", True, bounds=bounds, options={"maxfun": STEPS}
            )
            for point in points
        ]
        found.sort(key=lambda solved: solved.fun)
        points = [solved.x for solved in found[: max(1, BEST - stage)]]
    return place(points[0])[0]


def _shape(count: int, *, symmetric: bool, lattice: bool) -> np.ndarray:
    """(m, n): the levels as linear functions of what is searched."""
    if lattice:
        along = np.linspace(-1, 1, count)
        sides = np.stack([(1 - along) / 2, (1 + along) / 2], axis=1)
        return along[:, None] if symmetric else sides
    if not symmetric:
        return np.eye(count)
    upper = np.eye(count)[:, count - count // 2 :]
    return upper - upper[::-1]


def _starts(shape: np.ndarray, least: float, reach: float) -> list[np.ndarray]:
    """Even spacings and scattered points whose outermost levels are far enough out."""
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
    """Increasing levels, pushed outward from the middle where they (nearly) coincide."""
    apart, middle = levels.copy(), (len(levels) - 1) // 2
    for i in range(middle + 1, len(levels)):
        apart[i] = max(apart[i], apart[i - 1] + NEAREST)
    for i in range(middle - 1, -1, -1):
        apart[i] = min(apart[i], apart[i + 1] - NEAREST)
    return apart
