"""A progress bar for notebooks and terminals, if rich is installed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

from randquant._internal.rounding import round_up
from randquant.training.records import RoundMetrics

Show = Callable[[RoundMetrics], None]
"""Called after each round."""


@contextlib.contextmanager
def bar(rounds: int, wanted: bool) -> Iterator[Show]:
    """Show rounds on standard error; nothing if it is neither a terminal nor a notebook.

    Args:
        rounds: how many rounds there are.
        wanted: False to show nothing.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ModuleNotFoundError:
        yield _nothing
        return
    console = Console(stderr=True)
    if not (wanted and (console.is_terminal or console.is_jupyter)):
        yield _nothing
        return
    columns = [
        BarColumn(bar_width=30),
        TextColumn("round {task.completed}/{task.total}"),
        TextColumn("{task.fields[measured]}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=rounds, measured="")
        last = ""

        def show(metrics: RoundMetrics) -> None:
            nonlocal last
            last = _evaluated(metrics) or last
            progress.update(task, completed=metrics.round, measured=last + _spent(metrics))

        yield show


def _nothing(metrics: RoundMetrics) -> None:
    pass


def _evaluated(metrics: RoundMetrics) -> str:
    if metrics.accuracy is not None:
        return f"accuracy {metrics.accuracy:.3f} "
    return "" if metrics.loss is None else f"loss {metrics.loss:.4g} "


def _spent(metrics: RoundMetrics) -> str:
    if metrics.epsilon is None:
        return ""
    shown = round_up(metrics.epsilon, 4) if math.isfinite(metrics.epsilon) else "infinity"
    return f"epsilon <= {shown}"
