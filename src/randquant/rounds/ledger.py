"""A client's account on disk: its answers so far, and the steps of sums that it has taken.

It is one SQLite file, written before anything that it counts is sent. Its table `account` has one
JSON record, whose checksum covers the rows of `steps` too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, Self

from randquant._internal import files, serialization, validate
from randquant._internal.database import Database
from randquant.rounds.accountant import RunAccountant
from randquant.secure_sums.secagg.terms import ProtocolError

THIS_CLIENT = 0
"""The client's number in its account on disk. It is not its number in a run, which may change."""

VERSION = 1
TABLES = (
    "CREATE TABLE account (only INTEGER PRIMARY KEY, content TEXT)",
    "CREATE TABLE steps (step BLOB PRIMARY KEY) WITHOUT ROWID",
)
STEP_BYTES = 16
"""Bytes stored of a step's hash. If two steps share them the second is refused, which costs a round
and no privacy; among a billion steps that has probability 2e-21. With half as many bytes it is 3 %,
with twice as many the file has twice the size."""
MAX_CHECKS = 20
"""Number of checks of an account that other processes keep changing, after which a message is
refused. With half, busy clients refuse more often; with twice as many, a message may wait twice as
long."""

ACCOUNT_RECORD = "randquant.spent"
"""Name of a record in a client's state: the account if it has no file, else the file's version."""

State = MutableMapping[str, dict[str, Any]]
"""A client's state between two messages of a run, by name: bytes, numbers and texts, never sent. An
engine may store it only after it has sent the reply, so a kill can lose the last change."""


class DamagedFile(ValueError):
    """A client's file is damaged or invalid."""


