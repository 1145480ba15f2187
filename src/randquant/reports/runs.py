"""Several runs on one self-contained page: their curves overlaid, their settings side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from randquant._internal import formatting
from randquant.reports import pages
from randquant.reports.figures import COLORS, Axis, Figure, line_chart
from randquant.reports.pages import DataTable, Notes, Part, Section
from randquant.reports.run import EMPTY
from randquant.reports.run_pictures import SO_FAR
from randquant.training import settings
from randquant.training.records import RoundMetrics
from randquant.training.runs.status import Status, notes


def render(runs: Sequence[Status]) -> str:
    """Turn runs into the text of one HTML page.

    Args:
        runs: finished or not; damaged ones are only listed.

    Returns:
        A whole HTML document.

    Guarantees:
        The page is self-contained, and all text of configurations is escaped.
        The printed epsilons are never below the real ones.

    Raises:
        ValueError: none of the runs can be read.
    """
    known = [run for run in runs if run.config is not None and run.state != "damaged"]
    if not known:
        raise ValueError(f"Expected runs to draw, got {runs[0].folder}: {runs[0].error}")
    labels = _labels(known)
    title = f"{formatting.count(len(known), 'run')} side by side"
    datasets = ", ".join(sorted({run.config.task.dataset for run in known if run.config}))
    sections = [
        Section("Training", _charts(known, labels)),
        Section("Outcomes", _outcomes(known, labels)),
        Section("Settings", _settings(known, labels)),
        Section("Runs that cannot be read", _damaged(runs)),
    ]
    return pages.report(title, "Training runs compared", title, f"Data: {datasets}.", sections)


def _labels(runs: Sequence[Status]) -> list[str]:
    """Names of runs: the last parts of their paths, as many as make them different."""
    for depth in (1, 2, 3):
        labels = ["/".join(run.folder.resolve().parts[-depth:]) for run in runs]
        if len(set(labels)) == len(labels):
            return labels
    return [str(run.folder) for run in runs]


def _charts(runs: Sequence[Status], labels: Sequence[str]) -> list[Figure]:
    styles = _styles(labels)

    def lines(
        pick: Callable[[RoundMetrics], float | None],
    ) -> list[tuple[str, list[tuple[float, float]], str]]:
        drawn = []
        for run, (label, style) in zip(runs, styles, strict=True):
            points = [(m.round, value) for m in run.metrics if (value := pick(m)) is not None]
            if points:
                drawn.append((label, points, style))
        return drawn

    accuracy = lines(lambda m: None if m.accuracy is None else 100 * m.accuracy)
    charts: list[Figure] = [
        line_chart("Accuracy on test data, per round", accuracy, "round", "accuracy, %"),
        line_chart("Loss on test data, per round", lines(lambda m: m.loss), "round", "loss, nats"),
    ]
    spent = lines(lambda m: m.epsilon)
    if any(math.isfinite(y) for _, points, _ in spent for _, y in points):
        note = " ".join([f"{SO_FAR} Each at its run's δ.", *(f"{each}." for each in notes(runs))])
        up = Axis("epsilon (log scale)", log=True, bound=True)
        charts.append(line_chart("Epsilon so far, per round", spent, "round", up, note=note))
    return charts


def _styles(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Each run's label and the style of its line; dashed where colours repeat."""
    return [
        (label, f"c{k % COLORS + 1}" + " dashed" * (k // COLORS % 2))
        for k, label in enumerate(labels)
    ]


def _outcomes(runs: Sequence[Status], labels: Sequence[str]) -> list[Part]:
    columns = (
        "run", "accuracy, %", "ε ≤", "δ", "neighbours", "trust", "rounds", "bytes per upload",
        "state",
    )  # fmt: skip
    rows = []
    for run, label in zip(runs, labels, strict=True):
        assert run.config is not None
        rows.append(
            (
                label,
                formatting.number(run.accuracy, 2, scale=100),
                "none" if run.epsilon is None else formatting.spent(run.epsilon),
                "" if run.delta is None else formatting.plain(run.delta),
                _hidden(run),
                "" if run.guarantee is None else run.guarantee.trust,
                f"{run.rounds:,} of {run.config.rounds:,}",
                "" if run.bytes_per_upload is None else f"{run.bytes_per_upload:,}",
                run.state,
            )
        )
    title = "Each ε covers all declared rounds of one run: for clients in several runs they add up"
    return [
        DataTable(title, columns, rows, "numbers"),
        Notes([f"{note}." for note in notes(runs)]),
    ]


def _hidden(run: Status) -> str:
    if run.guarantee is None or run.config is None:
        return ""
    return f"{run.guarantee.neighboring.replace('_', ' ')} {run.config.privacy.unit}"


def _settings(runs: Sequence[Status], labels: Sequence[str]) -> list[Part]:
    """Tables of the settings that differ and of those that are the same."""
    configs = [run.config for run in runs if run.config is not None]
    differ = settings.differing(configs)
    flat = [settings.flat(config) for config in configs]
    tables: list[Part] = []
    if differ:
        rows = [
            (label, *(_shown(name, run.get(name)) for name in differ))
            for label, run in zip(labels, flat, strict=True)
        ]
        columns = ("run", *differ)
        tables.append(DataTable("Settings that differ", columns, rows, "numbers", wide=True))
    same = [(name, _shown(name, value)) for name, value in flat[0].items() if name not in differ]
    tables.append(DataTable("Settings of all runs", ("setting", "value"), same, "settings"))
    return tables


def _shown(name: str, value: Any) -> str:
    return EMPTY.get(name, "") if value in (None, "") else formatting.plain(value)


def _damaged(runs: Sequence[Status]) -> list[Part]:
    rows = [(str(run.folder), run.error) for run in runs if run.state == "damaged"]
    return [DataTable("Why", ("run", "reason"), rows, "claims")] if rows else []
