"""What a helper keeps on its disk: the set of clients of each session, and each client's account.

One SQLite file. A session and what it adds to the accounts are one transaction, on the disk before
anything is answered: whenever the process ends, the file has both or neither.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from randquant._internal.files import (
    check_one_name,
    check_private,
    make_folder,
    opener,
    sync_folder,
)
from randquant.secure_sums.secagg.terms import ProtocolError

NAME = "helper.sqlite"
VERSION = 1
PATIENCE = 60.0
"""Seconds that a process waits for another one of the same helper."""

SETTINGS = (
    "PRAGMA synchronous = EXTRA",  # on the disk when COMMIT returns, the folder's names included
    "PRAGMA fullfsync = ON",  # on macOS
    "PRAGMA secure_delete = ON",  # no key that was replaced is left in the file
    "PRAGMA temp_store = MEMORY",
)
TABLES = (
    "CREATE TABLE helper (only INTEGER PRIMARY KEY, fingerprint BLOB, secret BLOB)",
    "CREATE TABLE sessions (terms BLOB PRIMARY KEY, request BLOB, left_out BLOB) WITHOUT ROWID",
    "CREATE TABLE offers (offer INTEGER PRIMARY KEY, digest BLOB UNIQUE, text TEXT)",
    "CREATE TABLE sums (client INTEGER, offer INTEGER, count INTEGER, PRIMARY KEY (client, offer))"
    " WITHOUT ROWID",
)


ANOTHER = "Expected one set of clients in a session, got another after the first was answered."


@dataclass(frozen=True)
class Accounts:
    """What some clients have answered.

    Attributes:
        sums: how many sums each client is in, by the digest of what it answered.
        texts: of these offers, by their digests; empty where none was kept.
    """

    sums: Mapping[int, Counter[bytes]]
    texts: Mapping[bytes, str]


class HelperJournal:
    """The file in a helper's folder, which several processes of one helper may share.

    Args:
        folder: is created if it is not there. Only this user can read the file.

    Raises:
        OSError: it cannot be written, is no regular file, has another name, is open to other users
            or is damaged.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self.path = folder / NAME
        # SQLite itself would let others read it.
        with open(self.path, "ab", opener=functools.partial(opener, mode=0o600)) as file:
            check_private(self.path, file.fileno())
            check_one_name(self.path, file.fileno())
        sync_folder(folder)
        with self._changing() as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for table in TABLES:
                    database.execute(table)
                database.execute(f"PRAGMA user_version = {VERSION}")
            elif version != VERSION:
                raise OSError(
                    f"Expected version {VERSION} of a helper's journal in {self.path}, got "
                    f"{version}."
                )

    def begin(self, fingerprint: bytes) -> None:
        """Take over the file with a fresh key: sessions of earlier keys are answered no more."""
        with self._changing() as database:
            database.execute("DELETE FROM sessions")
            database.execute("REPLACE INTO helper VALUES (0, ?, NULL)", [fingerprint])

    def keep(self, fingerprint: bytes, secret: bytes) -> bytes:
        """The secret key that the file keeps; the given one from now on, if it has none so long."""
        with self._changing() as database:
            row = database.execute("SELECT secret FROM helper").fetchone()
            if row is not None and row[0] is not None and len(row[0]) == len(secret):
                return row[0]
            database.execute("DELETE FROM sessions")
            database.execute("REPLACE INTO helper VALUES (0, ?, ?)", [fingerprint, secret])
            return secret

    def answered(self, terms: bytes, request: bytes) -> bytes | None:
        """Who is left out of a session, if this request was answered; None for a new session.

        Args:
            terms: digest of its terms.
            request: digest of the request.

        Raises:
            ProtocolError: another request of this session was answered.
        """
        with self._changing() as database:
            return _answered(database, terms, request)

    def accounts(self, clients: Collection[int]) -> Accounts:
        """What these clients have answered."""
        with self._changing() as database:
            sums = _sums(database, clients)
            texts = database.execute(
                "SELECT DISTINCT digest, text FROM asked JOIN sums USING (client) "
                "JOIN offers USING (offer)"
            )
            return Accounts(sums, dict(texts))

    def record(
        self,
        fingerprint: bytes,
        terms: bytes,
        request: bytes,
        offer: tuple[bytes, str],
        counted: Collection[int],
        left_out: bytes,
        accounts: Accounts,
    ) -> bytes | None:
        """Put a session on the disk, and count it for its clients, before it is answered.

        Args:
            fingerprint: of the key of this process.
            terms, request: as in `answered`.
            offer: digest and text of what the clients have answered.
            counted: the clients in the sum.
            left_out: all others of the request.
            accounts: what this was decided by.

        Returns:
            Who is left out: as it was recorded before, if this request was. None, with nothing
            recorded, if one of the accounts has changed: decide again.

        Raises:
            ProtocolError: another request of this session was answered, or another process has
                started with this file and has another key.
        """
        with self._changing() as database:
            row = database.execute("SELECT fingerprint FROM helper").fetchone()
            if row is None or row[0] != fingerprint:
                raise ProtocolError(
                    "Expected this helper to be the one that started last in its folder, but "
                    "another one has: ask that one."
                )
            before = _answered(database, terms, request)
            if before is not None:
                return before
            if accounts.sums != _sums(database, accounts.sums):
                return None
            digest, text = offer
            database.execute(
                "INSERT INTO offers (digest, text) VALUES (?, ?) ON CONFLICT (digest) DO UPDATE "
                "SET text = excluded.text WHERE text = ''",
                [digest, text],
            )
            (place,) = database.execute(
                "SELECT offer FROM offers WHERE digest = ?", [digest]
            ).fetchone()
            database.executemany(
                "INSERT INTO sums VALUES (?, ?, 1) "
                "ON CONFLICT (client, offer) DO UPDATE SET count = count + 1",
                ((_signed(client), place) for client in counted),
            )
            database.execute("INSERT INTO sessions VALUES (?, ?, ?)", [terms, request, left_out])
            return left_out

    def sums(self) -> dict[int, int]:
        """In how many sums each client is, by its number."""
        with self._changing() as database:
            rows = database.execute("SELECT client, SUM(count) FROM sums GROUP BY client")
            return {client + 2**63: count for client, count in rows}

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Hold the file; what was done is on the disk at the end, or undone after an error."""
        try:
            with contextlib.closing(
                sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
            ) as database:
                for setting in SETTINGS:
                    database.execute(setting)
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")  # closing without it rolls back
        except sqlite3.Error as error:
            raise OSError(
                f"Expected a helper's journal that can be read and written in {self.path}, but: "
                f"{error}."
            ) from error


def _sums(database: sqlite3.Connection, clients: Collection[int]) -> dict[int, Counter[bytes]]:
    """How many sums each of these clients is in, by the digest of what it answered; once."""
    database.execute("CREATE TEMP TABLE asked (client INTEGER PRIMARY KEY)")
    database.executemany("INSERT INTO asked VALUES (?)", ((_signed(c),) for c in clients))
    sums: dict[int, Counter[bytes]] = {client: Counter() for client in clients}
    for client, digest, count in database.execute(
        "SELECT client, digest, count FROM asked JOIN sums USING (client) JOIN offers USING (offer)"
    ):
        sums[client + 2**63][digest] = count
    return sums


def _answered(database: sqlite3.Connection, terms: bytes, request: bytes) -> bytes | None:
    row = database.execute(
        "SELECT request, left_out FROM sessions WHERE terms = ?", [terms]
    ).fetchone()
    if row is None:
        return None
    # theory/helper-sums.md, Proposition 1: a second set would reveal a difference of two sums.
    if row[0] != request:
        raise ProtocolError(ANOTHER)
    return row[1]


def _signed(client: int) -> int:
    """A client's number as SQLite has it: from -2**63 on."""
    return client - 2**63
