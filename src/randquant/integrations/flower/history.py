"""A run on Flower as one page: epsilon, bytes and dropouts of every round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.common import log

from randquant._internal.rounding import round_down
from randquant._internal.serialization import write_atomic
from randquant.privacy.guarantee import Guarantee
from randquant.reports import formatting, pages
from randquant.reports.figures import Figure, line_chart
from randquant.reports.pages import DataTable, Notes, Section


@dataclass(frozen=True, slots=True)
class RoundRow:
    """What one round on Flower cost and gave.

    Attributes:
        round: 1 for the first.
        epsilon: proven upper bound, after it, of the client that was asked most often.
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
        return (
            f"{spent}; {self.asked} clients, {self.dropped} dropped; a client sent "
            f"{self.sent_bytes:,} bytes, {self.upload_bytes:,} of them its update "
            f"({self.plain_bytes:,} as plain codes, which the server would see one by one)"
        )


Measured = Mapping[int, Mapping[str, Any]]
"""What the server measured after each round, by name: its own evaluation."""


def page(title: str, rows: Sequence[RoundRow], guarantee: Guarantee, measured: Measured) -> str:
    """A run as the text of one HTML page.

    Args:
        title: of the run.
        rows: its rounds.
        guarantee: of every client, for all of them.
        measured: the server's evaluation by round, if there was one.

    Guarantees:
        The page is self-contained, all text in it is escaped, and a printed epsilon is never below
        the accountant's.
    """
    measured = {
        number: {name: value for name, value in metrics.items() if isinstance(value, float)}
        for number, metrics in measured.items()
    }
    names = sorted({name for metrics in measured.values() for name in metrics})
    good = [row for row in rows if not row.failed]
    lost = sum(row.dropped for row in rows)
    cards = [
        ("Guarantee of every client", formatting.bound(guarantee.epsilon), [
            f"at δ = {formatting.plain(guarantee.delta)}, {guarantee.neighboring}, "
            f"{guarantee.trust} trust", *_reached(guarantee)]),
        ("Rounds", f"{len(good)}", [f"{formatting.count(len(rows) - len(good), 'round')} failed"]),
        ("Dropouts", f"{lost}", [f"of {formatting.count(sum(r.asked for r in rows), 'request')}"]),
        ("Sent by a client in a round", formatting.size_of(max(
            (row.sent_bytes for row in rows), default=0)), ["all its messages, the largest"]),
    ]  # fmt: skip
    figures: list[Figure] = [
        line_chart(
            "Epsilon spent, after each round", [("ε ≤", _points(rows), "c1")], "round", "epsilon"
        )
    ]
    figures += [
        line_chart(
            f"{name}, measured by the server", [(name, _measured(measured, name), "c1")],
            "round", name,
        )
        for name in names
    ]  # fmt: skip
    notes = [f"Round {row.round} failed, the model stayed: {row.failed}" for row in rows
             if row.failed]  # fmt: skip
    table = DataTable(
        "Every round",
        ("round", "ε ≤", "asked", "dropped", "bytes sent", "of them update", *names),
        [_cells(row, measured.get(row.round, {}), names) for row in rows],
        "numbers",
    )
    sections = [
        Section("Rounds", figures),
        Section("Details", [table, *([Notes(notes)] if notes else [])], columns=False),
    ]
    lead = "Epsilon counts every round in which a client was asked, whether or not it succeeded."
    return pages.report(title, "Federated training on Flower", title, lead, sections, cards=cards)


def write(path: Path, text: str) -> None:
    """Write a page, atomically, and log where it is."""
    place = path.resolve()
    write_atomic(place, text.encode("utf-8", "xmlcharrefreplace"))
    log(INFO, "randquant: the run as a page: %s", place)


def _reached(guarantee: Guarantee) -> list[str]:
    """The lower end of a guarantee, if one is known."""
    known = 0 < guarantee.lower < math.inf
    return [f"an attack reaches ε ≥ {round_down(guarantee.lower, grouped=True)}"] * known


def _points(rows: Sequence[RoundRow]) -> list[tuple[float, float]]:
    return [(float(row.round), row.epsilon) for row in rows]


def _measured(measured: Measured, name: str) -> list[tuple[float, float]]:
    return [(float(n), float(m.get(name, math.nan))) for n, m in sorted(measured.items())]


def _cells(row: RoundRow, metrics: Mapping[str, float], names: Sequence[str]) -> list[str]:
    measured = [formatting.number(metrics.get(name), 4) for name in names]
    counts = (row.asked, row.dropped, row.sent_bytes, row.upload_bytes)
    return [str(row.round), formatting.spent(row.epsilon), *(f"{c:,}" for c in counts), *measured]
