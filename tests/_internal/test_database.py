"""An SQLite file: its locks hold, and its errors do not show what it keeps."""

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys

import pytest

from randquant._internal.files import Database, exists

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


def test_a_journal_that_a_killed_process_left_does_not_change_a_new_file(database):
    """SQLite would take the old file's pages into it."""
    rows = [["old" * 1000]] * 200
    with database.transaction() as connection:
        connection.executemany("INSERT INTO t VALUES (?)", rows)
    with database.transaction() as connection:
        connection.execute("PRAGMA cache_size = 1")  # what is changed is written before the end
        connection.execute("UPDATE t SET a = 'changed'")
        left = database.journal.read_bytes()
    assert len(left) > 100_000
    database.path.unlink()
    database.journal.write_bytes(left)
    rows = [["new" * 1000]] * 200
    database.create_whole(lambda made: made.executemany("INSERT INTO t VALUES (?)", rows))
    with database.reading() as connection:
        assert connection.execute("SELECT a FROM t").fetchall() == [(text,) for [text] in rows]


def test_a_disk_that_does_not_answer_is_not_taken_for_one_without_the_file(database, monkeypatch):
    def stale(path):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "lstat", stale)
    with pytest.raises(OSError, match="Stale file handle"):
        exists(database.path)
    with pytest.raises(OSError, match="Stale file handle"):
        database.create()


@pytest.mark.parametrize(
    "more",
    [
        "CREATE TRIGGER forgets BEFORE INSERT ON t BEGIN SELECT RAISE(IGNORE); END",
        "CREATE VIEW v AS SELECT zeroblob(1000000000)",
        "CREATE TABLE u (a TEXT)",
        "DROP TABLE t",
    ],
)
def test_a_file_of_other_tables_or_with_programmes_is_refused(more, database):
    with contextlib.closing(sqlite3.connect(database.path)) as connection:
        connection.execute(more)
    for opened in (database.transaction, database.reading):
        with pytest.raises(OSError, match="Expected the tables of a test's file"), opened():
            pass


@pytest.mark.skipif(os.name == "nt", reason="there are no such modes")
@pytest.mark.parametrize("mode", [0o640, 0o620, 0o610, 0o604, 0o602, 0o601])
def test_a_file_that_anybody_else_may_open_is_refused(mode, database):
    """There are keys in it: a group that reads it is as bad as everybody."""
    database.path.chmod(mode)
    for opened in (database.transaction, database.reading):
        with pytest.raises(OSError, match=f"for its owner alone, got mode {mode:o}"), opened():
            pass
    database.path.chmod(0o400 | 0o200)
    with database.reading():
        pass
