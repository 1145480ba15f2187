"""Estimates with two intervals each: below each other, or a curve with two bands."""

from __future__ import annotations

from randquant.reports.figures import Axis, BandedCurve, Intervals, Ranged, digits
from randquant.reports.kinds.scales import COLORS, INK, PAPER, Spec, across, quantity, span, up

WHOLE, INNER = 0.25, 0.55
"""Opacity of the wider interval, and of the narrower one."""

MOST_NAMED = 30
"""Most rows that are each as high as their name."""


def draw_intervals(figure: Intervals, alone: bool) -> Spec:
    """A thin line for the wider interval, a thick one for the narrower, a point in it."""
    rows = [_row(each, figure.x, k) for k, each in enumerate(figure.rows)]
    named = len(rows) <= MOST_NAMED
    shared = figure.x.ends if figure.x else None
    ends = shared or [row[key] for row in rows for key in "abcde" if row[key] is not None]
    scale = {"domain": [*span(ends or [0.0, 1.0])], "nice": False}
    axis = None if figure.x is None else {"title": figure.x.label, "tickCount": 5, "grid": True}
    at = quantity("e", axis=axis, title=None, scale={**scale, "nice": 5} if axis else scale)
    place = {"field": "i", "type": "ordinal", "axis": None, "title": None}
    layer = [
        _range("a", "b", at, place, 2 if named else 1, 1.0),
        _range("c", "d", at, place, 7 if named else 1, INNER),
        {
            "name": "plot",
            "mark": {"type": "point", "filled": True, "fill": INK, "stroke": PAPER, "opacity": 1,
                     "size": 30 if named else 8},
            "encoding": {"x": at, "y": place, **_told("t")},
        },
    ]  # fmt: skip
    if named:
        layer += [_words("k", 0, "left", place), _words("t", "width", "right", place)]
    tall = (38 if named else 6) * min(len(rows), 200) + (0 if axis is None else 40)
    return {"data": {"values": rows}, "layer": layer, "moved": False, "tall": max(tall, 50)}


def draw_curve(figure: BandedCurve, alone: bool) -> Spec:
    """A curve in the narrower band in the wider one; where it is unknown only the bands."""
    rows = [
        {**_row(each, figure.y, k), "x": digits(place, figure.x)}
        for k, (place, each) in enumerate(zip(figure.places, figure.rows, strict=True))
    ]
    heights = [row[key] for row in rows for key in "abe" if row[key] is not None]
    x, y = across(figure.x, figure.places), up(figure.y, heights)
    hidden = {"value": 0, "condition": {"param": "near", "value": 1, "empty": False}}
    near = {"type": "point", "on": "pointermove,pointerdown", "clear": "pointerout"}
    return {
        "data": {"values": rows},
        "above": figure.y.label,
        "layer": [
            _band("a", "b", x, y, WHOLE),
            _band("c", "d", x, y, INNER - WHOLE),
            {
                "name": "plot",
                "mark": {"type": "line", "clip": True, "stroke": COLORS["blue"], "strokeWidth": 1.8,
                         "invalid": "break-paths-show-path-domains", "aria": False},
                "encoding": {"x": x, "y": {**y, "field": "e"}},
            },
            {
                "name": "hover",
                "mark": {"type": "point", "filled": True, "fill": COLORS["blue"], "clip": True,
                         "aria": False, "size": 150 if alone else 48},
                "encoding": {"x": x, "y": {**y, "field": "e"}, "opacity": hidden, **_told("t")},
            },
        ],
        "params": [{"name": "near", "select": {**near, "nearest": not alone}, "views": ["hover"]}],
    }  # fmt: skip


def _row(each: Ranged, axis: Axis | None, place: int) -> dict:
    """The numbers of a row: as they are drawn, or of the row's own scale from 0 to 1."""
    ends = (*each.whole, *each.inner, each.estimate)
    if axis is None:
        known = [end for end in ends if end is not None]
        low, high = span(known or [0.0, 1.0])
        ends = [None if end is None else (end - low) / (high - low) for end in ends]
    values = [None if end is None else digits(end, axis or Axis("")) for end in ends]
    return {**dict(zip("abcde", values, strict=True)), "k": each.label, "t": each.text, "i": place}


def _range(low: str, high: str, at: Spec, place: Spec, width: float, opacity: float) -> Spec:
    mark = {"type": "rule", "stroke": COLORS["blue"], "strokeWidth": width, "opacity": opacity}
    ends = {"x": {**at, "field": low}, "x2": {"field": high}, "y": place}
    known = f"datum.{low} !== null && datum.{high} !== null"
    return {"transform": [{"filter": known}], "mark": mark, "encoding": {**ends, **_told("t")}}


def _band(low: str, high: str, x: Spec, y: Spec, opacity: float) -> Spec:
    mark = {"type": "area", "fill": COLORS["blue"], "opacity": opacity, "clip": True, "aria": False}
    return {"mark": mark, "encoding": {"x": x, "y": {**y, "field": low, "stack": None},
                                       "y2": {"field": high}}}  # fmt: skip


def _words(name: str, place: float | str, align: str, row: Spec) -> Spec:
    """Words above each row."""
    mark = {"type": "text", "align": align, "baseline": "bottom", "dy": -7, "fill": INK, "limit": 0}
    return {"mark": mark, "encoding": {"x": {"value": place}, "y": row, "text": {"field": name}}}


def _told(field: str) -> Spec:
    tips = [{"field": "k", "type": "nominal", "title": "of"},
            {"field": field, "type": "nominal", "title": "estimate"}]  # fmt: skip
    return {"description": {"field": field}, "tooltip": tips}
