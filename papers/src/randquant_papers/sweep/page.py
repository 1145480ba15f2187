"""A sweep as one self-contained page: accuracy against epsilon, and every run in a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from randquant.reports import (
    Axis,
    DataTable,
    Group,
    Mark,
    Paragraphs,
    ScatterPlot,
    Section,
    Series,
    formatting,
    report_page,
)
from randquant.training import RunStatus
from randquant_papers.configuration import config_of, named_settings
from randquant_papers.data import fitted
from randquant_papers.files import write_atomic
from randquant_papers.page import TEMPLATES
from randquant_papers.sweep.summary import CAUTION, Results, cells, counted, series

WITHOUT = "without privacy"


def write_page(folder: Path, outcome: Results, output: Path | None = None) -> Path:
    """Write the page of a sweep, by default into its folder, and return its path."""
    path = output or folder / "report.html"
    write_atomic(path, render(folder.resolve().name, outcome).encode("utf-8", "xmlcharrefreplace"))
    return path


def render(name: str, outcome: Results) -> str:
    """Turn the results of a sweep into the text of one HTML page.

    Args:
        name: of the sweep.
        outcome: its runs and frontiers.

    Returns:
        A whole HTML document.

    Guarantees:
        The page is self-contained: it refers to nothing outside itself, its policy allows no
        script but its own, and it is readable without that script.
        The printed epsilons are never below the real ones. All text of a sweep is escaped.
    """
    drawn = _drawn(outcome)
    sections = [
        Section("Accuracy against epsilon", [_chart(drawn, outcome), _aside(outcome)]),
        Section("How to read it", [_reading(outcome)], columns=False, text=True),
        Section("Means over seeds", _averages_table(outcome)),
        Section("All finished runs", [_runs_table(outcome)] if outcome.measured else []),
        Section("What they share", _shared_tables(outcome)),
        Section("Runs that did not finish", _others_table(outcome)),
    ]
    lead = f"{formatting.count(len(outcome.runs), 'run')}: {counted(outcome)}."
    own = {"style": "sweep.css", "script": "sweep.js", "templates": TEMPLATES}
    return report_page(name, "Sweep", name, lead, sections, **own)


def _drawn(outcome: Results) -> dict[str, list[RunStatus]]:
    """Finished runs by their label in the legend; those without privacy last."""
    groups: dict[str, list[RunStatus]] = {label: [] for label in outcome.best_of}
    for run in outcome.measured:
        groups.setdefault(_group(run), []).append(run)
    return groups


def _group(run: RunStatus) -> str:
    """The label of a run's series in the legend."""
    return WITHOUT if run.epsilon is None else series(run)


def _chart(drawn: dict[str, list[RunStatus]], outcome: Results) -> ScatterPlot:
    best = {name for names in outcome.best_of.values() for name in names}
    note = "Full marks are on the frontier of all runs, hollow ones are beaten by another run. "
    note += "Dashed: what one mechanism reached with at most that epsilon."
    if any(run.epsilon is None or math.isinf(run.epsilon) for run in outcome.measured):
        note += " Dotted lines: runs for which no finite epsilon is proven."
    return ScatterPlot(
        title="Test accuracy and certified epsilon of whole runs",
        note=note,
        series=tuple(
            Series(label, tuple(_mark(run, outcome) for run in runs), _steps(runs, best))
            for label, runs in drawn.items()
        ),
        x=Axis("epsilon of the whole run, upper bound (log scale)", log=True, bound=True),
        y=Axis("accuracy, %"),
    )


def _mark(run: RunStatus, outcome: Results) -> Mark:
    known = run.epsilon is not None and math.isfinite(run.epsilon)
    return Mark(
        run.folder.name,
        f"{_described(run, outcome.varied)}: accuracy {_accuracy(run)} %, {_bound(run)}",
        run.epsilon if known else None,
        100 * (run.accuracy or 0.0),
        run.folder.name in outcome.best,
    )


def _steps(runs: Sequence[RunStatus], best: set[str]) -> tuple[tuple[float, float], ...]:
    kept = [run for run in runs if run.folder.name in best]
    return tuple((run.epsilon or 0.0, 100 * (run.accuracy or 0.0)) for run in kept)


def _aside(outcome: Results) -> Group:
    """Beside the chart: a panel for the selected run, and below it the frontier."""
    kept = [run for run in outcome.measured if run.folder.name in outcome.best]
    rows = [
        (
            fitted.spent(run.epsilon, run.config),
            _accuracy(run),
            _described(run, outcome.varied),
        )
        for run in kept
    ]
    columns = ("ε ≤", "accuracy, %", "settings")
    table = DataTable("The frontier of all runs", columns, rows, "numbers compared")
    return Group([PANEL, *([table] if rows else [])])


PANEL = (
    '<div id="panel" aria-live="polite" hidden>'
    "<p>Point at a run, tap it, or move through the runs with the arrow keys.</p></div>"
)


