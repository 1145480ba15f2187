"""A reproduction as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from randquant._internal.html import scatter, svg, tables, template
from randquant.papers.result import Claim, Reproduction, Table, cells, labels, shown, shown_bound

MARKS = {"holds": "holds", "does not hold": "fails", "cannot be told": "open"}
"""CSS classes of the verdicts."""

BROAD = 7
"""Columns from which a table takes the whole width of the page."""

PLURAL = {"holds": "hold", "does not hold": "do not hold", "cannot be told": "cannot be told"}


def as_page(result: Reproduction, *, navigation: str = "") -> str:
    """A reproduction as one self-contained HTML page.

    Args:
        result: what to print.
        navigation: HTML above the title, such as links to other pages.

    Guarantees: equal reproductions give equal bytes; all words are escaped. Figures are HTML of
    ours and are taken as they are.
    """
    body = [
        navigation,
        template.header(result.source, result.title, result.setting),
        *marked(result),
        counts(result.claims),
        f'<pre class="command"><code>{escape(result.command)}</code></pre>',
        f"<section>{_claims(result)}</section>",
        *([f"<section>{_guarantees(result)}</section>"] if result.guarantees else []),
        template.section("Figures", result.figures),
        template.section("Numbers", [_numbers(table) for table in result.tables]),
        template.footer(),
    ]
    plots = any(figure.startswith('<figure class="scatter"') for figure in result.figures)
    style = scatter.STYLE if plots else ""
    return template.page(f"randquant reproduce {result.name}", "\n".join(body), style=style)


def marked(result: Reproduction) -> list[str]:
    """The labels of a reproduction, as HTML that catches the eye."""
    return [f'<p class="label"><strong>{escape(label)}</strong></p>' for label in labels(result)]


def counted(claims: Sequence[Claim]) -> dict[str, int]:
    """How many claims have each verdict."""
    verdicts = [claim.verdict for claim in claims]
    return {verdict: verdicts.count(verdict) for verdict in MARKS}


def counts(claims: Sequence[Claim]) -> str:
    """How many claims have each verdict, as HTML; those with none are left out."""
    items = "".join(
        f'<li class="{MARKS[verdict]}">{count} {verdict if count == 1 else PLURAL[verdict]}</li>'
        for verdict, count in counted(claims).items()
        if count
    )
    return f'<ul class="counts" aria-label="Claims by verdict">{items}</ul>' if items else ""


def _claims(result: Reproduction) -> str:
    rows = [
        (c.text, c.paper or "-", svg.minus(shown(c.ours)), c.verdict, c.why) for c in result.claims
    ]
    columns = ("claim", "paper", "ours", "verdict", "why")
    return tables.html("What the paper says, and what holds", columns, rows, "claims paper", MARKS)


def _guarantees(result: Reproduction) -> str:
    rows = [(g.what, g.paper or "-", shown_bound(g.certified), g.why) for g in result.guarantees]
    title = "Guarantees of one client's whole run, as stated and as certified"
    columns = ("of", "stated in the paper", "certified, at most", "unit")
    return tables.html(title, columns, rows, "claims stated")


def _numbers(table: Table) -> str:
    text = tables.html(table.title, table.columns, map(_typeset, cells(table)), "numbers")
    return f'<div class="wide">{text}</div>' if len(table.columns) >= BROAD else text


def _typeset(row: Sequence[str]) -> list[str]:
    return [cell if cell[:1].isalpha() else svg.minus(cell) for cell in row]
