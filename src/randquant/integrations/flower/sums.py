"""The server's side of one round: its clients, their replies, and the mean."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Protocol, TypeVar

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.common.serde import message_to_proto
from flwr.serverapp import Grid

from randquant.aggregation.secagg.draw import Draw
from randquant.aggregation.secagg.server import Server
from randquant.aggregation.secagg.terms import ProtocolError, Terms
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.channels.wire import upload
from randquant.integrations.flower import messages
from randquant.integrations.flower.messages import Head
from randquant.integrations.flower.offer import Offer

SESSION_BYTES = 16
UNREADABLE = "Expected a reply of this protocol, got something else."

Result = TypeVar("Result")


class Sum(Protocol):
    """The mean of one round's updates, in steps."""

    offer: Offer
    refused: dict[int, str]

    def measured(self) -> dict[str, int]:
        """Bytes of this round, largest over the clients.

        Returns:
            `sent_bytes`, all messages of one client; `upload_bytes`, its update as it was sent,
            masked under aggregate trust; `plain_bytes`, the same update as plain codes.
        """
        ...

    def requests(self) -> dict[int, dict[str, ConfigRecord]]:
        """For each client that has not dropped out, the records to add to its request."""
        ...

    def add(self, replies: Iterable[Message]) -> int:
        """Add the replies; return the number of clients in the mean."""
        ...

    def mean(self) -> np.ndarray:
        """The mean update, (dimension,) float32; ProtocolError if too few clients are left."""
        ...


@dataclass
class Bytes:
    """Counts the bytes of clients' messages as they arrive."""

    offer: Offer

    def __post_init__(self) -> None:
        self._sent: Counter[int] = Counter()
        self._upload = 0

    def counted(self, replies: Iterable[Message]) -> Iterator[Message]:
        """Pass replies on, and count each as Flower serialises it."""
        for reply in replies:
            self._sent[reply.metadata.src_node_id] += message_to_proto(reply).ByteSize()
            if not reply.has_error() and messages.PAYLOAD in reply.content:
                with contextlib.suppress(ProtocolError):  # which is dropped later, with its reason
                    self._upload = max(self._upload, len(messages.read_payload(reply.content)))
            yield reply

    def measured(self) -> dict[str, int]:
        """See `Sum`."""
        return {
            "sent_bytes": max(self._sent.values(), default=0),
            "upload_bytes": self._upload,
            "plain_bytes": upload.coded(self.offer.channel, self.offer.size),
        }


@dataclass(frozen=True)
class Link:
    """How the steps of a round other than the upload are sent.

    Attributes:
        grid: sends them.
        timeout: seconds for each of them.
        kind: type of its messages.
        group: Flower's label of the round.
    """

    grid: Grid
    timeout: float
    kind: str
    group: str

    def ask(self, requests: Mapping[int, Mapping[str, ConfigRecord]]) -> Iterable[Message]:
        """Send each client its records; return the replies."""
        sent = [
            Message(
                RecordDict(dict(records)),  # type: ignore[arg-type]
                dst_node_id=client,
                message_type=self.kind,
                group_id=self.group,
                ttl=self.timeout,
            )
            for client, records in requests.items()
        ]
        return self.grid.send_and_receive(sent, timeout=self.timeout)


