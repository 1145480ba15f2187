"""The server's side of one round: requests to its clients, checks of their answers, and the mean.

Each kind of sum is a state machine without a transport: send what is `pending` and give the answers
to `take` until nothing is pending; then there is a `mean`. In a `PlainSum` the server sees every
client's codes. `AmongClients` and `WithHelper` are a run's settings of the secure sums.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from typing import Any, Literal, Protocol, TypeVar, get_args

import numpy as np

from randquant._internal import validate
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.rounds import protocol
from randquant.rounds.offer import Offer
from randquant.rounds.protocol import UNREADABLE, NoAnswer, RoundMessage, logged
from randquant.secure_sums.helper import proven
from randquant.secure_sums.helper.collector import HelperSum
from randquant.secure_sums.helper.message import (
    SEALED_BYTES,
    SIGNATURE_BYTES,
    HelperKey,
    HelperTerms,
    JointSeed,
)
from randquant.secure_sums.helper.request import MAX_OFFER_BYTES
from randquant.secure_sums.secagg.server import SumServer
from randquant.secure_sums.terms import (
    DEFAULT_THRESHOLD_SHARE,
    Draw,
    Losses,
    ProtocolError,
    Terms,
    check_directory,
    share_of_neighbours,
)

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
more of the server's memory; half of the second would refuse honest answers. No operator sets them:
`RoundSum.most` follows from the offer. What a helper's operator sets is `ServiceLimits`."""

SHOWN_CLIENTS = 10
"""Most clients that a line of the log names, of those for which it says the same. Half of it would
do as well; twice as many numbers of 20 digits would fill a screen."""

Result = TypeVar("Result")


class RoundSum(ABC):
    """The mean of one round's updates, in steps.

    Args:
        offer: to the clients of the round.
        refused: gets the clients whose answers were not used, each with the reason.
        log: as in `Intake`.

    Attributes:
        offer, refused: as passed.
        pending: requests to send next; empty once there is a mean.
        clients: how many clients' updates are in the mean.
        upload_bytes: size of the largest of these updates, as it was sent.
    """

    pending: Requests

    def __init__(self, offer: Offer, refused: dict[int, str], log: Log) -> None:
        self.offer, self.refused = offer, refused
        self._intake = Intake(refused, log)
        self.clients = self.upload_bytes = 0
        self._mechanism = offer.mechanism  # with the round's seed, once that is known

    @property
    def step(self) -> str:
        # All pending requests of a round are of one step; empty if nothing is pending.
        return next((request.step for request in self.pending.values()), "")

    @property
    @abstractmethod
    def most(self) -> int:
        """Most bytes of one answer; a transport may refuse longer ones unread."""

    @abstractmethod
    def take(self, answers: Answers) -> None:
        """Process the answers to `pending`; ProtocolError if too few clients are left."""

    @abstractmethod
    def mean(self) -> np.ndarray:
        """Return the mean update, (dimension,) float32."""


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


class PlainSum(RoundSum):
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
        super().__init__(offer, {}, log)
        self._least = least
        self.session = session = os.urandom(protocol.SESSION_BYTES)
        self._draw = Draw(session) if drawn and offer.needs_seed else None
        # No guarantee of local trust rests on the seed, so a server may choose it with the session.
        if not drawn:
            self._mechanism = offer.mechanism.in_round(protocol.public_seed(session))
        self._payloads: dict[int, bytes] = {}
        request = RoundMessage(protocol.UPLOAD, session, offer.to_text())
        if self._draw is not None:
            request = replace(request, step=protocol.ADVERTISE, commitment=self._draw.commitment)
        self.pending = dict.fromkeys(clients, request)

    @property
    def most(self) -> int:
        return EXTRA_BYTES + self.offer.plain_bytes

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


def _check_shared(sums: AmongClients | WithHelper) -> None:
    # The settings that both kinds of secure sums have.
    if sums.least is not None:
        validate.whole("least", sums.least, low=1)
    # A text from a file, such as "false", would count as true: a client that reconnects under
    # another number would then be promised less than it has spent.
    validate.flag("stable_numbers", sums.stable_numbers)
    # Here, and not in a round: clients would train in vain.
    if sums.directory is not None:
        check_directory(sums.directory)


def check_enough(clients: Sequence[int], least: int) -> None:
    # Before any client is asked: a round that must fail later would cost them its epsilon.
    if len(clients) < least:
        raise ProtocolError(
            f"Expected {least} clients or more in the round, got {len(clients)}: let the "
            "strategy select more, or lower the mechanism's cohort."
        )


# Secure sums among the clients of a round: the server's steps, and a run's settings of them.


