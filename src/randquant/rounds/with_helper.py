"""Secure sums with a helper: one message from each client, and one request to the helper."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO
from typing import Any, Literal, Protocol, get_args

import numpy as np

from randquant._internal import validate
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.rounds import protocol, sums
from randquant.rounds.offer import Offer
from randquant.rounds.protocol import RoundMessage
from randquant.rounds.sums import Answers, Intake, Log, PlainSum, Requests, RoundSum
from randquant.secure_sums.helper import proven
from randquant.secure_sums.helper.collector import HelperSum
from randquant.secure_sums.helper.joint_seed import JointSeed
from randquant.secure_sums.helper.message import HelperTerms
from randquant.secure_sums.helper.request import MAX_OFFER_BYTES
from randquant.secure_sums.helper.sealing import SEALED_BYTES, SIGNATURE_BYTES, HelperKey
from randquant.secure_sums.secagg.terms import ProtocolError

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


class HelperRound:
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
        self.offer, self.terms, self._helper = offer, terms, helper
        self._sum = HelperSum(terms, directory, verify_key)
        self.refused = self._sum.refused
        self._intake = Intake(self.refused, log)
        self.clients = self.upload_bytes = 0
        self._totals: np.ndarray | None = None
        self._mechanism, proof = offer.mechanism, b""
        # With a helper a round is one message of each client, which leaves no message for a part of
        # a seed: the helper draws it with the server, and clients check its signature.
        if offer.needs_seed:
            draw = JointSeed(terms.session)
            seed, proof = draw.close(_ask_helper(helper, draw.request))
            self._mechanism = offer.mechanism.in_round(seed)
        request = RoundMessage(
            protocol.UPLOAD, terms.session, offer.to_text(), terms.to_text(), proof=proof
        )
        self.pending: Requests = dict.fromkeys(clients, request)

    @property
    def step(self) -> str:
        return sums.step_in(self.pending)

    @property
    def most(self) -> int:
        if self.terms.largest:
            return sums.EXTRA_BYTES + proven.message_bytes(self.terms) + SIGNATURE_BYTES
        vector = wire.masked(self.terms.dimension, self.terms.bits)
        return sums.EXTRA_BYTES + vector + SEALED_BYTES[self.terms.key.suite] + SIGNATURE_BYTES

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
            (`Privacy.noise`): then no guarantee relies on other clients.
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
        return sums.fewest(mechanism, self.least)

    def most_lost(self, cohort: int) -> tuple[int, str]:
        # A loss costs nothing: the helper adds up the masks of those who sent a message.
        return cohort - 2, "a sum of one hides nothing"

    def begin(self, offer: Offer, clients: Sequence[int], log: Log) -> RoundSum:
        """Return the sum of a round, with a new session.

        Raises:
            ProtocolError: fewer clients than `least`, or no helper.
        """
        # Each client's own noise protects it from the server: no helper is needed.
        if offer.mechanism.trust == "local":
            return PlainSum(offer, clients, log)
        least = self.fewest(offer.mechanism)
        sums.check_enough(clients, least)
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
