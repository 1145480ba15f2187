"""An SQLite file: its locks hold, and its errors do not show what it keeps."""

import subprocess
import sys

import pytest

from randquant._internal.database import Database

BEGIN = """
import sqlite3, sys
sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
"""


@pytest.fixture
def database(tmp_path):
    made = Database(tmp_path / "x.sqlite", ("CREATE TABLE t (a TEXT)",), 1, "a test's file")
    made.create()
    return made


def begun_elsewhere(database) -> str:
    """What another process gets that begins a transaction."""
    call = [sys.executable, "-c", BEGIN, str(database.path)]
    return subprocess.run(call, capture_output=True, text=True).stderr


def test_a_transaction_keeps_its_lock_while_others_of_the_process_read(database):
    """To close any descriptor of the file would release it."""
    assert begun_elsewhere(database) == ""
    with database.transaction():
        with database.reading():
            pass
        assert "locked" in begun_elsewhere(database)


def test_text_that_is_none_is_read_and_not_shown_in_an_error(database):
    with database.transaction() as connection:
        connection.execute("INSERT INTO t VALUES (CAST(? AS TEXT))", [b"secret\xff"])
    with database.reading() as connection:
        assert connection.execute("SELECT a FROM t").fetchall() == [("secret\ufffd",)]
