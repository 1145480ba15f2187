"""A reproduction as JSON, and back."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from randquant import Interval
from randquant.reports import figure_from_json, figure_to_json
from randquant_papers.files import to_json
from randquant_papers.result import Claim, Reproduction, Stated, Table, Value, Verdict

T = TypeVar("T")

VERDICTS = typing.get_args(Verdict)


def as_json(result: Reproduction, *, figures: bool = False) -> dict[str, Any]:
    """A reproduction as the JSON object that the command prints.

    Args:
        result: what to print.
        figures: whether to carry the charts too: `from_json` needs them.

    Returns:
        Values as `files.to_json` makes them: intervals as {"lower", "upper"}, infinity
        as "inf".

    Raises:
        ValueError: a number is NaN.
    """
    claims = [
        {"claim": c.text, "paper": c.paper, "ours": c.ours, "verdict": c.verdict, "why": c.why}
        for c in result.claims
    ]
    data = {
        "name": result.name,
        "title": result.title,
        "source": result.source,
        "setting": result.setting,
        "command": result.command,
        "stand_in": result.stand_in,
        "scale": result.scale,
        "claims": claims,
        "guarantees": result.guarantees,
        "tables": result.tables,
    }
    return to_json(
        {**data, "figures": [figure_to_json(each) for each in result.figures]} if figures else data
    )


def from_json(data: Any) -> Reproduction:
    """Rebuild a reproduction from the JSON object of `as_json(result, figures=True)`.

    Args:
        data: parsed JSON.

    Guarantees:
        The rebuilt reproduction prints the same text, JSON and page, byte for byte (words of a
        table that are just "inf" would come back as infinity).

    Raises:
        ValueError: a field is missing, unknown or of the wrong kind, or a figure is more than a
            chart.

    Example:
        >>> result = Reproduction("a", "t", "s", "x", [], [Table("t", ["n"], [[1.5]])], [])
        >>> from_json(as_json(result, figures=True)).tables[0].rows
        [[1.5]]
    """
    names = "name title source setting command stand_in scale claims guarantees tables figures"
    fields = _object("a reproduction", data, names)
    words = {name: _text(name, fields[name]) for name in names.split()[:6]}
    return Reproduction(
        **words,
        scale=fields["scale"],
        claims=_each("claims", fields["claims"], _claim),
        guarantees=_each("guarantees", fields["guarantees"], _stated),
        tables=_each("tables", fields["tables"], _table),
        figures=_each("figures", fields["figures"], figure_from_json),
    )


def _claim(data: Any) -> Claim:
    fields = _object("a claim", data, "claim paper ours verdict why")
    if fields["verdict"] not in VERDICTS:
        raise ValueError(f"Expected a verdict among {VERDICTS}, got {fields['verdict']!r}.")
    return Claim(
        _text("claim", fields["claim"]),
        _printed(fields["paper"]),
        _value(fields["ours"]),
        fields["verdict"],
        _text("why", fields["why"]),
    )


def _stated(data: Any) -> Stated:
    fields = _object("a guarantee", data, "what paper certified why")
    what, why = _text("what", fields["what"]), _text("why", fields["why"])
    return Stated(what, _printed(fields["paper"]), _value(fields["certified"]), why)


def _table(data: Any) -> Table:
    fields = _object("a table", data, "title columns rows")
    columns = _each("columns", fields["columns"], lambda name: _text("a column", name))
    rows = _each("rows", fields["rows"], lambda row: _each("a row", row, _value))
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"Expected rows of {len(columns)} cells, got one of {len(row)}.")
    return Table(_text("title", fields["title"]), columns, rows)


def _value(data: Any) -> Value:
    if isinstance(data, dict):
        ends = _object("an interval", data, "lower upper")
        lower, upper = _value(ends["lower"]), _value(ends["upper"])
        if not isinstance(lower, float | int) or not isinstance(upper, float | int):
            raise ValueError(f"Expected an interval of two numbers, got {data!r}.")
        return Interval(float(lower), float(upper))
    if data in ("inf", "-inf"):
        return float(data)
    if data is None or (isinstance(data, str | int | float) and not isinstance(data, bool)):
        return data
    raise ValueError(f"Expected a number, an interval, words or null, got {data!r}.")


def _printed(data: Any) -> str | None:
    return None if data is None else _text("paper", data)


def _text(name: str, data: Any) -> str:
    if not isinstance(data, str):
        raise ValueError(f"Expected {name} to be a string, got {data!r}.")
    return data


def _each(name: str, data: Any, build: Callable[[Any], T]) -> Sequence[T]:
    if not isinstance(data, list):
        raise ValueError(f"Expected {name} to be a list, got {data!r}.")
    return [build(item) for item in data]


def _object(name: str, data: Any, keys: str) -> dict[str, Any]:
    wanted = keys.split()
    if not isinstance(data, dict) or set(data) != set(wanted):
        got = sorted(map(str, data)) if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"Expected {name} with {', '.join(wanted)}, got {got}.")
    return data
