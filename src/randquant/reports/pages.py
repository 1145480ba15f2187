"""HTML pages from templates, each one file that opens from a disk.

Texts reach a template unescaped, and the template escapes all of them. The content security policy
of a page forbids every request and every script but its own, so that even a mistake in escaping
could not fetch or run anything; `eval` is not needed.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from randquant._internal.imports import __version__
from randquant.reports import chart_marks, charts
from randquant.reports.figures import Figure, GroupedBars, LineChart, ScatterPlot, Series

if TYPE_CHECKING:
    import jinja2


# The script for tooltips and zoom: Vega's runtime in one file, and a few lines of ours.

TEMPLATES = Path(__file__).parent / "templates"


@functools.cache
def charts_script() -> str:
    """Return the only script of a page: Vega's runtime, and our code that draws figures with it."""
    return "".join(
        (TEMPLATES / name).read_text(encoding="utf-8") for name in ("vega.js", "charts.js")
    )


SIGNS = {"circle": "●", "square": "■", "diamond": "◆", "triangle-up": "▲"}

CHARTS_FILE = "charts.js"
"""Name of the file with the charts' script in the folder of a site; `charts_script` is its text."""


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table of a page; it scrolls horizontally if it is too wide.

    Attributes:
        title: its caption.
        columns: (k,) headings.
        rows: (k,) cells each; the first cell names the row.
        style: CSS classes: `numbers`, `settings`, `claims` or `compared`.
        marks: CSS class by cell text, for cells whose whole text is one of the keys.
        attributes: of each row, if any.
        wide: whether it takes the whole width of the page; None: if it has many columns.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    style: str
    marks: Mapping[str, str] = field(default_factory=dict)
    attributes: Sequence[Mapping[str, str]] = ()
    wide: bool | None = None


@dataclass(frozen=True, slots=True)
class Notes:
    """Small print: a paragraph for each line."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Paragraphs:
    """Text: of each paragraph a bold beginning, and the rest."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line to run."""

    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """Parts below each other in one column."""

    parts: Sequence[Part]
    name: str = ""


Part = DataTable | CodeLine | Notes | Paragraphs | Group | Figure | str
"""Content of a section; a string is HTML, which is not escaped: it must be our own."""


@dataclass(frozen=True, slots=True)
class Section:
    """A headed section; without parts it is left out.

    Attributes:
        title: its heading, or nothing.
        parts: its content.
        columns: whether parts are in two columns (one on a phone).
        text: whether its content is mainly text.
    """

    title: str
    parts: Sequence[Part] = field(default_factory=list)
    columns: bool = True
    text: bool = False


class LegendKey(NamedTuple):
    """An entry of a legend: its CSS classes, its sign if it has one, its words."""

    style: str
    sign: str
    label: str


def page(
    template: str,
    title: str,
    *,
    live: bool = True,
    script_in_file: bool = False,
    style: str = "",
    script: str = "",
    templates: Path | None = None,
    **context: Any,
) -> str:
    """Render a page.

    Args:
        template: its file name, in the caller's `templates` or among those of this package.
        title: of the document.
        live: whether charts react to a pointer, by a script.
        script_in_file: whether that script is in the file CHARTS_FILE in the page's folder, not in
            the page.
        style: file name of another style sheet.
        script: file name of another script.
        templates: a folder with the caller's own templates, style sheets and scripts.
        **context: the template's variables.

    Guarantees:
        Equal arguments give equal text. The page requests nothing but CHARTS_FILE.
    """
    environment = _environment(live, templates)
    body = environment.get_template(template)
    # Rendered once to see whether there are charts at all: a page without charts has no script, and
    # its policy allows none.
    has_charts = "application/json" in (text := body.render(**context, **_frame(title, style)))
    if not has_charts and not script:
        return text
    scripts = [charts_script()] if has_charts and not script_in_file else []
    if script:
        assert environment.loader is not None
        scripts.append(environment.loader.get_source(environment, script)[0])
    frame = _frame(title, style, scripts, CHARTS_FILE if has_charts and script_in_file else "")
    return body.render(**context, **frame)


def report(
    title: str, kind: str, heading: str, lead: str, sections: Sequence[Section], **more: Any
) -> str:
    """Render a page of sections, see `page`.

    Args:
        title: of the document.
        kind: the kind of page, in a few words.
        heading, lead: its heading and a sentence.
        sections: its content.
        **more: `cards` as (name, figure, lines below), and arguments of `page`.
    """
    return page(
        "report.html", title, kind=kind, heading=heading, lead=lead, sections=sections, **more
    )


