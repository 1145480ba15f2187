"""Bars, grouped."""

from __future__ import annotations

from collections.abc import Sequence

from randquant.reports.figures import GroupedBars, digits
from randquant.reports.kinds.scales import (
    Spec,
    category,
    cycle,
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


def _distinct(labels: Sequence[str]) -> list[str]:
    """Labels as different words that look as they did: repeated ones with invisible spaces."""
    seen: dict[str, int] = {}
    distinct = []
    for label in labels:
        distinct.append(label + "\u200b" * seen.setdefault(label, 0))
        seen[label] += 1
    return distinct
