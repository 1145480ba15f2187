"""Values as text: bounds rounded in the direction in which they stay valid, tables, JSON data."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, TypeVar

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


# Records as JSON data, and back.

T = TypeVar("T")


def stored_as(name: str, value: str = "") -> dict[str, str]:
    """Return the metadata of a dataclass's field that has another name or value in JSON data.

    Files outlive names: a field that gets a better one is still read from files of earlier
    versions, and these read it from new files.

    Args:
        name: of the field in JSON data.
        value: name of the attribute whose value is written; "" for the field itself. Whoever reads
            the record converts it back.

    Example:
        >>> @dataclasses.dataclass
        ... class Sent:
        ...     fingerprint: str = dataclasses.field(metadata=stored_as("channel"))
        >>> to_json(Sent("ab")), from_json(Sent, {"channel": "ab"})
        ({'channel': 'ab'}, Sent(fingerprint='ab'))
    """
    return {"stored": name, "value": value}


def _stored_names(kind: Any) -> dict[str, str]:
    # A field's name by that in JSON data.
    return {f.metadata.get("stored", f.name): f.name for f in dataclasses.fields(kind)}


def to_json(record: Any) -> Any:
    """Convert records, dicts, tuples and numbers to plain JSON values.

    Guarantees: infinity becomes the string "inf"; NaN is refused.

    Example:
        >>> to_json({"epsilon": float("inf")})
        {'epsilon': 'inf'}
    """
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        written = {f.name: f.metadata.get("value") or f.name for f in dataclasses.fields(record)}
        names = _stored_names(record)
        return {stored: to_json(getattr(record, written[name])) for stored, name in names.items()}
    if isinstance(record, Mapping):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [to_json(value) for value in record]
    record = validate.number(record)
    if isinstance(record, float):
        # JSON has neither: other parsers refuse Python's NaN and Infinity.
        if math.isnan(record):
            raise ValueError("Expected a number in a record, got NaN.")
        if math.isinf(record):
            return "inf" if record > 0 else "-inf"
    return record


def from_json(kind: type[T], data: Any) -> T:
    """Build a record of dataclass `kind` from parsed JSON.

    Raises:
        ValueError: a field is missing or unknown.
    """
    if not isinstance(data, dict):
        raise ValueError(f"Expected a JSON object for {kind.__name__}, got {type(data).__name__}.")
    names = _stored_names(kind)
    # A field of a later version may change what the others mean: none is ignored.
    unknown = sorted(data.keys() - names.keys())
    if unknown:
        raise ValueError(f"Expected only known fields of {kind.__name__}, got {unknown[0]!r}.")
    try:
        return kind(**{
            names[key]: float(value) if value in ("inf", "-inf") else value
            for key, value in data.items()
        })  # fmt: skip
    except TypeError as error:
        raise ValueError(f"Expected every field of {kind.__name__}: {error}.") from None
