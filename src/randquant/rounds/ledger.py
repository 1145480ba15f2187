"""A client's own account: what it has answered, and which steps of which sums it has taken.

One file, replaced as a whole and on the disk before anything that it counts is sent:

offset  bytes  field
0       8      magic "RQSPENT2"
8       32     SHA-256 of what follows
40      8      how often it was written
48      8      n
56      n      JSON: the account
56 + n  16·k   each step that was taken, in order
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, Self

from randquant._internal import files
from randquant._internal.files import read_own
from randquant._internal.serialization import write_atomic
from randquant.rounds.accountant import RunAccountant
from randquant.rounds.foreign import DamagedFile
from randquant.secure_sums.secagg.terms import ProtocolError

OWN = 0
"""The client's number in its own account, independent of its number in a run."""

MAGIC = b"RQSPENT2"
START = len(MAGIC) + 32
STEP_BYTES = 16
"""Bytes kept of a step's hash: of two steps that share them the second is refused, no more."""
TRIES = 20
"""How often an account is checked again that others have changed meanwhile."""

PATIENCE = 60.0
"""Seconds that a process waits for another one of the same client."""

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
        A step that was taken is refused for ever, which costs 16 bytes per step. Processes that
        share the file take each step once, and count every answer.
        Whenever a process ends, the file has the content before a step or after it. Once `save` has
        returned, it has the content after it, on the disk.
        Only this user can read the file. A file with any other content is refused, and a link to
        one: replacing it would separate the names. Not detected are: a restored copy of an older
        account, unless this run has seen a newer one, and a file whose checksum was recomputed.
    """

    def __init__(
        self, accountant: RunAccountant, path: str | Path | None, state: State | None = None
    ) -> None:
        self._accountant = accountant
        self._unread: bytes | None = None  # the account as the file has it
        self._path = None if path is None else Path(path)
        self._state: State = {} if state is None else state
        self._taken: dict[bytes, None] = {}
        self._written = 0

    @property
    def accountant(self) -> RunAccountant:
        """What this client has answered. A step that needs no account leaves it unread.

        Raises:
            DamagedFile: the account is none of this client's.
        """
        if self._unread is not None:
            with _readable():
                state: dict[str, Any] = json.loads(self._unread)
                if not set(state["clients"]) <= {str(OWN)}:
                    raise ValueError("it is of other clients")
                self._accountant.load_state_dict(state)
            self._unread = None
        return self._accountant

    @contextlib.contextmanager
    def held(self) -> Iterator[Self]:
        """Lock and read the account; other processes of this client wait.

        Raises:
            DamagedFile: it is damaged, or older than what this run has seen.
            BlockingIOError: another process holds the lock for longer than PATIENCE.
            OSError: the file is a link, or cannot be read.
        """
        known = self._state.get(SPENT, {})
        if self._path is None:
            self._load(known.get("account"))
            yield self
            return
        with files.exclusive(self._path.with_name(self._path.name + ".lock"), wait=PATIENCE):
            self._load(read_own(self._path) if os.path.lexists(self._path) else None)
            if self._written < known.get("written", 0):
                raise DamagedFile("Expected this client's newest account, got an older one.")
            yield self

    @contextlib.contextmanager
    def checked(self, check: Callable[[RunAccountant], None]) -> Iterator[Self]:
        """Hold the file once its account has passed a check, which may take long.

        Others of this client may use the account during the check; if they change it, the new one
        is checked.

        Raises:
            BlockingIOError: they keep changing it.
            Exception: that of `check`, or of `held`.
        """
        for _ in range(TRIES):
            with self.held():
                before = self._unread
            check(self.accountant)
            with self.held():
                if self._unread == before:
                    self._unread = None  # the accountant has it
                    yield self
                    return
        raise BlockingIOError(
            f"Expected {self._path} to be left alone during a check, but other processes of this "
            f"client changed it {TRIES} times: send it fewer requests at once."
        )

    def take(self, session: bytes, step: str) -> None:
        """Record a step of a session; ProtocolError if it was taken before."""
        name = hashlib.sha256(repr((session, step)).encode()).digest()[:STEP_BYTES]
        if name in self._taken:
            raise ProtocolError(f"Expected each step of a round once, got {step!r} again.")
        self._taken[name] = None

    def save(self) -> None:
        """Write the account, before anything that it counts is sent."""
        self._written += 1
        if self._path is None:
            self._state[SPENT] = {"account": self._to_bytes()}
        else:
            write_atomic(self._path, self._to_bytes(), private=True)
            self._state[SPENT] = {"written": self._written}

    def _to_bytes(self) -> bytes:
        account = self._unread
        if account is None:
            account = json.dumps(self._accountant.state_dict()).encode()
        numbers = (number.to_bytes(8, "little") for number in (self._written, len(account)))
        body = b"".join([*numbers, account, *self._taken])
        return MAGIC + hashlib.sha256(body).digest() + body

    def _load(self, data: bytes | None) -> None:
        if data is None:
            return
        with _readable():
            body = data[START:]
            if data[:START] != MAGIC + hashlib.sha256(body).digest():
                raise ValueError("it is damaged, or of another version")
            end = 16 + int.from_bytes(body[8:16], "little")
            steps = range(end, len(body), STEP_BYTES)
            taken = {body[start : start + STEP_BYTES]: None for start in steps}
            if len(body) != end + STEP_BYTES * len(taken):
                raise ValueError("its steps are not whole, or one comes twice")
        self._unread, self._taken = body[16:end], taken
        self._written = int.from_bytes(body[:8], "little")


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Errors within are those of a damaged file."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise DamagedFile(f"Expected this client's account, but: {reason}.") from error
