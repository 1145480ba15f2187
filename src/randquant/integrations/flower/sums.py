"""The server's side of one round: its clients, their replies, and the mean."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Protocol

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.common.serde import message_to_proto

from randquant.aggregation.secagg.draw import Draw
from randquant.aggregation.secagg.terms import ProtocolError
from randquant.channels.keys import Key
from randquant.channels.wire import upload
from randquant.integrations.flower import messages
from randquant.integrations.flower.handshake import SESSION_BYTES, Handshake, request
from randquant.integrations.flower.messages import Head
from randquant.integrations.flower.offer import Offer
from randquant.integrations.flower.replies import Link, Requests, checked, named


class Sum(Protocol):
    """The mean of one round's updates, in steps."""

    refused: dict[int, str]

    @property
    def offer(self) -> Offer:
        """What the clients of the round were offered."""
        ...

    def measured(self) -> dict[str, int]:
        """Bytes of this round, largest over the clients.

        Returns:
            `sent_bytes`, all messages of one client; `upload_bytes`, its update as it was sent,
            masked under aggregate trust; `plain_bytes`, the same update as plain codes.
        """
        ...

    ahead: Handshake | None

    def requests(self) -> dict[int, Mapping[str, ConfigRecord]]:
        """For each client that has not dropped out, the records to add to its request."""
        ...

    def joined(self, requests: Requests) -> tuple[Requests, Requests]:
        """The next step of the handshake ahead, with these requests.

        Returns:
            The requests with its records, and its requests to other clients.
        """
        ...

    def add(self, replies: Iterable[Message]) -> int:
        """Add the replies; return the number of clients in the mean."""
        ...

    def mean(self) -> np.ndarray:
        """The mean update, (dimension,) float32; ProtocolError if too few clients are left."""
        ...


@dataclass
class Bytes:
    """Counts the bytes of clients' messages as they arrive, and drops those that are too large.

    Attributes:
        offer: what the clients of the round were offered.
        refused: clients whose replies are dropped are added here, with the reason.
    """

    offer: Offer
    refused: dict[int, str]

    def __post_init__(self) -> None:
        self._sent: Counter[int] = Counter()
        self._upload = 0

    def counted(self, replies: Iterable[Message], most: int) -> Iterator[Message]:
        """Pass on replies of `most` bytes or fewer, and count each as Flower serialises it."""
        for reply in replies:
            client = reply.metadata.src_node_id
            try:
                if not reply.has_error():
                    messages.check_size(reply.content, most)
            except ProtocolError as error:
                self.refused[client] = str(error)
                log(WARNING, "randquant: reply of client %s dropped: %s", client, error)
                continue
            self._sent[client] += message_to_proto(reply).ByteSize()
            if not reply.has_error() and messages.PAYLOAD in reply.content:
                with contextlib.suppress(ProtocolError):  # which is dropped later, with its reason
                    self._upload = max(self._upload, len(messages.read_payload(reply.content)))
            yield reply

    def measured(self) -> dict[str, int]:
        """See `Sum`."""
        return {
            "sent_bytes": max(self._sent.values(), default=0),
            "upload_bytes": self._upload,
            "plain_bytes": self.offer.plain_bytes,
        }


@dataclass
class PlainSum:
    """Payloads that the server sees one by one.

    If the round needs a seed, it is drawn with the clients before they are asked to upload.
    """

    offer: Offer
    clients: Sequence[int]
    link: Link
    refused: dict[int, str] = field(default_factory=dict)
    ahead: Handshake | None = None  # there is none

    def __post_init__(self) -> None:
        self._session = os.urandom(SESSION_BYTES)
        self._payloads: dict[int, bytes] = {}
        self._bytes = Bytes(self.offer, self.refused)
        self._most = messages.REST + self.offer.plain_bytes
        self._mechanism = self.offer.mechanism

    def measured(self) -> dict[str, int]:
        """See `Sum`."""
        return self._bytes.measured()

    def joined(self, requests: Requests) -> tuple[Requests, Requests]:
        """See `Sum`: there is no handshake."""
        return requests, {}

    def requests(self) -> dict[int, Mapping[str, ConfigRecord]]:
        """The offer, for every client; or a seed that was drawn with them."""
        text = self.offer.to_text()
        if not self.offer.drawn:
            head = Head(messages.UPLOAD, self._session, text)
            return {client: {messages.HEAD: head.record()} for client in self.clients}
        draw = Draw(self._session)
        head = Head(messages.ADVERTISE, self._session, text, commitment=draw.commitment)
        replies = self.link.ask({c: {messages.HEAD: head.record()} for c in self.clients})

        def take(client: int, content: RecordDict) -> None:
            draw.add(client, Head.read(content).part)

        counted = self._bytes.counted(replies, self._most)
        known = checked(counted, self.clients, head.step, head.session, take, self.refused)
        self.clients = sorted(known)
        seed, proofs = draw.close()
        self._mechanism = self.offer.mechanism.in_round(seed)
        return {
            client: {messages.HEAD: Head(messages.UPLOAD, self._session, proof=proof).record()}
            for client, proof in proofs.items()
        }

    def add(self, replies: Iterable[Message]) -> int:
        """Check each payload, as `messages.unaddressed` does, and keep it by its client."""

        def take(client: int, content: RecordDict) -> None:
            self._payloads[client] = messages.unaddressed(
                self._mechanism, messages.read_payload(content), self._session, client,
                self.offer.dimension,
            )  # fmt: skip

        asked, counted = self.clients, self._bytes.counted(replies, self._most)
        known = checked(counted, asked, messages.UPLOAD, self._session, take, self.refused)
        return len(known)

    def mean(self) -> np.ndarray:
        """The mean of all valid replies."""
        if not self._payloads:
            raise ProtocolError("Expected an update of one client at least, got none.")
        payloads = [self._payloads[client] for client in sorted(self._payloads)]
        key = Key.generate()  # channels decode without randomness
        return self._mechanism.mean(payloads, self.offer.dimension, key)


