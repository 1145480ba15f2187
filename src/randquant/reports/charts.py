"""Pictures of figures, drawn by Vega-Lite, in one common style.

A figure becomes a specification of Vega-Lite, which is plain data. `chart` passes it to altair for
notebooks and papers, `svg` and `live` to vl-convert for pages.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from typing import Any

from randquant.reports import chart_marks
from randquant.reports.chart_marks import COLORS, INK_COLOR, PAPER_COLOR
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
"""Width of a picture on a page, in px: that of a phone, and half of a desktop page."""

MISSING = (
    "Expected the libraries that draw charts, got an installation without them: "
    "pip install '.[plots]' in the folder of randquant's source."
)

SOFT_COLOR, RULE_COLOR = "#5a626c", "#e0e2e5"
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif'
"""The fonts of the style sheet: vl-convert measures with them the room that labels need."""

PRINTED = "Arial, 'Liberation Sans', 'Helvetica Neue', Helvetica, sans-serif"

VARIABLES = {
    **{color: f"var(--{name})" for name, color in COLORS.items()},
    SOFT_COLOR: "var(--soft)",
    RULE_COLOR: "var(--rule)",
    PAPER_COLOR: "var(--paper)",
}
"""Colours of a picture as variables of the style sheet, which has a light and a dark scheme."""


def available() -> bool:
    """Return whether the library that draws pictures is installed."""
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        return False
    return True


def chart(*figures: Figure) -> Any:
    """Draw figures as one altair chart, below each other: with titles, legends, tooltips and zoom.

    Raises:
        ImportError: altair, or the package that saves its charts, is not installed.
    """
    try:
        import altair
        import vl_convert  # noqa: F401  # to save a chart needs it
    except ImportError:
        raise ImportError(MISSING) from None
    drawn = [
        _named(specification(each, standalone=True, live=True), k) for k, each in enumerate(figures)
    ]
    if len(drawn) == 1:
        return altair.Chart.from_dict(drawn[0])
    # Vega-Lite allows these only at the top of a concatenation.
    shared = {name: drawn[0][name] for name in ("config", "background", "padding")}
    parts = [{k: v for k, v in each.items() if k not in shared} for each in drawn]
    return altair.vconcat(*map(altair.Chart.from_dict, parts), **shared)


def _named(drawn: dict[str, Any], place: int) -> dict[str, Any]:
    # Vega wants different names in the charts of one page; the first chart keeps the plain ones.
    text = re.sub(r'"(plot|hover|moved|near)"', rf'"\g<1>{place}"', json.dumps(drawn))
    return json.loads(text) if place else drawn


@functools.lru_cache(maxsize=512)
def svg(figure: Figure, *, standalone: bool = False, width: int = WIDTH) -> str:
    """Draw a figure as the text of an SVG picture, in the colours of a page unless standalone.

    Args:
        figure: the figure.
        standalone: whether it has its own title and legend; on a page they are HTML.
        width: in px.

    Guarantees: equal figures give equal text.

    Raises:
        ImportError: vl-convert is not installed.
    """
    markup = _converter().vegalite_to_svg(specification(figure, standalone=standalone, width=width))
    # A page can have hundreds of pictures: digits and attributes without effect are removed.
    markup = _PLACES.sub(_shorter, markup)
    for invisible in _INVISIBLE:
        markup = invisible.sub("", markup)
    markup = _unique_ids(markup, figure)
    if not standalone:  # within HTML an SVG needs no namespace, and the style sheet sets the font
        markup = _REDUNDANT.sub("", markup)
        markup = _PLACES.sub(lambda place: _ZEROS.sub("", place[0]), markup)
    return (
        markup if standalone else _AXES.sub(lambda axis: _SHADES.sub("", axis[0]), coloured(markup))
    )


def _unique_ids(markup: str, figure: Figure) -> str:
    # The library numbers clip paths per process: the same figure would get other ids each time, and
    # two figures of one page the same. Ids from the figure's digest make equal figures equal text.
    ids = list(dict.fromkeys(re.findall(r' id="([^"]*)"', markup)))
    # Eight digits: that two of 500 pictures on a page share them has a probability of 3e-5.
    digest = hashlib.sha256(json.dumps(plain(figure)).encode()).hexdigest()[:8]
    for place, name in enumerate(ids):
        markup = markup.replace(f' id="{name}"', f' id="c{digest}-{place}"')
        markup = markup.replace(f"url(#{name})", f"url(#c{digest}-{place})")
    return markup


def coloured(markup: str) -> str:
    """Replace the colours of a picture by the variables of the page's style sheet."""
    for color, variable in VARIABLES.items():
        markup = markup.replace(f'"{color}"', f'"{variable}"')
    return markup


