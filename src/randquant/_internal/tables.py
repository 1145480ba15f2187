"""A table as text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

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
