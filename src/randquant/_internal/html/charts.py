"""Pictures of figures, drawn by Vega-Lite: the house's look, and one picture for each kind.

A figure becomes a specification of Vega-Lite, which is plain data. `chart` hands it to altair for
notebooks and papers, `svg` and `live` to vl-convert for pages.
"""

from __future__ import annotations

import functools
import json
import math
import re
from typing import Any

from randquant._internal.html.figures import (
    Figure,
    GroupedBars,
    HeatMap,
    HorizontalBars,
    LineChart,
    ScatterPlot,
    StackedAreas,
)
from randquant._internal.html.kinds import areas, bars, lines, marks
from randquant._internal.html.kinds.scales import COLORS, INK, PAPER

WIDTH = 380
"""Width of a picture on a page, in px: about a phone's, and half of a desktop page."""

MISSING = (
    "Expected the libraries that draw charts, got an installation without them: "
    "pip install 'randquant[plots]'."
)

SOFT, RULE = "#5a626c", "#e0e2e5"
FONT = "Arial, 'Liberation Sans', 'Helvetica Neue', Helvetica, sans-serif"

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


def chart(figure: Figure) -> Any:
    """A figure as an altair chart: with title, legend, tooltips and zoom.

    Save it by `chart.save("figure.pdf")`; `.svg`, `.png` and `.html` likewise.

    Raises:
        ImportError: altair is not installed.
    """
    try:
        import altair
        import vl_convert  # noqa: F401  # what saves it
    except ImportError:
        raise ImportError(MISSING) from None
    return altair.Chart.from_dict(specification(figure, alone=True, live=True))


@functools.lru_cache(maxsize=512)
def svg(figure: Figure, *, alone: bool = False, width: int = WIDTH) -> str:
    """A figure as the text of an SVG picture, in the colours of the page that it stands on.

    Args:
        figure: what to draw.
        alone: whether it has its own title and legend; on a page they are HTML.
        width: in px.

    Guarantees: equal figures give equal text.

    Raises:
        ImportError: vl-convert is not installed.
    """
    found = _converter().vegalite_to_svg(specification(figure, alone=alone, width=width))
    found = _PLACES.sub(_shorter, found)
    for unseen in _UNSEEN:
        found = unseen.sub("", found)
    for color, variable in VARIABLES.items():
        found = found.replace(f'"{color}"', f'"{variable}"')
    return found


_UNSEEN = tuple(
    re.compile(pattern)
    for pattern in (
        r' (?:xmlns:xlink|version|pointer-events|stroke-miterlimit)="[^"]*"',
        r'<line [^>]* opacity="0"/>',
        r'<path class="(?:background|foreground)" [^>]*/>',
        r"<text [^>]*></text>",
        r' (?:opacity|stroke-width)="1"',
        r' fill="#0072b2" stroke-width="0.5"',  # a cell: the style sheet fills it
        r'(?<=<path) aria-hidden="true"',
    )
)
"""What a library writes and nobody sees."""


@functools.lru_cache(maxsize=512)
def live(figure: Figure) -> str:
    """A figure as a specification of Vega in JSON, with tooltips and zoom, for a page's script.

    Guarantees: equal figures give equal text; it holds no `<`.

    Raises:
        ImportError: vl-convert is not installed.
    """
    found = _converter().vegalite_to_vega(specification(figure, live=True))
    text = json.dumps(found, separators=(",", ":"), sort_keys=True)
    for color, variable in VARIABLES.items():
        text = text.replace(f'"{color}"', f'"{variable}"')
    return text.replace("<", "\\u003c")


_PLACES = re.compile(r' (?:d|transform|x|y|x2|y2|width|height|opacity)="[^"]*"')
_LONG = re.compile(r"\d+\.\d{2,}(?![\de])")


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
        "config": _CONFIG,
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
        content["layer"] = [each for each in content["layer"] if not lines.hovering(each)]
    return {**content, "params": params} if params else content


def _above(text: str) -> dict[str, Any]:
    return {"text": text, "fontSize": 12, "fontWeight": "normal", "color": SOFT, "offset": 12}


_DRAW: dict[type, Any] = {
    LineChart: lines.lines,
    GroupedBars: bars.bars,
    HorizontalBars: bars.amounts,
    HeatMap: areas.heat,
    ScatterPlot: marks.marks,
    StackedAreas: areas.areas,
}

_ZOOM = {
    "name": "zoom",
    "select": {"type": "interval", "zoom": "wheel![event.shiftKey]", "clear": "dblclick"},
    "bind": "scales",
    "views": ["plot"],
}
"""Drag to move, Shift and the wheel to zoom, a double click to return; the page still scrolls."""

_CONFIG = {
    "font": FONT,
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
    },
    "axisX": {"grid": False},
    "axisY": {"domain": False, "ticks": False, "title": None, "labelPadding": 7},
    "legend": {
        "labelFontSize": 12, "titleFontSize": 12, "labelColor": INK, "titleColor": SOFT,
        "titleFontWeight": "normal", "labelLimit": 0, "symbolStrokeWidth": 1.8, "orient": "right",
    },
    "text": {"font": FONT, "fontSize": 12, "fill": SOFT},
}  # fmt: skip


def readable(value: float) -> str:
    """A number of an axis, with a minus sign.

    Example:
        >>> readable(-1500.0)
        '−1,500'
    """
    return f"{value:,.6g}".replace("-", "−") if math.isfinite(value) else "∞"
