"""Bars: grouped, below each other, or the parts of one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from randquant.reports.figures import GroupedBars, HorizontalBars, digits
from randquant.reports.kinds.scales import (
    INK,
    Spec,
    category,
    color,
    cycle,
    quantity,
    tip,
    up,
)

SLOT = 3
"""Least px of a bar beside others; narrower ones overlay each other, translucent."""


def draw_bars(figure: GroupedBars, alone: bool) -> Spec:
    """Bars side by side, or overlaid if a slot is too narrow."""
    names = [name for name, _ in figure.groups]
    labels = _distinct(figure.labels)
    overlaid = 330 / max(1, len(labels)) < SLOT * len(names)
    rows = [
        {"x": label, "y": digits(height, figure.y), "k": name}
        for name, heights in figure.groups
        for label, height in zip(labels, heights, strict=True)
    ]
    legend = {"title": None} if alone else None
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


def draw_amounts(figure: HorizontalBars, alone: bool) -> Spec:
    """Bars below each other with their names above them, or the parts of one bar."""
    total = (math.fsum if figure.stacked else max)(bar.amount for bar in figure.bars)
    rows = [
        {
            "k": bar.label,
            "v": bar.amount,
            "t": bar.text,
            "row": 0 if figure.stacked else place,
            "c": color(bar.style),
            "i": place,
        }
        for place, bar in enumerate(figure.bars)
    ]
    paint = category("c", scale=None, legend=None)
    if figure.stacked:
        scale = {"domain": [row["k"] for row in rows], "range": [row["c"] for row in rows]}
        paint = category("k", scale=scale, legend={"title": None} if alone else None)
    scale = {"domain": [0, total or 1.0], "nice": False}
    plot = {
        "name": "plot",
        "mark": {"type": "bar", "height": 18, "yOffset": 0 if figure.stacked else 8},
        "encoding": {
            "x": quantity("v", axis=None, title=None, scale=scale),
            "y": _ROW,
            "color": paint,
            "order": {"field": "i"},
            "description": {"field": "k"},
            "tooltip": [tip("k", "bar", text=True), tip("t", "amount", text=True)],
        },
    }
    named = [] if figure.stacked else [_words("k", 0, "left"), _words("t", "width", "right")]
    tall = 34 if figure.stacked else 46 * len(rows) + 4
    return {"data": {"values": rows}, "layer": [plot, *named], "moved": False, "tall": tall}


_ROW = {"field": "row", "type": "ordinal", "axis": None, "title": None}


def _words(name: str, place: float | str, align: str) -> Spec:
    """Words above each bar."""
    mark = {"type": "text", "align": align, "baseline": "bottom", "dy": -6, "fill": INK, "limit": 0}
    return {"mark": mark, "encoding": {"x": {"value": place}, "y": _ROW, "text": {"field": name}}}


def _distinct(labels: Sequence[str]) -> list[str]:
    """Labels as different words that look as they did: repeated ones with invisible spaces."""
    seen: dict[str, int] = {}
    distinct = []
    for label in labels:
        distinct.append(label + "\u200b" * seen.setdefault(label, 0))
        seen[label] += 1
    return distinct
