"""Records and queries in files: CSV or JSON lines, and TOML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from randquant._internal import validate
from randquant._internal.declared import plain
from randquant._internal.files import parse_toml, read_text
from randquant.statistics.query import Query
from randquant.statistics.saving import query_from

TABLES = 'queries as tables of TOML, such as [age] with kind = "mean"'

CATEGORIES = ("of", "groups")
"""Fields that hold categories, which are read as cells are."""

Record = dict[str, Any]


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
            key: _cell(value) if key in CATEGORIES or isinstance(value, dict) else value
            for key, value in fields.items()
        }
        if "weight" in fields:
            weights[name] = fields.pop("weight")
        try:
            queries[name] = query_from(fields)
        except (ValueError, TypeError) as error:
            raise type(error)(f"Query {name!r}: {error}") from None
    return queries, weights


def read_records(path: str | Path) -> list[Record]:
    """Read records of equal columns; None where a value is missing.

    Args:
        path: of a CSV file whose first line names the columns, or, if its name ends in .jsonl or
            .ndjson, of a file with one JSON object a line. An empty text is missing, and one that
            reads as a number, true or false is one.

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
        if record[column] is None:
            raise ValueError(f"Expected a client in {column!r} of record {place}, got none.")
        clients.setdefault(str(record[column]), []).append(record)
    return {
        name: {each: [record[each] for record in own] for each in own[0]}
        for name, own in clients.items()
    }


def _csv(text: str, path: Path) -> list[Record]:
    try:
        lines = list(csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True))
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
    return [dict(zip(columns, map(_cell, line), strict=False)) for line in lines[1:] if line]


def _json_lines(text: str, path: Path) -> list[Record]:
    records = []
    for place, line in enumerate(text.splitlines(), 1):
        try:
            record = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            record = line
        if record is None:
            continue
        if not isinstance(record, dict) or any(isinstance(v, dict | list) for v in record.values()):
            raise ValueError(
                f"Expected an object of single values in line {place} of {path}, got "
                f"{validate.shown(record)}."
            )
        records.append({column: _cell(value) for column, value in record.items()})
    return records


def _cell(value: Any) -> Any:
    """A text as the number or truth value that it reads as; None if it is empty.

    What one record becomes never depends on another.
    """
    if isinstance(value, list):
        return [_cell(each) for each in value]
    if isinstance(value, dict):
        return {key: _cell(each) for key, each in value.items()}
    return (plain(value) if value.strip() else None) if isinstance(value, str) else value
