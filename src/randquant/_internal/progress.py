"""How work that may take over two seconds reports how far it is.

Whoever waits says where reports go (`reporting`); the work says what it does (`report`), however
deep it is. Results that are remembered, and so are computed once only, need no argument for it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from randquant._internal import validate

Report = Callable[[str, int, int], None]
"""(what, done, total): what is done now, how many steps are done, and of how many; a total of 0
means that it is not known."""


def quiet(what: str, done: int, total: int) -> None:
    """Report to nobody."""


_current: ContextVar[Report] = ContextVar("progress", default=quiet)


def report(what: str, done: int, total: int) -> None:
    """Say how far the work is, to whoever waits for it."""
    _current.get()(what, done, total)


def listened() -> bool:
    """Whether somebody waits for reports."""
    return _current.get() is not quiet


@contextlib.contextmanager
def reporting(progress: Report) -> Iterator[None]:
    """Send reports of everything inside to `progress`; `quiet` leaves them where they went.

    Example:
        >>> seen = []
        >>> with reporting(lambda *step: seen.append(step)):
        ...     report("counting", 1, 3)
        >>> report("unheard", 2, 3)
        >>> seen
        [('counting', 1, 3)]
    """
    if progress is quiet:
        yield
        return
    token = _current.set(progress)
    try:
        yield
    finally:
        _current.reset(token)


LIKELY = 4
"""Steps that a search of unknown length is expected to take: most take two to four."""


@contextlib.contextmanager
def searching(what: str, done: int) -> Iterator[None]:
    """Report a step of a search whose length is not known, as `step`, of about LIKELY.

    Example:
        >>> seen = []
        >>> with reporting(lambda *each: seen.append(each)), searching("order 2", 5):
        ...     pass
        >>> seen
        [('order 2', 5, 6)]
    """
    with step(what, done, max(LIKELY, done + 1)):
        yield


@contextlib.contextmanager
def step(what: str, done: int, total: int) -> Iterator[None]:
    """Report a step of something larger, and whatever it reports itself under its name.

    Inner steps are named, not counted: `done` of `total` stays as it is while they go on.

    Example:
        >>> seen = []
        >>> with reporting(lambda *each: seen.append(each)), step("pbm", 1, 3):
        ...     report("noise 8.3", 2, 0)
        >>> seen
        [('pbm', 1, 3), ('pbm: noise 8.3', 1, 3)]
    """
    outer = _current.get()
    outer(what, done, total)
    with reporting(lambda inner, *_: outer(f"{what}: {inner}", done, total)):
        yield


# Progress on terminals and in notebooks: bars on standard error.

WORKING = "working"
"""Label of work that has not said yet what it does."""

AFTER = 2.0
"""Seconds of work before a bar appears that says how long it will take."""


class Bars:
    """Bars by name; the first one makes them appear.

    Args:
        shown: whether to show them at all; only on a terminal or in a notebook by default.
        passing: whether they are gone at the end.
    """

    def __init__(self, shown: bool | None = None, *, passing: bool = False) -> None:
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        watched = console.is_terminal or console.is_jupyter
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=30),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[text]}"),
            progress.TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not (watched if shown is None else shown),
            transient=passing,
        )
        self._tasks: dict[str, Any] = {}

    def show(self, name: str, done: int, total: int, text: str = "", label: str = "") -> None:
        """Show how many steps are done, of how many (0: not known), and a text beside the bar."""
        if not self._tasks:
            self._progress.start()
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=None, text="")
        shown = {"completed": done, "total": total or None, "text": text}
        self._progress.update(self._tasks[name], description=label or name, **shown)

    def remove(self, name: str) -> None:
        """Remove the bar of that name, if there is one."""
        if name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress.live.is_started:  # otherwise stopping prints an empty line
            self._progress.stop()


class WaitingBar:
    """Shows how far the work inside is, if it takes long.

    It is itself the `Report` to which work reports, see `randquant._internal.progress`.

    Args:
        shown: whether to show it at all; only on a terminal or in a notebook by default.
        after: seconds before it appears; AFTER by default.
    """

    def __init__(self, shown: bool | None = None, after: float | None = None) -> None:
        # A program without a console, as of pythonw or of a service, has no standard error.
        terminal = sys.stderr is not None and sys.stderr.isatty()
        watched = terminal or "ipykernel" in sys.modules
        self._shown = watched if shown is None else shown
        self._timer = threading.Timer(AFTER if after is None else after, self._appear)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._bars: Bars | None = None
        self._last, self._total = ("", 0, 0), 0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take a report: what is done now, how many steps are done, of how many (0: not known)."""
        with self._lock:
            self._last = (what, done, total)
            self._show()

    def __enter__(self) -> WaitingBar:
        if self._shown:
            self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._shown = False
            if self._bars is not None:
                self._bars.__exit__()

    def _appear(self) -> None:
        with self._lock:
            if self._shown:
                self._bars = Bars(shown=True, passing=True)
                self._show()

    def _show(self) -> None:
        """Show the last report; the caller holds the lock."""
        if self._bars is not None:
            what, done, total = self._last
            if total != self._total:  # other work, at another speed
                self._bars.remove(WORKING)
                self._total = total
            self._bars.show(WORKING, done, total, label=what)


@contextlib.contextmanager
def waiting(progress: bool | Report = True) -> Iterator[None]:
    """Show how far the work inside is.

    Args:
        progress: True for a bar, on a terminal or in a notebook, unless whoever called shows one;
            False for none; or the function that is told instead.

    Raises:
        TypeError: it is none of these.
    """
    if callable(progress):
        with reporting(progress):
            yield
        return
    shown = validate.flag("progress", progress)
    if listened():
        yield
    elif shown:
        with WaitingBar() as bar, reporting(bar):
            yield
    else:  # what is inside shows no bar of its own
        with reporting(lambda *_: None):
            yield
