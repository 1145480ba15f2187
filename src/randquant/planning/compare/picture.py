"""A comparison's picture: error against epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from randquant.reports.figures import ScatterPlot

Curves = Mapping[str, Sequence[tuple[float, float]]]


class Point(NamedTuple):
    """A channel with its certified pure epsilon and its mean squared error."""

    label: str
    epsilon: float
    mse: float


def error_against_epsilon(found: Sequence[Point], curves: Curves) -> ScatterPlot:
    """Channels by certified pure epsilon of one coordinate and by mean squared error.

    Args:
        found: the channels; one without a finite epsilon is a level.
        curves: by label, more points (epsilon, MSE) of the same mechanism and bits.
    """
    from randquant.reports.figures import Axis, Mark, ScatterPlot, Series

    series = []
    for label in dict.fromkeys([point.label for point in found]):
        points = [point for point in found if point.label == label]
        more = sorted(curves.get(label, ()))
        marks = [_mark(point, f"{place}", True) for place, point in enumerate(points)]
        marks += [
            _mark(Point(label, epsilon, mse), f"curve {place}", False)
            for place, (epsilon, mse) in enumerate(more)
        ]
        series.append(Series(label, tuple(Mark(*mark) for mark in marks), tuple(more)))
    return ScatterPlot(
        title="Error against certified epsilon of one coordinate",
        note="Full marks: the channels of the table. Dotted: no finite epsilon.",
        series=tuple(series),
        x=Axis("certified pure ε, nats (log scale)", log=True, bound=True),
        y=Axis("mean squared error (log scale)", log=True),
    )


def _mark(point: Point, place: str, best: bool) -> tuple[str, str, float | None, float, bool]:
    from randquant.reports.formatting import bound

    text = f"{point.label}: MSE {point.mse:.4g}, {bound(point.epsilon)}"
    epsilon = point.epsilon if math.isfinite(point.epsilon) else None
    return f"{point.label} {place}", text, epsilon, point.mse, best