def _reading(outcome: Results) -> Paragraphs:
    promised = next((run for run in outcome.measured if run.guarantee), None)
    paragraphs = []
    if promised is not None and promised.guarantee and promised.config:
        delta = formatting.minus(formatting.plain(promised.guarantee.delta))
        kind = promised.guarantee.neighboring.replace("_", " ")
        paragraphs.append(
            (
                "What epsilon is.",
                f"A proven upper bound for the whole of that one run, at δ = {delta} ({kind} "
                f"{promised.config.privacy.unit}), rounded up. Against whom it holds stands beside "
                "the mechanism: runs under different trust are not promises of the same kind.",
            )
        )
    for note in fitted.notes(outcome.measured):
        paragraphs.append(("What it does not cover.", f"{note[0].upper()}{note[1:]}."))
    paragraphs.append(("Chosen runs look better than they are.", CAUTION))
    paragraphs.append(
        (
            "One run, or all of them.",
            "A guarantee here covers one run. Clients who took part in several runs on the same "
            "data, whose results are all shown, have spent the sum.",
        )
    )
    return Paragraphs(paragraphs)


def _runs_table(outcome: Results) -> DataTable:
    names = outcome.varied[1:]
    columns = ["mechanism", "accuracy, %", "ε ≤", *names]
    columns += ["bytes per upload", "rounds", "frontier", "run"]
    own = {name for names in outcome.best_of.values() for name in names}
    rows = []
    for run in outcome.measured:
        name = run.folder.name
        rows.append(
            [
                cells(run, ["mechanism"])[0],
                _accuracy(run),
                fitted.spent(run.epsilon, run.config),
                *cells(run, names),
                f"{run.bytes_per_upload:,}",
                f"{run.rounds:,}",
                "all" if name in outcome.best else "mechanism" if name in own else "",
                name,
            ]
        )
    said = [{"data-run": run.folder.name, "data-series": _group(run)} for run in outcome.measured]
    title = "From the smallest epsilon to none"
    return DataTable(title, columns, rows, "numbers runs", attributes=said, wide=True)


def _averages_table(outcome: Results) -> list[DataTable]:
    names = [name for name in outcome.varied if name != "seed"]
    rows = [
        (
            _described(average.runs[0], names),
            str(len(average.runs)),
            formatting.number(average.accuracy, 2, scale=100),
            formatting.number(average.deviation, 2, scale=100),
            "none"
            if average.epsilon is None
            else fitted.spent(average.epsilon, average.runs[0].config),
            "yes" if average.best else "",
        )
        for average in outcome.averages
    ]
    columns = ("settings", "seeds", "mean accuracy, %", "deviation of a run", "ε ≤", "frontier")
    title = "Runs that differ only in their seed, from the smallest epsilon to none"
    return [DataTable(title, columns, rows, "numbers")] if rows else []


def _shared_tables(outcome: Results) -> list[DataTable]:
    """The settings that are the same in all runs, and those that are the same per mechanism."""
    by_mechanism: dict[str, dict[str, object]] = {}
    for run in outcome.runs:
        if run.config is not None:
            by_mechanism.setdefault(run.config.mechanism, named_settings(config_of(run)))
    names = dict.fromkeys(name for common in by_mechanism.values() for name in common)
    shared, own = [], []
    for name in names:
        values = [_setting(name, common) for common in by_mechanism.values()]
        if name in outcome.varied:
            continue
        if len(set(values)) == 1:
            shared.append((name, values[0]))
        else:
            own.append((name, *values))
    tables = [DataTable("All runs", ("setting", "value"), shared, "settings")]
    if own:
        columns = ("setting", *by_mechanism)
        tables.append(DataTable("Runs of one mechanism", columns, own, "settings"))
    return tables


def _setting(name: str, values: dict[str, object]) -> str:
    if name not in values:
        return ""
    value = values[name]
    return "(none)" if value in (None, "") else formatting.plain(value)


def _others_table(outcome: Results) -> list[DataTable]:
    rows = [
        (run.folder.name, run.state, run.error) for run in outcome.runs if run.state != "finished"
    ]
    return [DataTable("Why", ("run", "state", "reason"), rows, "claims")] if rows else []


def _described(run: RunStatus, names: Sequence[str]) -> str:
    """A run's mechanism and the settings in which it differs."""
    mechanism, *values = cells(run, names)
    named = zip(names[1:], values, strict=True)
    return ", ".join([mechanism, *(f"{name} {value}" for name, value in named if value)])


def _accuracy(run: RunStatus) -> str:
    return formatting.number(run.accuracy, 2, scale=100)


def _bound(run: RunStatus) -> str:
    if run.epsilon is None:
        return WITHOUT
    return formatting.bound(run.epsilon) + fitted.mark(run.config)
