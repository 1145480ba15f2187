"""A grid that shows only clients whose epsilon allows another round."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.serverapp import Grid

from randquant.integrations.flower.accountant import RoundEvent, RunAccountant
from randquant.integrations.flower.grids import DelegatingGrid
from randquant.integrations.flower.offer import Offer


class EligibleGrid(DelegatingGrid):
    """Delegates to another grid, but hides clients that would exceed the accountant's limit.

    Attributes:
        exhausted: clients that were hidden when nodes were last requested.
    """

    def __init__(self, grid: Grid, offer: Offer, accountant: RunAccountant) -> None:
        super().__init__(grid)
        self._offer, self._accountant = offer, accountant
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

    def too_few(self, least: int) -> str:
        """Why fewer clients than that may still take part; empty if they may."""
        left, spent = len(list(self.get_node_ids())), len(self.exhausted)
        if not spent or left >= least:
            return ""
        return (
            f"epsilon of {spent} clients would have exceeded {self._accountant.max_epsilon}, and "
            f"{left} others are too few"
        )
