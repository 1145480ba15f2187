"""The runs that no other run beats: accuracy up, epsilon down."""

from __future__ import annotations

import math
from collections.abc import Sequence


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return which points no other point beats, in order of increasing epsilon.

    A point beats another if it is no worse in both figures and better in one.

    Args:
        points: (accuracy, epsilon) of each run; epsilon in [0, inf].

    Returns:
        Indices of the points on the frontier, by epsilon, then in the order given.

    Guarantees:
        No point of the frontier is beaten, and every other point with finite epsilon is.
        Equal points are on the frontier together, or not at all.
        A point with infinite epsilon, which promises nothing, is never on it.

    Raises:
        ValueError: a figure is NaN.

    Example:
        >>> frontier([(0.9, 8.0), (0.8, 2.0), (0.8, 4.0), (0.95, float("inf")), (0.9, 8.0)])
        [1, 0, 4]
    """
    for accuracy, epsilon in points:
        if math.isnan(accuracy) or math.isnan(epsilon):
            raise ValueError(f"Expected numbers, got accuracy={accuracy}, epsilon={epsilon}.")
    promised = [k for k, (_, epsilon) in enumerate(points) if math.isfinite(epsilon)]
    kept: list[int] = []
    for k in sorted(promised, key=lambda k: (points[k][1], -points[k][0])):
        if not kept or points[k][0] > points[kept[-1]][0] or points[k] == points[kept[-1]]:
            kept.append(k)
    return kept
