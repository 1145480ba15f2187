"""Pictures of figures, drawn by Vega-Lite: the house's look, and one picture for each kind.

A figure becomes a specification of Vega-Lite, which is plain data. `chart` hands it to altair for
notebooks and papers, `svg` and `live` to vl-convert for pages.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from typing import Any

from randquant.reports import chart_marks
from randquant.reports.chart_marks import COLORS, INK, PAPER
from randquant.reports.figures import (
    BandedCurve,
    Figure,
    GroupedBars,
    Intervals,
    LineChart,
    ScatterPlot,
    StackedAreas,
    plain,
)

WIDTH = 380
"""Width of a picture on a page, in px: about a phone's, and half of a desktop page."""

MISSING = (
    "Expected the libraries that draw charts, got an installation without them: "
    "pip install 'randquant[plots]'."
)

SOFT, RULE = "#5a626c", "#e0e2e5"
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif'
"""As in the style sheet: the room that labels need is measured with it."""

PRINTED = "Arial, 'Liberation Sans', 'Helvetica Neue', Helvetica, sans-serif"

VARIABLES = {
    **{color: f"var(--{name})" for name, color in COLORS.items()},
    SOFT: "var(--soft)",
    RULE: "var(--rule)",
    PAPER: "var(--paper)",
}
"""Colours of a picture as a page knows them, where they are light or dark."""


def available() -> bool:
    """Whether the library that draws pictures is installed."""
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        return False
    return True


def chart(*figures: Figure) -> Any:
    """Figures as one altair chart, below each other: with titles, legends, tooltips and zoom.

    Raises:
        ImportError: altair or what saves its charts is not installed.
    """
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError:
        raise ImportError(MISSING) from None
    drawn = [
        _named(specification(each, alone=True, live=True), k) for k, each in enumerate(figures)
    ]
    if len(drawn) == 1:
        return altair.Chart.from_dict(drawn[0])
    shared = {name: drawn[0][name] for name in ("config", "background", "padding")}
    parts = [{k: v for k, v in each.items() if k not in shared} for each in drawn]
    return altair.vconcat(*map(altair.Chart.from_dict, parts), **shared)


def _named(drawn: dict[str, Any], place: int) -> dict[str, Any]:
    """A specification whose names are those of no other."""
    text = re.sub(r'"(plot|hover|moved|near)"', rf'"\g<1>{place}"', json.dumps(drawn))
    return json.loads(text) if place else drawn


@functools.lru_cache(maxsize=512)
def svg(figure: Figure, *, alone: bool = False, width: int = WIDTH) -> str:
    """A figure as the text of an SVG picture, in the colours of a page unless it stands alone.

    Args:
        figure: what to draw.
        alone: whether it has its own title and legend; on a page they are HTML.
        width: in px.

    Guarantees: equal figures give equal text.

    Raises:
        ImportError: vl-convert is not installed.
    """
    markup = _converter().vegalite_to_svg(specification(figure, alone=alone, width=width))
    markup = _PLACES.sub(_shorter, markup)
    for unseen in _UNSEEN:
        markup = unseen.sub("", markup)
    markup = _own_names(markup, figure)
    if not alone:  # HTML knows what an SVG is, and its style sheet has the font
        markup = _PLAIN.sub("", markup)
        markup = _PLACES.sub(lambda place: _ZEROS.sub("", place[0]), markup)
    return markup if alone else _AXES.sub(lambda axis: _SHADES.sub("", axis[0]), coloured(markup))


def _own_names(drawn: str, figure: Figure) -> str:
    """A picture whose clips have names of its own: the library numbers them through."""
    known = list(dict.fromkeys(re.findall(r' id="([^"]*)"', drawn)))
    digest = hashlib.sha256(json.dumps(plain(figure)).encode()).hexdigest()[:8]
    for place, name in enumerate(known):
        drawn = drawn.replace(f' id="{name}"', f' id="c{digest}-{place}"')
        drawn = drawn.replace(f"url(#{name})", f"url(#c{digest}-{place})")
    return drawn


def coloured(drawn: str) -> str:
    """A picture in the colours of the page that it stands on."""
    for color, variable in VARIABLES.items():
        drawn = drawn.replace(f'"{color}"', f'"{variable}"')
    return drawn


_UNSEEN = tuple(
    re.compile(pattern)
    for pattern in (
        r' (?:xmlns:xlink|version|pointer-events|stroke-miterlimit)="[^"]*"',
        r'<line [^>]* opacity="0"/>',
        r'<path class="(?:background|foreground)" [^>]*/>',
        r"<text [^>]*></text>",
        r' (?:opacity|stroke-width)="1"',
        r'(?<=<path) aria-hidden="true"',
    )
)
"""What a library writes and nobody sees."""


_PLAIN = re.compile(
    r' (?:(?:xmlns|font-family)="[^"]*"|font-size="12px"|transform="translate\(0,0\)"'
    r'|aria-roledescription="group mark container")'
)
"""What goes without saying on a page."""

_AXES = re.compile(r'<g class="mark-\w+ role-axis-\w+">.*?</g>', re.DOTALL)
_SHADES = re.compile(r' (?:fill|stroke)="[^"]*"')
"""The style sheet has the colours of axes."""


