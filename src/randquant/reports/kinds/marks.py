"""Marks with frontiers and levels."""

from __future__ import annotations

from randquant.reports.figures import ScatterPlot, digits
from randquant.reports.kinds.scales import (
    INK,
    PAPER,
    Spec,
    category,
    cycle,
    quantity,
    shape,
    span,
    ticks,
    up,
)


def draw_marks(figure: ScatterPlot, alone: bool) -> Spec:
    """Marks by series, frontiers as dashed steps, levels as dotted lines."""
    placed = [mark for each in figure.series for mark in each.marks if mark.x is None or mark.x > 0]
    finite = [mark.x for mark in placed if mark.x is not None]
    low, high = (min(finite) / 1.2, max(finite) * 1.2) if finite else (0.1, 10.0)
    names = [each.label for each in figure.series]
    legend = {"title": None} if alone else None
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
                "stroke": {**painted, "condition": {**chosen, "value": INK}},
                "fill": {
                    **painted,
                    "legend": None,
                    "condition": {"test": "!datum.best", "value": PAPER},
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
    params = [{"name": "chosen", "value": ""}, {"name": "off", "value": []}]
    return {"layer": layer, "params": params, "above": figure.y.label, "moved": bool(finite)}


def _marked(figure: ScatterPlot, *, level: bool = False) -> list[Spec]:
    """The marks of a scatter plot as rows: those with a place, or the levels."""
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
        if steps:
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
                    "stroke": INK,
                    "clip": True,
                    "aria": False,
                }
            },
            {
                "mark": {
                    "type": "text",
                    "align": "right",
                    "baseline": "top",  # marks of what can be reached lie above the line
                    "dy": 4,
                    "fill": INK,
                },
                "encoding": {"x": {"value": "width"}, "text": {"field": "t"}},
            },
        ],
    }
