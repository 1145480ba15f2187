"""The server's side of one round: requests to its clients, checks of their answers, and the mean.

Each kind of sum is a state machine without a transport: send what is `pending` and give the answers
to `take` until nothing is pending; then there is a `mean`.
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
from randquant.rounds.offer import Offer
from randquant.rounds.protocol import UNREADABLE, NoAnswer, RoundMessage, logged
from randquant.secure_sums.secagg.graphs import Draw
from randquant.secure_sums.secagg.terms import ProtocolError

Requests = Mapping[int, RoundMessage]
"""Requests to send, by client."""

Answers = Iterable[tuple[int, RoundMessage | Exception]]
"""Messages that have arrived, by the client that the transport names. An error replaces an answer
that did not come or cannot be read."""

Log = Callable[[int, str], object]
"""Takes a level of `logging` and a line."""

EXTRA_BYTES, BYTES_PER_NEIGHBOUR = 2**16, 256
"""Most bytes of an answer in addition to its payload: in all, and for each neighbour in a sum. They
leave room for the headers that engines add. Twice as many would let each hostile client fill 64 KiB
more of the server's memory; half of the second would refuse honest answers."""

SHOWN_CLIENTS = 10
"""Most clients that a line of the log names, of those for which it says the same. Half of it would
do as well; twice as many numbers of 20 digits would fill a screen."""

Result = TypeVar("Result")


class RoundSum(Protocol):
    """The mean of one round's updates, in steps.

    Attributes:
        offer: to the clients of the round.
        pending: requests to send next; empty once there is a mean.
        refused: clients whose answers were not used, each with the reason.
        clients: how many clients' updates are in the mean.
        upload_bytes: size of the largest of these updates, as it was sent.
    """

    offer: Offer
    pending: Requests
    refused: dict[int, str]
    clients: int
    upload_bytes: int

    @property
    def step(self) -> str:
        """The step of the pending requests."""
        ...

    @property
    def most(self) -> int:
        """Most bytes of one answer; a transport may refuse longer ones unread."""
        ...

    def take(self, answers: Answers) -> None:
        """Process the answers to `pending`; ProtocolError if too few clients are left."""
        ...

    def mean(self) -> np.ndarray:
        """The mean update, (dimension,) float32."""
        ...


