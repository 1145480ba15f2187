"""Numbers as text: bounds rounded in the direction in which they stay valid, sizes, tables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from randquant._internal import validate


def round_up(value: float | Decimal, digits: int = 6, *, grouped: bool = False) -> str:
    """Format a finite number with `digits` significant digits, never below its value.

    Args:
        value: a finite number.
        digits: number of significant digits.
        grouped: whether to separate thousands with commas.

    Example:
        >>> round_up(1.2345671), round_up(0.1), round_up(152345.6, grouped=True)
        ('1.23457', '0.100001', '152,346')
    """
    return _rounded(value, ROUND_CEILING, digits, grouped)


def round_down(value: float, digits: int = 6, *, grouped: bool = False) -> str:
    """Format a finite number with `digits` significant digits, never above its value.

    Args: as in `round_up`.

    Example:
        >>> round_down(1.2345678), round_down(152345.6, grouped=True)
        ('1.23456', '152,345')
    """
    return _rounded(value, ROUND_FLOOR, digits, grouped)


def _rounded(value: float | Decimal, rounding: str, digits: int, grouped: bool) -> str:
    # Decimal(float) is exact, so this rounds the real number, not its repr.
    context = Context(prec=validate.whole("digits", digits, low=1), rounding=rounding)
    exact = value if isinstance(value, Decimal) else Decimal(validate.number(value))
    rounded = context.normalize(context.plus(exact))
    # Very small and very large numbers are hard to read without an exponent.
    if rounded != 0 and not Decimal("1e-4") <= abs(rounded) < Decimal("1e9"):
        return f"{rounded:e}"
    return f"{rounded:,f}" if grouped else f"{rounded:f}"


__all__ = [
    "bound",
    "byte_size",
    "count",
    "exact",
    "minus",
    "number",
    "plain",
    "spent",
]


def number(value: float | None, decimals: int, *, scale: float = 1) -> str:
    # Missing measurements are empty cells.
    return "" if value is None else f"{scale * value:.{decimals}f}"


def spent(epsilon: float | None) -> str:
    """Write an upper bound of epsilon as a table cell: never below its value, empty for None."""
    if epsilon is None:
        return ""
    if math.isinf(epsilon):
        return "∞"
    return round_up(epsilon, 4, grouped=True)


def bound(epsilon: Any) -> str:
    """Write an upper bound of epsilon with its sign, never below its value.

    Example:
        >>> bound(152345.6), bound("inf")
        ('ε ≤ 152,346', 'no finite ε')
    """
    value = float(epsilon)  # JSON has infinity as the text "inf"
    return "no finite ε" if math.isinf(value) else f"ε ≤ {round_up(value, grouped=True)}"


def plain(value: object) -> str:
    # The shortest text that parses to the same value.
    return str(value).replace("e-0", "e-") if isinstance(value, float) else str(value)


def exact(value: float) -> str:
    """Write a configured number without rounding.

    Example:
        >>> exact(8.0), exact(0.1), exact(8.0000001)
        ('8', '0.1', '8.0000001')
    """
    return repr(float(value)).removesuffix(".0")


def count(number: int, noun: str) -> str:
    # Nouns with a regular plural only.
    return f"{number:,} {noun}" + "s" * (number != 1)


def byte_size(number: int) -> str:
    """Write a number of bytes, from 10,000 on in kB, MB or GB."""
    if number < 10_000:
        return f"{number:,}\u00a0bytes"
    # Powers of 1000, as networks are measured, not of 1024.
    power = min(3, int(math.log10(number)) // 3)
    return f"{number / 1000**power:,.1f}\u00a0{('kB', 'MB', 'GB')[power - 1]}"


def minus(number: str) -> str:
    # A minus sign is as wide as a plus, and browsers do not break a line after it.
    return number.replace("-", "−")


# A table as text for a terminal.

NUMBER_PATTERN = re.compile(r"[-−+]?[\d.,]+(e[-+−]?\d+)?|infinite|-|")
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
    right = [all(NUMBER_PATTERN.fullmatch(row[k]) for row in body) for k in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in table
    ]
