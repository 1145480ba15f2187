"""A client's own account: what it has answered, and which steps of which sums it has taken."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context

from randquant import locks
from randquant.flower.accountant import RunAccountant
from randquant.records import write_atomic

SPENT = "randquant.spent"
"""Record of the account in a client's state, where it has no file for it."""

REMEMBERED = 100
"""Sums whose steps are remembered: a client has part in one at a time."""


class Ledger:
    """The account of one client, held while it is looked at and changed.

    Attributes:
        accountant: what it has answered, under its present number.
    """

    def __init__(self, accountant: RunAccountant, context: Context) -> None:
        self.accountant = accountant
        self._context = context
        self._taken: dict[str, list[str]] = {}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Read it, and keep others of this client from it until the end; ValueError if damaged."""
        config = self._context.node_config
        self._path = Path(str(config["randquant-ledger"])) if "randquant-ledger" in config else None
        if self._path is None:
            record = self._context.state.get(SPENT)
            self._load(str(record["state"]) if isinstance(record, ConfigRecord) else None)
            yield
            return
        with locks.exclusive(self._path.with_name(self._path.name + ".lock"), wait=True):
            self._load(self._path.read_bytes() if self._path.exists() else None)
            yield

    def take(self, session: bytes, step: str) -> None:
        """Note a step of a sum; ValueError if it was taken before."""
        steps = self._taken.setdefault(session.hex(), [])
        if step in steps:
            raise ValueError(f"Expected each step of a sum once, got {step!r} again.")
        steps.append(step)
        for oldest in list(self._taken)[:-REMEMBERED]:
            del self._taken[oldest]

    def save(self) -> None:
        """Write it down, before anything that it counts is sent."""
        text = json.dumps({**self.accountant.state_dict(), "taken": self._taken})
        if self._path is not None:
            write_atomic(self._path, text.encode())
        else:
            self._context.state[SPENT] = ConfigRecord({"state": text})

    def _load(self, text: str | bytes | None) -> None:
        if text is None:
            return
        try:
            state: dict[str, Any] = json.loads(text)
            self._taken = {_session(s): _steps(steps) for s, steps in state["taken"].items()}
            counts: Mapping[str, Any] = state["clients"]
            if len(counts) > 1:
                raise ValueError("it is of several clients")
            number = str(self._context.node_id)  # it may have had another then
            own = dict(zip([number], counts.values(), strict=False))
            self.accountant.load_state_dict({**state, "clients": own})
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            reason = str(error).rstrip(".")
            raise ValueError(f"Expected this client's account, but: {reason}.") from error


def _session(text: str) -> str:
    if bytes.fromhex(text).hex() != text:
        raise ValueError(f"{text!r} is no session")
    return text


def _steps(steps: Any) -> list[str]:
    if not (isinstance(steps, list) and all(isinstance(step, str) for step in steps)):
        raise ValueError("the steps of a session are no list of names")
    return steps
