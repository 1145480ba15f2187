"""The server's side of one round: what to ask its clients, what of their answers to use, the mean.

Each way to sum is a state machine without a transport: send what is `pending`, give the answers to
`take`, until nothing is pending; then there is a `mean`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import WARNING
from typing import Any, Protocol, TypeVar

import numpy as np

from randquant._internal import validate
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels.keys import Key
from randquant.rounds import protocol
from randquant.rounds.foreign import UNREADABLE, logged
from randquant.rounds.offer import Offer
from randquant.rounds.protocol import NoAnswer, RoundMessage
from randquant.secure_sums.secagg.graphs import Draw
from randquant.secure_sums.secagg.terms import ProtocolError

Requests = Mapping[int, RoundMessage]
"""What to send, by client."""

Answers = Iterable[tuple[int, RoundMessage | Exception]]
"""What has arrived, by the client that the transport names; an error in the place of an answer that
nobody sent, or that cannot be read."""

Log = Callable[[int, str], object]
"""Takes a level of `logging` and a line."""

REST, PER_NEIGHBOUR = 2**16, 256
"""Most bytes of an answer beside its payload: in all, and for each neighbour in a sum."""

Result = TypeVar("Result")


class RoundSum(Protocol):
    """The mean of one round's updates, in steps.

    Attributes:
        offer: what the clients of the round were offered.
        pending: what is to be sent next; empty once there is a mean.
        refused: clients whose answers were not used, and why.
        clients: how many clients' updates were taken.
        upload_bytes: of the largest of these, as it was sent.
    """

    offer: Offer
    pending: Requests
    refused: dict[int, str]
    clients: int
    upload_bytes: int

    @property
    def step(self) -> str:
        """The step of what is pending."""
        ...

    @property
    def most(self) -> int:
        """Most bytes of an answer."""
        ...

    def take(self, answers: Answers) -> None:
        """Take the answers to what was pending; ProtocolError if too few clients are left."""
        ...

    def mean(self) -> np.ndarray:
        """The mean update, (dimension,) float32."""
        ...


@dataclass(frozen=True, slots=True)
class Intake:
    """Takes one valid answer of each client, and logs why it refuses others.

    Attributes:
        refused: clients whose answers are refused are added here, with the reason.
        log: takes the lines.
    """

    refused: dict[int, str]
    log: Log

    def take(
        self,
        step: str,
        asked: Requests,
        answers: Answers,
        use: Callable[[int, RoundMessage], Result],
    ) -> dict[int, Result]:
        """What `use` makes of the valid answers to requests of one step, by client.

        A ValueError of `use` refuses the answer.
        """
        known: dict[int, Result] = {}
        for client, answer in answers:
            if isinstance(answer, NoAnswer) and client not in asked:  # on behalf of one that left
                self.log(WARNING, f"randquant: no reply to {step!r}: {logged(answer)}")
                continue
            try:
                if not isinstance(answer, NoAnswer) and client not in asked:
                    raise ProtocolError(f"Expected no message of client {client} in this step.")
                if not isinstance(answer, NoAnswer) and client in known:
                    raise ProtocolError(f"Expected one reply of client {client}, got a second one.")
                if isinstance(answer, Exception):
                    raise answer
                if answer.step != step:
                    raise ProtocolError(
                        f"Expected a reply to {step!r}, got one to {answer.step!r}."
                    )
                if answer.session != asked[client].session:
                    raise ProtocolError("Expected a reply of this round, got one of another round.")
                known[client] = use(client, answer)
            except Exception as error:  # any malformed reply: the round continues with the others
                text = logged(error if isinstance(error, ValueError) else UNREADABLE)
                if client not in known:
                    self.refused[client] = text
                line = f"randquant: reply of client {client} to {step!r} dropped: {text}"
                self.log(WARNING, line)
        for client in sorted(asked.keys() - known.keys() - self.refused.keys()):
            self.refused[client] = f"Expected a reply to {step!r} in time, got none."
            self.log(WARNING, f"randquant: client {client}: no reply to {step!r} in time.")
        return known

    def named(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do the server's part of a step; log the clients that it refuses, even if it fails."""
        before = dict(self.refused)
        try:
            return work(*arguments)
        finally:
            for client, reason in self.refused.items():
                if before.get(client) != reason:
                    self.log(WARNING, f"randquant: client {client}: {reason}")


