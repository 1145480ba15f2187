"""SQLite files that only their owner can read, and in which a committed transaction stays.

Everything that decides what may still be sent is kept in such a file. A rollback journal is used
and not a write-ahead log: a damaged log is cut off in silence at the first damaged page, and the
file would then state less than was sent.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from randquant._internal.files import (
    check_one_name,
    check_private,
    check_regular,
    exclusive,
    exists,
    opener,
    sync_folder,
)

LOCK_TIMEOUT_SECONDS = 60.0
"""Longest wait for another process's transaction, which takes far less. With twice of it, requests
would wait longer in vain for a process that hangs; half of it would do on all but slow disks."""

PARTIAL = ".partial"
"""End of the name of a file that is not whole yet."""

# Each protects against a machine that loses power, or against somebody who gets the disk.
SETTINGS = (
    "PRAGMA journal_mode = DELETE",
    "PRAGMA synchronous = EXTRA",  # on the disk when COMMIT returns, the folder's names included
    "PRAGMA fullfsync = ON",  # on macOS
    "PRAGMA temp_store = MEMORY",
)


@dataclass(frozen=True, slots=True)
class Database:
    """A file of SQLite, which several processes may share.

    Attributes:
        path: the file.
        tables: the statements that create its tables.
        version: of the tables. A file of another version is not read: what it counts might mean
            something else.
        content: a noun with its article for the file, for messages.
        keeps_deleted: True if deleted content may stay on the disk until its place is used again,
            which saves writing it over. False where a key is replaced.
    """

    path: Path
    tables: Sequence[str]
    version: int
    content: str
    keeps_deleted: bool = False

    def create(self) -> None:
        """Create the file and its tables, unless there is one.

        Raises:
            OSError: the file cannot be written, is not a regular file, has a second name, is open
                to other users, is damaged, or its folder does not exist.
        """
        if not exists(self.path):
            # Without the lock another process might replace a file that counts something by now.
            lock = self.path.with_name(self.path.name + ".lock")
            with exclusive(lock, wait=LOCK_TIMEOUT_SECONDS):
                if not exists(self.path):
                    self.create_whole(lambda _: None)
        with self.transaction():
            pass

    def create_whole(self, fill: Callable[[sqlite3.Connection], object]) -> None:
        """Create the file with its first content; if this is interrupted, there is no file.

        A file of its name was whole once: an empty one is damaged, and not taken for a new one.

        Args:
            fill: writes the content.
        """
        new = replace(self, path=self.path.with_name(self.path.name + PARTIAL))
        # Left by processes that were killed. SQLite would take the pages of an old file's journal
        # into the new file.
        for left in (new.path, new.journal, self.journal):
            left.unlink(missing_ok=True)
        # Created before SQLite opens it, which would let others read it: there are keys in it.
        with open(new.path, "xb", opener=functools.partial(opener, mode=0o600)):
            pass
        with new.transaction(new=True) as database:
            fill(database)
        os.replace(new.path, self.path)
        sync_folder(self.path.parent)

    @property
    def journal(self) -> Path:
        # SQLite keeps in it what a transaction has changed, until the transaction ends.
        return self.path.with_name(self.path.name + "-journal")

    @contextlib.contextmanager
    def transaction(self, *, new: bool = False) -> Iterator[sqlite3.Connection]:
        """Read and write as one step; after an error nothing is changed.

        Args:
            new: True if the file is empty, and its tables are to be created.

        Guarantees:
            What was written is on the disk when the context ends, and survives a loss of power.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be read or written, or is damaged.
        """
        with self._connected() as database:
            # IMMEDIATE locks the file before anything is read, so that no other process can change
            # what a decision rests on.
            database.execute("BEGIN IMMEDIATE")
            if new:
                for table in self.tables:
                    database.execute(table)
                database.execute(f"PRAGMA user_version = {self.version}")
            self._check_version(database)
            yield database
            database.execute("COMMIT")  # closing without it rolls back

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read the file as it is at one moment, while others may write to it.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be read, or is damaged.
        """
        with self._connected() as database:
            database.execute("BEGIN")
            self._check_version(database)
            yield database

    def _check_version(self, database: sqlite3.Connection) -> None:
        if (version := _version(database)) != self.version:
            raise OSError(
                f"Expected version {self.version} of {self.content} in {self.path}, got {version}."
            )
        # Nothing but the tables: views and triggers are programmes, which SQLite would run.
        statements = database.execute(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL"
        ).fetchall()
        if sorted(sql for (sql,) in statements) != sorted(self.tables):
            raise OSError(
                f"Expected the tables of {self.content} in {self.path}, {len(self.tables)} "
                f"statements, got {len(statements)} that are not the same."
            )

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        self._check_file()
        address = f"{self.path.absolute().as_uri()}?mode=rw"  # `rw` creates nothing
        try:
            with contextlib.closing(
                sqlite3.connect(
                    address, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, uri=True
                )
            ) as database:
                # SQLite's own error would show the text that it cannot decode, which may be a key.
                database.text_factory = lambda text: text.decode(errors="replace")
                # Set anew each time: settings are of the connection, and not of the file.
                erase = "OFF" if self.keeps_deleted else "ON"
                for setting in (*SETTINGS, f"PRAGMA secure_delete = {erase}"):
                    database.execute(setting)
                yield database
        except sqlite3.Error as error:
            raise OSError(
                f"Expected {self.content} that can be read and written in {self.path}, but: "
                f"{error}."
            ) from error

    def _check_file(self) -> None:
        # SQLite follows links, and waits for pipes. The file is not opened for this: to close it
        # would release the locks that other threads of this process hold on it.
        status = os.lstat(self.path)
        check_regular(self.path, status)
        check_private(self.path, status)
        check_one_name(self.path, status)
        with contextlib.suppress(FileNotFoundError):
            check_regular(self.journal, os.lstat(self.journal))


def _version(database: sqlite3.Connection) -> int:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return version
