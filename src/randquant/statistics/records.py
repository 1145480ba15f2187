"""Input formats of records: one person's values, columns of many, or files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant._internal.files import parse_toml, read_text
from randquant.channels.keys import Key
from randquant.statistics.query import Columns, Query
from randquant.statistics.surveys import query_from

FORMS = (
    "a sequence or mapping of clients, each with its record: a mapping of values, such as "
    '{"age": 40}, or columns of many records: a mapping of arrays, or a table of pandas, polars or '
    "arrow; or one such table, of which each row is a client"
)


def read_frames(clients: Any) -> tuple[list[dict[str, np.ndarray]], bool]:
    """Convert clients' records to columns.

    Args:
        clients: see FORMS.

    Returns:
        (frames, single): each client's columns by name, (n,) each, and False. If every client has
        exactly one record, one frame with a row per client, and True.

    Raises:
        TypeError, ValueError: records have another form, or different columns, or there are no
            clients; the error names the client.
    """
    if _is_table(clients):
        columns = read_columns(clients, "the table")
        if not len(next(iter(columns.values()))):
            raise ValueError("Expected at least one client, a row of the table, got 0 rows.")
        return [columns], True
    if isinstance(clients, Mapping):
        named = [(f"client {name!r}", record) for name, record in clients.items()]
        if named and not any(_is_record(record) for _, record in named):
            raise TypeError(
                f"Expected {FORMS}; got a mapping of {type(named[0][1]).__name__}: put the columns "
                "of one client into a list."
            )
    elif isinstance(clients, Sequence) and not isinstance(clients, str | bytes):
        named = [(f"client {place}", record) for place, record in enumerate(clients)]
    else:
        raise TypeError(f"Expected {FORMS}; got {validate.shown(clients)}.")
    if not named:
        raise ValueError(f"Expected at least one client, got {validate.shown(clients)}.")
    if all(isinstance(record, Mapping) and not any(map(_is_column, record.values()))
           for _, record in named):  # fmt: skip
        return [_stacked(named)], True
    return [read_columns(record, name) for name, record in named], False


def _is_table(value: Any) -> bool:
    sized = hasattr(type(value), "__len__")  # a lazy frame has no length before it is read
    return sized and (hasattr(value, "columns") or hasattr(value, "column_names"))


def _is_record(value: Any) -> bool:
    return isinstance(value, Mapping) or _is_table(value)


def _is_column(value: Any) -> bool:
    single = isinstance(value, str | bytes | Mapping) or getattr(value, "ndim", 1) == 0
    return hasattr(value, "__len__") and not single


def _stacked(named: list[tuple[str, Any]]) -> dict[str, np.ndarray]:
    # Columns with a row per client, of clients with one record each.
    columns = list(named[0][1])
    if not columns:
        raise ValueError(f"Expected records with columns, got an empty record of {named[0][0]}.")
    for name, record in named:
        if record.keys() != named[0][1].keys():
            raise ValueError(
                f"Expected every record to have the columns {', '.join(map(str, columns))}, got "
                f"{', '.join(map(str, record))} of {name}: give None where a value is missing."
            )
    _check_names(columns, named[0][0])
    return {str(column): _array([record[column] for _, record in named]) for column in columns}


def _check_names(columns: list[Any], owner: str) -> None:
    texts = [str(column) for column in columns]
    repeated = [text for text in texts if texts.count(text) > 1]
    if repeated:
        raise ValueError(
            f"Expected columns of different names, got {repeated[0]!r} more than once of {owner}: "
            "rename them, or leave out all but one."
        )


def read_columns(record: Any, name: str) -> dict[str, np.ndarray]:
    """Convert one client's record or table to columns of equal length."""
    if not _is_record(record):
        raise TypeError(f"Expected {FORMS}; got {validate.shown(record)} of {name}.")
    names = list(record) if isinstance(record, Mapping) else list(
        record.column_names if hasattr(record, "column_names") else record.columns
    )  # fmt: skip
    _check_names(names, name)
    columns = {}
    for column in names:
        values = _plain(record[column])
        columns[str(column)] = _array(values if _is_column(values) else [values])
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1:
        raise ValueError(
            "Expected columns of one length, got "
            f"{', '.join(map(str, sorted(lengths))) or 'no columns'} of {name}."
        )
    return columns


def _plain(values: Any) -> Any:
    """Return a table's column as a list of its values.

    An array would have one type for all, which a missing or a single person's value can change:
    then one record would decide how others are read.
    """
    for method in ("to_pylist", "to_list", "to_numpy"):  # arrow; pandas and polars; others
        if hasattr(values, method):
            return getattr(values, method)()
    return values


def _array(values: Any) -> np.ndarray:
    # Each value keeps its own type; masked values are missing.
    if isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray):
        array = values
    else:
        values = [None if value is np.ma.masked else _python_value(value) for value in values]
        # The None at the end keeps NumPy from making a matrix of values that have a length.
        array = np.array([*values, None], dtype=object)[:-1]
    if array.ndim != 1:
        raise ValueError(f"Expected columns of single values, got an array of shape {array.shape}.")
    return array


