"""A table, as text for a terminal and as HTML for a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from types import MappingProxyType

NUMBER = re.compile(r"[-−+]?[\d.,]+(e[-+−]?\d+)?|infinite|-|")
"""Cells that are right-aligned in a terminal."""


def text(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lay a table out as lines: numbers are right-aligned, words left-aligned.

    Args:
        columns: (k,) headings.
        rows: (k,) cells each.

    Example:
        >>> for line in text(("name", "MSE"), [("rqm", "0.5"), ("stochastic", "12.5")]):
        ...     print(line)
        name         MSE
        rqm          0.5
        stochastic  12.5
    """
    body = [list(row) for row in rows]
    table = [list(columns), *body]
    widths = [max(len(row[k]) for row in table) for k in range(len(columns))]
    right = [all(NUMBER.fullmatch(row[k]) for row in body) for k in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in table
    ]


def html(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    style: str,
    marks: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Lay a table out as HTML that scrolls sideways if it is too wide.

    Args:
        title: its caption.
        columns: (k,) headings.
        rows: (k,) cells each; the first cell names the row.
        style: CSS class: `numbers`, `settings` or `claims`.
        marks: CSS class by cell text, for cells whose whole text is one of the keys.
    """
    wide = " wide" * (len(columns) > 7)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = ""
    for first, *cells in rows:
        data = "".join(f"<td{_class(marks.get(cell))}>{escape(cell)}</td>" for cell in cells)
        body += f'<tr><th scope="row">{escape(first)}</th>{data}</tr>\n'
    # The caption is outside the scrolling part, so that it stays readable on a phone.
    name = escape(title)
    return (
        f'<div class="table{wide}"><p class="caption">{name}</p><div class="scroll">'
        f'<table class="{style}" aria-label="{name}">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div></div>\n"
    )


def _class(name: str | None) -> str:
    return "" if name is None else f' class="{name}"'
