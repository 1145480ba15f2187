"""A run's store as its tests see it: read by its class, and changed from outside by SQL."""

import contextlib
import json
import sqlite3

from randquant._internal import files
from randquant.training import RunStore


def sql(folder, statement, *values):
    """The rows that a statement gives on the store of the run in a folder."""
    with contextlib.closing(sqlite3.connect(folder / "run.sqlite")) as database, database:
        return database.execute(statement, values).fetchall()


def text_of(folder, name) -> str:
    """A record as it is stored."""
    [[content]] = sql(folder, "SELECT content FROM records WHERE name = ?", name)
    return content


def record_of(folder, name) -> dict:
    return json.loads(text_of(folder, name))


def put(folder, name, text):
    """Store a text as a record."""
    sql(folder, "REPLACE INTO records VALUES (?, ?)", name, text)


def seal(folder, name, record, before=""):
    """Store a record with a checksum that fits."""
    put(folder, name, json.dumps(files.seal(record, before)))


def drop(folder, name):
    sql(folder, "DELETE FROM records WHERE name = ?", name)


def rounds_of(folder) -> list[tuple[int, str]]:
    return sql(folder, "SELECT round, content FROM rounds ORDER BY round")


def put_rounds(folder, rows):
    """Store rows as the rounds of a run, numbered anew if their numbers do not rise."""
    sql(folder, "DELETE FROM rounds")
    numbers = [number for number, _ in rows]
    if numbers != sorted(set(numbers)):
        numbers = range(1, len(rows) + 1)
    for number, (_, content) in zip(numbers, rows, strict=True):
        sql(folder, "INSERT INTO rounds VALUES (?, ?)", number, content)


def read_config(folder):
    return RunStore(folder).config()


def read_sent(folder):
    return RunStore(folder).sent_rounds()