def fragment(table: DataTable, figures: Sequence[Figure]) -> str:
    """Render a table, and pictures if they can be drawn, as a piece of HTML for a notebook."""
    drawn = [charts.svg(each, standalone=True) for each in figures] if charts.available() else []
    return _environment(False).get_template("fragment.html").render(part=table, pictures=drawn)


def _frame(
    title: str, style: str, scripts: Sequence[str] = (), script_file: str = ""
) -> dict[str, Any]:
    from markupsafe import Markup

    # The policy names each script of the page by its hash: a script that somebody injects has
    # another hash, and a browser does not run it.
    allowed = ["'self'"] if script_file else []
    for text in scripts:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed.append(f"'sha256-{digest}'")
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    if allowed:
        policy += f"; script-src {' '.join(allowed)}"
    return {
        "title": title,
        "policy": Markup(policy),
        "styles": ["style.css", *([style] if style else [])],
        "scripts": [Markup(text) for text in scripts],
        "script_file": script_file,
        "version": f"randquant {__version__}",
    }


@functools.cache
def _environment(live: bool, templates: Path | None = None) -> jinja2.Environment:
    import jinja2

    folders = [TEMPLATES] if templates is None else [templates, TEMPLATES]

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["shown"] = functools.partial(shown, live=live)
    environment.filters["powers"] = _powers
    environment.globals["missing"] = charts.MISSING
    environment.globals["cards"] = ()  # a page without cards
    return environment


def _powers(text: str) -> Any:
    from markupsafe import Markup, escape

    return escape(text).replace("e^ε", Markup("e<sup>ε</sup>"))


def shown(part: Part, *, live: bool = False) -> Any:
    """Render a part of a page as HTML."""
    from markupsafe import Markup

    macros: Any = _environment(live).get_template("parts.html").module
    match part:
        case str():
            return Markup(part)
        case DataTable():
            wide = len(part.columns) > 7 if part.wide is None else part.wide
            return macros.table(
                {name: getattr(part, name) for name in part.__slots__} | {"wide": wide}
            )
        case CodeLine():
            return macros.command(part.text)
        case Notes():
            return macros.notes(part.lines)
        case Paragraphs():
            return macros.paragraphs(part.items)
        case Group():
            # `format` of Markup escapes the name.
            inner = Markup("").join(shown(each, live=live) for each in part.parts)
            return Markup('<div id="{}">{}</div>' if part.name else "<div>{1}</div>").format(
                part.name, inner
            )
    return _figure(part, macros, live)


def _figure(figure: Figure, macros: Any, live: bool) -> Any:
    from markupsafe import Markup

    caption = {"kind": figure.__struct_config__.tag, "title": figure.title, "note": figure.note}
    if not charts.available():  # the page then says how to get pictures
        return macros.figure(caption, legend(figure), "", "")
    if not _drawable(figure):
        caption["note"] = f"There is no finite value to draw. {figure.note}".strip()
        return macros.figure(caption, [], " ", "")
    # Neither is escaped: the library escapes texts in SVG, and `live` has no "<".
    picture = Markup(charts.svg(figure))
    live_chart = Markup(charts.live(figure)) if live else ""
    return macros.figure(caption, legend(figure), picture, live_chart)


def _drawable(figure: Figure) -> bool:
    match figure:
        case LineChart():
            return any(y is not None for line in figure.lines for _, y in line.points)
        case ScatterPlot():
            return any(m.x is None or m.x > 0 for each in figure.series for m in each.marks)
    return True


def legend(figure: Figure) -> list[LegendKey]:
    """Return the entries of a figure's legend, which a page shows above the picture."""
    match figure:
        case LineChart():
            return [
                LegendKey(f"line {style}", "", label)
                for label, style in chart_marks.legend(figure.lines)
            ]
        case GroupedBars():
            return [
                LegendKey(f"bar c{k % chart_marks.COLOR_COUNT + 1}", "", name)
                for k, (name, _) in enumerate(figure.groups)
            ]
        case ScatterPlot():
            return [_series(k, each) for k, each in enumerate(figure.series)]
    return []


def _series(place: int, series: Series) -> LegendKey:
    style = f"c{place % chart_marks.COLOR_COUNT + 1}"
    if series.marks and all(mark.x is None for mark in series.marks):
        return LegendKey(f"level {style}", "", series.label)
    return LegendKey(f"mark {style}", SIGNS[chart_marks.shape(place)], series.label)
