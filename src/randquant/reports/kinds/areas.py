"""Areas: shares that add up to one."""

from __future__ import annotations

import itertools

from randquant.reports.figures import Axis, StackedAreas, digits
from randquant.reports.kinds.scales import Spec, across, quantity, tip


def draw_areas(figure: StackedAreas, alone: bool) -> Spec:
    """Shares that add up to one, over x, coloured by value."""
    rows = []
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
    legend = {"title": figure.value} if alone else None
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
