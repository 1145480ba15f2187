"""A reproduction as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from randquant.reports import DataTable, formatting, page
from randquant_papers.result import Claim, Reproduction, Table, cells, labels, shown, shown_bound

TEMPLATES = Path(__file__).parent / "templates"

MARKS = {"holds": "holds", "does not hold": "fails", "cannot be told": "open"}
"""CSS classes of the verdicts."""

BROAD = 7
"""Columns from which a table takes the whole width of the page."""

PLURAL = {"holds": "hold", "does not hold": "do not hold", "cannot be told": "cannot be told"}


def as_page(
    result: Reproduction,
    *,
    before: Reproduction | None = None,
    after: Reproduction | None = None,
    gallery: bool = False,
) -> str:
    """A reproduction as one self-contained HTML page.

    Args:
        result: what to print.
        before, after: its neighbours in a gallery, if it has any.
        gallery: whether it is a page of a gallery: it has links, and the charts' script is beside.

    Guarantees: equal reproductions give equal bytes; all words are escaped.
    """
    return page(
        "reproduction.html",
        f"randquant-papers reproduce {result.name}",
        script_in_file=gallery,
        templates=TEMPLATES,
        navigated=gallery,
        before=before,
        after=after,
        result=result,
        labels=labels(result),
        counts=counts(result.claims),
        claims=_claims(result),
        guarantees=_guarantees(result),
        tables=[_numbers(table) for table in result.tables],
    )


def counted(claims: Sequence[Claim]) -> dict[str, int]:
    """How many claims have each verdict."""
    verdicts = [claim.verdict for claim in claims]
    return {verdict: verdicts.count(verdict) for verdict in MARKS}


def counts(claims: Sequence[Claim]) -> list[tuple[str, str]]:
    """How many claims have each verdict, as CSS class and words; those with none are left out."""
    return [
        (MARKS[verdict], f"{count} {verdict if count == 1 else PLURAL[verdict]}")
        for verdict, count in counted(claims).items()
        if count
    ]


def _claims(result: Reproduction) -> DataTable:
    rows = [
        (c.text, c.paper or "-", formatting.minus(shown(c.ours)), c.verdict, c.why)
        for c in result.claims
    ]
    columns = ("claim", "paper", "ours", "verdict", "why")
    title = "What the paper says, and what holds"
    return DataTable(title, columns, rows, "claims paper", MARKS)


def _guarantees(result: Reproduction) -> DataTable:
    rows = [(g.what, g.paper or "-", shown_bound(g.certified), g.why) for g in result.guarantees]
    title = "Guarantees of one client's whole run, as stated and as certified"
    columns = ("of", "stated in the paper", "certified, at most", "unit")
    return DataTable(title, columns, rows, "claims stated")


def _numbers(table: Table) -> DataTable:
    rows = [_typeset(row) for row in cells(table)]
    return DataTable(table.title, table.columns, rows, "numbers", wide=len(table.columns) >= BROAD)


def _typeset(row: Sequence[str]) -> list[str]:
    return [cell if cell[:1].isalpha() else formatting.minus(cell) for cell in row]