_INVISIBLE = tuple(
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
"""Parts of the library's markup without a visible effect."""


_REDUNDANT = re.compile(
    r' (?:(?:xmlns|font-family)="[^"]*"|font-size="12px"|transform="translate\(0,0\)"'
    r'|aria-roledescription="group mark container")'
)
"""Attributes that an SVG needs as a file, but not within a page."""

_AXES = re.compile(r'<g class="mark-\w+ role-axis-\w+">.*?</g>', re.DOTALL)
_SHADES = re.compile(r' (?:fill|stroke)="[^"]*"')
"""The style sheet has the colours of axes."""


@functools.lru_cache(maxsize=512)
def live(figure: Figure) -> str:
    """Convert a figure to Vega's JSON, with tooltips and zoom, for the script of a page.

    Guarantees: equal figures give equal text, which has no `<`.

    Raises:
        ImportError: vl-convert is not installed.
    """
    vega = _converter().vegalite_to_vega(specification(figure, live=True))
    vega.pop("$schema")  # an address, and a page refers to nothing outside itself
    for mark in vega["marks"]:
        # A fault of Vega-Lite: the label in a tooltip is read from the cell around the point.
        if mark["name"] == "hover_voronoi":
            tooltip = mark["encode"]["update"]["tooltip"]
            tooltip["signal"] = tooltip["signal"].replace('datum["k"]', 'datum.datum["k"]')
    text = json.dumps(vega, separators=(",", ":"), sort_keys=True)
    # A title with "</script>" would end the script element that holds this text.
    return coloured(text).replace("<", "\\u003c")


_PLACES = re.compile(r' (?:d|transform|x|y|x2|y2|width|height|opacity)="[^"]*"')
_LONG = re.compile(r"\d+\.\d{2,}(?![\de])")
_ZEROS = re.compile(r"(?<=\d)\.0+(?![\de])|(?<=\.\d)0+(?![\de])")
"""Decimals that are zero: pages have thousands of them."""


def _shorter(place: re.Match[str]) -> str:
    # A tenth of a pixel is not visible; opacities need two decimals.
    decimals = 2 if place[0].startswith(" opacity") else 1
    return _LONG.sub(lambda number: f"{float(number[0]):.{decimals}f}", place[0])


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise ImportError(MISSING) from None
    return vl_convert


def specification(
    figure: Figure, *, standalone: bool = False, live: bool = False, width: int = WIDTH
) -> dict[str, Any]:
    """Convert a figure to a specification of Vega-Lite.

    Args:
        figure: the figure.
        standalone: whether it has its own title and legend.
        live: whether it reacts to a pointer.
        width: of the whole picture in px; of the plot, if standalone.
    """
    drawn = _DRAW[type(figure)](figure, standalone)
    # Keys that are ours, not Vega-Lite's: the y label above the plot, the height, and whether the
    # plot can be moved.
    above = drawn.pop("above", "")
    height = drawn.pop("tall", 250)
    content: dict[str, Any] = {
        "width": width,
        "height": round(height * width / WIDTH),
        "description": figure.title,
        "config": {**_CONFIG, "font": PRINTED if standalone else FONT},
        "background": "white" if standalone else None,
        "padding": {"left": 12, "right": 12, "top": 8, "bottom": 8} if standalone else 2,
        **drawn,
    }
    if not standalone:
        content["autosize"] = {"type": "fit", "contains": "padding"}
    title, subtitle = (figure.title, above) if standalone else ("", above)
    content["title"] = {"text": title, "subtitle": subtitle} if title else _above(subtitle)
    moved = content.pop("moved", True)
    params = content.pop("params", [])
    if live and moved:
        params = [*params, _ZOOM]
    elif not live:  # without a script nothing can be selected
        params = [each for each in params if "value" in each]
        content["layer"] = [each for each in content["layer"] if not chart_marks.hovering(each)]
    return {**content, "params": params} if params else content


def _above(text: str) -> dict[str, Any]:
    return {"text": text, "fontSize": 12, "fontWeight": "normal", "color": SOFT_COLOR, "offset": 12}


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
        "anchor": "start", "frame": "bounds", "fontSize": 15, "fontWeight": 600, "color": INK_COLOR,
        "subtitleColor": SOFT_COLOR, "subtitleFontSize": 12, "subtitlePadding": 10, "offset": 14,
    },
    "axis": {
        "labelColor": SOFT_COLOR, "titleColor": SOFT_COLOR, "labelFontSize": 12,
        "titleFontSize": 12, "titleFontWeight": "normal", "gridColor": RULE_COLOR,
        "domainColor": SOFT_COLOR, "tickColor": SOFT_COLOR, "tickSize": 4, "labelPadding": 5,
        "titlePadding": 8, "labelOverlap": "greedy", "labelSeparation": 12,
    },
    "axisX": {"grid": False},
    "axisY": {"domain": False, "ticks": False, "title": None, "labelPadding": 7},
    "legend": {
        "labelFontSize": 12, "titleFontSize": 12, "labelColor": INK_COLOR, "titleColor": SOFT_COLOR,
        "titleFontWeight": "normal", "labelLimit": 0, "symbolStrokeWidth": 1.8, "orient": "right",
    },
    "text": {"fontSize": 12, "fill": SOFT_COLOR},
}  # fmt: skip