class PlainSum:
    """Payloads that the server sees one by one.

    If the round needs a seed, it is drawn with the clients before they are asked to upload.

    Args:
        offer: to the clients.
        clients: who is asked.
        log: see `Intake`.
        least: fewest clients in the mean.
        drawn: whether the seed is drawn so; else it follows from the session.
    """

    def __init__(
        self, offer: Offer, clients: Sequence[int], log: Log, least: int = 1, drawn: bool = True
    ) -> None:
        self.offer, self._least = offer, least
        self.refused: dict[int, str] = {}
        self._intake = Intake(self.refused, log)
        self.clients = self.upload_bytes = 0
        self.session = session = os.urandom(protocol.SESSION_BYTES)
        self._mechanism = offer.mechanism
        self._draw = Draw(session) if drawn and offer.drawn else None
        if not drawn:
            self._mechanism = offer.mechanism.in_round(protocol.public_seed(session))
        self._payloads: dict[int, bytes] = {}
        request = RoundMessage(protocol.UPLOAD, session, offer.to_text())
        if self._draw is not None:
            request = replace(request, step=protocol.ADVERTISE, commitment=self._draw.commitment)
        self.pending: Requests = dict.fromkeys(clients, request)

    @property
    def most(self) -> int:
        """See `RoundSum`."""
        return REST + self.offer.plain_bytes

    @property
    def step(self) -> str:
        """See `RoundSum`."""
        return step_of(self.pending)

    def take(self, answers: Answers) -> None:
        """See `RoundSum`."""
        asked, step = self.pending, self.step
        if step == protocol.ADVERTISE:
            assert self._draw is not None
            add = self._draw.add
            self._intake.take(step, asked, answers, lambda client, each: add(client, each.part))
            seed, proofs = self._draw.close()
            self._mechanism = self.offer.mechanism.in_round(seed)
            self.pending = {
                client: RoundMessage(protocol.UPLOAD, asked[client].session, proof=proof)
                for client, proof in proofs.items()
            }
        else:
            self._payloads = self._intake.take(step, asked, answers, self._payload)
            self.pending, self.clients = {}, len(self._payloads)

    def _payload(self, client: int, answer: RoundMessage) -> bytes:
        """A payload without its address; ValueError if it is another's."""
        dimension = self.offer.dimension
        found = protocol.unaddressed(
            self._mechanism, answer.update, answer.session, client, dimension
        )
        self.upload_bytes = max(self.upload_bytes, len(answer.update))
        return found

    def mean(self) -> np.ndarray:
        """The mean of all valid replies."""
        if len(self._payloads) < self._least:
            raise ProtocolError(
                f"Expected {self._least} updates or more, got {len(self._payloads)}."
            )
        payloads = [self._payloads[client] for client in sorted(self._payloads)]
        key = Key.generate()  # channels decode without randomness
        return self._mechanism.mean(payloads, self.offer.dimension, key)


def fewest(mechanism: UpdateMechanism, least: int | None) -> int:
    """Fewest clients in a sum of a mechanism's codes; by default its cohort.

    Raises:
        ValueError: its guarantee needs more.
    """
    least = mechanism.cohort if least is None else least
    least = validate.whole(
        "least", least, low=mechanism.cohort, why="the guarantee needs that many"
    )
    if mechanism.trust == "aggregate":
        least = validate.whole("least", least, low=2, why="a sum of one hides nothing")
    return least


def check_enough(clients: Sequence[int], least: int) -> None:
    """Raise ProtocolError if a round has fewer clients than its sum needs."""
    if len(clients) < least:
        raise ProtocolError(
            f"Expected {least} clients or more in the round, got {len(clients)}: let the "
            "strategy select more, or lower the mechanism's cohort."
        )


def step_of(pending: Requests) -> str:
    """The step of some requests; empty if there are none."""
    return next((request.step for request in pending.values()), "")