class SecureSum(RoundSum):
    """A sum of codes by secure aggregation: the server sees only the sum.

    Args:
        offer, terms: of the sum, for clients to check.
        log: as in `Intake`.
        directory: public keys of all clients' identities, if clients have identities.
    """

    def __init__(
        self, offer: Offer, terms: Terms, log: Log, directory: Mapping[int, bytes] | None = None
    ) -> None:
        self.terms, self._server = terms, SumServer(terms, directory)
        super().__init__(offer, self._server.refused, log)
        self._draw = Draw(terms.session) if offer.needs_seed else None
        self._totals: np.ndarray | None = None
        commitment = b"" if self._draw is None else self._draw.commitment
        request = RoundMessage(
            protocol.ADVERTISE,
            terms.session,
            offer.to_text(),
            protocol.terms_text(terms),
            commitment=commitment,
        )
        self.pending = dict.fromkeys(terms.clients, request)

    @property
    def most(self) -> int:
        # Over all steps: no reply is longer than a masked vector and messages to all neighbours.
        vector = wire.masked(self.terms.dimension, self.terms.bits)
        return EXTRA_BYTES + vector + BYTES_PER_NEIGHBOUR * (self.terms.neighbours + 1)

    def take(self, answers: Answers) -> None:
        step, requests = self.step, self.pending
        # After an error nothing is pending: no step of a failed sum is asked for again.
        self.pending = {}
        uses = {protocol.ADVERTISE: self._advert, protocol.UPLOAD: self._masked}
        results = self._intake.take(step, requests, answers, uses.get(step, _inbox))
        next_requests = {
            protocol.ADVERTISE: self._introduced, protocol.SHARE: self._forwarded,
            protocol.UPLOAD: self._closed, protocol.CONFIRM: self._relayed,
            protocol.REVEAL: self._unmasked,
        }  # fmt: skip
        self.pending = self._intake.logged(next_requests[step], results)

    def mean(self) -> np.ndarray:
        assert self._totals is not None  # set by the last step, after which nothing is pending
        return self._mechanism.decode(self._totals, self.clients, self.offer.dimension)

    def _advert(self, client: int, answer: RoundMessage) -> Mapping[int, bytes]:
        # Read first: a client without an advert is refused, and must not add to the seed either.
        inbox = answer.peer_messages
        if self._draw is not None:
            self._draw.add(client, answer.part)
        return inbox

    def _masked(self, client: int, answer: RoundMessage) -> None:
        self._server.add(client, answer.update)
        # After `add`, which refuses a vector that is damaged.
        self.upload_bytes = max(self.upload_bytes, len(answer.update))

    def _introduced(self, inboxes: Mapping[int, Mapping[int, bytes]]) -> Requests:
        # A client sends its advert under its own number: it cannot advertise for another client.
        adverts = {client: inbox[client] for client, inbox in inboxes.items() if client in inbox}
        return self._next(protocol.SHARE, self._server.introduce(adverts))

    def _forwarded(self, inboxes: Mapping[int, Mapping[int, bytes]]) -> Requests:
        relayed, proofs = self._server.forward(inboxes), {}
        if self._draw is not None:
            # All parts are in. The server's own was fixed by its commitment before it saw them.
            seed, proofs = self._draw.close()
            self._mechanism = self.offer.mechanism.in_round(seed)
        return self._next(protocol.UPLOAD, relayed, proofs)

    def _closed(self, uploads: Mapping[int, None]) -> Requests:
        survivors, least = self._server.close(), self.terms.least
        self.clients = len(survivors)
        # Before the unmasking: clients refuse to unmask fewer, and nothing of them is revealed.
        if len(survivors) < least:
            raise ProtocolError(
                f"Expected updates of {least} clients or more, got {len(survivors)}: the guarantee "
                "needs that many."
            )
        # All clients confirm one set of survivors to each other. A server that named different sets
        # could collect the shares of both secrets of one client.
        request = RoundMessage(
            protocol.CONFIRM, self.terms.session, survivors=tuple(sorted(survivors))
        )
        return dict.fromkeys(survivors, request)

    def _relayed(self, inboxes: Mapping[int, Mapping[int, bytes]]) -> Requests:
        return self._next(protocol.REVEAL, self._server.relay(inboxes))

    def _unmasked(self, inboxes: Mapping[int, Mapping[int, bytes]]) -> Requests:
        # `largest` lets the server notice totals that no valid codes add up to.
        self._totals = self._server.unmask(inboxes, self.offer.largest).astype(np.int64)
        return {}

    def _next(
        self,
        step: str,
        relayed: Mapping[int, Mapping[int, bytes]],
        proofs: Mapping[int, bytes] = {},
    ) -> Requests:
        session = self.terms.session
        return {
            client: RoundMessage(step, session, proof=proofs.get(client, b""), inbox=inbox)
            for client, inbox in relayed.items()
        }


