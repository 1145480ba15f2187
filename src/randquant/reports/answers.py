"""A table of statistics as pictures, facts, JSON and page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from randquant._internal import formatting
from randquant._internal.formatting import bound, minus
from randquant.privacy.guarantee import SIMULATED, Guarantee, Interval
from randquant.reports import pages
from randquant.reports.figures import Axis, BandedCurve, Figure, Intervals, Ranged
from randquant.reports.notebook import Facts
from randquant.reports.pages import DataTable, Paragraphs, Section
from randquant.statistics.query import Answer, Estimate, ends
from randquant.statistics.table import Table

COLUMN_NAMES = ("", "estimate", "95 % interval", "among these records", "noise", "sampling")

COVERED = (
    "All answers, intervals and pictures of this page together: they are computed from one noisy "
    "sum and public facts."
)
CONTAINED = (
    "Each interval is made to contain its number in at least 95 of 100 tables, noise included, "
    "which is checked by simulation and not proven: that of the population which the records are a "
    "random sample of. The narrower one, dark in the charts, is that of just these records: what "
    "the noise alone leaves open. All intervals of one table do not hold at once; a curve's band "
    "is one for each of its points."
)
UNCOVERED = (
    "How many records and clients there are is public. Bounds, categories and bins are taken as "
    "public: if they were chosen by looking at the data, that cost is not counted. A value beyond "
    "its bounds counts as the nearer bound, so an estimate is of values within them. Other tables "
    "and training on the same records add to this guarantee: rq.account([table.release, ...]) "
    "counts them together."
)


def figures(table: Table) -> list[Figure]:
    """Draw each query: a curve with its bands, or its estimates below each other on one axis.

    Estimates of different units have a picture each. All counts of records share one axis, so that
    their lengths can be compared across pictures.
    """
    counts = [
        end
        for answer in table.values()
        for each in answer.values()
        for end in (*_ends(each.interval), *_ends(each.among_records))
        if answer.unit == "records" and end is not None
    ]
    records = Axis("records", ends=(min(counts), max(counts)) if counts else None)
    return [each for name, answer in table.items() for each in _figures(name, answer, records)]


NOTE = "Light: 95 % interval. Dark: what the noise leaves open."


def _figures(name: str, answer: Answer, records: Axis) -> list[Figure]:
    rows = tuple(_ranged(label, each) for label, each in answer.items())
    if answer.places is not None:
        return [_curve(name, answer.places, rows)]
    if answer.unit is None:
        titles = [f"{name}: {row.label}" if len(rows) > 1 else name for row in rows]
        return [
            Intervals(title=title, rows=(row,), x=Axis(""), note=NOTE)
            for title, row in zip(titles, rows, strict=True)
        ]
    axis = records if answer.unit == "records" else Axis("")
    return [Intervals(title=name, rows=rows, x=axis, note=NOTE)]


def _curve(name: str, places: Sequence[float], rows: tuple[Ranged, ...]) -> Figure:
    # A curve starts at probability 1, which is known without any record.
    start = Ranged("0", 1.0, (1.0, 1.0), (1.0, 1.0), "1")
    return BandedCurve(
        title=name, places=(0.0, *places), rows=(start, *rows), x=Axis("time"),
        y=Axis("probability of no event", zero=True), note=NOTE,
    )  # fmt: skip


def _ranged(label: str, each: Estimate) -> Ranged:
    known = math.isfinite(each.noise_error)
    return Ranged(
        label, float(each.estimate) if known else None,
        _ends(each.interval), _ends(each.among_records),
        minus(f"{each.estimate:.4g} ({ends(each.interval)})") if known else "unknown",
    )  # fmt: skip


def _ends(interval: Interval) -> tuple[float | None, float | None]:
    # None for an end at infinity, which a picture cannot show.
    lower, upper = float(interval.lower), float(interval.upper)
    return lower if math.isfinite(lower) else None, upper if math.isfinite(upper) else None


def facts(table: Table) -> Facts:
    """Return all estimates with their intervals as a table."""
    rows = [
        [f"{name}: {label}", *(minus(cell).replace("inf", "∞") for cell in (
            f"{each.estimate:.4g}", ends(each.interval), ends(each.among_records),
            f"{each.noise_error:.2g}", f"{each.sampling_error:.2g}",
        ))]
        for name, answer in table.items()
        for label, each in answer.items()
    ]  # fmt: skip
    title = f"Estimates, {bound(table.guarantee.epsilon)}"
    return title + f"; {SIMULATED}" * table.guarantee.simulated, COLUMN_NAMES, rows


def as_json(table: Table) -> dict[str, Any]:
    """Convert a table to the JSON object that the command prints."""
    guarantee = table.guarantee
    answers = {
        name: {
            label: {
                "estimate": each.estimate, "interval": each.interval,
                "among_records": each.among_records, "noise_error": each.noise_error,
                "sampling_error": each.sampling_error,
            }
            for label, each in answer.items()
        }
        for name, answer in table.items()
    }  # fmt: skip
    return {
        "table": answers, "epsilon": guarantee.epsilon, "delta": guarantee.delta,
        "neighboring": guarantee.neighboring, "trust": guarantee.trust, "unit": guarantee.unit,
        "simulated": guarantee.simulated, "records": table.records, "clients": table.clients,
        "other_relation": table.other_relation, "noise": table.terms.noise,
    }  # fmt: skip


def page(table: Table) -> str:
    """Write a table as the text of one HTML page.

    Guarantees:
        The page is self-contained: it refers to nothing outside itself, its policy allows no
        script but its own, and it says everything without that script.
        A printed epsilon is never below the certified one.
    """
    guarantee = table.guarantee
    about = f"at δ = {minus(formatting.plain(guarantee.delta))}, {guarantee.trust} trust"
    cards = [
        ("Records", f"{table.records:,}", [f"of {formatting.count(table.clients, 'client')}"]),
        ("Guarantee", bound(guarantee.epsilon),
         [f"{about}, one {guarantee.unit}", *pages.other_figure(table.other_relation),
          *[SIMULATED] * guarantee.simulated]),
        ("Questions", str(len(table)), [formatting.count(
            sum(map(len, table.values())), "estimate") + " in one account"]),
    ]  # fmt: skip
    paragraphs = [
        ("What it means.", _promise(guarantee)),
        *[("Who adds the noise.", note) for note in table.terms.notes],
        ("What the intervals contain.", CONTAINED),
    ]  # fmt: skip
    sections = [
        Section("Answers", figures(table)),
        Section("", [DataTable(*facts(table), "numbers")], columns=False),
        Section("What it means", [Paragraphs(paragraphs)], columns=False, text=True),
        pages.coverage(table.guarantee, COVERED, UNCOVERED),
    ]
    lead = "Statistics of clients' records, from one noisy sum that answers all questions."
    return pages.report("randquant statistics", "A table", _title(table), lead, sections,
                        cards=cards)  # fmt: skip


def _title(table: Table) -> str:
    # Unbroken: a narrow heading must not part the sign from its number.
    epsilon = bound(table.guarantee.epsilon).replace(" ", "\u00a0")
    return f"{formatting.count(table.records, 'record')}, {epsilon}"


def _promise(guarantee: Guarantee) -> str:
    change = "Replace all records of one client by anything else."
    if guarantee.unit == "example":
        change = "Replace one record of one client by any other."
    # A table's observers differ from those of training, which see models.
    observer = pages.observer(guarantee)
    if guarantee.trust == "central":
        observer = "someone who sees this table"
    elif guarantee.trust == "aggregate":
        observer = "a server that sees only the noisy sum over all clients"
    return (
        f"{change} The probability of anything that {observer} can conclude is then at most e^ε "
        f"times what it was, plus at most δ = {minus(formatting.plain(guarantee.delta))}: proven, "
        "and rounded up."
    )
