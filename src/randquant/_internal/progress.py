"""How work that may take over two seconds reports how far it is."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""(what, done, total): what is done now, how many steps are done, and of how many; a total of 0
means that it is not known."""


def quiet(what: str, done: int, total: int) -> None:
    """Report to nobody."""


def within(progress: Report, what: str, done: int, total: int) -> Report:
    """The report of one step of something larger: its own steps are named, but not counted.

    Args:
        progress: where the larger work reports.
        what: the step.
        done, total: how many such steps are done, of how many.

    Example:
        >>> seen = []
        >>> report = within(lambda *args: seen.append(args), "pbm", 1, 3)
        >>> report("epsilon 8.3", 2, 0)
        >>> seen
        [('pbm: epsilon 8.3', 1, 3)]
    """

    def report(inner: str, *_: int) -> None:
        progress(f"{what}: {inner}", done, total)

    return report
