"""The results of a sweep: its frontiers, as JSON and as lines of text."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from randquant.privacy import round_up
from randquant.reports import formatting, text_table
from randquant.training import RunStatus
from randquant_papers.configuration import config_of, named_settings
from randquant_papers.data import fitted
from randquant_papers.files import to_json
from randquant_papers.sweep.averaging import Average, averages
from randquant_papers.sweep.pareto import frontier
from randquant_papers.sweep.status import sorted_by_epsilon, varied

CAUTION = (
    "Accuracies of runs that are chosen here are biased upward: the choice was made on the test "
    "data that they are measured on. Choosing on private data costs privacy too, which no run's "
    "epsilon includes."
)


@dataclass(frozen=True, slots=True)
class Results:
    """The status of the runs of a sweep, and the frontiers.

    Attributes:
        runs: every run.
        best: names of the folders of the runs on the frontier of all runs, by epsilon.
        best_of: the same among the runs of one mechanism and trust, by `series`.
    """

    runs: Sequence[RunStatus]
    best: list[str]
    best_of: dict[str, list[str]]

    @property
    def measured(self) -> list[RunStatus]:
        """Finished runs, from the smallest epsilon to none."""
        return sorted_by_epsilon(run for run in self.runs if run.state == "finished")

    @property
    def averages(self) -> list[Average]:
        """Averages of settings with several seeds, from the smallest epsilon to none."""
        return averages(self.runs)

    @property
    def varied(self) -> list[str]:
        """`mechanism`, and the names of the settings in which runs of one mechanism differ."""
        return varied([config_of(run) for run in self.runs if run.config is not None])


def series(run: RunStatus) -> str:
    """The group that a run is compared in: its mechanism and its trust."""
    assert run.config is not None
    trust = "" if run.guarantee is None else f", {run.guarantee.trust} trust"
    return run.config.mechanism + trust


def results(runs: Sequence[RunStatus]) -> Results:
    """Find the frontiers of a sweep's finished runs.

    Args:
        runs: with one delta and one neighbouring relation.
    """
    finished = [run for run in runs if run.state == "finished" and run.epsilon is not None]
    groups: dict[str, list[RunStatus]] = {}
    for run in finished:
        groups.setdefault(series(run), []).append(run)
    return Results(runs, _best(finished), {name: _best(groups[name]) for name in sorted(groups)})


def _best(runs: Sequence[RunStatus]) -> list[str]:
    points = [
        (run.accuracy or 0.0, math.inf if run.epsilon is None else run.epsilon) for run in runs
    ]
    return [runs[k].folder.name for k in frontier(points)]


def counted(outcome: Results) -> str:
    """How many runs there are in each state, the most common first."""
    states = Counter(run.state for run in outcome.runs)
    return ", ".join(f"{count} {state}" for state, count in states.most_common())


def as_json(folder: Path, outcome: Results) -> dict[str, Any]:
    """The object that `randquant-papers sweep --json` prints."""
    states = Counter(run.state for run in outcome.runs)
    return {
        "sweep": str(folder),
        "report": str(folder / "report.html"),
        "finished": states["finished"],
        "failed": states["failed"],
        "varied": outcome.varied,
        "frontier": outcome.best,
        "frontiers": outcome.best_of,
        "averages": [
            {
                "runs": [run.folder.name for run in average.runs],
                "accuracy": average.accuracy,
                "deviation": average.deviation,
                "epsilon": average.epsilon,
                "on_frontier": average.best,
            }
            for average in outcome.averages
        ],
        "runs": [_run_json(run, outcome) for run in outcome.runs],
    }


def _run_json(run: RunStatus, outcome: Results) -> dict[str, Any]:
    return {
        "run": str(run.folder),
        "name": run.folder.name,
        "state": run.state,
        "config": run.config,
        "accuracy": run.accuracy,
        "epsilon": run.epsilon,
        "guarantee": run.guarantee and to_json(run.guarantee),
        "fitted": fitted.statement(run),
        "bytes_per_upload": run.bytes_per_upload,
        "rounds": run.rounds,
        "on_frontier": run.folder.name in outcome.best,
        "error": run.error,
    }


def cells(run: RunStatus, names: Sequence[str]) -> list[str]:
    """A run's settings as text, numbers to six digits, except an exact epsilon."""
    assert run.config is not None
    values = named_settings(config_of(run))
    return [_short(name, values.get(name)) for name in names]


def _short(name: str, value: object) -> str:
    if value is None:
        return ""
    rounded = isinstance(value, float) and not name.endswith("epsilon")
    return f"{value:.6g}" if rounded else formatting.plain(value)


def as_text(folder: Path, outcome: Results) -> list[str]:
    """The frontier, the failures and a caution, as `randquant-papers sweep` prints them."""
    lines = [*_frontier_table(outcome), "", *_averages_table(outcome)]
    for run in (run for run in outcome.runs if run.state == "failed"):
        lines.append(f"failed         {run.folder.name}: {run.error}")
    lines.append(f"runs           {counted(outcome)}")
    lines += [f"note           {note}" for note in fitted.notes(outcome.measured)]
    if outcome.measured:
        note = f"note           {CAUTION}"
        lines += textwrap.wrap(note, 100, subsequent_indent=" " * 15)
    return [*lines, f"report         {folder / 'report.html'}"]


def _frontier_table(outcome: Results) -> list[str]:
    names = outcome.varied
    kept = {name for best in outcome.best_of.values() for name in best}
    rows = [
        [
            "*" if run.folder.name in outcome.best else "",
            *cells(run, names),
            f"{run.accuracy:.4f}",
            _epsilon(run),
            str(run.bytes_per_upload),
            run.folder.name,
        ]
        for run in outcome.measured
        if run.folder.name in kept or run.epsilon is None
    ]
    if not rows:
        return ["no run is finished"]
    head = "runs that no other run of their mechanism beats (* no other run at all)"
    for run in [run for run in outcome.measured if run.guarantee is not None][:1]:
        assert run.guarantee is not None
        assert run.config is not None
        head += f"; epsilon of the whole run at delta = {run.guarantee.delta}"
        head += f", {run.guarantee.neighboring} {run.config.privacy.unit}"
    columns = ["", *names, "accuracy", "epsilon <=", "bytes", "run"]
    return [head, *text_table(columns, rows)]


def _averages_table(outcome: Results) -> list[str]:
    if not outcome.averages:
        return []
    names = [name for name in outcome.varied if name != "seed"]
    rows = [
        [
            "*" if average.best else "",
            *cells(average.runs[0], names),
            str(len(average.runs)),
            f"{average.accuracy:.4f}",
            f"{average.deviation:.4f}",
            _epsilon(average),
        ]
        for average in outcome.averages
    ]
    columns = ["", *names, "seeds", "mean accuracy", "deviation", "epsilon <="]
    head = "means over seeds (* no other mean beats it); deviation of one run"
    return [head, *text_table(columns, rows), ""]


def _epsilon(run: RunStatus | Average) -> str:
    if run.epsilon is None:
        return "-"
    if math.isinf(run.epsilon):
        return "infinite"
    first = run if isinstance(run, RunStatus) else run.runs[0]
    return round_up(run.epsilon) + fitted.mark(first.config)