@dataclass
class PlainSum:
    """A sum of codes that the server sees one by one.

    If the coordinates need a seed, it is drawn with the clients before they are asked to upload.
    """

    offer: Offer
    clients: Sequence[int]
    link: Link
    refused: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._session = os.urandom(SESSION_BYTES)
        self._payloads: dict[int, bytes] = {}
        self._bytes = Bytes(self.offer)
        self._mechanism = self.offer.mechanism

    def measured(self) -> dict[str, int]:
        """See `Sum`."""
        return self._bytes.measured()

    def requests(self) -> dict[int, dict[str, ConfigRecord]]:
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

        counted = self._bytes.counted(replies)
        known = _checked(counted, self.clients, head.step, head.session, take, self.refused)
        self.clients = sorted(known)
        seed, proofs = draw.close()
        self._mechanism = self.offer.mechanism.in_round(seed)
        return {
            client: {messages.HEAD: Head(messages.UPLOAD, self._session, proof=proof).record()}
            for client, proof in proofs.items()
        }

    def add(self, replies: Iterable[Message]) -> int:
        """Unpack each payload, so that only codes of this client and round are averaged."""

        def take(client: int, content: RecordDict) -> None:
            form = messages.upload_format(self._mechanism, self._session, client)
            codes = wire.unpack(form, messages.read_payload(content), self.offer.size)
            padding = self.offer.size - self.offer.dimension
            coding = messages.coding_of(self._mechanism)
            self._payloads[client] = wire.pack(coding, codes, padding)

        asked, counted = self.clients, self._bytes.counted(replies)
        known = _checked(counted, asked, messages.UPLOAD, self._session, take, self.refused)
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
        terms: terms that all clients agree on.
        link: sends the steps other than the upload.
        directory: public keys of all clients' identities, if they have them.
    """

    offer: Offer
    terms: Terms
    link: Link
    directory: Mapping[int, bytes] | None = None
    refused: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._server = Server(self.terms, self.directory)
        self._bytes = Bytes(self.offer)
        self._server.refused = self.refused  # shared
        self._draw = Draw(self.terms.session) if self.offer.drawn else None
        self._mechanism = self.offer.mechanism

    def measured(self) -> dict[str, int]:
        """See `Sum`."""
        return self._bytes.measured()

    def requests(self) -> dict[int, dict[str, ConfigRecord]]:
        """Run the steps before the upload; return sealed shares for the remaining clients."""
        head = Head(
            messages.ADVERTISE,
            self.terms.session,
            self.offer.to_text(),
            messages.terms_text(self.terms),
            commitment=b"" if self._draw is None else self._draw.commitment,
        )
        adverts = self._ask({c: {messages.HEAD: head.record()} for c in self.terms.clients}, head)
        own = {c: keys[c] for c, keys in adverts.items() if c in keys}
        keys = self._named(self._server.introduce, own)
        head = Head(messages.SHARE, self.terms.session)
        sealed = self._ask({c: _request(head, inbox) for c, inbox in keys.items()}, head)
        forwarded, proofs = self._named(self._server.forward, sealed), {}
        if self._draw is not None:
            seed, proofs = self._draw.close()
            self._mechanism = self.offer.mechanism.in_round(seed)
        return {
            client: _request(
                Head(messages.UPLOAD, self.terms.session, proof=proofs.get(client, b"")), inbox
            )
            for client, inbox in forwarded.items()
        }

    def add(self, replies: Iterable[Message]) -> int:
        """Add up masked vectors and close the sum; return the number of clients in it."""
        _checked(
            self._bytes.counted(replies),
            self.terms.clients,
            messages.UPLOAD,
            self.terms.session,
            lambda client, content: self._server.add(client, messages.read_payload(content)),
            self.refused,
        )
        return len(self._named(self._server.close))

    def mean(self) -> np.ndarray:
        """Run the steps after the upload."""
        survivors = self._server.close()
        if len(survivors) < self.terms.least:
            raise ProtocolError(
                f"Expected updates of {self.terms.least} clients or more, got {len(survivors)}: "
                "the guarantee needs that many."
            )
        head = Head(messages.CONFIRM, self.terms.session, survivors=tuple(sorted(survivors)))
        tags = self._ask({c: {messages.HEAD: head.record()} for c in survivors}, head)
        relayed = self._server.relay(tags)
        head = Head(messages.REVEAL, self.terms.session)
        shares = self._ask({c: _request(head, inbox) for c, inbox in relayed.items()}, head)
        largest = self.offer.channel.levels - 1
        totals = self._named(self._server.unmask, shares, largest).astype(np.int64)
        return self._mechanism.decode(totals, len(survivors), self.offer.dimension)

    def _named(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Do the server's part of a step; log the clients that it refuses, even if it fails."""
        before = dict(self.refused)
        try:
            return work(*arguments)
        finally:
            for client, reason in self.refused.items():
                if before.get(client) != reason:
                    log(WARNING, "randquant: client %s: %s", client, reason)

    def _ask(
        self, requests: Mapping[int, Mapping[str, ConfigRecord]], head: Head
    ) -> dict[int, dict[int, bytes]]:
        """One step with some clients; return each valid reply's messages by recipient."""
        replies = self.link.ask(requests)
        inboxes: dict[int, dict[int, bytes]] = {}

        def take(client: int, content: RecordDict) -> None:
            inbox = messages.read_inbox(content)
            if self._draw is not None and head.step == messages.ADVERTISE:
                self._draw.add(client, Head.read(content).part)
            inboxes[client] = inbox

        counted = self._bytes.counted(replies)
        _checked(counted, requests, head.step, head.session, take, self.refused)
        return inboxes


def _request(head: Head, inbox: Mapping[int, bytes]) -> dict[str, ConfigRecord]:
    return {messages.HEAD: head.record(), messages.INBOX: messages.inbox_record(inbox)}


def _checked(
    replies: Iterable[Message],
    asked: Iterable[int],
    step: str,
    session: bytes,
    take: Callable[[int, RecordDict], None],
    refused: dict[int, str],
) -> set[int]:
    """Pass valid replies to `take`, one per client; log and refuse the others."""
    asked, known = set(asked), set()
    for reply in replies:
        client = reply.metadata.src_node_id
        if reply.has_error() and client not in asked:  # on behalf of a client that has left
            reason = messages.logged(reply.error.reason)
            log(WARNING, "randquant: no reply to %r: %s", step, reason)
            continue
        try:
            if reply.has_error():
                raise ProtocolError(str(reply.error.reason))
            if client not in asked:
                raise ProtocolError("Expected no message of this client, got one.")
            if client in known:
                raise ProtocolError("Expected one reply of a client, got another: it is dropped.")
            head = Head.read(reply.content)
            if (head.step, head.session) != (step, session):
                raise ProtocolError("Expected a reply of this step and round, got another's.")
            take(client, reply.content)
            known.add(client)
        except Exception as error:  # any malformed reply: the round continues with the others
            text = messages.logged(error if isinstance(error, ValueError) else UNREADABLE)
            if client not in known:
                refused[client] = text
            log(WARNING, "randquant: reply of client %s to %r dropped: %s", client, step, text)
    for client in sorted(asked - known - refused.keys()):
        refused[client] = f"Expected a reply to {step!r} in time, got none."
        log(WARNING, "randquant: client %s: no reply to %r in time.", client, step)
    return known
