"""Cells and areas: heat maps, and shares that add up to one."""

from __future__ import annotations

import itertools

from randquant.reports.figures import Axis, HeatMap, StackedAreas, digits
from randquant.reports.kinds.scales import COLORS, Spec, across, tip


def draw_heat(figure: HeatMap, alone: bool) -> Spec:
    """A square of cells, of one colour and less or more opaque."""
    step = figure.places[1] - figure.places[0]
    rows = [
        {"x": x, "y": y, "v": value}
        for y, cells in zip(figure.places, figure.rows, strict=True)
        for x, value in zip(figure.places, cells, strict=True)
    ]
    ends = [figure.places[0] - step / 2, figure.places[-1] + step / 2]
    sides = [
        {"calculate": f"datum.{name} {sign} {step / 2!r}", "as": f"{name}{end}"}
        for name in "xy"
        for end, sign in ((0, "-"), (1, "+"))
    ]

    def side(name: str, axis: Axis) -> Spec:
        title = axis.label if name == "x" else None
        return {
            "field": f"{name}0",
            "type": "quantitative",
            "scale": {"domain": ends, "nice": False},
            "axis": {"title": title, "grid": False, "tickCount": 6, "ticks": True, "domain": False},
        }

    darker = {"field": "v", "type": "quantitative"}
    scale = {"domain": [0, figure.largest], "nice": False}
    legend = {"title": figure.unit, "tickCount": 4}
    # Alone it is opaque: then the seams between cells can be covered.
    paint: Spec = {
        key: {**darker, "legend": legend, "scale": {**scale, "range": ["#f4f9fc", COLORS["blue"]]}}
        for key in ("fill", "stroke")
    }
    if not alone:
        paint = {"opacity": {**darker, "legend": None, "scale": {**scale, "range": [0.03, 1]}}}
    return {
        "data": {"values": rows},
        "transform": sides,
        "above": figure.y.label,
        "tall": 380,
        "moved": False,
        "layer": [
            {
                "name": "plot",
                "mark": {"type": "rect", "fill": COLORS["blue"], "strokeWidth": 0.5, "aria": False},
                "encoding": {
                    "x": side("x", figure.x),
                    "x2": {"field": "x1"},
                    "y": side("y", figure.y),
                    "y2": {"field": "y1"},
                    "tooltip": [
                        tip("x", figure.x.label),
                        tip("y", figure.y.label),
                        tip("v", figure.unit),
                    ],
                    **paint,
                },
            }
        ],
    }


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
                    "y": {
                        "field": "y",
                        "type": "quantitative",
                        "stack": None,
                        "axis": {"tickCount": 5},
                        "scale": {"domain": [0, 1]},
                    },
                    "y2": {"field": "b"},
                    "color": {
                        "field": "v",
                        "type": "quantitative",
                        "legend": legend,
                        "scale": {"scheme": "viridis"},
                    },
                    "detail": {"field": "i"},
                    "tooltip": [tip("v", figure.value)],
                },
            }
        ],
    }
