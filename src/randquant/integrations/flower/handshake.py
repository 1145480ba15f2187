"""The steps of a secure sum before its upload, on the server's side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import log

from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.secagg.draw import Draw
from randquant.aggregation.secagg.graphs import Losses
from randquant.aggregation.secagg.server import SumServer
from randquant.aggregation.secagg.terms import ProtocolError, Terms
from randquant.integrations.flower import messages
from randquant.integrations.flower.messages import Head
from randquant.integrations.flower.offer import Offer
from randquant.integrations.flower.replies import Requests, checked, named

SESSION_BYTES = 16


@dataclass
class Handshake:
    """Clients agree to an offer and exchange keys, then shares; they draw the round's seed.

    Nothing here depends on an update. So each step may be a message of its own, or travel with a
    message of the sum before (docs/secure-aggregation.md).

    Attributes:
        offer, terms: what clients agree to.
        directory: public keys of all clients' identities, if they have them.
        refused: clients whose messages were not used, and why.
        step: of `pending`: advertise, then share; upload once the handshake is over.
        pending: what is to be sent next, by client.
        mechanism: the offered one; with the round's seed once that is drawn.
    """

    offer: Offer
    terms: Terms
    directory: Mapping[int, bytes] | None = None
    refused: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = SumServer(self.terms, self.directory)
        self.server.refused = self.refused  # shared
        self.mechanism: UpdateMechanism = self.offer.mechanism
        self._draw = Draw(self.terms.session) if self.offer.drawn else None
        self.step = messages.ADVERTISE
        head = Head(
            messages.ADVERTISE,
            self.terms.session,
            self.offer.to_text(),
            messages.terms_text(self.terms),
            commitment=b"" if self._draw is None else self._draw.commitment,
        )
        self.pending: Requests = {c: {messages.HEAD: head.record()} for c in self.terms.clients}

    @property
    def over(self) -> bool:
        """Whether the next message is the request to upload."""
        return self.step == messages.UPLOAD

    def advance(
        self,
        replies: Iterable[Message],
        part: Callable[[int, RecordDict], RecordDict] = lambda client, content: content,
    ) -> None:
        """Take the replies to the pending requests, and go on to the next step.

        Args:
            replies: of clients that were asked, or errors in their place.
            part: which records of a client's reply are of this handshake.

        Raises:
            ProtocolError: too few clients are left.
        """
        inboxes: dict[int, dict[int, bytes]] = {}

        def take(client: int, content: RecordDict) -> None:
            inbox = messages.read_inbox(content)
            if self._draw is not None and self.step == messages.ADVERTISE:
                self._draw.add(client, Head.read(content).part)
            inboxes[client] = inbox

        session = self.terms.session
        checked(replies, self.pending, self.step, session, take, self.refused, part)
        if self.step == messages.ADVERTISE:
            own = {c: keys[c] for c, keys in inboxes.items() if c in keys}
            relayed = named(self.refused, self.server.introduce, own)
            self.step, proofs = messages.SHARE, {}
        else:
            relayed, proofs = named(self.refused, self.server.forward, inboxes), {}
            if self._draw is not None:
                seed, proofs = self._draw.close()
                self.mechanism = self.offer.mechanism.in_round(seed)
            self.step = messages.UPLOAD
        self.pending = {
            c: request(Head(self.step, session, proof=proofs.get(c, b"")), inbox)
            for c, inbox in relayed.items()
        }


def request(head: Head, inbox: Mapping[int, bytes]) -> dict[str, ConfigRecord]:
    """The records of a request with messages of other clients."""
    return {messages.HEAD: head.record(), messages.INBOX: messages.inbox_record(inbox)}


def begin(
    offer: Offer,
    clients: Sequence[int],
    least: int,
    graph: Losses | int | None = None,
    directory: Mapping[int, bytes] | None = None,
) -> Handshake:
    """The handshake of a sum of new terms.

    Args:
        offer: to all its clients.
        clients: who is asked.
        least: fewest clients in the sum.
        graph: what the sum must withstand, or how many neighbours a client has; None for all.
        directory: see `Handshake`.

    Raises:
        ProtocolError: fewer clients than `least`.
        ValueError: not even all others as neighbours withstand so many losses.
    """
    if len(clients) < least:
        raise ProtocolError(
            f"Expected {least} clients or more in the round, got {len(clients)}: let the "
            "strategy select more, or lower the mechanism's cohort."
        )
    terms = Terms(
        os.urandom(SESSION_BYTES), tuple(clients), offer.size, offer.bits(len(clients)), least,
        _degree(graph, len(clients)),
    )  # fmt: skip
    return Handshake(offer, terms, directory)


def _degree(graph: Losses | int | None, clients: int) -> int:
    """How many neighbours a client has."""
    others = clients - 1
    if not isinstance(graph, Losses):
        return others if graph is None else min(graph, others)
    chosen = graph.graph(clients)
    log(INFO, "randquant: neighbours of a client in the secure sum: %s.", chosen.reason)
    return chosen.neighbours
