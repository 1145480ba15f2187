"""A client's own account: what it has answered, and which steps of which sums it has taken.

One SQLite file, which is on the disk before anything that it counts is sent. Its table `account`
has one JSON record with a checksum, which covers all `steps` too.
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
from randquant.rounds.foreign import DamagedFile
from randquant.secure_sums.secagg.terms import ProtocolError

OWN = 0
"""The client's number in its own account, independent of its number in a run."""

VERSION = 1
TABLES = (
    "CREATE TABLE account (only INTEGER PRIMARY KEY, content TEXT)",
    "CREATE TABLE steps (step BLOB PRIMARY KEY) WITHOUT ROWID",
)
STEP_BYTES = 16
"""Bytes kept of a step's hash: of two steps that share them the second is refused, no more."""
TRIES = 20
"""How often an account is checked again that others have changed meanwhile."""

SPENT = "randquant.spent"
"""Record in a client's state: its account if it has no file for it, else the file's version."""

State = MutableMapping[str, dict[str, Any]]
"""What a client keeps between two messages of a run, by name: bytes, numbers and texts, which are
never sent. An engine may keep a reply's state later than it sends the reply."""


class AnswerLedger:
    """The account of one client, locked while it is read and changed.

    Args:
        accountant: what this client has answered, as client OWN.
        path: the file; None keeps the account in the run's state.
        state: of the run: it knows how often the file had been written when this run last saw it.

    Guarantees:
        A step that was taken is refused for ever, which costs some 20 bytes per step. Processes
        that share the file take each step once, and count every answer.
        Whenever a process ends, the file has the content before a step or after it. Once the
        context of `held` or `checked` has ended, it has the content after it, on the disk.
        Only this user can read the file. A file with any other content is refused, and a link to
        one: its two names would have two locks. Not detected are: a restored copy of an older
        account, unless this run has seen a newer one, and a file whose checksum was recomputed.
    """

    def __init__(
        self, accountant: RunAccountant, path: str | Path | None, state: State | None = None
    ) -> None:
        self._accountant = accountant
        self._unread: dict[str, Any] | None = None  # the account as the file has it
        self._database = _database_of(path)
        self._connection: sqlite3.Connection | None = None
        self._state: State = {} if state is None else state
        self._taken: set[bytes] = set()
        self._new: list[bytes] = []
        self._written = 0

    @property
    def accountant(self) -> RunAccountant:
        """What this client has answered. A step that needs no account leaves it unread.

        Raises:
            DamagedFile: the account is none of this client's.
        """
        if self._unread is not None:
            with _readable():
                if not set(self._unread["clients"]) <= {str(OWN)}:
                    raise ValueError("it is of other clients")
                self._accountant.load_state_dict(self._unread)
            self._unread = None
        return self._accountant

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return len(self._taken)

    @contextlib.contextmanager
    def held(self) -> Iterator[Self]:
        """Lock and read the account; other processes of this client wait.

        Raises:
            DamagedFile: it is damaged, or older than what this run has seen.
            OSError: the file is a link, cannot be read, or another process holds it for too long.
        """
        if self._database is None:
            self._look()
            yield self
            return
        self._check_place()
        if not files.exists(self._database.path):
            self._check_newest()
        self._database.create()
        try:
            with self._database.transaction() as self._connection:
                self._read(self._connection)
                yield self
        finally:
            self._connection = None
        if self._written:  # the run has seen this version now that it is on the disk
            self._state[SPENT] = {"written": self._written}

    @contextlib.contextmanager
    def checked(self, check: Callable[[RunAccountant], None]) -> Iterator[Self]:
        """Hold the account once it has passed a check, which may take long.

        Others of this client may use the account during the check; if they change it, the new one
        is checked.

        Raises:
            BlockingIOError: they keep changing it.
            Exception: that of `check`, or of `held`.
        """
        for _ in range(TRIES):
            self._look()
            before = self._unread
            check(self.accountant)
            with self.held():
                if self._unread == before:
                    self._unread = None  # the accountant has it
                    yield self
                    return
        raise BlockingIOError(
            f"Expected a client's account to be left alone during a check, but other processes of "
            f"this client changed it {TRIES} times: send it fewer requests at once."
        )

    def take(self, session: bytes, step: str) -> None:
        """Record a step of a session; ProtocolError if it was taken before."""
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
        account = self._unread
        if account is None:
            account = self._accountant.state_dict()
        record = {"written": self._written, "account": account}
        content = serialization.seal(record, _digest(self._taken))
        if self._connection is None:
            steps = [step.hex() for step in sorted(self._taken)]
            self._state[SPENT] = {"account": json.dumps({**content, "steps": steps}).encode()}
        else:
            self._connection.execute("REPLACE INTO account VALUES (0, ?)", [json.dumps(content)])
            rows = ([step] for step in self._new)
            self._connection.executemany("INSERT INTO steps VALUES (?)", rows)
        self._new = []

    def look(self) -> RunAccountant:
        """Read what this client has answered, without a lock: no other process waits.

        Raises:
            DamagedFile, OSError: as `held`.
        """
        self._look()
        return self.accountant

    def _look(self) -> None:
        self._check_place()
        if self._database is None:
            if (kept := self._state.get(SPENT, {}).get("account")) is not None:
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
            if rows or steps:
                [(only, content)] = rows
                if only != 0:
                    raise ValueError("it is another row")
                self._load(content, steps)
        self._check_newest()

    def _check_newest(self) -> None:
        with _readable():
            is_older = self._written < self._state.get(SPENT, {}).get("written", 0)
        if is_older:
            raise DamagedFile("Expected this client's newest account, got an older one.")

    def _check_place(self) -> None:
        """Refuse an account in another place than this run's: it would begin at nothing."""
        other = "written" if self._database is None else "account"
        if other in self._state.get(SPENT, {}):
            raise DamagedFile(
                "Expected this client's account where this run has begun it, got another place: "
                "change randquant-ledger between two runs."
            )

    def _load(self, content: str, steps: list[bytes]) -> None:
        taken = set(steps)
        if len(taken) < len(steps) or any(len(step) != STEP_BYTES for step in taken):
            raise ValueError("one of its steps comes twice, or is none")
        record, _ = serialization.unseal(content, _digest(taken))
        self._written = validate.whole("written", record["written"], low=1)
        self._unread, self._taken, self._new = record["account"], taken, []


def _database_of(path: str | Path | None) -> Database | None:
    return None if path is None else Database(Path(path), TABLES, VERSION, "a client's account")


def _digest(steps: set[bytes]) -> str:
    """What the account's checksum covers of its steps: a lost one could be taken again."""
    return hashlib.sha256(b"".join(sorted(steps))).hexdigest()


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Errors within are those of a damaged file."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise DamagedFile(f"Expected this client's account, but: {reason}.") from error
