"""What a run on Flower cost and gave, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from randquant._internal import formatting
from randquant.privacy.guarantee import Guarantee

Measured = Mapping[int, Mapping[str, Any]]
"""What the server measured after each round, by name: its own evaluation."""


@dataclass(frozen=True, slots=True)
class RoundRow:
    """What one round on Flower cost and gave.

    Attributes:
        round: 1 for the first.
        epsilon: proven upper bound of the client that was asked most often, if the run was
            declared to end after this round.
        asked, dropped: clients that were asked, and how many of them are not in the mean.
        sent_bytes, upload_bytes: the largest of all clients' messages, and of their updates.
        plain_bytes: what an update would be as plain codes, which the server would see one by one.
        failed: why the round failed; empty if it did not.
    """

    round: int
    epsilon: float
    asked: int
    dropped: int
    sent_bytes: int = 0
    upload_bytes: int = 0
    plain_bytes: int = 0
    failed: str = ""

    def line(self) -> str:
        """The round in the run's log."""
        spent = f"round {self.round}: {formatting.bound(self.epsilon)}"
        if self.failed:
            return f"{spent}; {self.asked} clients were asked, and the round failed"
        sent = f"a client sent {self.sent_bytes:,} bytes, " * bool(self.sent_bytes)
        return (
            f"{spent}; {self.asked} clients, {self.dropped} dropped; {sent}{self.upload_bytes:,} "
            f"of them its update ({self.plain_bytes:,} as plain codes, which the server would see "
            "one by one)"
        )


@dataclass(frozen=True, slots=True)
class History:
    """A run on Flower, for a report.

    Attributes:
        title: of the run.
        rows: its rounds, with those that failed.
        guarantee: of every client, for all of them.
        measured: the server's evaluation by round, if there was one; only its numbers are kept.
        target: the epsilon that ends the training, if there is one.
        assumes: what the guarantee assumes of other clients (`Accountant.assumes`).
        helped: whether updates are summed with a helper.
        hostile: what one client can do to the last round's mean, where that is known.
    """

    title: str
    rows: Sequence[RoundRow]
    guarantee: Guarantee
    measured: Measured = field(default_factory=dict)
    target: float | None = None
    assumes: str = ""
    helped: bool = False
    hostile: str = ""

    def __post_init__(self) -> None:
        numbers = {
            number: {name: value for name, value in metrics.items() if isinstance(value, float)}
            for number, metrics in self.measured.items()
        }
        object.__setattr__(self, "measured", numbers)

    @property
    def names(self) -> list[str]:
        """Names of what was measured."""
        return sorted({name for metrics in self.measured.values() for name in metrics})
