"""A grid that shows only clients whose epsilon allows another round."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from randquant.integrations.flower.accountant import RoundEvent, RunAccountant
from randquant.integrations.flower.offer import Offer


class EligibleGrid(Grid):
    """Delegates to another grid, but hides clients that would exceed the accountant's limit.

    Attributes:
        exhausted: clients that were hidden when nodes were last requested.
    """

    def __init__(self, grid: Grid, offer: Offer, accountant: RunAccountant) -> None:
        self._grid, self._offer, self._accountant = grid, offer, accountant
        self.exhausted: set[int] = set()

    def get_node_ids(self) -> Iterable[int]:
        """Connected clients that may take part."""
        connected = list(self._grid.get_node_ids())
        self._accountant.meet(connected)
        if self._accountant.max_epsilon is None:
            return connected
        self.exhausted = {
            client
            for client in connected
            if self._accountant.would_exceed(RoundEvent(self._offer, frozenset({client})))
        }
        return [client for client in connected if client not in self.exhausted]

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
