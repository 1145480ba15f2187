"""The drawing of each kind of chart, as a specification of Vega-Lite."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from randquant.reports.figures import COLORS as COLOR_COUNT
from randquant.reports.figures import (
    Axis,
    BandedCurve,
    GroupedBars,
    Intervals,
    Line,
    LineChart,
    Ranged,
    ScatterPlot,
    StackedAreas,
    digits,
)

# Colours, shapes, scales and tooltips of all kinds of figures.
#
# A tooltip shows the number that is drawn: rounded to six digits, and a bound upward.
#
# Fields of rows have names of one letter, since a page repeats them thousands of times. `k` is the
# label of a series; where `x` or `y` is a bound, it was rounded before it came here.

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
"""`c1` to `c8`: distinguishable with any kind of colour vision, together with dashes and shapes."""


INK_COLOR, PAPER_COLOR = COLORS["black"], "#fdfdfb"


SHAPE_NAMES = ("circle", "square", "diamond", "triangle-up")


Spec = dict[str, Any]


def color(style: str) -> str:
    # Of a style such as `c1 dashed`, on a light page.
    return [*COLORS.values()][int(style[1]) - 1]


def shape(place: int) -> str:
    # Shapes shift by one where colours repeat, so that no two series have both in common.
    return SHAPE_NAMES[(place + place // COLOR_COUNT) % len(SHAPE_NAMES)]


def quantity(name: str, **more: Any) -> Spec:
    # A number of each row.
    return {"field": name, "type": "quantitative", **more}


def category(name: str, **more: Any) -> Spec:
    # A word of each row; without "sort" Vega-Lite would order words alphabetically.
    return {"field": name, "type": "nominal", "sort": None, **more}


def across(axis: Axis, values: Iterable[float]) -> Spec:
    """Encode x on a scale from the least to the greatest value."""
    low, high = span([*values] or [0.0, 1.0])
    scale = {"domain": [low, high], "nice": False, "type": "log" if axis.log else "linear"}
    shown: Spec = {"title": axis.label, **ticks(axis, low, high)}
    return quantity("x", scale=scale, axis=shown)


def up(axis: Axis, values: Sequence[float]) -> Spec:
    """Encode y on a scale with some room around the values."""
    low, high = span([*values, *([0.0] if axis.zero else [])] or [0.0, 1.0])
    if axis.log:  # a line along the edge would be cut
        low, high = low / 1.05, high * 1.05
    # "nice" would widen a log scale to whole decades, and leave most of the plot empty.
    kind = {"type": "log", "nice": False} if axis.log else {"nice": 5, "zero": False}
    scale = {"domain": [low, high], **kind}
    shown: Spec = {"title": None, **ticks(axis, low, high)}
    return quantity("y", scale=scale, axis=shown)


def ticks(axis: Axis, low: float, high: float) -> Spec:
    """Choose an axis's ticks: few enough to read, round numbers on a log scale."""
    if not axis.log:
        return {"tickCount": 5, "labelOverlap": "parity"}
    if high < 10 * low:  # less than a decade: all ticks are shown
        return {"tickCount": 6, "format": ",~g"}
    # 1, 2 and 5 of each decade; over many decades only the powers of ten.
    mantissa = "datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9))"
    labelled = "[1]" if math.log10(high / low) > 3 else "[1, 2, 5]"
    test = f"indexof({labelled}, round(100 * {mantissa}) / 100) < 0"
    kind = ",~g" if high < 1e6 and low > 1e-5 else "~s" if low >= 1 else "~e"
    text = f"format(datum.value, '{kind}')"
    return {
        "gridOpacity": {"condition": {"test": test, "value": 0}, "value": 1},
        "tickOpacity": {"condition": {"test": test, "value": 0}, "value": 1},
        "labelExpr": f"{test} ? '' : {text}",
    }


