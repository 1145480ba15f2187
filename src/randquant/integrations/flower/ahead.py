"""How the secure sums of a run begin: each by itself, or with messages of the one before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Literal

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from randquant._internal import validate
from randquant.aggregation.secagg.graphs import Losses
from randquant.integrations.flower.handshake import Handshake, begin
from randquant.integrations.flower.offer import Offer
from randquant.privacy.guarantee import Trust

Way = Literal["apart", "ahead"]
WAYS: tuple[Way, ...] = ("apart", "ahead")


@dataclass
class Handshakes:
    """The handshakes of a run's sums.

    Attributes:
        way: `apart`, or `ahead` for handshakes that travel with the round before.
        least: fewest clients in a sum.
        graph: what a sum must withstand, or how many neighbours a client has; None for all.
        directory: public keys of all clients' identities, if they have them.
        last: number of the run's last round, after which none is needed.
        prepared: what the last round has prepared for the next one.
    """

    way: Way
    least: int
    graph: Losses | int | None
    directory: Mapping[int, bytes] | None
    last: int = 0
    prepared: Handshake | None = None

    def start(self, last: int) -> None:
        """Begin a run, whose first round has a handshake of its own."""
        self.last, self.prepared = last, None

    def of_round(
        self, requests: Sequence[Message], offer: Offer, connected: Collection[int]
    ) -> tuple[list[Message], Handshake]:
        """The handshake that was prepared, if it is of use; otherwise another.

        Args:
            requests: the strategy's, to the clients that it chooses now.
            offer: of this round.
            connected: clients that may take part in it.

        Returns:
            The requests, to the clients of the handshake; and the handshake.

        Raises:
            ValueError: see `begin`.
        """
        prepared, self.prepared = self.prepared, None
        if prepared is not None and prepared.over and prepared.offer == offer:
            present = sorted(prepared.pending.keys() & set(connected))
            fewest = max(prepared.terms.least, prepared.terms.threshold + 1)
            same = all(request.content == requests[0].content for request in requests)
            if same and len(present) >= fewest:
                return [_addressed(requests[0], client) for client in present], prepared
        clients = sorted({request.metadata.dst_node_id for request in requests})
        return list(requests), begin(offer, clients, self.least, self.graph, self.directory)

    def prepare(
        self,
        strategy: Strategy,
        number: int,
        offer: Offer,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Handshake | None:
        """The handshake of a later round, with the clients that the strategy would choose now.

        Returns:
            None if that round is to have its own, or there is none.
        """
        if self.way == "apart" or number > self.last:
            return None
        if len(list(grid.get_node_ids())) < fewest(strategy, self.least):
            return None  # the strategy would wait for more
        own = ConfigRecord(dict(config.items()))  # strategies write into it
        try:
            requests = strategy.configure_train(number, arrays, own, grid)
            clients = sorted({request.metadata.dst_node_id for request in requests})
            return begin(offer, clients, self.least, self.graph, self.directory)
        except ValueError as error:
            log(WARNING, "randquant: round %d begins with its own handshake: %s", number, error)
            return None


def checked_way(way: Way, trust: Trust | None) -> Way:
    """The way, if updates under this trust can take it: without sums there is no handshake."""
    validate.choice("handshake", way, WAYS)
    if trust != "aggregate" and way == "ahead":
        raise ValueError(
            "Expected handshake='ahead' under aggregate trust, got it under local trust, where "
            "nothing is summed and a round takes one message: leave it out."
        )
    return way


def checked_graph(neighbours: int | None, losses: Losses | None) -> Losses | int | None:
    """What says how many neighbours a client has; None for all others."""
    if losses is None:
        return None if neighbours is None else validate.whole("neighbours", neighbours, low=1)
    validate.kind("losses", losses, Losses)
    if neighbours is not None:
        raise ValueError("Expected neighbours or losses, got both: losses choose them.")
    return losses


def fewest(strategy: Strategy, least: int) -> int:
    """Fewest clients with which a strategy begins a round of `least` clients or more."""
    names = ("min_available_nodes", "min_train_nodes")
    return max([least, *(getattr(strategy, name, 0) for name in names)])


def _addressed(request: Message, client: int) -> Message:
    """The same request to another client."""
    facts = request.metadata
    return Message(
        request.content, client, facts.message_type, ttl=facts.ttl, group_id=facts.group_id
    )
