"""A run on Flower as pictures, facts and page: epsilon, bytes and dropouts of every round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from randquant._internal import formatting
from randquant.reports import pages
from randquant.reports.figures import Axis, Figure, line_chart
from randquant.reports.notebook import Facts
from randquant.reports.pages import DataTable, Notes, Paragraphs, Section
from randquant.rounds.accountant import HELPER_ADDS_NOISE, SO_FAR
from randquant.rounds.store import History, Measured, RoundRow

Card = tuple[str, str, list[str]]  # name, figure, lines below it

MEMBERS = (
    "A helper with a directory of all members leaves out seeds that no member has signed; without "
    "one nobody can know that the server has not invented the others."
)
IN_STEPS = (
    "The rest are keys and shares of the secure sum: they grow with the clients a round, and not "
    "with the model."
)
IN_ONE = (
    "The seed of the mask, sealed for the helper, is counted with the update; nothing grows with "
    "the clients a round."
)
DIRECTORY = (
    "A client with a directory of all members checks that the others exist; without one it cannot "
    "know that the server has not invented them."
)

COVERED = (
    "What clients sent in every round that they were asked in, as updates and numbers in the noisy "
    "sum: hence the models, and what is measured of them on data that are public."
)

UNCOVERED = (
    "The server sees who takes part, when, how long it takes, and who fails. What an evaluate "
    "function returns is sent as it is. Settings that were chosen by looking at clients' data cost "
    "what no figure here counts. Other runs on the same clients add to this one: a client's own "
    "account counts them all."
)


def figures(history: History) -> list[Figure]:
    """Draw epsilon, and the server's measurements, after each round."""
    epsilon = [("ε ≤", _points(history.rows), "c1")]
    up = Axis("epsilon", bound=True)
    drawn: list[Figure] = [line_chart("Epsilon spent, after each round", epsilon, "round", up)]
    drawn += [
        line_chart(
            f"{name}, measured by the server", [(name, _measured(history.measured, name), "c1")],
            "round", name,
        )
        for name in history.metric_names
    ]  # fmt: skip
    return drawn


def facts(history: History) -> Facts:
    """Return a table of all rounds of a run."""
    names = history.metric_names
    rows = [_cells(row, history.measured.get(row.round, {}), names) for row in history.rows]
    columns = ("round", "ε ≤", "asked", "dropped", "bytes sent", "of them update", *names)
    return "Every round", columns, rows


def page(history: History) -> str:
    """Write a run as the text of one HTML page."""
    rows = history.rows
    cards = [_accuracy(history.measured), _guarantee(history), _clients(rows), _upload(rows)]
    notes = [f"Round {row.round} failed, the model stayed: {row.failed}" for row in rows
             if row.failed]  # fmt: skip
    table = DataTable(*facts(history), "numbers")
    sections = [
        Section("What the guarantee means", [_meaning(history)], columns=False, text=True),
        pages.coverage(history.guarantee, COVERED, UNCOVERED),
        Section("Rounds", figures(history)),
        Section("Details", [table, *([Notes(notes)] if notes else [])], columns=False),
    ]
    # A failed round counts too: what clients sent in it has been sent.
    lead = "Epsilon counts every round in which a client was asked, whether or not it succeeded; "
    lead += f"{SO_FAR}."
    title = history.title
    return pages.report(title, "Federated training on Flower", title, lead, sections, cards=cards)


def _accuracy(measured: Measured) -> Card:
    # The server's measurement is exact; the clients' mean has noise and is one round older.
    sources = {
        "accuracy": "measured by the server after round",
        "clients' accuracy": "mean of its clients, with noise, of the model before round",
    }
    for name, text in sources.items():
        accuracies = {n: metrics[name] for n, metrics in measured.items() if name in metrics}
        if accuracies and math.isfinite(accuracies[last := max(accuracies)]):
            return "Accuracy", f"{100 * accuracies[last]:.2f}\u00a0%", [f"{text} {last}"]
    return "Accuracy", "Not measured", ["no evaluate_fn and no number returned accuracy"]


def _guarantee(history: History) -> Card:
    guarantee, target = history.guarantee, history.target
    lines = [
        f"at δ = {formatting.minus(formatting.plain(guarantee.delta))}",
        *pages.other_figure(history.other_relation),
        "no target was set" if target is None else f"target: {formatting.bound(target)}",
    ]
    unit = "client" if guarantee.unit == "client" else "example, not of all data of a client"
    return f"Guarantee of every {unit}", formatting.bound(guarantee.epsilon), lines


def _clients(rows: Sequence[RoundRow]) -> Card:
    # Requests, not replies: a client's epsilon counts each request, whether or not it answers.
    requests, failed = [row.asked for row in rows], sum(bool(row.failed) for row in rows)
    fewest, most = min(requests, default=0), max(requests, default=0)
    return (
        "Clients a round",
        f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}",
        [
            f"{formatting.count(len(rows), 'round')}, {failed:,} failed",
            f"Dropouts: {sum(row.dropped for row in rows):,} of "
            f"{formatting.count(sum(requests), 'request')}",
        ],
    )


def _upload(rows: Sequence[RoundRow]) -> Card:
    lines = ["all its messages, at most", f"of them its update: {_largest(rows, 'upload_bytes')}"]
    return "Sent by a client a round", _largest(rows, "sent_bytes"), lines


def _largest(rows: Sequence[RoundRow], name: str) -> str:
    return formatting.byte_size(max((getattr(row, name) for row in rows), default=0))


def _meaning(history: History) -> Paragraphs:
    rows, guarantee = history.rows, history.guarantee
    items = [("There is no guarantee.", "No finite ε is proven for this run.")]
    # The sentences on members and on masks are about secure sums only.
    summed = guarantee.trust == "aggregate"
    if not math.isinf(guarantee.epsilon):
        assumed = f"{formatting.bound(guarantee.epsilon)} {history.assumes}."
        assumed = assumed.replace("epsilon <=", "ε\u00a0<=").replace("<= ", "≤\u00a0")
        # With the helper's noise it does not matter whether the other clients exist.
        counts_on_others = summed and HELPER_ADDS_NOISE not in history.assumes
        assumed += f" {MEMBERS if history.helped else DIRECTORY}" * counts_on_others
        items = [
            ("What is promised.", pages.promise(guarantee)),
            *pages.how_to_compare(guarantee, history.other_relation),
            ("What it assumes.", assumed),
            *pages.how_large(guarantee),
        ]
    if summed:
        text = (
            f"Of the {_largest(rows, 'sent_bytes')} that a client sent in a round, "
            f"{_largest(rows, 'upload_bytes')} are its update, hidden in the sum (as plain codes "
            f"{_largest(rows, 'plain_bytes')}, which the server would see one by one). "
            f"{IN_ONE if history.helped else IN_STEPS}"
        )
        items += [("What was sent.", text), *pages.hostile_client(history.hostile)]
    return Paragraphs(items)


def _points(rows: Sequence[RoundRow]) -> list[tuple[float, float]]:
    return [(float(row.round), row.epsilon) for row in rows]


def _measured(measured: Measured, name: str) -> list[tuple[float, float]]:
    return [(float(n), float(m.get(name, math.nan))) for n, m in sorted(measured.items())]


def _cells(row: RoundRow, metrics: Mapping[str, float], names: Sequence[str]) -> list[str]:
    measured = [formatting.number(metrics.get(name), 4) for name in names]
    counts = (row.asked, row.dropped, row.sent_bytes, row.upload_bytes)
    return [str(row.round), formatting.spent(row.epsilon), *(f"{c:,}" for c in counts), *measured]
