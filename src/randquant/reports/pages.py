"""HTML pages from templates, each one file that opens from a disk; what all say of a guarantee.

Texts reach a template unescaped, and the template escapes all of them. The content security policy
of a page forbids every request and every script but its own, so that even a mistake in escaping
could not fetch or run anything; `eval` is not needed.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from randquant._internal import formatting
from randquant._internal.formatting import minus
from randquant._internal.imports import __version__
from randquant.privacy.guarantee import Guarantee
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
    # Styles are in the page itself. They can fetch and send nothing, since all else is forbidden.
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
        # A misspelt variable is an error, and not an empty place where a figure should be.
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["shown"] = functools.partial(shown, live=live)
    environment.filters["powers"] = _powers
    environment.globals["missing"] = charts.MISSING
    environment.globals["cards"] = ()  # a page without cards
    return environment


def _powers(text: str) -> Any:
    from markupsafe import Markup, escape

    # Escaped before the markup is put in: the text may hold names that users chose.
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
        # A blank instead of nothing, which would ask for the library that draws pictures.
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
            # A logarithmic axis has no place for 0. Marks without an x are lines across the
            # picture.
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


# Sentences and sections on what a guarantee means, the same on all pages that show one.

LARGE_EPSILON = 20.0
"""Total in nats above which a page says that it does not hide an update by itself: e^20 is 5e8, so
the bound then excludes next to no conclusion."""

_OBSERVERS = {
    "local": "a server that sees every code",
    "aggregate": "a server that sees only sums of a cohort's codes",
    "central": "someone who sees the models that the trusted server publishes",
    "model": "someone who sees the published models, and nothing else of the run,",
}


def observer(guarantee: Guarantee) -> str:
    """Describe the adversary that a guarantee holds against."""
    trust = guarantee.trust
    return _OBSERVERS.get(trust, f"an observer under {trust} trust")


def promise(guarantee: Guarantee) -> str:
    """Describe what a finite guarantee promises, to whom, and against whom."""
    # In terms of probabilities of conclusions: "e^ε" is meaningless without what may be replaced.
    slack = f", plus at most δ = {minus(formatting.plain(guarantee.delta))}" * (guarantee.delta > 0)
    change = "Replace all data of one client, and so every update that it encodes, by any other."
    if guarantee.neighboring == "zero_out":
        change = "Replace all updates that one client encodes by zeros, or the other way round."
    if guarantee.unit == "example":
        change = "Replace one example of one client by another."
        if guarantee.neighboring == "zero_out":
            change = "Replace the gradient of one example of one client by zeros."
    return (
        f"{change} The probability of anything that {observer(guarantee)} can conclude is then at "
        f"most e^ε times what it was{slack}. Here {formatting.bound(guarantee.epsilon)}: proven, "
        "and rounded up."
    )


def other_figure(other: Guarantee | None) -> list[str]:
    """Return a card's line on the guarantee under the other neighbouring relation, if any."""
    if other is None:
        return []
    change = "left out (zero out)" if other.neighboring == "zero_out" else "replaced (replace one)"
    return [f"{formatting.bound(other.epsilon)} if one {other.unit} is {change}"]


def how_to_compare(stated: Guarantee, other: Guarantee | None) -> list[tuple[str, str]]:
    """Return a paragraph on which figure to compare with others', if both are known."""
    if other is None:
        return []
    replaced, left_out = (stated, other)[:: 1 if other.neighboring == "zero_out" else -1]
    text = (
        f"Compare what others state for adding or removing one {stated.unit} with "
        f"{formatting.bound(left_out.epsilon)}: its contribution is exchanged for zeros, while the "
        "numbers of clients and examples stay. Compare what they state for replacing one with "
        f"{formatting.bound(replaced.epsilon)}. Both hold of this one run, at the same δ."
    )
    return [("How to compare it with other figures.", text)]


def coverage(guarantee: Guarantee | None, covered: str, not_covered: str) -> Section:
    return _covered_and_not(covered_by(guarantee, covered), not_covered)


def covered_by(guarantee: Guarantee | None, covered: str) -> str:
    """Return what a guarantee covers: nothing without a finite epsilon."""
    finite = guarantee is not None and math.isfinite(guarantee.epsilon)
    return covered if finite else "Nothing: no finite ε is proven."


def coverage_without_data(covered: str, not_covered: str) -> Section:
    # For a page that shows no client's data.
    return _covered_and_not(f"{covered} The page is computed without anybody's data.", not_covered)


def _covered_and_not(covered: str, not_covered: str) -> Section:
    text = Paragraphs([("Covered.", covered), ("Not covered.", not_covered)])
    return Section("What is covered, what is not", [text], columns=False, text=True)


def coverage_of_codes() -> Section:
    # For a page on one coordinate's code, which shows no run.
    return coverage_without_data(
        "One coordinate's code in one round, for any two inputs within the clipping threshold.",
        "A whole update and a whole run, whose epsilon is larger: rq.account and a run's own page "
        "have it. Parameters that were chosen by looking at clients' data.",
    )


def hostile_client(line: str) -> list[tuple[str, str]]:
    # `line` is that of `describe_influence`, which may be empty.
    if not line:
        return []
    return [("What one client can do to the mean.", f"{line[0].upper()}{line[1:]}.")]


def how_large(guarantee: Guarantee) -> list[tuple[str, str]]:
    """Return a paragraph on the size of a finite guarantee."""
    text = "By common usage a total of at most 1 is strong and one of at most 10 is moderate."
    if guarantee.epsilon > LARGE_EPSILON:
        text = (
            f"The total is printed as it is. Above {LARGE_EPSILON:g} nats it does not by itself "
            f"hide a client's update from {observer(guarantee)}. What it does mean: no attack "
            "passes this ceiling, with the slack δ, in the worst case over all clients and for an "
            "observer who knows everything else; the true loss may be smaller, but that is not "
            "promised. A small total takes updates clipped as a whole in L2, and only their noisy "
            "sum shown to the server."
        )
    return [("How large it is.", text)]