@functools.lru_cache(maxsize=512)
def live(figure: Figure) -> str:
    """A figure as a specification of Vega in JSON, with tooltips and zoom, for a page's script.

    Guarantees: equal figures give equal text; it holds no `<`.

    Raises:
        ImportError: vl-convert is not installed.
    """
    vega = _converter().vegalite_to_vega(specification(figure, live=True))
    vega.pop("$schema")  # an address
    for mark in vega["marks"]:
        if mark["name"] == "hover_voronoi":  # Vega-Lite takes a word from the cell, not its point
            tooltip = mark["encode"]["update"]["tooltip"]
            tooltip["signal"] = tooltip["signal"].replace('datum["k"]', 'datum.datum["k"]')
    text = json.dumps(vega, separators=(",", ":"), sort_keys=True)
    return coloured(text).replace("<", "\\u003c")


_PLACES = re.compile(r' (?:d|transform|x|y|x2|y2|width|height|opacity)="[^"]*"')
_LONG = re.compile(r"\d+\.\d{2,}(?![\de])")
_ZEROS = re.compile(r"(?<=\d)\.0+(?![\de])|(?<=\.\d)0+(?![\de])")
"""Of decimals, what tells nothing: pages hold thousands."""


def _shorter(place: re.Match[str]) -> str:
    """Places with one decimal, opacities with two."""
    decimals = 2 if place[0].startswith(" opacity") else 1
    return _LONG.sub(lambda number: f"{float(number[0]):.{decimals}f}", place[0])


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise ImportError(MISSING) from None
    return vl_convert


def specification(
    figure: Figure, *, alone: bool = False, live: bool = False, width: int = WIDTH
) -> dict[str, Any]:
    """A figure as a specification of Vega-Lite.

    Args:
        figure: what to draw.
        alone: whether it has its own title and legend.
        live: whether it answers to a pointer.
        width: of the whole picture in px; of the plot, if it stands alone.
    """
    drawn = _DRAW[type(figure)](figure, alone)
    above = drawn.pop("above", "")
    height = drawn.pop("tall", 250)
    content: dict[str, Any] = {
        "width": width,
        "height": round(height * width / WIDTH),
        "description": figure.title,
        "config": {**_CONFIG, "font": PRINTED if alone else FONT},
        "background": "white" if alone else None,
        "padding": {"left": 12, "right": 12, "top": 8, "bottom": 8} if alone else 2,
        **drawn,
    }
    if not alone:
        content["autosize"] = {"type": "fit", "contains": "padding"}
    title, subtitle = (figure.title, above) if alone else ("", above)
    content["title"] = {"text": title, "subtitle": subtitle} if title else _above(subtitle)
    moved = content.pop("moved", True)
    params = content.pop("params", [])
    if live and moved:
        params = [*params, _ZOOM]
    elif not live:
        params = [each for each in params if "value" in each]
        content["layer"] = [each for each in content["layer"] if not chart_marks.hovering(each)]
    return {**content, "params": params} if params else content


def _above(text: str) -> dict[str, Any]:
    return {"text": text, "fontSize": 12, "fontWeight": "normal", "color": SOFT, "offset": 12}


_DRAW: dict[type, Any] = {
    LineChart: chart_marks.draw_lines,
    GroupedBars: chart_marks.draw_bars,
    ScatterPlot: chart_marks.draw_marks,
    StackedAreas: chart_marks.draw_areas,
    Intervals: chart_marks.draw_intervals,
    BandedCurve: chart_marks.draw_curve,
}

_ZOOM = {
    "name": "moved",
    "select": {"type": "interval", "zoom": "wheel![event.shiftKey]", "clear": "dblclick"},
    "bind": "scales",
    "views": ["plot"],
}
"""Drag to move, Shift and the wheel to zoom, a double click to return; the page still scrolls."""

_CONFIG = {
    "view": {"stroke": None},
    "aria": True,
    "title": {
        "anchor": "start", "frame": "bounds", "fontSize": 15, "fontWeight": 600, "color": INK,
        "subtitleColor": SOFT, "subtitleFontSize": 12, "subtitlePadding": 10, "offset": 14,
    },
    "axis": {
        "labelColor": SOFT, "titleColor": SOFT, "labelFontSize": 12, "titleFontSize": 12,
        "titleFontWeight": "normal", "gridColor": RULE, "domainColor": SOFT, "tickColor": SOFT,
        "tickSize": 4, "labelPadding": 5, "titlePadding": 8, "labelOverlap": "greedy",
        "labelSeparation": 12,
    },
    "axisX": {"grid": False},
    "axisY": {"domain": False, "ticks": False, "title": None, "labelPadding": 7},
    "legend": {
        "labelFontSize": 12, "titleFontSize": 12, "labelColor": INK, "titleColor": SOFT,
        "titleFontWeight": "normal", "labelLimit": 0, "symbolStrokeWidth": 1.8, "orient": "right",
    },
    "text": {"fontSize": 12, "fill": SOFT},
}  # fmt: skip
