"""A bar with the time left for work that takes long, on standard error."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any

AFTER = 2.0
"""Seconds of work before a bar appears."""


class WaitingBar:
    """Shows how far the work inside is: on a terminal only, and only if it takes long.

    It is itself the `Report` to which work reports, see `randquant._internal.progress`.

    Args:
        shown: whether to show it at all; by default if standard error is a terminal.
        after: seconds before it appears.
    """

    def __init__(self, shown: bool | None = None, after: float = AFTER) -> None:
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._timer = threading.Timer(after, self._appear)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._bar: Any = None
        self._task: Any = None
        self._last: tuple[str, int, int] | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take a report: what is done now, how many steps are done, of how many (0: not known)."""
        with self._lock:
            self._last = (what, done, total)
            self._show()

    def __enter__(self) -> WaitingBar:
        if self._shown:
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._shown = False
            if self._bar is not None:
                self._bar.stop()

    def _appear(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        with self._lock:
            if self._shown:
                columns = (
                    TextColumn("{task.description}"),
                    BarColumn(bar_width=30),
                    TextColumn("{task.percentage:>3.0f} %"),
                    TimeRemainingColumn(),
                    TextColumn("left"),
                )
                console = Console(stderr=True)
                self._bar = Progress(*columns, console=console, transient=True)
                self._bar.start()
                self._task = self._bar.add_task("", total=None)
                self._show()

    def _show(self) -> None:
        """Show the last report; the caller holds the lock."""
        if self._bar is not None and self._last is not None:
            what, done, total = self._last
            self._bar.update(self._task, description=what, completed=done, total=total or None)
