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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context

from randquant._internal import locks
from randquant._internal.serialization import write_atomic
from randquant.aggregation.secagg.terms import ProtocolError
from randquant.integrations.flower.accountant import RunAccountant
from randquant.integrations.flower.files import DamagedFile

SPENT = "randquant.spent"
"""Record in a client's state: its account if it has no file for it, else the file's version."""

OWN = 0
"""The client's number in its own account, independent of its number in a run."""

MAGIC = b"RQSPENT2"
START = len(MAGIC) + 32
STEP_BYTES = 16


class ClientLedger:
    """The account of one client, locked while it is read and changed.

    Attributes:
        accountant: what this client has answered, as client OWN.

    Guarantees:
        A step that was taken is refused for ever, which costs 16 bytes per step. Processes that
        share the file take each step once, and count every answer.
        Whenever a process ends, the file has the content before a step or after it. Once `save` has
        returned, it has the content after it, on the disk.
        A file with any other content is refused, and so is one that is older than what this run has
        seen. Not detected are: a restored copy from before this run, and a file whose checksum was
        recomputed.
    """

    def __init__(self, accountant: RunAccountant, context: Context) -> None:
        self.accountant = accountant
        self._context = context
        config = context.node_config
        # Links are resolved: otherwise replacing the file would separate two names of it.
        self._path = (
            Path(str(config["randquant-ledger"])).resolve()
            if "randquant-ledger" in config
            else None
        )
        self._taken: dict[bytes, None] = {}
        self._written = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock and read the account; other processes of this client wait.

        Raises:
            DamagedFile: it is damaged, or older than what this run has seen.
        """
        record = self._context.state.get(SPENT)
        seen: dict[str, Any] = dict(record) if isinstance(record, ConfigRecord) else {}
        if self._path is None:
            self._load(seen.get("account"))
            yield
            return
        with locks.exclusive(self._path.with_name(self._path.name + ".lock"), wait=True):
            self._load(self._path.read_bytes() if self._path.exists() else None)
            if self._written < seen.get("written", 0):
                raise DamagedFile("Expected this client's newest account, got an older one.")
            yield

    def take(self, session: bytes, step: str) -> None:
        """Record a step of a sum; ProtocolError if it was taken before."""
        name = hashlib.sha256(repr((session, step)).encode()).digest()[:STEP_BYTES]
        if name in self._taken:
            raise ProtocolError(f"Expected each step of a sum once, got {step!r} again.")
        self._taken[name] = None

    def save(self) -> None:
        """Write the account, before anything that it counts is sent."""
        self._written += 1
        data = self._to_bytes()
        if self._path is None:
            self._context.state[SPENT] = ConfigRecord({"account": data})
            return
        write_atomic(self._path, data)
        self._context.state[SPENT] = ConfigRecord({"written": self._written})

    def _to_bytes(self) -> bytes:
        account = json.dumps(self.accountant.state_dict()).encode()
        numbers = (number.to_bytes(8, "little") for number in (self._written, len(account)))
        body = b"".join([*numbers, account, *self._taken])
        return MAGIC + hashlib.sha256(body).digest() + body

    def _load(self, data: bytes | None) -> None:
        if data is None:
            return
        try:
            body = data[START:]
            if data[:START] != MAGIC + hashlib.sha256(body).digest():
                raise ValueError("it is damaged, or of another version")
            end = 16 + int.from_bytes(body[8:16], "little")
            steps = range(end, len(body), STEP_BYTES)
            taken = {body[start : start + STEP_BYTES]: None for start in steps}
            if len(body) != end + STEP_BYTES * len(taken):
                raise ValueError("its steps are not whole, or one comes twice")
            state: dict[str, Any] = json.loads(body[16:end])
            if not set(state["clients"]) <= {str(OWN)}:
                raise ValueError("it is of other clients")
            self.accountant.load_state_dict(state)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            reason = str(error).rstrip(".")
            raise DamagedFile(f"Expected this client's account, but: {reason}.") from error
        self._taken, self._written = taken, int.from_bytes(body[:8], "little")