def _python_value(value: Any) -> Any:
    # Numbers of NumPy or torch become Python's; times of NumPy stay, since item() would return
    # nanoseconds.
    if getattr(value, "ndim", 1) != 0:
        return value
    time = getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")
    return value[()] if time else value.item()


def one_of_each(frame: Columns, key: Key) -> dict[str, np.ndarray]:
    """Draw one of a client's records, or make a missing one if it has none: clients count once."""
    count = len(next(iter(frame.values())))
    if not count:
        return {name: np.array([None]) for name in frame}
    row = int(key.words(1)[0]) % count  # uniform but for 2**-64 · count
    return {name: column[row : row + 1] for name, column in frame.items()}


# Records and queries in files: CSV or JSON lines, and TOML.

TABLES = 'queries as tables of TOML, such as [age] with kind = "mean"'

CATEGORY_FIELDS = ("of", "groups", "by")
"""Fields of queries that hold categories: texts, since files of records hold texts."""

DELIMITERS = ",;\t|"

Record = dict[str, str | None]


def read_queries(path: str | Path) -> tuple[dict[str, Query], dict[str, float]]:
    """Read queries and their weights from TOML: one table each, with kind, fields and weight.

    Raises:
        OSError: the file cannot be read.
        ValueError, TypeError: it has another content; the sentence names the query.
    """
    path = Path(path)
    try:
        tables = parse_toml(read_text(path, "queries"))
    except ValueError as error:
        raise ValueError(f"Expected {TABLES}, in {path}, got: {error}.") from None
    if not tables:
        raise ValueError(f"Expected {TABLES}, in {path}, got an empty file.")
    queries, weights = {}, {}
    for name, fields in tables.items():
        if not isinstance(fields, Mapping):
            raise TypeError(f"Expected {TABLES}, in {path}, got {name} = {validate.shown(fields)}.")
        fields = {
            key: _texts(value) if key in CATEGORY_FIELDS else value for key, value in fields.items()
        }
        if "weight" in fields:
            weights[name] = fields.pop("weight")
        try:
            queries[name] = query_from(fields)
        except (ValueError, TypeError) as error:
            raise type(error)(f"Query {name!r}: {error}") from None
    return queries, weights


def read_records(path: str | Path) -> list[Record]:
    """Read records with the same columns as texts; None where a value is missing.

    Args:
        path: of a CSV file whose first line names the columns; the separator of cells is the comma,
            semicolon, tab or bar that this line has most often. Or, if its name ends in .jsonl or
            .ndjson, of a file with one JSON object per line.

    Guarantees:
        How a cell is read depends on no other record. Numbers stay texts as they are written, so
        each query converts them itself, and two different ids never become the same number.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has another content; the sentence names the line.
    """
    path = Path(path)
    text = read_text(path, "records")
    as_json = path.suffix in (".jsonl", ".ndjson")
    records = _json_lines(text, path) if as_json else _csv(text, path)
    if not records:
        raise ValueError(f"Expected records in {path}, got {len(text)} characters without one.")
    columns = dict.fromkeys(column for record in records for column in record)
    return [{column: record.get(column) for column in columns} for record in records]


def by_client(records: Sequence[Record], column: str) -> dict[str, dict[str, list[Any]]]:
    """Group records by client, the value in `column`, and return each client's columns.

    Raises:
        ValueError: there is no such column, or a record has no value in it.
    """
    validate.choice("the column of clients", column, records[0])
    clients: dict[str, list[Record]] = {}
    for place, record in enumerate(records, 1):
        if (name := record[column]) is None:
            raise ValueError(f"Expected a client in {column!r} of record {place}, got no value.")
        clients.setdefault(name, []).append(record)
    return {
        name: {key: [record[key] for record in group] for key in group[0]}
        for name, group in clients.items()
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
        raise ValueError(
            f"Expected different names of columns in the first line of {path}, got "
            f"{', '.join(map(repr, columns))}."
        )
    for place, line in enumerate(lines, 1):
        if len(line) > len(columns):
            raise ValueError(
                f"Expected {len(columns)} cells in line {place} of {path}, got {len(line)}."
            )
    return [dict(zip(columns, map(_text, line), strict=False)) for line in lines[1:] if line]


def _json_lines(text: str, path: Path) -> list[Record]:
    records = []
    # Not splitlines(): that also splits at U+2028, which a JSON text may hold.
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
"""Options of `json.loads` that keep numbers as the texts they are written as."""


def _text(value: Any) -> str | None:
    # A cell without spaces around it; an empty cell is a missing value.
    text = str(value).lower() if isinstance(value, bool) else value
    return text.strip() or None if text is not None else None


def _texts(categories: Any) -> Any:
    # Categories as texts, as `read_records` reads the cells that they are compared with.
    if isinstance(categories, list):
        return [_text(each if isinstance(each, str | bool) else str(each)) for each in categories]
    if isinstance(categories, dict):
        return {column: _texts(known) for column, known in categories.items()}
    return categories
