"""The client's side of a run: checks each request, and records each answer before it is sent.

It is independent of the engine: messages come in and go out as values.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any

import numpy as np

from randquant.aggregation.layout import check_precision
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.rounds import limits, protocol
from randquant.rounds.accountant import (
    THIS_CLIENT,
    AnswerLedger,
    DamagedFile,
    RoundEvent,
    RunAccountant,
    State,
)
from randquant.rounds.limits import ClientLimits, Membership, identity, peers_note
from randquant.rounds.protocol import RoundMessage, logged
from randquant.secure_sums.secagg.client import Client
from randquant.secure_sums.terms import HASH_BYTES, PART_BYTES, ProtocolError

if TYPE_CHECKING:
    from randquant.aggregation.layout import Arrays, Layout
    from randquant.aggregation.mechanism import UpdateMechanism
    from randquant.rounds.offer import Offer
    from randquant.secure_sums.helper.message import HelperTerms

RELATIVE_LOSS = "relative-loss"
"""Name of a client's number that shortens a classifier's update (`aggregation.clipping.shorten`).
It is sent only if an offer lists it among its numbers."""

# The server reads these in place of errors that may name this machine's files or reveal data; the
# errors themselves are in the client's log only.
UNUSABLE_FILES = "This client's files cannot be used; its log says why."
NO_UPDATE = "This client has no update to send; its log says why."
REFUSED_MESSAGE = "This client refuses the message; its log says why."

NO_LEDGER = (
    "randquant: this client's limit holds against a server that waits for each answer. One that "
    "sends several messages at once gets more answers than are counted, and can read codes in a "
    "secure sum: a client of a deployment needs a file for its account, randquant-ledger."
)
"""An engine answers messages that come together in processes of their own, each with a copy of the
state, and keeps that of the last: without a file each of them counts its own answer only."""


class NothingToSend(Exception):
    """Training failed, or its result cannot be encoded; the reason may reveal data."""


@dataclass(frozen=True)
class AgreedUpload:
    """A request to upload that passed all checks of a client.

    Attributes:
        request: the server's request.
        membership: the client's state in the round.
        mechanism: the offered mechanism, with the round's seed.
        layout: which arrays of the model are trained.
    """

    request: RoundMessage
    membership: Membership
    mechanism: UpdateMechanism
    layout: Layout


@dataclass(frozen=True)
class Member:
    """One client: its limits, its stored state, and its answers.

    Without secure aggregation a round calls `agree`, `charge`, `encode` and `upload`, in this
    order; in a secure sum `answer` takes the steps before and after these.

    Attributes:
        number: of this client in the run.
        limits: which offers it accepts.
        state: what it keeps between two messages of a run; never sent.
        files: paths that its operator has set (trusted, unlike a request: `randquant-ledger`,
            `randquant-identity`, `randquant-directory`).
        log: writes to the client's log; takes a level of `logging` and a line.
        drawn: True if server and clients draw a round's seed jointly; False if it is a hash of the
            round's session.
    """

    number: int
    limits: ClientLimits
    state: State
    files: Mapping[str, Any]
    log: Callable[[int, str], object]
    drawn: bool = True

    @property
    def ledger(self) -> AnswerLedger:
        # A new object for each message: engines answer messages in different processes, and what an
        # old object has read may have changed.
        path = limits.ledger_file(self.files)
        return AnswerLedger(self.limits.empty_account(), path, self.state)

    def agree(self, request: RoundMessage, model: Arrays) -> AgreedUpload:
        """Check a request to upload, and the model that came with it; nothing is spent yet.

        Raises:
            ProtocolError: this client refuses.
        """
        # An offer comes with the request where a round is one message: without secure aggregation,
        # or with a helper. Otherwise this client has agreed to it before, in the first step.
        if request.offer:
            membership = Membership(request.session, request.offer, examples=self.limits.examples)
            membership.check_same(self.state)
            if request.terms:
                membership = replace(membership, helped=_helped(membership, request.terms))
        else:
            membership = self._recalled(request.session)
        mechanism = self._in_round(membership, request)
        if membership.client is not None:
            # Forged shares are refused here, before the account is charged and data are read.
            membership.client.look_at(request.peer_messages)
        layout = self.limits.layout(membership.offer, model)
        if layout.kept:
            # The server named these arrays: without `logged` it could write lines into this log.
            self.log(INFO, f"randquant: no update is sent of {logged(', '.join(layout.kept))}.")
        return AgreedUpload(request, membership, mechanism, layout)

    def _recalled(self, session: bytes) -> Membership:
        membership = Membership.recall(self.state, session, self.files)
        # The unit of protection is this client's setting, so it is never read from stored state.
        return replace(membership, examples=self.limits.examples)

    def _in_round(self, membership: Membership, request: RoundMessage) -> UpdateMechanism:
        mechanism = membership.offer.mechanism
        if membership.helped is not None and membership.offer.needs_seed:
            from randquant.secure_sums.helper.message import check_joint_seed

            # The helper has signed for the seed: the server cannot choose which coordinates it
            # gets.
            identity = self.limits.helper_identity
            return mechanism.in_round(check_joint_seed(membership.session, request.proof, identity))
        if self.drawn:
            return membership.mechanism(self.number, request.proof)
        return mechanism.in_round(protocol.public_seed(request.session))

    def charge(self, membership: Membership, step: str = "") -> None:
        """Record an answer on disk before any of it is sent.

        Args:
            membership: the client's state in the round.
            step: of the round, to record; empty to check the limits and record nothing.

        Raises:
            ProtocolError: the answer would exceed a limit, or this step was answered before.
        """
        ledger, terms = self.ledger, membership.terms

        def check(account: RunAccountant) -> None:
            self.limits.check_offer(membership.offer, terms, account)

        if not step:
            check(ledger.look())
            return
        # Step and cost are written in one transaction, which is on the disk when the context ends.
        # A crash afterwards costs an answer that was never sent; the other order would send an
        # answer that was never counted.
        with ledger.checked(check):
            ledger.take(membership.session, step)
            ledger.accountant.compose(RoundEvent(membership.offer, frozenset({THIS_CLIENT})))
            ledger.save()
        if limits.ledger_file(self.files) is None:
            self.log(WARNING, NO_LEDGER)
        known = peers_note(terms, "randquant-directory" in self.files)
        account = ledger.accountant.summary()
        self.log(INFO, f"randquant: this client's answers so far: {account}{known}.")

    def encode(
        self,
        agreed: AgreedUpload,
        old: Arrays,
        new: Arrays,
        numbers: Mapping[str, float],
        whole: bool = True,
    ) -> bytes:
        """Encode the result of training, zeros in place of what is not finite.

        An error may reveal data.

        Args:
            agreed: the request.
            old: the model before training.
            new: the arrays after it, or their update.
            numbers: measured in training, by name.
            whole: True if `new` is a model, False if it is an update.
        """
        offer, layout, examples = agreed.membership.offer, agreed.layout, self.limits.examples
        if examples is not None:
            if whole:  # a difference of two rounded models may move by more than one gradient does
                raise ValueError(
                    "Expected an update of clipped gradients, got a model, which one example may "
                    "move further than its share: send what randquant.example_update returns, on "
                    "Flower as a record named update, on NVFlare as WEIGHT_DIFF."
                )
            check_precision(layout.parts, new)
        if offer.buffers == "frozen" and whole:
            layout.check_frozen(old, new)
        update = layout.update(old if whole else None, new)
        if examples is not None and offer.mechanism.clip_norm is not None:  # no survey's answer
            # Divided here, by the number that is charged: nothing could check what training code
            # divides by.
            update = (update / np.float64(examples)).astype(np.float32)
        if offer.mechanism.from_zero or not _needs_zeros(update, numbers, offer):
            # Without the number an update is not shortened: 1.0 is the loss of a model that knows
            # nothing.
            weights, relative_loss = layout.update(None, old), numbers.get(RELATIVE_LOSS, 1.0)
            vector = offer.preparation.vector(update, weights, relative_loss, numbers)
        else:
            # theory/alongside.md, Proposition 1: the server chooses the model, and may choose one
            # at which some data overflow and others do not. Whether a client answers would tell.
            vector = np.zeros(offer.dimension, np.float32)
            self.log(
                WARNING,
                "randquant: this client's update, or a number sent with it, is NaN or infinite: "
                "zeros are sent instead.",
            )
        # A fresh secret key for each answer: who knew it could recompute the noise and take it off.
        return agreed.mechanism.encode(vector, Key.generate())

    def upload(self, agreed: AgreedUpload, payload: bytes) -> RoundMessage:
        """Return the answer with an encoded update, masked if the round is a secure sum."""
        membership, mechanism = agreed.membership, agreed.mechanism
        session, size = membership.session, membership.offer.size
        if membership.terms is None:
            payload = protocol.addressed(mechanism, payload, session, self.number, size)
        else:
            assert mechanism.coding is not None  # Offer accepts only mechanisms that send codes
            codes = wire.unpack(mechanism.coding, payload, size)
            payload = self._masked(membership, codes, agreed.request)
        return RoundMessage(agreed.request.step, session, payload=payload)

    def _masked(self, membership: Membership, codes: np.ndarray, request: RoundMessage) -> bytes:
        if membership.client is not None:
            payload = membership.client.mask(codes, request.peer_messages)
            # The next step may run in another process, and must know that the mask was used.
            membership.remember(self.state)
            return payload
        from randquant.secure_sums.helper import masked_message, proven_message

        assert membership.helped is not None  # `upload` comes here only if there are terms
        key, _ = identity(self.files)
        message = proven_message if membership.helped.largest else masked_message
        return message(membership.helped, self.number, codes, self.limits.helper_identity, key)

    def answer(self, request: RoundMessage) -> RoundMessage:
        """Take a step of a round other than the upload; each step of a secure sum only once.

        Raises:
            ProtocolError: this client refuses, and leaves the sum if it was in one.
        """
        if (step := request.step) == protocol.ADVERTISE:
            membership = self._advertised(request)
            # Not recorded as taken: each request gets new keys, which reveal nothing, so a server
            # may ask any number of times.
            inbox = (
                {} if membership.client is None else {self.number: membership.client.advertise()}
            )
            # A sum that begins afresh takes the place of one that was prepared, too.
            self.state.pop(limits.NEXT_RECORD, None)
            membership.remember(self.state)
            return RoundMessage(step, membership.session, part=membership.part, inbox=inbox)
        membership = self._recalled(request.session)
        if membership.client is None:
            # `RoundMessage.read` has checked that the step is one of STEPS.
            raise ProtocolError(
                f"Expected {step!r} in a secure sum, got it in a round without one."
            )
        # On the disk before the answer leaves: a server that asks twice, with other survivors,
        # could get both the share of a neighbour's seed and the secrets of its masks.
        ledger = self.ledger
        with ledger.locked():
            ledger.take(membership.session, step)
            ledger.save()
        Membership.forget(self.state)  # after a failed step the client has left the sum
        inbox = _after_advertising(membership.client, request)
        if step != protocol.REVEAL:  # after the last step its secrets stay deleted
            membership.remember(self.state)
        return RoundMessage(step, membership.session, inbox=inbox)

    def prepare(self, request: RoundMessage) -> RoundMessage:
        """Take a step of the next round's sum, which came with a request of this round's.

        The two sums have no secret in common (docs/theory/shares.md, Proposition 5).

        Raises:
            ProtocolError: as `answer`, or it is a later step; this round's sum goes on.
        """
        # `answer` would take it for ever, and end that sum.
        if request.step not in protocol.PREPARED_STEPS:
            raise ProtocolError(
                f"Expected a step before the upload in the next round's sum, got {request.step!r}."
            )
        with limits.preparing(self.state, request.session):
            return self.answer(request)

    def _advertised(self, request: RoundMessage) -> Membership:
        membership = Membership(request.session, request.offer, examples=self.limits.examples)
        membership.check_same(self.state)
        offer = membership.offer
        # Without secure aggregation this step only draws a seed.
        if request.terms or not offer.needs_seed:
            terms = protocol.read_terms(request.terms, request.session, offer.size, request.offer)
            keys = identity(self.files)
            client = Client(terms, self.number, *keys, self.limits.threshold)
            membership = replace(membership, client=client)
        self.charge(membership)  # checks only: no data are read before the upload
        if offer.needs_seed != bool(request.commitment):
            raise ProtocolError(
                "Expected the server's commitment to its part of a seed exactly where an offer "
                f"needs one, for a subset of the coordinates, got {len(request.commitment)} bytes."
            )
        if len(request.commitment) not in (0, HASH_BYTES):
            raise ProtocolError(
                f"Expected a commitment in {HASH_BYTES} bytes, got {len(request.commitment)}."
            )
        part = os.urandom(PART_BYTES) if offer.needs_seed else b""
        return replace(membership, commitment=request.commitment, part=part)


def _needs_zeros(update: np.ndarray, numbers: Mapping[str, float], offer: Offer) -> bool:
    asked = () if offer.scalars is None else offer.scalars.numbers
    if any(each.name not in numbers for each in asked):
        # An error for every update: a server could ask for a number that this client never has, and
        # zeros would then be sent of updates that are not finite, and nothing of others.
        return False
    # Infinite numbers are cut to their bounds.
    unknown = any(math.isnan(numbers[each.name]) for each in asked)
    return unknown or not np.isfinite(update).all()


def _helped(membership: Membership, text: str) -> HelperTerms:
    from randquant.secure_sums.helper.message import HelperTerms

    terms = HelperTerms.from_text(text)
    offered = hashlib.sha256(membership.text.encode()).digest()
    # The helper counts epsilon by the offer in the terms: with a cheaper offer there, it would
    # count less than this client answers.
    expected = (membership.session, membership.offer.size, offered)
    if (terms.session, terms.dimension, terms.offer) != expected:
        # A refusal does not echo session and hashes, which are a stranger's bytes.
        raise ProtocolError(
            f"Expected terms of this round's offer of {membership.offer.size} codes, got terms of "
            f"{terms.dimension} codes or of another session or offer."
        )
    return terms


def _after_advertising(client: Client, request: RoundMessage) -> dict[int, bytes]:
    if request.step == protocol.SHARE:
        return client.share(request.peer_messages)
    if request.step == protocol.CONFIRM:
        return client.confirm(request.survivors)
    return client.reveal(request.peer_messages)


def refusal_reason(error: Exception) -> tuple[str, BaseException | None]:
    """Return the reason that the server may read, and an error that only this client's log has."""
    if isinstance(error, ProtocolError):
        # Its sentence is written for the server: it has no data, and no stranger's words.
        return str(error), error.__cause__
    if isinstance(error, NothingToSend):
        return NO_UPDATE, error.__cause__
    if isinstance(error, OSError | DamagedFile):  # the error may name files of this machine
        return UNUSABLE_FILES, error
    return REFUSED_MESSAGE, error


def refusal_line(reason: str, why: BaseException | None) -> str:
    return f"randquant: refused: {reason}{'' if why is None else logged(f' {why!r}')}"