def _inbox(client: int, answer: RoundMessage) -> Mapping[int, bytes]:
    return answer.peer_messages


@dataclass(frozen=True, slots=True)
class AmongClients:
    """Secure sums among the clients of a round: their settings, and the losses that they withstand.

    Args:
        least: fewest clients in a sum, at least `mechanism.cohort` plus the number of clients that
            may collude with the server; by default the cohort. Under local trust, of which there
            are no sums, the fewest in a mean.
        neighbours: how many others each client shares masks with; None for all. Fewer are faster,
            and clients must allow them (`QuantizeMod(all_neighbours=False)`).
        losses: losses of clients that a sum must withstand; they choose the number of neighbours,
            which is logged.
        directory: public keys of all clients' identities by number, 32 bytes of Ed25519, as in
            the clients' `randquant-directory`: a client whose keys are not signed is left out of a
            sum, which it could otherwise stop.
        stable_numbers: True if clients are certain to keep their numbers, because SuperNodes are
            authenticated and the SuperLink keeps its database. Otherwise a client that is new after
            the first round is assumed to have answered as often as any other.
        step_timeout: seconds for each step other than the upload.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of bounds.

    Example:
        >>> AmongClients(losses=Losses(step=0.01)).degree(1000, lambda level, line: None)
        42
    """

    least: int | None = None
    neighbours: int | None = None
    losses: Losses | None = None
    directory: Mapping[int, bytes] | None = None
    stable_numbers: bool = False
    step_timeout: float = 600.0

    counts_on = ""  # these sums need no honest party other than clients

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        _check_shared(self)
        validate.real("step_timeout", self.step_timeout, above=0)
        if self.neighbours is not None:
            validate.whole("neighbours", self.neighbours, low=1)
        if self.losses is not None:
            validate.kind("losses", self.losses, Losses)
            if self.neighbours is not None:
                raise ValueError(
                    f"Expected neighbours or losses, got neighbours={self.neighbours} and "
                    f"losses={self.losses}: losses choose the number of neighbours."
                )

    def check(self, log: Log) -> None:
        """Do nothing: these sums need nothing before the first round."""

    def fewest(self, mechanism: UpdateMechanism) -> int:
        """Return the fewest clients in a sum.

        Raises:
            ValueError: the guarantee needs more, or a helper, whose noise it relies on.
        """
        if mechanism.helper_noise:
            raise ValueError(
                "Expected sums with a helper, which adds the noise of this mechanism, got sums "
                f"among clients of {mechanism!r}: set sums=WithHelper(...)."
            )
        return fewest(mechanism, self.least)

    def degree(self, clients: int, log: Log) -> int:
        """Return the neighbours of a client; ValueError if not even all others are enough."""
        others = clients - 1
        if self.losses is None:
            # By default all: with fewer, a malicious server can learn sums of a few clients.
            return others if self.neighbours is None else min(self.neighbours, others)
        chosen = self.losses.graph(clients)
        log(INFO, f"randquant: neighbours of a client in the secure sum: {chosen.reason}.")
        return chosen.neighbours

    def most_lost(self, cohort: int) -> tuple[int, str]:
        """Return how many clients of a cohort a sum may lose, and why no more.

        Raises:
            ValueError: no number of neighbours withstands `losses`.
        """
        self.degree(cohort, lambda level, line: None)  # ValueError, before the run begins
        others = cohort - 1
        # With all others as neighbours, which withstands the most losses.
        why = f"two thirds of {others} neighbours must answer to the end"
        return others - share_of_neighbours(others, DEFAULT_THRESHOLD_SHARE), why

    def begin(self, offer: Offer, clients: Sequence[int], log: Log) -> RoundSum:
        """Return the sum of a round, with a new session.

        Raises:
            ProtocolError: fewer clients than `least`.
            ValueError: not even all others as neighbours withstand `losses`.
        """
        least = self.fewest(offer.mechanism)
        check_enough(clients, least)
        # Each client's own noise protects it from the server: a secure sum would add nothing.
        if offer.mechanism.trust == "local":
            return PlainSum(offer, clients, log, least)
        session, bits = os.urandom(protocol.SESSION_BYTES), offer.sum_bits(len(clients))
        degree = self.degree(len(clients), log)
        digest = bytes.fromhex(offer.digest)
        terms = Terms(session, tuple(clients), offer.size, bits, least, degree, offer=digest)
        return SecureSum(offer, terms, log, self.directory)


