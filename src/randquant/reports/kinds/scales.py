"""Colours, shapes, scales and tooltips of all kinds of figures.

Every number in a tooltip is the one that is drawn: rounded to six digits, and a bound upward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from randquant.reports.figures import COLORS as MANY
from randquant.reports.figures import Axis

COLORS = {
    "blue": "#0072b2",
    "orange": "#d55e00",
    "green": "#009e73",
    "grey": "#a3a9b1",
    "purple": "#7b3fa0",
    "pink": "#cc5f9a",
    "brown": "#8a6d1f",
    "black": "#1e2227",
}
"""`c1` to `c8`: they are told apart with any kind of colour vision, beside dashes and shapes."""


INK, PAPER = COLORS["black"], "#fdfdfb"


SHAPES = ("circle", "square", "diamond", "triangle-up")


Spec = dict[str, Any]


def color(style: str) -> str:
    """The light colour of a style such as `c1 dashed`."""
    return [*COLORS.values()][int(style[1]) - 1]


def shape(place: int) -> str:
    """The shape of the marks of series number `place`; it differs where colours repeat."""
    return SHAPES[(place + place // MANY) % len(SHAPES)]


def quantity(name: str, **more: Any) -> Spec:
    """A number of each row."""
    return {"field": name, "type": "quantitative", **more}


def category(name: str, **more: Any) -> Spec:
    """A word of each row, in the order of the rows."""
    return {"field": name, "type": "nominal", "sort": None, **more}


def across(axis: Axis, values: Iterable[float]) -> Spec:
    """Encode x on a scale that just holds the values."""
    low, high = span([*values] or [0.0, 1.0])
    scale = {"domain": [low, high], "nice": False, "type": "log" if axis.log else "linear"}
    shown: Spec = {"title": axis.label, **ticks(axis, low, high)}
    return quantity("x", scale=scale, axis=shown)


def up(axis: Axis, values: Sequence[float]) -> Spec:
    """Encode y on a scale with some room around the values."""
    low, high = span([*values, *([0.0] if axis.zero else [])] or [0.0, 1.0])
    if axis.log:  # a line along the edge would be cut
        low, high = low / 1.05, high * 1.05
    kind = {"type": "log", "nice": False} if axis.log else {"nice": 5, "zero": False}
    scale = {"domain": [low, high], **kind}
    shown: Spec = {"title": None, **ticks(axis, low, high)}
    return quantity("y", scale=scale, axis=shown)


def ticks(axis: Axis, low: float, high: float) -> Spec:
    """Choose an axis's ticks: few enough to read, round numbers on a log scale."""
    if not axis.log:
        return {"tickCount": 5, "labelOverlap": "parity"}
    if high < 10 * low:  # less than a decade: every tick is wanted
        return {"tickCount": 6, "format": ",~g"}
    # 1, 2 and 5 of each decade; over many decades only the powers of ten.
    first = "datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9))"
    wanted = "[1]" if math.log10(high / low) > 3 else "[1, 2, 5]"
    test = f"indexof({wanted}, round(100 * {first}) / 100) < 0"
    kind = ",~g" if high < 1e6 and low > 1e-5 else "~s" if low >= 1 else "~e"
    text = f"format(datum.value, '{kind}')"
    return {
        "gridOpacity": {"condition": {"test": test, "value": 0}, "value": 1},
        "tickOpacity": {"condition": {"test": test, "value": 0}, "value": 1},
        "labelExpr": f"{test} ? '' : {text}",
    }


def span(values: Sequence[float]) -> tuple[float, float]:
    """Least and greatest value, pushed apart where they (nearly) coincide.

    Example:
        >>> span([1.0, 3.0]), span([2.0]), span([0.0])
        ((1.0, 3.0), (1.0, 4.0), (-1.0, 1.0))
    """
    low, high = min(values), max(values)
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-9):
        return low, high
    return (low / 2, high * 2) if low > 1e-9 else (low - 1.0, high + 1.0)


def tip(field: str, title: str, *, text: bool = False) -> Spec:
    """Show a field when the pointer is on a mark."""
    if text or field == "k":
        return {"field": field, "type": "nominal", "title": title}
    return quantity(field, title=title, format=",.6~g")


def cycle(count: int) -> list[str]:
    """Return so many colours, from the first again when they run out."""
    colors = [*COLORS.values()]
    return [colors[k % len(colors)] for k in range(count)]