def span(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the greatest value, moved apart if they (nearly) coincide.

    Example:
        >>> span([1.0, 3.0]), span([2.0]), span([0.0])
        ((1.0, 3.0), (1.0, 4.0), (-1.0, 1.0))
    """
    # A scale needs two different ends; a factor of 2 also suits a log scale.
    low, high = min(values), max(values)
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-9):
        return low, high
    return (low / 2, high * 2) if low > 1e-9 else (low - 1.0, high + 1.0)


def tip(field: str, title: str, *, text: bool = False) -> Spec:
    """Return an entry of the tooltip of a mark."""
    if text or field == "k":  # a number would be formatted
        return {"field": field, "type": "nominal", "title": title}
    return quantity(field, title=title, format=",.6~g")


def cycle(count: int) -> list[str]:
    """Return `count` colours, repeated if there are more than eight."""
    colors = [*COLORS.values()]
    return [colors[k % len(colors)] for k in range(count)]


# Areas: shares that add up to one.


def draw_areas(figure: StackedAreas, standalone: bool) -> Spec:
    """Draw shares that add up to one, over x, coloured by value."""
    rows = []
    # Vega-Lite would stack them itself, but not twice at the same x, as a jump needs.
    for x, shares in zip(figure.places, figure.shares, strict=True):
        tops = [*itertools.accumulate(shares)]
        rows += [
            {
                "x": digits(x, figure.x),
                "y": float(f"{top:.6g}"),
                "b": float(f"{top - share:.6g}"),
                "v": digits(figure.values[place], Axis("")),
                "p": float(f"{share:.6g}"),
                "i": place,
            }
            for place, (share, top) in enumerate(zip(shares, tops, strict=True))
        ]
    legend = {"title": figure.value} if standalone else None
    return {
        "data": {"values": rows},
        "above": figure.y.label,
        "moved": False,
        "layer": [
            {
                "name": "plot",
                "mark": {"type": "area", "stroke": "white", "strokeWidth": 0.4, "aria": False},
                "encoding": {
                    "x": across(figure.x, figure.places),
                    "y": quantity("y", stack=None, axis={"tickCount": 5}, scale={"domain": [0, 1]}),
                    "y2": {"field": "b"},
                    "color": quantity("v", legend=legend, scale={"scheme": "viridis"}),
                    "detail": {"field": "i"},
                    "tooltip": [tip("v", figure.value)],
                },
            }
        ],
    }


# Bars, grouped.

MIN_BAR_WIDTH = 3
"""Narrowest bar in px when bars of a slot are side by side. Where they would be narrower they are
drawn over each other, translucent: bars of a pixel or two cannot be compared."""


def draw_bars(figure: GroupedBars, standalone: bool) -> Spec:
    """Draw bars side by side, or over each other if a slot is too narrow."""
    names = [name for name, _ in figure.groups]
    labels = _distinct(figure.labels)
    # The plot is about 330 px wide, without its axis.
    overlaid = 330 / max(1, len(labels)) < MIN_BAR_WIDTH * len(names)
    rows = [
        {"x": label, "y": digits(height, figure.y), "k": name}
        for name, heights in figure.groups
        for label, height in zip(labels, heights, strict=True)
    ]
    legend = {"title": None} if standalone else None
    colors = {"domain": names, "range": cycle(len(names))}
    side = {} if overlaid else {"xOffset": {"field": "k", "sort": None}}
    return {
        "data": {"values": rows},
        "above": figure.y.label,
        "moved": False,
        "layer": [
            {
                "name": "plot",
                "mark": {"type": "bar", "aria": False, "opacity": 0.5 if overlaid else 1},
                "encoding": {
                    "x": {
                        "field": "x",
                        "type": "ordinal",
                        "sort": None,
                        "axis": {
                            "title": figure.x.label,
                            "labelAngle": 0,
                            "ticks": False,
                            "labelOverlap": "parity",
                            "labelSeparation": 6,
                        },
                        "scale": {"paddingInner": 0.16, "paddingOuter": 0.08},
                    },
                    "y": {**up(figure.y, [0.0, *(row["y"] for row in rows)]), "stack": None},
                    "color": category("k", legend=legend, scale=colors),
                    "tooltip": [
                        tip("k", "bar", text=True),
                        tip("x", figure.x.label, text=True),
                        tip("y", figure.y.label),
                    ],
                    **side,
                },
            }
        ],
    }


def _distinct(labels: Sequence[str]) -> list[str]:
    # Vega-Lite merges slots of the same label; invisible spaces make repeated labels different.
    seen: dict[str, int] = {}
    distinct = []
    for label in labels:
        distinct.append(label + "\u200b" * seen.setdefault(label, 0))
        seen[label] += 1
    return distinct


# Estimates with two intervals each: below each other, or a curve with two bands.

WIDE_OPACITY, NARROW_OPACITY = 0.25, 0.55
"""Opacity of the wider interval, and of the narrower one."""

MAX_NAMED_ROWS = 30
"""Largest number of rows that are each high enough for their name; more are thin and unnamed."""


def draw_intervals(figure: Intervals, standalone: bool) -> Spec:
    """Draw a thin line for the wider interval, a thick one for the narrower, and a point."""
    rows = [_row(each, figure.x, k) for k, each in enumerate(figure.rows)]
    named = len(rows) <= MAX_NAMED_ROWS
    ends = figure.x.ends or [row[key] for row in rows for key in "abcde" if row[key] is not None]
    axis = {"title": figure.x.label, "tickCount": 5, "grid": True}
    scale = {"domain": [*span(ends or [0.0, 1.0])], "nice": 5}
    at = quantity("e", axis=axis, title=None, scale=scale)
    place = {"field": "i", "type": "ordinal", "axis": None, "title": None}
    layer = [
        _range("a", "b", at, place, 2 if named else 1, 1.0),
        _range("c", "d", at, place, 7 if named else 1, NARROW_OPACITY),
        {
            "name": "plot",
            "mark": {"type": "point", "filled": True, "fill": INK_COLOR, "stroke": PAPER_COLOR,
                     "opacity": 1, "size": 30 if named else 8},
            "encoding": {"x": at, "y": place, **_description("t")},
        },
    ]  # fmt: skip
    if named:
        layer += [_words("k", 0, "left", place), _words("t", "width", "right", place)]
    # In px: more than 200 thin rows overlap rather than make a page of several screens.
    tall = (38 if named else 6) * min(len(rows), 200) + 40
    return {"data": {"values": rows}, "layer": layer, "moved": False, "tall": max(tall, 50)}


def draw_curve(figure: BandedCurve, standalone: bool) -> Spec:
    """Draw a curve with a narrower and a wider band; only the bands where it is unknown."""
    rows = [
        {**_row(each, figure.y, k), "x": digits(place, figure.x)}
        for k, (place, each) in enumerate(zip(figure.places, figure.rows, strict=True))
    ]
    heights = [row[key] for row in rows for key in "abe" if row[key] is not None]
    x, y = across(figure.x, figure.places), up(figure.y, heights)
    hidden = {"value": 0, "condition": {"param": "near", "value": 1, "empty": False}}
    selection = {"type": "point", "on": "pointermove,pointerdown", "clear": "pointerout",
                 "nearest": not standalone}  # fmt: skip
    return {
        "data": {"values": rows},
        "above": figure.y.label,
        "layer": [
            _band("a", "b", x, y, WIDE_OPACITY),
            _band("c", "d", x, y, NARROW_OPACITY - WIDE_OPACITY),
            {
                "name": "plot",
                "mark": {"type": "line", "clip": True, "stroke": COLORS["blue"], "strokeWidth": 1.8,
                         "invalid": "break-paths-show-path-domains", "aria": False},
                "encoding": {"x": x, "y": {**y, "field": "e"}},
            },
            {
                "name": "hover",
                "mark": {"type": "point", "filled": True, "fill": COLORS["blue"], "clip": True,
                         "aria": False, "size": 150 if standalone else 48},
                "encoding": {"x": x, "y": {**y, "field": "e"}, "opacity": hidden,
                             **_description("t")},
            },
        ],
        "params": [{"name": "near", "select": selection, "views": ["hover"]}],
    }  # fmt: skip


def _row(each: Ranged, axis: Axis, place: int) -> dict:
    # a, b: the wider interval; c, d: the narrower one; e: the estimate; t: its text.
    ends = (*each.whole, *each.inner, each.estimate)
    values = [None if end is None else digits(end, axis) for end in ends]
    return {**dict(zip("abcde", values, strict=True)), "k": each.label, "t": each.text, "i": place}


def _range(low: str, high: str, at: Spec, place: Spec, width: float, opacity: float) -> Spec:
    mark = {"type": "rule", "stroke": COLORS["blue"], "strokeWidth": width, "opacity": opacity}
    ends = {"x": {**at, "field": low}, "x2": {"field": high}, "y": place}
    # An interval with an unknown end is left out, since it would be drawn from zero.
    known = f"datum.{low} !== null && datum.{high} !== null"
    return {
        "transform": [{"filter": known}],
        "mark": mark,
        "encoding": {**ends, **_description("t")},
    }


def _band(low: str, high: str, x: Spec, y: Spec, opacity: float) -> Spec:
    mark = {"type": "area", "fill": COLORS["blue"], "opacity": opacity, "clip": True, "aria": False}
    return {"mark": mark, "encoding": {"x": x, "y": {**y, "field": low, "stack": None},
                                       "y2": {"field": high}}}  # fmt: skip


def _words(name: str, place: float | str, align: str, row: Spec) -> Spec:
    # Above each row.
    mark = {
        "type": "text",
        "align": align,
        "baseline": "bottom",
        "dy": -7,
        "fill": INK_COLOR,
        "limit": 0,
    }
    return {"mark": mark, "encoding": {"x": {"value": place}, "y": row, "text": {"field": name}}}


def _description(field: str) -> Spec:
    tips = [{"field": "k", "type": "nominal", "title": "of"},
            {"field": field, "type": "nominal", "title": "estimate"}]  # fmt: skip
    return {"description": {"field": field}, "tooltip": tips}


# Lines over shared axes.


def hovering(layer: Spec) -> bool:
    # A picture without a script leaves out what appears only under the pointer.
    return layer.get("name") == "hover"


def draw_lines(figure: LineChart, standalone: bool) -> Spec:
    """Draw lines; the point nearest to the pointer is shown with its numbers."""
    points = [(x, y) for line in figure.lines for x, y in line.points if y is not None]
    rows = [
        {"x": x, "y": y, "d": place}
        for place, line in reversed([*enumerate(figure.lines)])  # the first line lies on top
        for x, y in line.points
    ]
    # Labels are in the specification once, not in every row.
    labels = json.dumps([line.label for line in figure.lines])
    return {
        "data": {"values": rows},
        "transform": [{"calculate": f"{labels}[datum.d]", "as": "k"}],
        "above": figure.y.label,
        "moved": bool(points),
        "encoding": {
            "x": across(figure.x, [x for x, _ in points]),
            "y": up(figure.y, [y for _, y in points]),
        },
        "layer": [_curves(figure, standalone), _points(figure, standalone)],
        "params": [_pointer_selection(standalone)] if points else [],
    }


def _curves(figure: LineChart, standalone: bool) -> Spec:
    return {
        "name": "plot",
        "mark": {
            "type": "line",
            "clip": True,
            "strokeCap": "round",
            "strokeJoin": "round",
            "invalid": "break-paths-show-path-domains",
            "aria": False,
        },
        "encoding": {
            "color": _scale(figure, color, standalone),
            "detail": {"field": "d"},
            "strokeDash": _scale(figure, _dash, standalone),
            "strokeWidth": _by_line(figure, _thick),
            "opacity": _by_line(figure, _opaque),
        },
    }


def _points(figure: LineChart, standalone: bool) -> Spec:
    tips = [tip("x", figure.x.label), tip("y", figure.y.label)]
    if any(line.label for line in figure.lines):
        tips.insert(0, tip("k", "line"))
    size = 150 if standalone else 48
    return {
        "name": "hover",
        "mark": {"type": "point", "clip": True, "filled": True, "aria": False, "size": size},
        "encoding": {
            "color": _scale(figure, color, False),
            "opacity": {"value": 0, "condition": {"param": "near", "value": 1, "empty": False}},
            "tooltip": tips,
        },
    }


def _scale(figure: LineChart, pick: Any, standalone: bool) -> Spec:
    # Part of each line's style by its label; of lines with the same label the first one decides.
    named = {line.label: pick(line.style) for line in reversed(figure.lines)}
    keys = [*dict.fromkeys(line.label for line in figure.lines)]
    shown = [key for key in keys if key]
    legend = {"title": None, "symbolType": "stroke", "values": shown}
    scale = {"domain": keys, "range": [named[key] for key in keys]}
    return category("k", scale=scale, legend=legend if standalone and shown else None)


def _by_line(figure: LineChart, pick: Any) -> Spec:
    # Part of each line's style by its index: the commonest value is the default, which keeps the
    # text of a page short, and the others are conditions.
    places: dict[float, list[int]] = {}
    for place, line in enumerate(figure.lines):
        places.setdefault(pick(line.style), []).append(place)
    rest, *others = sorted(places, key=lambda value: -len(places[value])) or [1.0]
    tests = [{"test": f"indexof({places[v]}, datum.d) >= 0", "value": v} for v in others]
    return {"value": rest, "condition": tests} if tests else {"value": rest}


def _dash(style: str) -> list[int]:
    return [5, 4] if "dashed" in style else [1, 0]


def _thick(style: str) -> float:
    return 1.0 if "faint" in style else 1.8


def _opaque(style: str) -> float:
    return 0.5 if "faint" in style else 1.0


def _pointer_selection(standalone: bool) -> Spec:
    # A page selects the point nearest to the pointer, a notebook the one under it.
    select = {"type": "point", "on": "pointermove,pointerdown", "clear": "pointerout"}
    return {"name": "near", "select": {**select, "nearest": not standalone}, "views": ["hover"]}


def legend(lines: Sequence[Line]) -> list[tuple[str, str]]:
    # Label and style; lines without a label are left out.
    return [*{line.label: (line.label, line.style) for line in lines if line.label}.values()]


# Marks with frontiers and levels.


def draw_marks(figure: ScatterPlot, standalone: bool) -> Spec:
    """Draw marks by series, frontiers as dashed steps, levels as dotted lines."""
    # A log scale has no place for x <= 0; x None is a level, which has none either.
    placed = [mark for each in figure.series for mark in each.marks if mark.x is None or mark.x > 0]
    finite = [mark.x for mark in placed if mark.x is not None]
    low, high = (min(finite) / 1.2, max(finite) * 1.2) if finite else (0.1, 10.0)
    names = [each.label for each in figure.series]
    legend = {"title": None} if standalone else None
    series = category("k", legend=legend)
    painted = {**series, "scale": {"domain": names, "range": cycle(len(names))}}
    shapes = {"domain": names, "range": [shape(k) for k in range(len(names))]}
    axis = {"grid": False, "title": figure.x.label, "labels": bool(finite), "ticks": bool(finite)}
    if high > 10 * low:
        axis |= {
            key: value for key, value in ticks(figure.x, low, high).items() if key != "gridOpacity"
        }
    scale = {"type": "log", "domain": [low, high], "nice": False}
    across = quantity("x", axis=axis, scale=scale)
    heights = [mark.y for mark in placed] + [y for _, y in figure.levels]
    bottom, top = span(heights or [0.0, 1.0])
    edge = 0.04 * (top - bottom)
    room = [bottom / 1.2, top * 1.2] if figure.y.log else [bottom - edge, top + edge]
    vertical = up(figure.y, room)
    tips = [{"field": "t", "type": "nominal", "title": ""}]
    chosen = {"test": "datum.run === chosen"}
    layer = [
        _frontiers(figure, across, vertical, painted, high),
        _levels(figure, vertical, painted, tips),
        {
            "name": "plot",
            "data": {"values": _marked(figure)},
            "transform": [{"filter": "indexof(off, datum.k) < 0"}],
            "mark": {"type": "point", "size": 70, "clip": True, "opacity": 1},
            "encoding": {
                "x": across,
                "y": vertical,
                "stroke": {**painted, "condition": {**chosen, "value": INK_COLOR}},
                "fill": {
                    **painted,
                    "legend": None,
                    "condition": {"test": "!datum.best", "value": PAPER_COLOR},
                },
                "shape": {**series, "scale": shapes},
                "strokeWidth": {"value": 1.6, "condition": {**chosen, "value": 3}},
                "description": {"field": "t"},
                "tooltip": tips,
            },
        },
    ]
    if figure.levels:
        layer.append(_named_levels(figure, vertical))
    # Signals that a page's script sets: the mark chosen in its table, and series switched off.
    params = [{"name": "chosen", "value": ""}, {"name": "off", "value": []}]
    return {"layer": layer, "params": params, "above": figure.y.label, "moved": bool(finite)}


def _marked(figure: ScatterPlot, *, level: bool = False) -> list[Spec]:
    # Rows of the marks with an x above zero, or of those without x, which are levels. In reverse:
    # the first series is drawn last, on top.
    return [
        {
            "x": mark.x if mark.x is None else digits(mark.x, figure.x),
            "y": digits(mark.y, figure.y),
            "k": each.label,
            "t": mark.text,
            "run": mark.name,
            "best": mark.best,
        }
        for each in reversed(figure.series)
        for mark in each.marks
        if (mark.x is None if level else mark.x is not None and mark.x > 0)
    ]


def _frontiers(
    figure: ScatterPlot, across: Spec, vertical: Spec, painted: Spec, end: float
) -> Spec:
    rows = []
    for each in figure.series:
        steps = [(x, y) for x, y in each.frontier if x > 0]
        if steps:  # the last step goes on to the edge of the plot
            steps.append((end, steps[-1][1]))
        rows += [{"x": x, "y": y, "k": each.label} for x, y in steps]
    return {
        "data": {"values": rows},
        "transform": [{"filter": "indexof(off, datum.k) < 0"}],
        "mark": {
            "type": "line",
            "interpolate": "step-after",
            "strokeWidth": 1.2,
            "opacity": 0.8,
            "strokeDash": [5, 4],
            "clip": True,
            "aria": False,
        },
        "encoding": {"x": across, "y": vertical, "stroke": painted},
    }


def _levels(figure: ScatterPlot, vertical: Spec, painted: Spec, tips: list[Spec]) -> Spec:
    return {
        "data": {"values": _marked(figure, level=True)},
        "transform": [{"filter": "indexof(off, datum.k) < 0"}],
        "mark": {"type": "rule", "strokeDash": [1.5, 3], "clip": True},
        "encoding": {
            "y": vertical,
            "stroke": painted,
            "description": {"field": "t"},
            "strokeWidth": {
                "value": 1.4,
                "condition": {"test": "datum.run === chosen", "value": 3},
            },
            "tooltip": tips,
        },
    }


def _named_levels(figure: ScatterPlot, vertical: Spec) -> Spec:
    rows = [{"y": digits(y, figure.y), "t": name} for name, y in figure.levels]
    return {
        "data": {"values": rows},
        "encoding": {"y": vertical},
        "layer": [
            {
                "mark": {
                    "type": "rule",
                    "strokeDash": [5, 4],
                    "stroke": INK_COLOR,
                    "clip": True,
                    "aria": False,
                }
            },
            {
                "mark": {
                    "type": "text",
                    "align": "right",
                    "baseline": "top",  # below the line: reachable marks lie above it
                    "dy": 4,
                    "fill": INK_COLOR,
                },
                "encoding": {"x": {"value": "width"}, "text": {"field": "t"}},
            },
        ],
    }