class AnswerLedger:
    """The account of one client, which is locked while it is read and changed.

    Args:
        accountant: an empty account with this client's delta and neighbouring relation.
        path: the file; None keeps the account in the run's state.
        state: of the run. It has the number of writes that this run last saw in the file.

    Guarantees:
        A step that was taken is refused for ever, which takes some 20 bytes per step. Processes
        that share the file take each step once, and count every answer.
        Whenever a process ends, the file has the content before a step or after it. Once the
        context of `locked` or `checked` has ended, it has the content after it, on the disk.
        Only this user can read the file. A file with any other content is refused, and so is a link
        to one, whose two names would have two locks. Not detected are a restored copy of an older
        account, unless this run has seen a newer one, and a file whose checksum was recomputed.
    """

    def __init__(
        self, accountant: RunAccountant, path: str | Path | None, state: State | None = None
    ) -> None:
        self._accountant = accountant
        self._unread: dict[str, Any] | None = None  # read from the file, not yet from its offers
        self._database = _open_database(path)
        self._connection: sqlite3.Connection | None = None
        self._state: State = {} if state is None else state
        self._taken: set[bytes] = set()
        self._new: list[bytes] = []
        self._written = 0

    @property
    def accountant(self) -> RunAccountant:
        """This client's answers so far.

        Raises:
            DamagedFile: the account is damaged, or has other clients.
        """
        # Read when first needed: most steps of a sum cost nothing, and reading certifies the
        # channels of all earlier offers again, which takes long.
        if self._unread is not None:
            with _readable():
                if not set(self._unread["clients"]) <= {str(THIS_CLIENT)}:
                    raise ValueError("it is of other clients")
                self._accountant.load_state_dict(self._unread)
            self._unread = None
        return self._accountant

    @property
    def steps(self) -> int:
        return len(self._taken)

    @contextlib.contextmanager
    def locked(self) -> Iterator[Self]:
        """Lock and read the account; other processes of this client wait.

        Raises:
            DamagedFile: the account is damaged, or older than this run has seen it.
            OSError: the file is a link, cannot be read, or another process holds it for too long.
        """
        if self._database is None:
            self._look()
            yield self
            return
        self._check_place()
        # A deleted file counts as older: a new one would begin at epsilon 0.
        if not files.exists(self._database.path):
            self._check_newest()
        self._database.create()
        try:
            with self._database.transaction() as self._connection:
                self._read(self._connection)
                yield self
        finally:
            self._connection = None
        # Only now that this version is on the disk: after a crash in between, a state ahead of the
        # file would refuse a good account.
        if self._written:
            self._state[ACCOUNT_RECORD] = {"written": self._written}

    @contextlib.contextmanager
    def checked(self, check: Callable[[RunAccountant], None]) -> Iterator[Self]:
        """Lock the account once it has passed a check, which may take long.

        Other processes of this client may use the account during the check; if they change it, the
        changed one is checked again.

        Raises:
            BlockingIOError: other processes keep changing it.
            Exception: that of `check`, or of `locked`.
        """
        # An optimistic lock: to hold the file while an epsilon is computed would stop all others.
        for _ in range(MAX_CHECKS):
            self._look()
            before = self._unread
            check(self.accountant)
            with self.locked():
                # Only this content has passed the check: a changed one may be beyond the limit.
                if self._unread == before:
                    self._unread = None  # `check` has loaded it into the accountant
                    yield self
                    return
        raise BlockingIOError(
            f"Expected a client's account to be left alone during a check, but other processes of "
            f"this client changed it {MAX_CHECKS} times: send it fewer requests at once."
        )

    def take(self, session: bytes, step: str) -> None:
        """Record a step of a session; ProtocolError if it was taken before."""
        # Hashed, so that steps have one length, whatever session a server sends.
        name = hashlib.sha256(repr((session, step)).encode()).digest()[:STEP_BYTES]
        if name in self._taken:
            raise ProtocolError(f"Expected each step of a round once, got {step!r} again.")
        self._taken.add(name)
        self._new.append(name)

    def save(self) -> None:
        """Write the account; it is on the disk when the context ends, before anything is sent."""
        if self._database is not None and self._connection is None:
            raise RuntimeError("Expected an account to be saved while it is held.")
        self._written += 1
        # Unread means unchanged: it is written as it was, without certifying its offers.
        account = self._unread
        if account is None:
            account = self._accountant.state_dict()
        record = {"written": self._written, "account": account}
        content = serialization.seal(record, _digest(self._taken))
        if self._connection is None:
            steps = [step.hex() for step in sorted(self._taken)]
            self._state[ACCOUNT_RECORD] = {
                "account": json.dumps({**content, "steps": steps}).encode()
            }
        else:
            self._connection.execute("REPLACE INTO account VALUES (0, ?)", [json.dumps(content)])
            rows = ([step] for step in self._new)
            self._connection.executemany("INSERT INTO steps VALUES (?)", rows)
        self._new = []

    def look(self) -> RunAccountant:
        """Read this client's answers so far without a lock: no other process waits.

        Raises:
            DamagedFile, OSError: as `locked`.
        """
        self._look()
        return self.accountant

    def _look(self) -> None:
        self._check_place()
        if self._database is None:
            if (kept := self._state.get(ACCOUNT_RECORD, {}).get("account")) is not None:
                with _readable():
                    content = json.loads(kept)
                    steps = list(map(bytes.fromhex, content.pop("steps")))
                    self._load(json.dumps(content), steps)
        elif files.exists(self._database.path):
            with self._database.reading() as database:
                self._read(database)
        else:
            self._check_newest()

    def _read(self, database: sqlite3.Connection) -> None:
        self._taken, self._new, self._written = set(), [], 0
        rows = database.execute("SELECT only, content FROM account").fetchall()
        steps = [step for (step,) in database.execute("SELECT step FROM steps")]
        with _readable():
            # A file that was just created has neither; steps without an account are damage.
            if rows or steps:
                [(only, content)] = rows
                if only != 0:
                    raise ValueError("it is another row")
                self._load(content, steps)
        self._check_newest()

    def _check_newest(self) -> None:
        # A restored copy of an older file is detected only if this run has seen a newer one.
        with _readable():
            is_older = self._written < self._state.get(ACCOUNT_RECORD, {}).get("written", 0)
        if is_older:
            # The counts are in the log alone: `refusal_reason` does not send this sentence.
            raise DamagedFile(
                f"Expected this client's newest account, got an older one: {self._written} writes."
            )

    def _check_place(self) -> None:
        # An account in another place would begin at epsilon 0 in the middle of a run.
        other = "written" if self._database is None else "account"
        if other in self._state.get(ACCOUNT_RECORD, {}):
            raise DamagedFile(
                "Expected this client's account where this run has begun it, got "
                f"{'no file' if self._database is None else 'a file'}: change randquant-ledger "
                "between two runs."
            )

    def _load(self, content: str, steps: list[bytes]) -> None:
        distinct = set(steps)
        if len(distinct) < len(steps) or any(len(step) != STEP_BYTES for step in distinct):
            raise ValueError(
                f"one of its {len(steps)} steps comes twice, or is not {STEP_BYTES} bytes"
            )
        record, _ = serialization.unseal(content, _digest(distinct))
        self._written = validate.whole("written", record["written"], low=1)
        self._unread, self._taken, self._new = record["account"], distinct, []


def _open_database(path: str | Path | None) -> Database | None:
    return None if path is None else Database(Path(path), TABLES, VERSION, "a client's account")


def _digest(steps: set[bytes]) -> str:
    # The account's checksum covers this digest, so that no row can be lost unnoticed: its step
    # could be taken again. Sorted, since a set has no order.
    return hashlib.sha256(b"".join(sorted(steps))).hexdigest()


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    # Turns every error that damaged content can cause in the parsers into one that says so.
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise DamagedFile(f"Expected this client's account, but: {reason}.") from error
