"""A helper's records on its disk: the set of clients of each session, and each client's account.

One SQLite file. A session and the sums that it adds to accounts are one transaction, on the disk
before anything is answered: whenever the process ends, the file has both or neither.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from randquant._internal.database import Database
from randquant._internal.files import make_folder
from randquant.secure_sums.secagg.terms import ProtocolError

NAME = "helper.sqlite"
VERSION = 1
TABLES = (
    "CREATE TABLE helper (only INTEGER PRIMARY KEY, fingerprint BLOB, secret BLOB)",
    "CREATE TABLE sessions (terms BLOB PRIMARY KEY, request BLOB, left_out BLOB) WITHOUT ROWID",
    "CREATE TABLE offers (offer INTEGER PRIMARY KEY, digest BLOB UNIQUE, text TEXT)",
    "CREATE TABLE sums (client INTEGER, offer INTEGER, count INTEGER, PRIMARY KEY (client, offer))"
    " WITHOUT ROWID",
)


ONE_SET_ONLY = (
    "Expected one set of clients in a session, got a second set after the first was answered."
)


@dataclass(frozen=True)
class Accounts:
    """The sums that some clients are in.

    Attributes:
        sums: by client, its number of sums for each offer, by the offer's digest.
        texts: the offers' texts by their digests; empty if an offer's text was not kept.
    """

    sums: Mapping[int, Counter[bytes]]
    texts: Mapping[bytes, str]


class HelperJournal:
    """The file in a helper's folder, which several processes of one helper may share.

    Args:
        folder: where the file is; it is created if need be. Only this user can read the file.

    Raises:
        OSError: the file cannot be written, is not a regular file, has a second name, is open to
            other users or is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._database = Database(self.path, TABLES, VERSION, "a helper's journal")
        make_folder(folder)
        self._database.create()

    def begin(self, fingerprint: bytes) -> None:
        with self._database.transaction() as database:
            # Sessions of earlier keys cannot be answered any more: those keys are gone. Accounts
            # stay, since clients have answered.
            database.execute("DELETE FROM sessions")
            database.execute("REPLACE INTO helper VALUES (0, ?, NULL)", [fingerprint])

    def keep(self, fingerprint: bytes, secret: bytes) -> bytes:
        """Return the file's secret key.

        If the file has none of this length, the given one is stored and returned.
        """
        with self._database.transaction() as database:
            row = database.execute("SELECT secret FROM helper").fetchone()
            # A key of another length is of another suite, which the operator no longer wants.
            if row is not None and row[0] is not None and len(row[0]) == len(secret):
                return row[0]
            database.execute("DELETE FROM sessions")
            database.execute("REPLACE INTO helper VALUES (0, ?, ?)", [fingerprint, secret])
            return secret

    def find_session(self, terms: bytes, request: bytes) -> bytes | None:
        """Return the clients left out of an answered session; None for a new session.

        Args:
            terms: digest of its terms.
            request: digest of the request.

        Raises:
            ProtocolError: another request of this session was answered.
        """
        with self._database.transaction() as database:
            return _find_session(database, terms, request)

    def accounts(self, clients: Collection[int]) -> Accounts:
        with self._database.transaction() as database:
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
        """Write a session to the disk, and count it for its clients, before it is answered.

        Args:
            fingerprint: that of this process's key.
            terms, request: as in `find_session`.
            offer: digest and text of the offer that the clients have answered.
            counted: the clients in the sum.
            left_out: all other clients of the request, encoded.
            accounts: those by which the clients were chosen.

        Returns:
            The clients left out: those recorded before, if this request was. None, with nothing
            recorded, if one of the accounts has changed: choose again.

        Raises:
            ProtocolError: another request of this session was answered, or another process has
                started with this file and has another key.
        """
        with self._database.transaction() as database:
            row = database.execute("SELECT fingerprint FROM helper").fetchone()
            # A helper that started later has a key of its own, and has deleted the sessions of this
            # one: its file no longer says what was answered with this key.
            if row is None or row[0] != fingerprint:
                raise ProtocolError(
                    "Expected this helper to be the one that started last in its folder, but "
                    "another one has: ask that one."
                )
            earlier = _find_session(database, terms, request)
            if earlier is not None:
                return earlier
            # Within the same transaction: two sums at once cannot both pass a limit for one client.
            if accounts.sums != _sums(database, accounts.sums):
                return None
            digest, text = offer
            # A text that an earlier request did not bring is filled in.
            database.execute(
                "INSERT INTO offers (digest, text) VALUES (?, ?) ON CONFLICT (digest) DO UPDATE "
                "SET text = excluded.text WHERE text = ''",
                [digest, text],
            )
            (offer_key,) = database.execute(
                "SELECT offer FROM offers WHERE digest = ?", [digest]
            ).fetchone()
            database.executemany(
                "INSERT INTO sums VALUES (?, ?, 1) "
                "ON CONFLICT (client, offer) DO UPDATE SET count = count + 1",
                ((_to_signed(client), offer_key) for client in counted),
            )
            database.execute("INSERT INTO sessions VALUES (?, ?, ?)", [terms, request, left_out])
            return left_out

    def sums(self) -> dict[int, int]:
        with self._database.transaction() as database:
            rows = database.execute("SELECT client, SUM(count) FROM sums GROUP BY client")
            return {client + 2**63: count for client, count in rows}


def _sums(database: sqlite3.Connection, clients: Collection[int]) -> dict[int, Counter[bytes]]:
    # By client, its number of sums for each offer. Leaves a table of the clients, which exists
    # until the connection is closed: once in a transaction.
    database.execute("CREATE TEMP TABLE asked (client INTEGER PRIMARY KEY)")
    database.executemany("INSERT INTO asked VALUES (?)", ((_to_signed(c),) for c in clients))
    sums: dict[int, Counter[bytes]] = {client: Counter() for client in clients}
    for client, digest, count in database.execute(
        "SELECT client, digest, count FROM asked JOIN sums USING (client) JOIN offers USING (offer)"
    ):
        sums[client + 2**63][digest] = count
    return sums


def _find_session(database: sqlite3.Connection, terms: bytes, request: bytes) -> bytes | None:
    row = database.execute(
        "SELECT request, left_out FROM sessions WHERE terms = ?", [terms]
    ).fetchone()
    if row is None:
        return None
    # theory/helper-sums.md, Proposition 1: a second set would reveal a difference of two sums.
    if row[0] != request:
        raise ProtocolError(ONE_SET_ONLY)
    return row[1]


def _to_signed(client: int) -> int:
    # SQLite's integers are signed: a client's number, 0 to 2**64 - 1, is shifted.
    return client - 2**63
