"""What a reproduction holds, and how it is printed: claims with verdicts, tables, figures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from randquant import _page, _svg, _table
from randquant.privacy import Interval, round_up

Verdict = Literal["holds", "does not hold", "cannot be told"]

Value = Interval | float | int | str | None
"""A proven interval, a number, words, or nothing."""

WIDTH = 100
"""Characters of a line in the terminal."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that a paper says, beside what we find.

    Attributes:
        text: the claim, in our words.
        paper: the paper's number as it is printed there, or None where it gives none.
        ours: our number; an interval where it is proven.
        verdict: whether the claim holds.
        why: how the verdict follows, in a sentence or two.
    """

    text: str
    paper: str | None
    ours: Value
    verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True)
class Table:
    """Figures of ours, for a picture or a table of the paper.

    Attributes:
        title: what is tabulated, with units.
        columns: (k,) headings.
        rows: (k,) cells each.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A table or figure of a paper, regenerated.

    Attributes:
        name: as on the command line.
        title: what is reproduced.
        source: the paper, and where in it.
        setting: the parameters, and what the paper leaves open.
        claims, tables: what was found.
        figures: charts as HTML.
    """

    name: str
    title: str
    source: str
    setting: str
    claims: Sequence[Claim]
    tables: Sequence[Table]
    figures: Sequence[str] = field(repr=False)


def shown(value: Value) -> str:
    """Print a value; a proven interval by its upper end, never below it.

    Example:
        >>> shown(Interval(1.23456781, 1.23456789)), shown(0.25), shown(None), shown(math.inf)
        ('1.234568', '0.25', '-', 'infinite')
    """
    if isinstance(value, Interval):
        return "infinite" if math.isinf(value.upper) else round_up(value.upper, 7)
    if isinstance(value, float):
        return "infinite" if math.isinf(value) else f"{value:.6g}"
    return "-" if value is None else str(value)


def agrees(paper: str, ours: float) -> bool:
    """Whether a printed number is ours, rounded or cut off at its last digit.

    Example:
        >>> agrees("5.46838", 5.4683825), agrees("1.993", 1.9973)
        (True, False)
    """
    decimals = len(paper.partition(".")[2])
    return abs(float(paper) - ours) < 10.0**-decimals


def as_text(result: Reproduction) -> list[str]:
    """Lay a reproduction out for a terminal."""
    lines = [result.title, *textwrap.wrap(f"{result.source}. {result.setting}", WIDTH), ""]
    columns = ("paper", "ours", "verdict", "claim")
    cells = [(c.paper or "-", shown(c.ours), c.verdict, "") for c in result.claims]
    head, *rows = _table.text(columns, cells)
    indent = len(head) - len("claim")
    lines.append(head)
    for row, claim in zip(rows, result.claims, strict=True):
        said = textwrap.wrap(claim.text, max(30, WIDTH - indent))
        lines.append(row.ljust(indent) + said[0])
        lines += [" " * indent + line for line in said[1:]]
        why = textwrap.wrap(claim.why, max(30, WIDTH - indent - 2))
        lines += [" " * (indent + 2) + line for line in why]
    for table in result.tables:
        lines += ["", table.title, *_table.text(table.columns, _cells(table))]
    return lines


def as_json(result: Reproduction) -> dict[str, Any]:
    """A reproduction as the JSON object that the command prints."""
    return {
        "name": result.name,
        "title": result.title,
        "source": result.source,
        "setting": result.setting,
        "claims": [
            {"claim": c.text, "paper": c.paper, "ours": c.ours, "verdict": c.verdict, "why": c.why}
            for c in result.claims
        ],
        "tables": [
            {"title": t.title, "columns": list(t.columns), "rows": [list(r) for r in t.rows]}
            for t in result.tables
        ],
    }


def as_page(result: Reproduction) -> str:
    """A reproduction as one self-contained HTML page."""
    claims = [
        (c.text, c.paper or "-", _svg.minus(shown(c.ours)), c.verdict, c.why) for c in result.claims
    ]
    columns = ("claim", "paper", "ours", "verdict", "why")
    tables = [
        _table.html(table.title, table.columns, map(_typeset, _cells(table)), "numbers")
        for table in result.tables
    ]
    body = [
        _page.header(result.source, result.title, result.setting),
        f"<section>{_table.html('What the paper says, and what holds', columns, claims, 'claims')}"
        "</section>",
        _page.section("Figures", result.figures),
        _page.section("Numbers", tables),
        _page.footer(),
    ]
    return _page.page(f"randquant reproduce {result.name}", "\n".join(body))


def _cells(table: Table) -> list[list[str]]:
    return [[shown(cell) for cell in row] for row in table.rows]


def _typeset(row: Sequence[str]) -> list[str]:
    return [cell if cell[:1].isalpha() else _svg.minus(cell) for cell in row]
