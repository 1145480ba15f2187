"""Records as people have them: one person's values, or columns of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant.channels.keys import Key
from randquant.statistics.query import Columns

FORMS = (
    "a sequence or mapping of clients, each with its record: a mapping of values, such as "
    '{"age": 40}, or columns of many records: a mapping of arrays, or a table of pandas, polars or '
    "arrow; or one such table, of which each row is a client"
)


def frames_of(clients: Any) -> tuple[list[dict[str, np.ndarray]], bool]:
    """Return each client's columns, and whether each client has one row of one table.

    Args:
        clients: see FORMS.

    Returns:
        (frames, rows): columns by name, (n,) each, of each client; of clients with one record each
        all of them in one frame, and True.

    Raises:
        TypeError, ValueError: they are in another form, or differ in their columns, or there are
            none; the error names the client.
    """
    if _is_table(clients):
        columns = columns_of(clients, "the table")
        if not len(next(iter(columns.values()))):
            raise ValueError("Expected at least one client, a row of the table, got none.")
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
        raise ValueError("Expected at least one client, got none.")
    if all(isinstance(record, Mapping) and not any(map(_is_column, record.values()))
           for _, record in named):  # fmt: skip
        return [_joined(named)], True
    return [columns_of(record, name) for name, record in named], False


def _is_table(value: Any) -> bool:
    sized = hasattr(type(value), "__len__")  # a lazy one would have to be read first
    return sized and (hasattr(value, "columns") or hasattr(value, "column_names"))


def _is_record(value: Any) -> bool:
    return isinstance(value, Mapping) or _is_table(value)


def _is_column(value: Any) -> bool:
    single = isinstance(value, str | bytes | Mapping) or getattr(value, "ndim", 1) == 0
    return hasattr(value, "__len__") and not single


def _joined(named: list[tuple[str, Any]]) -> dict[str, np.ndarray]:
    """Columns of clients with one record each."""
    columns = list(named[0][1])
    if not columns:
        raise ValueError(f"Expected records with columns, got none of {named[0][0]}.")
    for name, record in named:
        if record.keys() != named[0][1].keys():
            raise ValueError(
                f"Expected every record to have the columns {', '.join(map(str, columns))}, got "
                f"{', '.join(map(str, record))} of {name}: give None where a value is missing."
            )
    _check_names(columns, named[0][0])
    return {str(column): _array([record[column] for _, record in named]) for column in columns}


def _check_names(columns: list[Any], owner: str) -> None:
    texts = [str(each) for each in columns]
    twice = [each for each in texts if texts.count(each) > 1]
    if twice:
        raise ValueError(
            f"Expected columns of different names, got {twice[0]!r} more than once of {owner}: "
            "rename them, or leave out all but one."
        )


def columns_of(record: Any, name: str) -> dict[str, np.ndarray]:
    """One client's columns, of equal length."""
    if not _is_record(record):
        raise TypeError(f"Expected {FORMS}; got {validate.shown(record)} of {name}.")
    names = list(record) if isinstance(record, Mapping) else list(
        record.column_names if hasattr(record, "column_names") else record.columns
    )  # fmt: skip
    _check_names(names, name)
    columns = {}
    for each in names:
        values = _plain(record[each])
        columns[str(each)] = _array(values if _is_column(values) else [values])
    lengths = {len(each) for each in columns.values()}
    if len(lengths) != 1:
        raise ValueError(
            f"Expected columns of one length, got {', '.join(map(str, sorted(lengths))) or 'none'} "
            f"of {name}."
        )
    return columns


def _plain(values: Any) -> Any:
    """A table's column as a list of its values.

    An array of them would be of one type, which a missing value, or one person's, may change.
    """
    for way in ("to_pylist", "to_list", "to_numpy"):  # of arrow; of pandas and polars; of others
        if hasattr(values, way):
            return getattr(values, way)()
    return values


def _array(values: Any) -> np.ndarray:
    """A column, in which each value stays what it is; masked ones are missing."""
    if isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray):
        array = values
    else:
        values = [None if each is np.ma.masked else _single(each) for each in values]
        # None keeps NumPy from looking for one type, or for rows.
        array = np.array([*values, None], dtype=object)[:-1]
    if array.ndim != 1:
        raise ValueError(f"Expected columns of single values, got an array of shape {array.shape}.")
    return array


def _single(value: Any) -> Any:
    """A number of NumPy or torch as one of Python's; a time of NumPy, whose number is no value."""
    if getattr(value, "ndim", 1) != 0:
        return value
    time = getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")
    return value[()] if time else value.item()


def one_of_each(frame: Columns, key: Key) -> dict[str, np.ndarray]:
    """Draw one of a person's records, all missing if there is none: each counts once."""
    count = len(next(iter(frame.values())))
    if not count:
        return {name: np.array([None]) for name in frame}
    place = int(key.words(1)[0]) % count  # uneven by 2**-64 · count
    return {name: column[place : place + 1] for name, column in frame.items()}
