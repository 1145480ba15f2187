"""Runs in the terminal: a bar for all of them, and one for each that is trained now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from randquant.training import RoundMetrics, RunStatus
from randquant_papers.configuration import PaperConfig
from randquant_papers.data import fitted


class RunBars:
    """Bars on standard error, on a terminal only; use it in a `with` statement.

    Args:
        quiet: whether to show none.
    """

    def __init__(self, quiet: bool = False) -> None:
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        self._bars = progress.Progress(
            "{task.description}",
            progress.BarColumn(bar_width=30),
            progress.MofNCompleteColumn(),
            "{task.fields[text]}",
            progress.TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._tasks: dict[str, Any] = {}
        self._measured: dict[str, str] = {}
        self._done = self._failed = 0

    def sweep(self, total: int, done: int) -> None:
        """Show that `total` runs are wanted, of which `done` are done."""
        self._done = done
        self._show("runs", done, total, "")

    def round(self, folder: Path, config: PaperConfig, metrics: RoundMetrics) -> None:
        """Show that a run has finished a round."""
        name = folder.name
        if metrics.accuracy is not None:
            self._measured[name] = f"accuracy {metrics.accuracy:.4f}"
        spent = fitted.spent(metrics.epsilon, config)
        epsilon = f"epsilon <= {spent}" if spent else ""
        text = f"{self._measured.get(name, '')}  {epsilon}".strip()
        self._show(name, metrics.round, config.rounds, text)

    def ended(self, status: RunStatus) -> None:
        """Show that a run is over."""
        if (task := self._tasks.pop(status.folder.name, None)) is not None:
            self._bars.remove_task(task)
        self._done += 1
        self._failed += bool(status.error)
        self._show("runs", self._done, None, f"{self._failed} failed" * (self._failed > 0))

    def _show(self, name: str, done: int, total: int | None, text: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=None, text="")
        self._bars.update(self._tasks[name], completed=done, total=total, text=text)

    def __enter__(self) -> RunBars:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()
