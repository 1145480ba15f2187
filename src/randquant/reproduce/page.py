"""A reproduction as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from randquant import _page, _svg, _table
from randquant.reproduce.result import Reproduction, cells, labels, shown, shown_bound


def as_page(result: Reproduction) -> str:
    """A reproduction as one self-contained HTML page.

    Guarantees: equal reproductions give equal bytes; all words are escaped. Figures are HTML of
    ours and are taken as they are.
    """
    tables = [
        _table.html(table.title, table.columns, map(_typeset, cells(table)), "numbers")
        for table in result.tables
    ]
    body = [
        _page.header(result.source, result.title, result.setting),
        *marked(result),
        f"<section>{_claims(result)}</section>",
        *([f"<section>{_guarantees(result)}</section>"] if result.guarantees else []),
        _page.section("Figures", result.figures),
        _page.section("Numbers", tables),
        f"<section><h2>Command</h2><pre><code>{escape(result.command)}</code></pre></section>",
        _page.footer(),
    ]
    return _page.page(f"randquant reproduce {result.name}", "\n".join(body))


def marked(result: Reproduction) -> list[str]:
    """The labels of a reproduction, as HTML that catches the eye."""
    return [f'<p class="label"><strong>{escape(label)}</strong></p>' for label in labels(result)]


def _claims(result: Reproduction) -> str:
    rows = [
        (c.text, c.paper or "-", _svg.minus(shown(c.ours)), c.verdict, c.why) for c in result.claims
    ]
    columns = ("claim", "paper", "ours", "verdict", "why")
    return _table.html("What the paper says, and what holds", columns, rows, "claims paper")


def _guarantees(result: Reproduction) -> str:
    rows = [(g.what, g.paper or "-", shown_bound(g.certified), g.why) for g in result.guarantees]
    title = "Guarantees of one client's whole run, as stated and as certified"
    columns = ("of", "stated in the paper", "certified, at most", "unit")
    return _table.html(title, columns, rows, "claims stated")


def _typeset(row: Sequence[str]) -> list[str]:
    return [cell if cell[:1].isalpha() else _svg.minus(cell) for cell in row]
