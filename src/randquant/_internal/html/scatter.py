"""A scatter plot as inline SVG: runs in series, each with its frontier.

It needs no script. A script can find runs by `data-run` and series by `data-series`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from randquant._internal.html import svg
from randquant._internal.html.svg import BOTTOM, HEIGHT, RIGHT

SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",  # circle
    "M-3.5 -3.5h7v7h-7z",  # square
    "M0 -4.9L4.9 0L0 4.9L-4.9 0z",  # diamond
    "M0 -4.6L4.6 3.6H-4.6z",  # triangle
)
COLORS = 8

STYLE = """
.scatter .point { fill: var(--paper); stroke: var(--color); stroke-width: 1.6; }
.scatter .point.best { fill: var(--color); }
.scatter .level { fill: none; stroke: var(--color); stroke-width: 1.4; stroke-dasharray: 1.5 3; }
.scatter .line.faint { stroke-width: 1.2; opacity: 0.8; }
"""
"""The style sheet that a page with a scatter plot adds."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One run.

    Attributes:
        name: unique name.
        text: description for the reader.
        x, y: its position; with infinite x it is a level: a horizontal line across the plot.
        best: whether the mark is filled.
    """

    name: str
    text: str
    x: float
    y: float
    best: bool


@dataclass(frozen=True, slots=True)
class Series:
    """Runs of one colour and shape.

    Attributes:
        label: in the legend.
        marks: the runs.
        frontier: (x, y) of the marks that no other mark of the series beats, from left to right.
    """

    label: str
    marks: Sequence[Mark]
    frontier: Sequence[tuple[float, float]]


def style(index: int) -> str:
    """The colour class of series number `index`."""
    return f"c{index % COLORS + 1}"


def shape(index: int) -> str:
    """The outline of the marks of series number `index`; it differs if colours repeat."""
    return SHAPES[(index + index // COLORS) % len(SHAPES)]


def scatter(
    title: str, series: Sequence[Series], x_label: str, y_label: str, *, note: str = ""
) -> str:
    """Draw runs over a logarithmic x axis, as an HTML figure with a legend.

    Frontiers are dashed steps: the best y with at most that x.

    Args:
        title: describes the chart.
        series: what to draw; marks with x = 0 do not fit on the axis and are omitted.
        x_label, y_label: quantity and unit.
        note: a sentence below the chart.
    """
    drawn = [mark for one_series in series for mark in one_series.marks if mark.x > 0]
    if not drawn:
        return svg._figure(title, "", [], "There is nothing to draw.")
    left, place_y, parts = svg._y_axis([mark.y for mark in drawn], y_label)
    finite = [mark.x for mark in drawn if math.isfinite(mark.x)]
    place_x: Callable[[float], float] = lambda x: left  # noqa: E731
    if finite:
        low, high = min(finite) / 1.2, max(finite) * 1.2
        place_x = svg._scale(low, high, left, RIGHT, log=True)
        ticks = [tick for tick in svg._log_ticks(low, high) if low <= tick <= high]
        places = zip(map(place_x, ticks), svg._labels(ticks), strict=True)
        parts += svg._x_axis(places, left, x_label, marks=True)
    else:
        parts += svg._x_axis([], left, x_label, marks=False)
    for index, each in reversed(list(enumerate(series))):
        marks = [_mark(mark, shape(index), left, place_x, place_y) for mark in each.marks]
        parts.append(
            f'<g class="series {style(index)}" data-series="{index}">'
            f"{_steps(each.frontier, place_x, place_y)}{''.join(marks)}</g>"
        )
    legend = "".join(
        f'<li data-series="{index}"><svg viewBox="0 0 20 10" aria-hidden="true">'
        f"{_key(each, index)}</svg>{escape(each.label)}</li>"
        for index, each in enumerate(series)
    )
    caption = f'<p class="note">{escape(note)}</p>' if note else ""
    return (
        f'<figure class="scatter"><figcaption>{escape(title)}</figcaption>'
        f'<ul class="legend">{legend}</ul>{svg._svg(title, HEIGHT, parts)}{caption}</figure>\n'
    )


def _key(series: Series, index: int) -> str:
    if all(math.isinf(mark.x) for mark in series.marks):
        return f'<path class="level {style(index)}" d="M1 5h18"/>'
    return (
        f'<path class="point best {style(index)}" transform="translate(10 5)" d="{shape(index)}"/>'
    )


def _mark(
    mark: Mark,
    outline: str,
    left: float,
    place_x: Callable[[float], float],
    place_y: Callable[[float], float],
) -> str:
    if mark.x <= 0:
        return ""
    y, best = place_y(mark.y), " best" * mark.best
    if math.isinf(mark.x):
        path = f'<path class="level" d="M{left:.1f} {y:.1f}H{RIGHT}"/>'
    else:
        at = f"translate({place_x(mark.x):.1f} {y:.1f})"
        path = f'<path class="point{best}" transform="{at}" d="{outline}"/>'
    text = escape(mark.text)
    return (
        f'<g class="mark" data-run="{escape(mark.name)}" role="img" aria-label="{text}">'
        f"<title>{text}</title>{path}</g>"
    )


def _steps(
    frontier: Sequence[tuple[float, float]],
    place_x: Callable[[float], float],
    place_y: Callable[[float], float],
) -> str:
    steps = [(place_x(x), place_y(y)) for x, y in frontier if x > 0]
    if not steps:
        return ""
    path = f"M{steps[0][0]:.1f} {min(steps[0][1] + 14, BOTTOM):.1f}V{steps[0][1]:.1f}"
    path += "".join(f"H{x:.1f}V{y:.1f}" for x, y in steps[1:])
    return f'<path class="line dashed faint" d="{path}H{RIGHT}"/>'
