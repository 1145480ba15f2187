"""A training run in the terminal: a progress bar, then a short table."""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from randquant._internal.html import formatting
from randquant._internal.rounding import round_up
from randquant._internal.serialization import to_json
from randquant.mechanisms.registry import build, channel_mechanisms
from randquant.privacy.certificates.coordinate import Certificate, certify
from randquant.training.config import TrainConfig
from randquant.training.data import features
from randquant.training.records import RoundMetrics, RunRecord, RunSummary
from randquant.training.runs import folder as run_folder
from randquant.training.runs.folder import BASELINE, SUMMARY
from randquant.training.runs.status import Status


class Display:
    """A progress bar on standard error, one line per run."""

    def __init__(self, quiet: bool = False) -> None:
        self._progress = Progress(
            TextColumn("{task.description:>12}"),
            BarColumn(bar_width=30),
            TextColumn("round {task.completed}/{task.total}"),
            TextColumn("accuracy {task.fields[accuracy]}"),
            TextColumn("sent {task.fields[sent]}"),
            TextColumn("{task.fields[spent]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=quiet,
        )
        self._tasks: dict[str, TaskID] = {}
        self._sent: dict[str, int] = {}

    def round(self, config: TrainConfig, metrics: RoundMetrics) -> None:
        """Show that a round is done, and what all clients have sent so far.

        If cohorts differ in size, this excludes what was sent before a run was resumed.
        """
        name = config.mechanism
        if name not in self._tasks:
            self._progress.start()
            self._tasks[name] = self._progress.add_task(
                name, total=config.rounds, accuracy="  -  ", sent="", spent=""
            )
        task = self._tasks[name]
        before = metrics.bytes_up * (metrics.round - 1) if config.sampling == "fixed" else 0
        self._sent[name] = self._sent.get(name, before) + metrics.bytes_up
        sent = f"{8 * self._sent[name] / 1e6:,.1f} Mbit"
        self._progress.update(task, completed=metrics.round, sent=sent)
        if metrics.epsilon is not None:
            self._progress.update(task, spent=_spent(config, metrics.epsilon))
        if metrics.accuracy is not None:
            self._progress.update(task, accuracy=f"{metrics.accuracy:.3f}")

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tasks:  # stopping a display that never started prints an empty line
            self._progress.stop()


class SweepDisplay:
    """A progress bar on standard error for a whole sweep, and one for each running run."""

    def __init__(self, quiet: bool = False) -> None:
        self._progress = Progress(
            TextColumn("{task.description:>32}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=quiet,
        )
        self._tasks: dict[Path, TaskID] = {}
        self._all: TaskID | None = None
        self._failed = 0

    def sweep(self, total: int, done: int) -> None:
        """Show that a sweep of `total` runs starts, of which `done` are done."""
        self._progress.start()
        self._all = self._progress.add_task("runs", total=total, completed=done, status="")

    def round(self, folder: Path, config: TrainConfig, metrics: RoundMetrics) -> None:
        """Show that a run has finished a round."""
        if folder not in self._tasks:
            self._tasks[folder] = self._progress.add_task(
                folder.name, total=config.rounds, status=""
            )
        self._progress.update(self._tasks[folder], completed=metrics.round)
        if metrics.accuracy is not None:
            status_text = f"accuracy {metrics.accuracy:.3f}"
            if metrics.epsilon is not None:
                status_text += f"  {_spent(config, metrics.epsilon)}"
            self._progress.update(self._tasks[folder], status=status_text)

    def ended(self, status: Status) -> None:
        """Show that a run is over."""
        if status.folder in self._tasks:
            self._progress.remove_task(self._tasks.pop(status.folder))
        self._failed += status.state == "failed"
        status_text = f"{self._failed} failed" if self._failed else ""
        if self._all is not None:
            self._progress.update(self._all, advance=1, status=status_text)

    def __enter__(self) -> SweepDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        if self._all is not None:  # stopping a display that never started prints an empty line
            self._progress.stop()


def result(folder: Path, run: RunRecord) -> dict[str, Any]:
    """A finished run as the JSON object that `randquant train --json` prints."""
    baseline, summary = _baseline(folder), run.summary
    channel = _certificate(run.config)
    return {
        "run": str(folder),
        "report": str(folder / "report.html"),
        "config": run.config,
        **to_json(summary),
        "per_coordinate": channel and {"order": channel.order, "epsilon": channel.epsilon},
        "baseline_accuracy": baseline and baseline.accuracy,
        "fitted": features.statement(run.config, summary),
    }


def table(folder: Path, run: RunRecord) -> list[str]:
    """A finished run as the short table that ends `randquant train`."""
    summary, config, baseline = run.summary, run.config, _baseline(folder)
    other = None if baseline is None else baseline.accuracy
    beside = "" if other is None else f"   (without privacy {other:.4f})"
    accuracy = "not measured" if summary.accuracy is None else f"{summary.accuracy:.4f}"
    rows = [
        ("test accuracy", f"{accuracy}{beside}"),
        (
            "upload",
            f"{summary.bytes_per_upload:,} bytes a client and round "
            f"({summary.bits_per_coordinate:.2f} bits per coordinate{_sent_as(summary, config)})",
        ),
        ("guarantee", _guarantee(summary, config)),
    ]
    if summary.guarantee is not None:
        rows.append(("", _covered(summary, config)))
        if fitted := features.statement(config, summary):
            rows.append(("", fitted))
    if summary.stopped:
        rows.append(("stopped", summary.stopped))
    rows += [
        ("time", f"{summary.seconds:.1f} s for {summary.rounds} rounds"),
        ("report", str(folder / "report.html")),
    ]
    return [f"{name:<14} {text}" for name, text in rows]


def _guarantee(summary: RunSummary, config: TrainConfig) -> str:
    guarantee = summary.guarantee
    if guarantee is None or math.isinf(guarantee.epsilon):
        return "none: this run protects nothing"
    return (
        f"whole run, one {config.unit}: epsilon <= {round_up(guarantee.epsilon)} at "
        f"delta = {guarantee.delta} ({guarantee.neighboring}, {guarantee.trust} trust)"
    )


def _covered(summary: RunSummary, config: TrainConfig) -> str:
    whole = (
        f"{summary.dimension:,} coordinates x {summary.participations} rounds of the "
        "client called most often"
    )
    certificate = _certificate(config)
    if certificate is None:
        return whole
    if config.clip_norm is not None:  # a bound per coordinate could exceed that of the update
        return f"{whole}, updates clipped to an {config.norm} norm of {config.clip_norm}"
    upper = certificate.epsilon.upper
    single = f"<= {round_up(upper)}" if math.isfinite(upper) else "is infinite too"
    return f"{whole}; per coordinate epsilon {single}"


def _sent_as(summary: RunSummary, config: TrainConfig) -> str:
    guarantee = summary.guarantee
    if guarantee is None or guarantee.trust != "aggregate":
        return ", header included"
    plain = summary.bytes_as_codes
    beside = "" if plain is None else f"; {plain:,} bytes as plain codes"
    return f": masked for a sum of {config.cohort:,}, header included, handshake not{beside}"


def _spent(config: TrainConfig, epsilon: float) -> str:
    mark = "" if config.fitted_on == "public" else formatting.MARK * features.is_fitted(config)
    shown = round_up(epsilon, 4) if math.isfinite(epsilon) else "infinity"
    return f"epsilon <= {shown}{mark}"


def _certificate(config: TrainConfig) -> Certificate | None:
    if config.mechanism not in channel_mechanisms():
        return None
    return certify(build(config.mechanism, config.parameters), math.inf)


def _baseline(folder: Path) -> RunSummary | None:
    baseline = folder / BASELINE
    return run_folder.read_finished(baseline).summary if (baseline / SUMMARY).exists() else None
