"""Grids that wrap another one: to show fewer clients, or to poll for replies more often."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from flwr.app import Message
from flwr.serverapp import Grid

NETWORK_GRID_NAMES = ("HttpGrid", "GrpcGrid")
"""Flower's grids that poll for replies every three seconds."""

MIN_POLL_SECONDS = 0.1
MAX_POLL_SECONDS = 3.0
POLL_SHARE = 0.03
"""Time between two polls as a share of the time waited so far, within the two limits in seconds.

The last poll of a step comes late by this share of the step at most. Half as much would double the
polls, and twice as much would save few. A SuperNode that has sent its reply polls for its next
message every three seconds: a late poll here may cost it one more of these.
"""


class DelegatingGrid(Grid):
    """Passes every call on to another grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def set_run(self, *arguments: object, **options: object) -> None:
        self._grid.set_run(*arguments, **options)  # type: ignore[arg-type]

    @property
    def run(self):
        return self._grid.run

    def create_message(self, *arguments: object, **options: object) -> Message:
        return self._grid.create_message(*arguments, **options)  # type: ignore[arg-type]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=timeout)


class EligibleGrid(DelegatingGrid):
    """Shows only the connected clients that may take part.

    Args:
        grid: the other grid.
        eligible: returns those that may take part, of the connected ones.

    Attributes:
        hidden: number of connected clients that were left out when nodes were last requested.
    """

    def __init__(self, grid: Grid, eligible: Callable[[Iterable[int]], list[int]]) -> None:
        super().__init__(grid)
        self._eligible, self.hidden = eligible, 0

    def get_node_ids(self) -> Iterable[int]:
        # Asked anew each time: clients connect and disconnect while a strategy waits for enough.
        connected = list(self._grid.get_node_ids())
        shown = self._eligible(connected)
        self.hidden = len(connected) - len(shown)
        return shown


class PollingGrid(DelegatingGrid):
    """Polls for replies soon after a request, and less often the longer they take.

    A round of secure sums has five steps, and a slow poll delays each of them.
    """

    @classmethod
    def over(cls, grid: Grid) -> Grid:
        # A grid that polls fast enough is returned as it is. By name: importing Flower's classes
        # would need extras that a simulation does without.
        return cls(grid) if type(grid).__name__ in NETWORK_GRID_NAMES else grid

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages and pull their replies, as `Grid.send_and_receive` does."""
        # Flower returns an empty number for a message that it could not send: nothing to wait for.
        waiting = {number for number in self._grid.push_messages(messages) if number}
        begun, replies = time.monotonic(), []
        while waiting and (timeout is None or time.monotonic() - begun < timeout):
            pulled = list(self._grid.pull_messages(waiting))
            replies += pulled
            waiting -= {reply.metadata.reply_to_message_id for reply in pulled}
            if waiting:
                waited = time.monotonic() - begun
                time.sleep(min(max(MIN_POLL_SECONDS, POLL_SHARE * waited), MAX_POLL_SECONDS))
        return replies  # after a timeout those that came: the sum leaves out the other clients
