"""Grids that delegate to another one, and show fewer clients, or look for replies more often."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from flwr.app import Message
from flwr.serverapp import Grid

OVER_THE_NETWORK = ("HttpGrid", "GrpcGrid")
"""Flower's grids that look for replies every three seconds."""

FIRST, SHARE, LAST = 0.1, 0.03, 3.0
"""Seconds between looks for replies: a share of those waited so far, from FIRST to LAST.

A SuperNode that has sent its reply looks for the next message every three seconds: what the last
of the others and this wait take together may cost it one more look.
"""


class DelegatingGrid(Grid):
    """Delegates everything to another grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def get_node_ids(self) -> Iterable[int]:
        """Delegate to the grid."""
        return self._grid.get_node_ids()

    def set_run(self, *arguments: object, **options: object) -> None:
        """Delegate to the grid."""
        self._grid.set_run(*arguments, **options)  # type: ignore[arg-type]

    @property
    def run(self):
        """The grid's run."""
        return self._grid.run

    def create_message(self, *arguments: object, **options: object) -> Message:
        """Delegate to the grid."""
        return self._grid.create_message(*arguments, **options)  # type: ignore[arg-type]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Delegate to the grid."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Delegate to the grid."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Delegate to the grid."""
        return self._grid.send_and_receive(messages, timeout=timeout)


class EligibleGrid(DelegatingGrid):
    """Shows only the connected clients that may take part.

    Args:
        grid: the other grid.
        eligible: chooses them.

    Attributes:
        hidden: how many were not shown when nodes were last requested.
    """

    def __init__(self, grid: Grid, eligible: Callable[[Iterable[int]], list[int]]) -> None:
        super().__init__(grid)
        self._eligible, self.hidden = eligible, 0

    def get_node_ids(self) -> Iterable[int]:
        """Connected clients that may take part."""
        connected = list(self._grid.get_node_ids())
        shown = self._eligible(connected)
        self.hidden = len(connected) - len(shown)
        return shown


class PollingGrid(DelegatingGrid):
    """Looks for replies soon after a request, and less often the longer they take.

    A round of secure sums waits for five messages one after the other, so what a grid
    adds to each counts as often.
    """

    @classmethod
    def over(cls, grid: Grid) -> Grid:
        """Such a grid over one that waits for long; other grids as they are."""
        return cls(grid) if type(grid).__name__ in OVER_THE_NETWORK else grid

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages and pull their replies, as `Grid.send_and_receive` does."""
        waiting = {number for number in self._grid.push_messages(messages) if number}
        begun, replies = time.monotonic(), []
        while waiting and (timeout is None or time.monotonic() - begun < timeout):
            found = list(self._grid.pull_messages(waiting))
            replies += found
            waiting -= {reply.metadata.reply_to_message_id for reply in found}
            if waiting:
                waited = time.monotonic() - begun
                time.sleep(min(max(FIRST, SHARE * waited), LAST))
        return replies