# Secure sums with a helper: one message from each client, and one request to the helper.

Integrity = Literal["masked", "proven"]
"""Guarantee about a hostile client's vector in a sum: none (`masked`), or valid codes
(`proven`)."""


class HelperConnection(Protocol):
    """A server's connection to a helper: `RemoteHelper`, or a `Helper` in its own process."""

    @property
    def key(self) -> HelperKey:
        """The key that clients seal to; OSError or ValueError if there is no helper."""
        ...

    def answer(self, request: bytes) -> bytes:
        """Return `Helper.answer`; ProtocolError if it refuses, OSError if it does not answer."""
        ...


class HelperRound(RoundSum):
    """A sum of codes with a helper: the server sees only the sum, the helper no codes.

    Args:
        offer, terms: of the sum, for clients to check.
        helper: is asked once all messages are in.
        log: as in `Intake`.
        clients: who is asked.
        directory: public keys of all clients' identities, if clients have identities.
        verify_key: of the proofs, if the terms ask for them: a secret of the server until all
            messages are in.

    Raises:
        ProtocolError: the offer needs a seed, and the helper does not sign one.
    """

    def __init__(
        self,
        offer: Offer,
        terms: HelperTerms,
        helper: HelperConnection,
        log: Log,
        clients: Sequence[int],
        directory: Mapping[int, bytes] | None = None,
        verify_key: bytes = b"",
    ) -> None:
        self.terms, self._helper = terms, helper
        self._sum = HelperSum(terms, directory, verify_key)
        super().__init__(offer, self._sum.refused, log)
        self._totals: np.ndarray | None = None
        proof = b""
        # With a helper a round is one message of each client, which leaves no message for a part of
        # a seed: the helper draws it with the server, and clients check its signature.
        if offer.needs_seed:
            draw = JointSeed(terms.session)
            seed, proof = draw.close(_ask_helper(helper, draw.request))
            self._mechanism = offer.mechanism.in_round(seed)
        request = RoundMessage(
            protocol.UPLOAD, terms.session, offer.to_text(), terms.to_text(), proof=proof
        )
        self.pending = dict.fromkeys(clients, request)

    @property
    def most(self) -> int:
        if self.terms.largest:
            return EXTRA_BYTES + proven.message_bytes(self.terms) + SIGNATURE_BYTES
        vector = wire.masked(self.terms.dimension, self.terms.bits)
        return EXTRA_BYTES + vector + SEALED_BYTES[self.terms.key.suite] + SIGNATURE_BYTES

    def take(self, answers: Answers) -> None:
        # ProtocolError also if the helper refuses or does not answer: it alone knows the masks.
        step, requests = self.step, self.pending
        self.pending = {}
        self._intake.take(step, requests, answers, self._add)
        self._totals = self._intake.logged(self._unmask)
        self.clients = len(self._sum.clients)

    def mean(self) -> np.ndarray:
        assert self._totals is not None  # set by `take`, after which nothing is pending
        # Codes that are proven are summed exactly: even many hostile clients cannot make the sum
        # wrap around, so `decode` may use all its bits.
        bits = self.terms.bits if self.terms.largest else None
        return self._mechanism.decode(self._totals, self.clients, self.offer.dimension, bits)

    def _add(self, client: int, answer: RoundMessage) -> None:
        self._sum.add(client, answer.update)  # ProtocolError refuses this client alone
        self.upload_bytes = max(self.upload_bytes, len(answer.update))

    def _unmask(self) -> np.ndarray:
        # With the offer, by which a helper may count each client's epsilon.
        answer = _ask_helper(self._helper, self._sum.request(self.offer.to_text()))
        totals = self._sum.unmask(answer, self.offer.largest).astype(np.int64)
        mechanism: Any = self._mechanism
        if mechanism.helper_noise and mechanism.server_noise:
            # theory/helper-sums.md, Proposition 14: against the helper, before anything is computed
            # from the sum, and from the operating system, so that nobody can take it off again. A
            # server that is killed from here on has published nothing of this sum, and its next
            # round is another sum.
            totals += mechanism.party_noise(self.offer.dimension, Key.generate())
            totals %= 2**self.terms.bits
        return totals


def _with_proofs(terms: HelperTerms, levels: int, verify_key: bytes) -> HelperTerms:
    # Exact bits and not the offer's fewer ones: proven codes are summed without wrapping around.
    # Clients get a commitment only; one who knew the key could forge a proof.
    return replace(
        terms,
        bits=wire.sum_bits(levels, terms.cohort),
        largest=levels - 1,
        commitment=proven.verify_key_commitment(verify_key),
    )


