"""Progress reports of work that may take more than two seconds.

The caller decides where reports go (`reporting`); the work reports its steps (`report`), however
deep in the call stack. A context variable carries the receiver, so cached functions need no
argument for it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any

from randquant._internal import validate

Report = Callable[[str, int, int], None]
"""(what, done, total): the current step, the number of finished steps, and the number of all steps;
0 if the total is not known."""


def quiet(what: str, done: int, total: int) -> None:
    """Ignore a report."""


_current: ContextVar[Report] = ContextVar("progress", default=quiet)


def report(what: str, done: int, total: int) -> None:
    _current.get()(what, done, total)


def has_listener() -> bool:
    return _current.get() is not quiet


@contextlib.contextmanager
def reporting(progress: Report) -> Iterator[None]:
    """Send all reports within the context to `progress`; `quiet` leaves the receiver as it is.

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


LIKELY_STEPS = 4
"""Expected number of steps of a search of unknown length: most take two to four. It only affects
the bar: longer searches extend it."""


@contextlib.contextmanager
def searching(what: str, done: int) -> Iterator[None]:
    """Report a step of a search of unknown length, like `step`, with an estimated total.

    Example:
        >>> seen = []
        >>> with reporting(lambda *each: seen.append(each)), searching("order 2", 5):
        ...     pass
        >>> seen
        [('order 2', 5, 6)]
    """
    with step(what, done, max(LIKELY_STEPS, done + 1)):
        yield


@contextlib.contextmanager
def step(what: str, done: int, total: int) -> Iterator[None]:
    """Report a step of a larger work, and prefix the reports of the step itself with its name.

    Inner steps are named, not counted: `done` and `total` stay the same within the step.

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
"""Label of the bar before the first report."""

BAR_DELAY_SECONDS = 2.0
"""Time before a bar appears: shorter work would only make the terminal flicker."""


class Bars:
    """Bars by name; the first one makes them appear.

    Args:
        shown: whether to show them at all; by default only on a terminal or in a notebook.
        passing: whether they are removed at the end.
    """

    def __init__(self, shown: bool | None = None, *, passing: bool = False) -> None:
        from rich import progress
        from rich.console import Console

        # Without ipywidgets rich draws nothing in a notebook and warns at every step: one line at
        # the end is printed then.
        plain = "ipykernel" in sys.modules and find_spec("ipywidgets") is None
        console = Console(stderr=True, force_jupyter=False if plain else None)
        watched = console.is_terminal or console.is_jupyter or plain
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
        """Show the finished steps, of a total (0: not known), and a text next to the bar."""
        if not self._tasks:
            self._progress.start()
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=None, text="")
        shown = {"completed": done, "total": total or None, "text": text}
        self._progress.update(self._tasks[name], description=label or name, **shown)

    def remove(self, name: str) -> None:
        if name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress.live.is_started:  # otherwise stopping prints an empty line
            self._progress.stop()


class WaitingBar:
    """A bar for the work within the context, if it takes long; itself a `Report`.

    Args:
        shown: whether to show it at all; by default only on a terminal or in a notebook.
        after: seconds before it appears; BAR_DELAY_SECONDS by default.
    """

    def __init__(self, shown: bool | None = None, after: float | None = None) -> None:
        # A program without a console, such as a Windows service, has no standard error.
        terminal = sys.stderr is not None and sys.stderr.isatty()
        watched = terminal or "ipykernel" in sys.modules
        self._shown = watched if shown is None else shown
        delay = BAR_DELAY_SECONDS if after is None else after
        self._timer = threading.Timer(delay, self._appear)
        self._timer.daemon = True  # a program that ends earlier does not wait for it
        self._lock = threading.Lock()
        self._bars: Bars | None = None
        self._last, self._total = ("", 0, 0), 0

    def __call__(self, what: str, done: int, total: int) -> None:
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
            self._shown = False  # the timer may have fired already and wait for the lock
            if self._bars is not None:
                self._bars.__exit__()

    def _appear(self) -> None:
        with self._lock:
            if self._shown:
                self._bars = Bars(shown=True, passing=True)
                self._show()

    def _show(self) -> None:
        # The caller holds the lock: the timer's thread and the work's thread both come here.
        if self._bars is not None:
            what, done, total = self._last
            if total != self._total:  # other work, at another speed: begin a new estimate of time
                self._bars.remove(WORKING)
                self._total = total
            self._bars.show(WORKING, done, total, label=what)


@contextlib.contextmanager
def waiting(progress: bool | Report = True) -> Iterator[None]:
    """Show the progress of the work within the context.

    Args:
        progress: True for a bar, on a terminal or in a notebook, unless a caller further up already
            shows one; False for no bar; or a function that receives the reports instead.

    Raises:
        TypeError: it has another type.
    """
    if callable(progress):
        with reporting(progress):
            yield
        return
    shown = validate.flag("progress", progress)
    if has_listener():
        yield
    elif shown:
        with WaitingBar() as bar, reporting(bar):
            yield
    else:  # a listener that ignores reports keeps inner calls from showing a bar
        with reporting(lambda *_: None):
            yield
