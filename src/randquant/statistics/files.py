"""Records and queries in files: CSV or JSON lines, and TOML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from randquant._internal import validate
from randquant._internal.files import parse_toml, read_text
from randquant.statistics.query import Query
from randquant.statistics.saving import query_from

TABLES = 'queries as tables of TOML, such as [age] with kind = "mean"'

CATEGORIES = ("of", "groups", "by")
"""Fields that hold categories, which are texts as in the files of records."""

DELIMITERS = ",;\t|"

Record = dict[str, str | None]


def read_queries(path: str | Path) -> tuple[dict[str, Query], dict[str, float]]:
    """Read queries and their weights: a table for each, with its kind, its fields and its weight.

    Raises:
        OSError: the file cannot be read.
        ValueError, TypeError: it holds anything else; the sentence names the query.
    """
    path = Path(path)
    try:
        tables = parse_toml(read_text(path, "queries"))
    except ValueError as error:
        raise ValueError(f"Expected {TABLES}, in {path}, got: {error}.") from None
    if not tables:
        raise ValueError(f"Expected {TABLES}, in {path}, got none.")
    queries, weights = {}, {}
    for name, fields in tables.items():
        if not isinstance(fields, Mapping):
            raise TypeError(f"Expected {TABLES}, in {path}, got {name} = {validate.shown(fields)}.")
        fields = {
            key: _texts(value) if key in CATEGORIES else value for key, value in fields.items()
        }
        if "weight" in fields:
            weights[name] = fields.pop("weight")
        try:
            queries[name] = query_from(fields)
        except (ValueError, TypeError) as error:
            raise type(error)(f"Query {name!r}: {error}") from None
    return queries, weights


def read_records(path: str | Path) -> list[Record]:
    """Read records of equal columns as texts; None where a value is missing.

    Args:
        path: of a CSV file whose first line names the columns, and has the most of the comma,
            semicolon, tab or bar that separates all cells; or, if its name ends in .jsonl or
            .ndjson, of a file with one JSON object a line.

    Guarantees:
        What a cell becomes depends on no other record. Numbers stay as they are written, so that
        each query reads a text as what it asks for, and no two ids are the same number.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds anything else; the sentence names the line.
    """
    path = Path(path)
    text = read_text(path, "records")
    as_json = path.suffix in (".jsonl", ".ndjson")
    records = _json_lines(text, path) if as_json else _csv(text, path)
    if not records:
        raise ValueError(f"Expected records in {path}, got none.")
    columns = dict.fromkeys(column for record in records for column in record)
    return [{column: record.get(column) for column in columns} for record in records]


def by_client(records: Sequence[Record], column: str) -> dict[str, dict[str, list[Any]]]:
    """Columns of each client's records: those that have the same value in a column.

    Raises:
        ValueError: there is no such column, or a record has no value in it.
    """
    validate.choice("the column of clients", column, records[0])
    clients: dict[str, list[Record]] = {}
    for place, record in enumerate(records, 1):
        if (name := record[column]) is None:
            raise ValueError(f"Expected a client in {column!r} of record {place}, got none.")
        clients.setdefault(name, []).append(record)
    return {
        name: {each: [record[each] for record in own] for each in own[0]}
        for name, own in clients.items()
    }


def _csv(text: str, path: Path) -> list[Record]:
    try:
        text = text.removeprefix("\ufeff")
        delimiter = max(DELIMITERS, key=text.partition("\n")[0].count)
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise ValueError(f"Expected CSV in {path}, got: {error}.") from None
    columns = [name.strip() for name in lines[0]] if lines else []
    if len(set(columns)) < len(columns) or "" in columns:
        raise ValueError(f"Expected different names of columns in the first line of {path}.")
    for place, line in enumerate(lines, 1):
        if len(line) > len(columns):
            raise ValueError(
                f"Expected {len(columns)} cells in line {place} of {path}, got {len(line)}."
            )
    return [dict(zip(columns, map(_text, line), strict=False)) for line in lines[1:] if line]


def _json_lines(text: str, path: Path) -> list[Record]:
    records = []
    # Not splitlines: a text may hold other ends of lines, such as U+2028.
    for place, line in enumerate(text.split("\n"), 1):
        try:
            record = json.loads(line, **AS_WRITTEN) if line.strip() else None
        except (ValueError, RecursionError):
            record = line
        if record is None:
            continue
        if not isinstance(record, dict) or any(isinstance(v, dict | list) for v in record.values()):
            raise ValueError(
                f"Expected an object of single values in line {place} of {path}, got "
                f"{validate.shown(record)}."
            )
        records.append({column: _text(value) for column, value in record.items()})
    return records


AS_WRITTEN: dict[str, Any] = {"parse_int": str, "parse_float": str, "parse_constant": str}
"""How numbers of JSON are read: not at all."""


def _text(value: Any) -> str | None:
    """A cell as text without spaces around it; None if it is empty."""
    text = str(value).lower() if isinstance(value, bool) else value
    return text.strip() or None if text is not None else None


def _texts(categories: Any) -> Any:
    """Categories as the texts that they are in files of records."""
    if isinstance(categories, list):
        return [_text(each if isinstance(each, str | bool) else str(each)) for each in categories]
    if isinstance(categories, dict):
        return {column: _texts(known) for column, known in categories.items()}
    return categories
