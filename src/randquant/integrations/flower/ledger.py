"""A client's own account on Flower: in a file that its SuperNode names, or in the run's state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Self

from flwr.app import ConfigRecord, Context

from randquant.aggregation.secagg.terms import ProtocolError
from randquant.integrations.accountant import Accountant
from randquant.integrations.ledger import OWN, STEP_BYTES, AnswerLedger

__all__ = ["OWN", "SPENT", "STEP_BYTES", "ClientLedger"]

SPENT = "randquant.spent"
"""Record in a client's state: its account if it has no file for it, else the file's version."""


class ClientLedger(AnswerLedger[Accountant]):
    """The account of one client, locked while it is read and changed.

    Guarantees:
        Those of `AnswerLedger`; and a file that is older than what this run has seen is refused.
    """

    def __init__(self, accountant: Accountant, context: Context) -> None:
        path = context.node_config.get("randquant-ledger")
        super().__init__(accountant, None if path is None else str(path))
        self._context = context

    @contextlib.contextmanager
    def held(self, seen: int = 0) -> Iterator[Self]:
        """Lock and read the account; other processes of this client wait.

        Raises:
            DamagedFile: it is damaged, or older than what this run has seen.
        """
        record = self._context.state.get(SPENT)
        known: dict[str, Any] = dict(record) if isinstance(record, ConfigRecord) else {}
        if self._path is None:
            self._load(known.get("account"))
        with super().held(max(seen, known.get("written", 0))):
            yield self

    def take(self, session: bytes, step: str) -> None:
        """Record a step of a sum; ProtocolError if it was taken before."""
        if not self.first(session, step):
            raise ProtocolError(f"Expected each step of a sum once, got {step!r} again.")

    def save(self) -> None:
        """Write the account, before anything that it counts is sent."""
        super().save()
        if self._path is None:
            self._context.state[SPENT] = ConfigRecord({"account": self._to_bytes()})
        else:
            self._context.state[SPENT] = ConfigRecord({"written": self._written})
