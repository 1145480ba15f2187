"""How work that may take over two seconds reports how far it is.

Whoever waits says where reports go (`reporting`); the work says what it does (`report`), however
deep it is. Results that are remembered, and so are computed once only, need no argument for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

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