def _ask_helper(helper: HelperConnection, request: bytes) -> bytes:
    try:
        return helper.answer(request)
    except OSError as error:
        raise ProtocolError(f"Expected the helper to answer, got an error: {error}") from error


@dataclass(frozen=True)  # without slots: NVFlare reads its jobs' values by __dict__
class WithHelper:
    """Secure sums with a helper that does not collude with the server.

    Each client sends one message, and losing any of them costs nothing. Clients read the helper's
    identity from their own settings (`randquant-helper`), never from the server.

    Args:
        helper: the connection to it.
        least: fewest clients in a sum, at least `mechanism.cohort` plus the number of clients that
            may collude with the server; by default the cohort. 1 where the helper adds the noise
            (`Privacy.noise`): then no guarantee relies on other clients. As in `AmongClients` under
            local trust.
        directory: public keys of all clients' identities by number, 32 bytes of Ed25519; the helper
            should have the same.
        stable_numbers: as in `AmongClients`.
        integrity: `masked`: a hostile client can add any vector, undetected; or `proven`: each
            client proves in its message, which is longer, that its codes are valid, and is left
            out and named if they are not.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of bounds.

    References:
        `docs/helper-sums.md`, `docs/proven-sums.md`; proofs in `docs/theory/helper-sums.md`.
    """

    helper: HelperConnection
    least: int | None = None
    directory: Mapping[int, bytes] | None = None
    stable_numbers: bool = False
    integrity: Integrity = "masked"

    # For steps other than the upload, which this kind of sum does not have: engines read it.
    step_timeout = 600.0
    counts_on = "the helper does not collude with the server"

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        if not callable(getattr(self.helper, "answer", None)):
            raise TypeError(
                "Expected a helper that answers requests, such as RemoteHelper, got "
                f"{validate.shown(self.helper)}."
            )
        validate.choice("integrity", self.integrity, get_args(Integrity))
        _check_shared(self)

    def check(self, log: Log) -> None:
        """Log the helper's key, before any client is asked.

        Raises:
            ProtocolError: there is no helper.
        """
        log(INFO, f"randquant: sums with a helper, whose key is {self._key().fingerprint.hex()}.")

    def fewest(self, mechanism: UpdateMechanism) -> int:
        """Return the fewest clients in a sum.

        Raises:
            ValueError: the guarantee needs more, or codes are to be proven that cannot be.
        """
        to_prove = self.integrity == "proven" and mechanism.trust == "aggregate"
        if to_prove and mechanism.channel is None:
            raise ValueError(
                f"Expected codes of a channel with integrity='proven', got {mechanism!r}: it has "
                "no largest code."
            )
        return fewest(mechanism, self.least)

    def most_lost(self, cohort: int) -> tuple[int, str]:
        # A loss costs nothing: the helper adds up the masks of those who sent a message.
        return cohort - 2, "a sum of one hides nothing"

    def begin(self, offer: Offer, clients: Sequence[int], log: Log) -> RoundSum:
        """Return the sum of a round, with a new session.

        Raises:
            ProtocolError: fewer clients than `least`, or no helper.
        """
        least = self.fewest(offer.mechanism)
        check_enough(clients, least)
        # Each client's own noise protects it from the server: no helper is needed.
        if offer.mechanism.trust == "local":
            return PlainSum(offer, clients, log, least)
        # Before any client is asked: the helper would refuse the request for the sum.
        if len(text := offer.to_text()) > MAX_OFFER_BYTES:
            raise ProtocolError(
                f"Expected an offer of {MAX_OFFER_BYTES} characters at most for a sum with a "
                f"helper, got {len(text)}: ask for less at once, or sum among clients "
                "(AmongClients)."
            )
        terms = HelperTerms(
            os.urandom(protocol.SESSION_BYTES), self._key(), len(clients), least, offer.size,
            offer.sum_bits(len(clients)), hashlib.sha256(text.encode()).digest(),
            noise_variance=offer.helper_variance,
        )  # fmt: skip
        verify_key = b""
        if self.integrity == "proven":
            # Drawn for this round alone: clients that learnt it afterwards could forge proofs.
            verify_key = os.urandom(proven.VERIFY_KEY_BYTES)
            terms = _with_proofs(terms, offer.largest + 1, verify_key)
        return HelperRound(offer, terms, self.helper, log, clients, self.directory, verify_key)

    def _key(self) -> HelperKey:
        try:
            return self.helper.key
        except OSError as error:
            raise ProtocolError(
                f"Expected the helper of secure sums to answer, got an error: {error}. Start it "
                "(randquant helper serve), or sum among clients (AmongClients)."
            ) from error