@dataclass(frozen=True, slots=True)
class Intake:
    """Accepts one valid answer of each client, and logs why it refuses others.

    Attributes:
        refused: gets the clients whose answers are refused, each with the reason.
        log: takes a level of `logging` and a line.
    """

    refused: dict[int, str]
    log: Log

    def take(
        self,
        step: str,
        requests: Requests,
        answers: Answers,
        use: Callable[[int, RoundMessage], Result],
    ) -> dict[int, Result]:
        """Return the results of `use` on the valid answers to requests of one step, by client.

        An error of `use` refuses the answer; the text of a ValueError is logged.
        """
        results: dict[int, Result] = {}
        dropped: dict[str, list[int]] = {}
        for client, answer in answers:
            # A transport may report on a client that has left the round.
            if isinstance(answer, NoAnswer) and client not in requests:
                self.log(WARNING, f"randquant: no reply to {step!r}: {logged(answer)}")
                continue
            try:
                # The transport names the client, not the message: nobody answers for another.
                if not isinstance(answer, NoAnswer) and client not in requests:
                    raise ProtocolError(f"Expected no message of client {client} in this step.")
                # The first answer counts. A second one may be an attempt to replace it.
                if not isinstance(answer, NoAnswer) and client in results:
                    raise ProtocolError(f"Expected one reply of client {client}, got a second one.")
                if isinstance(answer, Exception):
                    raise answer
                if answer.step != step:
                    # `RoundMessage.read` has checked that the step is one of STEPS.
                    raise ProtocolError(
                        f"Expected a reply to {step!r}, got a reply to {answer.step!r}."
                    )
                # A replay of an earlier round. Its session is not shown: it is a stranger's bytes.
                if answer.session != requests[client].session:
                    raise ProtocolError(
                        "Expected a reply of this round, got a reply of a different session."
                    )
                results[client] = use(client, answer)
            except Exception as error:
                # Whatever a hostile client sends, the round goes on with the others.
                text = logged(error if isinstance(error, ValueError) else UNREADABLE)
                if client not in results:  # a bad second answer does not undo a good first one
                    self.refused[client] = text
                dropped.setdefault(text, []).append(client)
        for text, clients in dropped.items():
            line = f"randquant: reply of {_named(clients)} to {step!r} dropped: {text}"
            self.log(WARNING, line)
        if missing := sorted(requests.keys() - results.keys() - self.refused.keys()):
            reason = f"Expected a reply to {step!r} in time, got no reply."
            self.refused.update(dict.fromkeys(missing, reason))
            self.log(WARNING, f"randquant: {_named(missing)}: no reply to {step!r} in time.")
        return results

    def logged(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do the server's part of a step, and log the clients that it refuses."""
        before = dict(self.refused)
        try:
            return work(*arguments)
        finally:  # a failed sum is when one most needs to know who was refused
            changed: dict[str, list[int]] = {}
            for client, reason in self.refused.items():
                if before.get(client) != reason:
                    changed.setdefault(reason, []).append(client)
            for reason, clients in changed.items():
                self.log(WARNING, f"randquant: {_named(clients)}: {reason}")


def _named(clients: Sequence[int]) -> str:
    # A cohort that refuses for one reason is one line of the log.
    if len(clients) == 1:
        return f"client {clients[0]}"
    first = ", ".join(map(str, clients[:SHOWN_CLIENTS]))
    return f"{len(clients)} clients ({first}{', ...' if len(clients) > SHOWN_CLIENTS else ''})"


class PlainSum:
    """A mean of payloads that the server sees one by one.

    If the round needs a seed, it is drawn with the clients before they are asked to upload.

    Args:
        offer: to the clients.
        clients: who is asked.
        log: as in `Intake`.
        least: fewest clients in the mean.
        drawn: True to draw the seed with the clients; False to derive it from the session.
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
        self._draw = Draw(session) if drawn and offer.needs_seed else None
        # No guarantee of local trust rests on the seed, so a server may choose it with the session.
        if not drawn:
            self._mechanism = offer.mechanism.in_round(protocol.public_seed(session))
        self._payloads: dict[int, bytes] = {}
        request = RoundMessage(protocol.UPLOAD, session, offer.to_text())
        if self._draw is not None:
            request = replace(request, step=protocol.ADVERTISE, commitment=self._draw.commitment)
        self.pending: Requests = dict.fromkeys(clients, request)

    @property
    def most(self) -> int:
        return EXTRA_BYTES + self.offer.plain_bytes

    @property
    def step(self) -> str:
        return step_in(self.pending)

    def take(self, answers: Answers) -> None:
        requests, step = self.pending, self.step
        if step == protocol.ADVERTISE:
            assert self._draw is not None
            add = self._draw.add
            self._intake.take(step, requests, answers, lambda client, m: add(client, m.part))
            # The server committed to its part before it saw those of the clients, and each client
            # checks that by its proof: neither can choose which coordinates are sent.
            seed, proofs = self._draw.close()
            self._mechanism = self.offer.mechanism.in_round(seed)
            self.pending = {
                client: RoundMessage(protocol.UPLOAD, requests[client].session, proof=proof)
                for client, proof in proofs.items()
            }
        else:
            self._payloads = self._intake.take(step, requests, answers, self._payload)
            self.pending, self.clients = {}, len(self._payloads)

    def _payload(self, client: int, answer: RoundMessage) -> bytes:
        dimension = self.offer.dimension
        payload = protocol.unaddressed(
            self._mechanism, answer.update, answer.session, client, dimension
        )
        self.upload_bytes = max(self.upload_bytes, len(answer.update))
        return payload

    def mean(self) -> np.ndarray:
        # With fewer clients the noise of the mean is larger than the operator allows.
        if len(self._payloads) < self._least:
            raise ProtocolError(
                f"Expected {self._least} updates or more, got {len(self._payloads)}."
            )
        # By number and not by arrival, so that the mean does not depend on who was faster.
        payloads = [self._payloads[client] for client in sorted(self._payloads)]
        key = Key.generate()  # of no effect: channels decode without randomness
        return self._mechanism.mean(payloads, self.offer.dimension, key)


def fewest(mechanism: UpdateMechanism, least: int | None) -> int:
    """Return the fewest clients in a sum of a mechanism's codes; by default its cohort.

    Raises:
        ValueError: the mechanism's guarantee needs more.
    """
    least = mechanism.cohort if least is None else least
    least = validate.whole(
        "least", least, low=mechanism.cohort, why="the guarantee needs that many"
    )
    # With the helper's noise a sum of one client is as safe as any other.
    if mechanism.trust == "aggregate" and not mechanism.helper_noise:
        least = validate.whole("least", least, low=2, why="a sum of one hides nothing")
    return least


def check_enough(clients: Sequence[int], least: int) -> None:
    # Before any client is asked: a round that must fail later would cost them its epsilon.
    if len(clients) < least:
        raise ProtocolError(
            f"Expected {least} clients or more in the round, got {len(clients)}: let the "
            "strategy select more, or lower the mechanism's cohort."
        )


def step_in(pending: Requests) -> str:
    # All pending requests of a round are of one step; the name is empty if nothing is pending.
    return next((request.step for request in pending.values()), "")
