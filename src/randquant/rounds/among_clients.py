"""Secure sums among the clients of a round: the server's steps, and a run's settings of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import INFO

import numpy as np

from randquant._internal import validate
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels import wire
from randquant.rounds import protocol, sums
from randquant.rounds.offer import Offer
from randquant.rounds.protocol import RoundMessage
from randquant.rounds.sums import Answers, Intake, Log, PlainSum, Requests, RoundSum
from randquant.secure_sums.secagg.graphs import Draw, Losses
from randquant.secure_sums.secagg.server import SumServer
from randquant.secure_sums.secagg.terms import (
    DEFAULT_THRESHOLD_SHARE,
    ProtocolError,
    Terms,
    share_of_neighbours,
)


class SecureSum:
    """A sum of codes by secure aggregation: the server sees only the sum.

    Args:
        offer, terms: of the sum, for clients to check.
        log: as in `Intake`.
        directory: public keys of all clients' identities, if clients have identities.
    """

    def __init__(
        self, offer: Offer, terms: Terms, log: Log, directory: Mapping[int, bytes] | None = None
    ) -> None:
        self.offer, self.terms = offer, terms
        self._server = SumServer(terms, directory)
        self.refused = self._server.refused
        self._intake = Intake(self.refused, log)
        self.clients = self.upload_bytes = 0
        self._mechanism: UpdateMechanism = offer.mechanism
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
        self.pending: Requests = dict.fromkeys(terms.clients, request)

    @property
    def step(self) -> str:
        return sums.step_in(self.pending)

    @property
    def most(self) -> int:
        # Over all steps: no reply is longer than a masked vector and messages to all neighbours.
        vector = wire.masked(self.terms.dimension, self.terms.bits)
        return sums.EXTRA_BYTES + vector + sums.BYTES_PER_NEIGHBOUR * (self.terms.neighbours + 1)

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
            may collude with the server; by default the cohort.
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
        return sums.fewest(mechanism, self.least)

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
        # Each client's own noise protects it from the server: a secure sum would add nothing.
        if offer.mechanism.trust == "local":
            return PlainSum(offer, clients, log)
        least = self.fewest(offer.mechanism)
        sums.check_enough(clients, least)
        session, bits = os.urandom(protocol.SESSION_BYTES), offer.sum_bits(len(clients))
        degree = self.degree(len(clients), log)
        digest = bytes.fromhex(offer.digest)
        terms = Terms(session, tuple(clients), offer.size, bits, least, degree, offer=digest)
        return SecureSum(offer, terms, log, self.directory)
