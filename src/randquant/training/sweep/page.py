"""A sweep as one self-contained page: accuracy against epsilon, and every run in a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from randquant._internal.html import formatting, scatter, template
from randquant._internal.html import tables as text_tables
from randquant._internal.html.scatter import Mark
from randquant._internal.html.svg import minus
from randquant._internal.serialization import write_atomic
from randquant.training import settings
from randquant.training.runs.page import EMPTY
from randquant.training.runs.status import Status, fitted_notes
from randquant.training.sweep.script import SCRIPT, STYLE
from randquant.training.sweep.summary import CAUTION, Results, cells, counted, series

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
    body = [
        template.header(
            "Sweep", name, f"{formatting.count(len(outcome.runs), 'run')}: {counted(outcome)}."
        ),
        template.section("Accuracy against epsilon", [_chart(drawn, outcome), _aside(outcome)]),
        _reading(outcome),
        template.section("Means over seeds", _averages_table(outcome)),
        template.section("All finished runs", [_runs_table(drawn, outcome)])
        if outcome.measured
        else "",
        template.section("What they share", _shared_tables(outcome)),
        template.section("Runs that did not finish", _others_table(outcome)),
        template.footer(),
    ]
    return template.page(name, "\n".join(body), style=STYLE, script=SCRIPT)


def _drawn(outcome: Results) -> dict[str, list[Status]]:
    """Finished runs by their label in the legend; those without privacy last."""
    groups: dict[str, list[Status]] = {label: [] for label in outcome.best_of}
    for run in outcome.measured:
        groups.setdefault(WITHOUT if run.epsilon is None else series(run), []).append(run)
    return groups


def _chart(drawn: dict[str, list[Status]], outcome: Results) -> str:
    best = {name for names in outcome.best_of.values() for name in names}
    lines = [
        scatter.Series(label, [_mark(run, outcome) for run in runs], _steps(runs, best))
        for label, runs in drawn.items()
    ]
    note = "Full marks are on the frontier of all runs, hollow ones are beaten by another run. "
    note += "Dashed: what one mechanism reached with at most that epsilon."
    if any(run.epsilon is None or math.isinf(run.epsilon) for run in outcome.measured):
        note += " Dotted lines: runs for which no finite epsilon is proven."
    title = "Test accuracy and certified epsilon of whole runs"
    axes = ("epsilon of the whole run, upper bound (log scale)", "accuracy, %")
    return scatter.scatter(title, lines, *axes, note=note)


def _mark(run: Status, outcome: Results) -> Mark:
    return Mark(
        run.folder.name,
        f"{_described(run, outcome.varied)}: accuracy {_accuracy(run)} %, {_bound(run)}",
        math.inf if run.epsilon is None else run.epsilon,
        100 * (run.accuracy or 0.0),
        run.folder.name in outcome.best,
    )


def _steps(runs: Sequence[Status], best: set[str]) -> list[tuple[float, float]]:
    kept = [run for run in runs if run.folder.name in best]
    return [(run.epsilon or 0.0, 100 * (run.accuracy or 0.0)) for run in kept]


def _aside(outcome: Results) -> str:
    """Beside the chart: a panel for the selected run, and below it the frontier."""
    kept = [run for run in outcome.measured if run.folder.name in outcome.best]
    rows = [
        (
            formatting.spent(run.epsilon, run.covered),
            _accuracy(run),
            _described(run, outcome.varied),
        )
        for run in kept
    ]
    columns = ("ε ≤", "accuracy, %", "settings")
    table = text_tables.html("The frontier of all runs", columns, rows, "numbers compared")
    hint = "<p>Point at a run, tap it, or move through the runs with the arrow keys.</p>"
    panel = f'<div id="panel" aria-live="polite" hidden>{hint}</div>'
    return f"<div>{panel}{table if rows else ''}</div>"


def _reading(outcome: Results) -> str:
    promised = next((run for run in outcome.measured if run.guarantee), None)
    paragraphs = []
    if promised is not None and promised.guarantee and promised.config:
        delta = minus(formatting.plain(promised.guarantee.delta))
        kind = promised.guarantee.neighboring.replace("_", " ")
        paragraphs.append(
            (
                "What epsilon is.",
                f"A proven upper bound for the whole of that one run, at δ = {delta} ({kind} "
                f"{promised.config.unit}), rounded up. Against whom it holds stands beside the "
                "mechanism: runs under different trust are not promises of the same kind.",
            )
        )
    for note in fitted_notes(outcome.measured):
        paragraphs.append(("Features.", f"{note}."))
    paragraphs.append(("Chosen runs look better than they are.", CAUTION))
    paragraphs.append(
        (
            "One run, or all of them.",
            "A guarantee here covers one run. Clients who took part in several runs on the same "
            "data, whose results are all shown, have spent the sum.",
        )
    )
    text = "".join(f"<p><b>{lead}</b> {escape(rest)}</p>\n" for lead, rest in paragraphs)
    return f'<section class="text"><h2>How to read it</h2>{text}</section>'


def _runs_table(drawn: dict[str, list[Status]], outcome: Results) -> str:
    names = outcome.varied[1:]
    columns = ["mechanism", "accuracy, %", "ε ≤", *names]
    columns += ["bytes per upload", "rounds", "frontier", "run"]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    place = {run.folder: k for k, runs in enumerate(drawn.values()) for run in runs}
    own = {name for names in outcome.best_of.values() for name in names}
    body = ""
    for run in outcome.measured:
        name = run.folder.name
        on = "all" if name in outcome.best else "mechanism" if name in own else ""
        shown = [
            _accuracy(run),
            formatting.spent(run.epsilon, run.covered),
            *cells(run, names),
            f"{run.bytes_per_upload:,}",
            f"{run.rounds:,}",
            on,
            name,
        ]
        data = "".join(f"<td>{escape(text)}</td>" for text in shown)
        body += (
            f'<tr data-run="{escape(name)}" data-series="{place[run.folder]}">'
            f'<th scope="row">{escape(cells(run, ["mechanism"])[0])}</th>{data}</tr>\n'
        )
    return (
        '<div class="table wide"><p class="caption">From the smallest epsilon to none</p>'
        '<div class="scroll"><table class="numbers runs" aria-label="All finished runs">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div></div>\n"
    )


def _averages_table(outcome: Results) -> list[str]:
    names = [name for name in outcome.varied if name != "seed"]
    rows = [
        (
            _described(average.runs[0], names),
            str(len(average.runs)),
            formatting.number(average.accuracy, 2, scale=100),
            formatting.number(average.deviation, 2, scale=100),
            "none"
            if average.epsilon is None
            else formatting.spent(average.epsilon, average.runs[0].covered),
            "yes" if average.best else "",
        )
        for average in outcome.averages
    ]
    columns = ("settings", "seeds", "mean accuracy, %", "deviation of a run", "ε ≤", "frontier")
    title = "Runs that differ only in their seed, from the smallest epsilon to none"
    return [text_tables.html(title, columns, rows, "numbers")] if rows else []


def _shared_tables(outcome: Results) -> list[str]:
    """The settings that are the same in all runs, and those that are the same per mechanism."""
    by_mechanism: dict[str, dict[str, object]] = {}
    for run in outcome.runs:
        if run.config is not None:
            by_mechanism.setdefault(run.config.mechanism, settings.flat(run.config))
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
    tables = [text_tables.html("All runs", ("setting", "value"), shared, "settings")]
    if own:
        columns = ("setting", *by_mechanism)
        tables.append(text_tables.html("Runs of one mechanism", columns, own, "settings"))
    return tables


def _setting(name: str, values: dict[str, object]) -> str:
    if name not in values:
        return ""
    value = values[name]
    return EMPTY.get(name, "(none)") if value in (None, "") else formatting.plain(value)


def _others_table(outcome: Results) -> list[str]:
    rows = [
        (run.folder.name, run.state, run.error) for run in outcome.runs if run.state != "finished"
    ]
    return [text_tables.html("Why", ("run", "state", "reason"), rows, "claims")] if rows else []


def _described(run: Status, names: Sequence[str]) -> str:
    """A run's mechanism and the settings in which it differs."""
    mechanism, *values = cells(run, names)
    named = zip(names[1:], values, strict=True)
    return ", ".join([mechanism, *(f"{name} {value}" for name, value in named if value)])


def _accuracy(run: Status) -> str:
    return formatting.number(run.accuracy, 2, scale=100)


def _bound(run: Status) -> str:
    if run.epsilon is None:
        return WITHOUT
    return formatting.bound(run.epsilon) + formatting.MARK * (not run.covered)