@dataclass
class SecureSum:
    """A sum of codes by secure aggregation: the server sees only the sum.

    Attributes:
        handshake: of this sum. Unless it is over, its steps are messages of their own.
        link: sends the steps other than the upload.
        ahead: the handshake of the next sum, whose steps travel with the upload and the
            confirmation of this one; None if there is none, or it has failed.
    """

    handshake: Handshake
    link: Link
    ahead: Handshake | None = None

    def __post_init__(self) -> None:
        self.refused = self.handshake.refused
        self._server, self._terms = self.handshake.server, self.handshake.terms
        self._bytes = Bytes(self.handshake.offer, self.refused)
        self._alone: Requests = {}  # the next sum's step with clients that are asked nothing else

    @property
    def offer(self) -> Offer:
        """See `Sum`."""
        return self.handshake.offer

    def measured(self) -> dict[str, int]:
        """See `Sum`."""
        return self._bytes.measured()

    def requests(self) -> dict[int, Mapping[str, ConfigRecord]]:
        """Run the steps before the upload; return sealed shares for the remaining clients."""
        while not self.handshake.over:
            replies = self.link.ask(self.handshake.pending)
            self.handshake.advance(self._counted(replies))
        return dict(self.handshake.pending)

    def joined(self, requests: Requests) -> tuple[Requests, Requests]:
        """See `Sum`."""
        pending: Requests = {} if self.ahead is None or self.ahead.over else self.ahead.pending
        both = {
            c: {**records, **messages.as_next(pending[c])} if c in pending else records
            for c, records in requests.items()
        }
        self._alone = {c: records for c, records in pending.items() if c not in requests}
        return both, self._alone

    def add(self, replies: Iterable[Message]) -> int:
        """Add up masked vectors and close the sum; return the number of clients in it."""
        replies = list(self._counted(replies))
        checked(
            self._own(replies),
            self._terms.clients,
            messages.UPLOAD,
            self._terms.session,
            lambda client, content: self._server.add(client, messages.read_payload(content)),
            self.refused,
        )
        good = len(named(self.refused, self._server.close))
        self._advance(replies)
        return good

    def mean(self) -> np.ndarray:
        """Run the steps after the upload."""
        survivors, offer = self._server.close(), self.handshake.offer
        if len(survivors) < self._terms.least:
            raise ProtocolError(
                f"Expected updates of {self._terms.least} clients or more, got {len(survivors)}: "
                "the guarantee needs that many."
            )
        head = Head(messages.CONFIRM, self._terms.session, survivors=tuple(sorted(survivors)))
        requests, alone = self.joined({c: {messages.HEAD: head.record()} for c in survivors})
        replies = list(self._counted(self.link.ask({**requests, **alone})))
        relayed = self._server.relay(self._inboxes(self._own(replies), requests, head))
        self._advance(replies)
        head = Head(messages.REVEAL, self._terms.session)
        asked = {c: request(head, inbox) for c, inbox in relayed.items()}
        shares = self._inboxes(self._counted(self.link.ask(asked)), asked, head)
        largest = offer.channel.levels - 1
        totals = named(self.refused, self._server.unmask, shares, largest).astype(np.int64)
        return self.handshake.mechanism.decode(totals, len(survivors), offer.dimension)

    def _inboxes(
        self, replies: Iterable[Message], asked: Iterable[int], head: Head
    ) -> dict[int, dict[int, bytes]]:
        """Each valid reply's messages by recipient."""
        inboxes: dict[int, dict[int, bytes]] = {}

        def take(client: int, content: RecordDict) -> None:
            inboxes[client] = messages.read_inbox(content)

        checked(replies, asked, head.step, head.session, take, self.refused)
        return inboxes

    def _counted(self, replies: Iterable[Message]) -> Iterator[Message]:
        """See `Bytes`: no reply is longer than a vector and steps of both handshakes."""
        sums = [self._terms, *([] if self.ahead is None else [self.ahead.terms])]
        neighbours = sum(terms.neighbours + 1 for terms in sums)
        vector = upload.masked(self._terms.dimension, self._terms.bits)
        most = messages.REST + vector + messages.PER_NEIGHBOUR * neighbours
        return self._bytes.counted(replies, most)

    def _own(self, replies: Iterable[Message]) -> list[Message]:
        """Replies of clients that were not asked for the next sum's step alone."""
        return [reply for reply in replies if reply.metadata.src_node_id not in self._alone]

    def _advance(self, replies: Iterable[Message]) -> None:
        """Take the next sum's step from the replies; if it fails, there is none, as before."""
        if self.ahead is None or self.ahead.over:
            return

        def part(client: int, content: RecordDict) -> RecordDict:
            return content if client in self._alone else messages.next_of_reply(content)

        asked = self.ahead.pending
        ours = [reply for reply in replies if reply.metadata.src_node_id in asked]
        try:
            self.ahead.advance(ours, part)
        except ValueError as error:
            self.ahead = None
            log(WARNING, "randquant: the next round starts with a handshake: %s", error)
