"""Lines over shared axes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from randquant.reports.figures import Line, LineChart
from randquant.reports.kinds.scales import Spec, across, category, color, tip, up


def hovering(layer: Spec) -> bool:
    """Whether a layer is only seen under a pointer."""
    return layer.get("name") == "hover"


def draw_lines(figure: LineChart, alone: bool) -> Spec:
    """Lines; the point nearest to the pointer is shown with its numbers."""
    points = [(x, y) for line in figure.lines for x, y in line.points if y is not None]
    rows = [
        {"x": x, "y": y, "d": place}
        for place, line in reversed([*enumerate(figure.lines)])  # the first line lies on top
        for x, y in line.points
    ]
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
        "layer": [_curves(figure, alone), _points(figure, alone)],
        "params": [_near(alone)] if points else [],
    }


def _curves(figure: LineChart, alone: bool) -> Spec:
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
            "color": _scale(figure, color, alone),
            "detail": {"field": "d"},
            "strokeDash": _scale(figure, _dash, alone),
            "strokeWidth": _among(figure, _thick),
            "opacity": _among(figure, _opaque),
        },
    }


def _points(figure: LineChart, alone: bool) -> Spec:
    tips = [tip("x", figure.x.label), tip("y", figure.y.label)]
    if any(line.label for line in figure.lines):
        tips.insert(0, tip("k", "line"))
    size = 150 if alone else 48
    return {
        "name": "hover",
        "mark": {"type": "point", "clip": True, "filled": True, "aria": False, "size": size},
        "encoding": {
            "color": _scale(figure, color, False),
            "opacity": {"value": 0, "condition": {"param": "near", "value": 1, "empty": False}},
            "tooltip": tips,
        },
    }


def _scale(figure: LineChart, pick: Any, alone: bool) -> Spec:
    """A part of each line's style, by its label."""
    named = {line.label: pick(line.style) for line in reversed(figure.lines)}
    keys = [*dict.fromkeys(line.label for line in figure.lines)]
    shown = [key for key in keys if key]
    legend = {"title": None, "symbolType": "stroke", "values": shown}
    scale = {"domain": keys, "range": [named[key] for key in keys]}
    return category("k", scale=scale, legend=legend if alone and shown else None)


def _among(figure: LineChart, pick: Any) -> Spec:
    """A value of each line's style, by the line's place."""
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


def _near(alone: bool) -> Spec:
    """A page chooses the point nearest to the pointer, a notebook the one under it."""
    select = {"type": "point", "on": "pointermove,pointerdown", "clear": "pointerout"}
    return {"name": "near", "select": {**select, "nearest": not alone}, "views": ["hover"]}


def legend(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Label and style of each line that a legend names."""
    return [*{line.label: (line.label, line.style) for line in lines if line.label}.values()]
