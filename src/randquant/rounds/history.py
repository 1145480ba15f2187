"""The history of a run on Flower: cost and bytes of each round, and the server's evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from randquant._internal import formatting
from randquant.privacy.guarantee import Guarantee

Measured = Mapping[int, Mapping[str, Any]]
"""The server's evaluation after each round: values by name."""


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round on Flower: its cost, its clients, and its bytes.

    Attributes:
        round: 1 for the first.
        epsilon: proven upper bound for every client, if the run was declared to end after this
            round.
        asked, dropped: number of clients that were asked for an update, and of those among them
            that are not in the mean.
        sent_bytes, upload_bytes: bytes of all messages of the client that sent most, and of the
            largest update.
        plain_bytes: bytes of an update as plain codes, which the server would see one by one.
        failed: why the round failed; empty if it succeeded.
    """

    round: int
    epsilon: float
    asked: int
    dropped: int
    sent_bytes: int = 0
    upload_bytes: int = 0
    plain_bytes: int = 0
    failed: str = ""

    def line(self, other: str = "") -> str:
        """Return the round as a line of the run's log; `other` stands behind epsilon."""
        cost = f"round {self.round}: {formatting.bound(self.epsilon)}{other}"
        if self.failed:
            return f"{cost}; {self.asked} clients were asked, and the round failed"
        update = f"a client's update had {self.upload_bytes:,} bytes"
        if self.sent_bytes:  # 0 where the engine does not count messages
            update = (
                f"a client sent {self.sent_bytes:,} bytes, {self.upload_bytes:,} of them its update"
            )
        return (
            f"{cost}; {self.asked} clients, {self.dropped} dropped; {update} "
            f"({self.plain_bytes:,} as plain codes, which the server would see one by one)"
        )


@dataclass(frozen=True, slots=True)
class History:
    """A run on Flower, for a report.

    Attributes:
        title: of the run.
        rows: its rounds, failed ones included.
        guarantee: for every client and all rounds.
        measured: the server's evaluation by round, of which only the numbers are kept; empty if
            there was none.
        target: the epsilon that ends the training; None without one.
        assumes: the assumptions of the guarantee (`RunAccountant.assumes`).
        helped: True if updates are summed with a helper.
        hostile: a sentence on how far one client can move the last round's mean; empty if that is
            not known.
        other_relation: the guarantee under the neighbouring relation that it is not for; None where
            that is not derived.
    """

    title: str
    rows: Sequence[RoundRow]
    guarantee: Guarantee
    measured: Measured = field(default_factory=dict)
    target: float | None = None
    assumes: str = ""
    helped: bool = False
    hostile: str = ""
    other_relation: Guarantee | None = None

    def __post_init__(self) -> None:
        numbers = {
            number: {name: value for name, value in metrics.items() if isinstance(value, float)}
            for number, metrics in self.measured.items()
        }
        object.__setattr__(self, "measured", numbers)

    @property
    def metric_names(self) -> list[str]:
        return sorted({name for metrics in self.measured.values() for name in metrics})
