"""A client in the rounds of a run: it answers a server's steps, each on record before it is sent.

No engine is in here: messages come in and go out as values.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from logging import INFO
from typing import TYPE_CHECKING, Any

from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.rounds import protocol
from randquant.rounds.accountant import RoundEvent, RunAccountant
from randquant.rounds.foreign import DamagedFile, logged
from randquant.rounds.ledger import OWN, AnswerLedger, State
from randquant.rounds.limits import ClientLimits, Membership, identity, whether_known
from randquant.rounds.protocol import RoundMessage
from randquant.secure_sums.secagg.client import Client
from randquant.secure_sums.secagg.graphs import HASH_BYTES, PART_BYTES
from randquant.secure_sums.secagg.terms import ProtocolError

if TYPE_CHECKING:
    import numpy as np

    from randquant.aggregation.mechanism import UpdateMechanism
    from randquant.rounds.trained import Arrays, Layout
    from randquant.secure_sums.helper.message import HelperTerms

RELATIVE_LOSS = "relative-loss"
"""Name of the number by which a classifier's update is shortened, see `shorten`. It is sent
only if an offer names it among its numbers."""

FILES = "This client's files cannot be used; its log says why."
NOTHING = "This client has no update to send; its log says why."
REFUSED = "This client refuses the message; its log says why."


class NothingToSend(Exception):
    """Training has failed, or what it gave cannot be encoded: the reason may reveal data."""


@dataclass(frozen=True)
class Agreed:
    """A request to upload that a client has agreed to.

    Attributes:
        request: the server's.
        own: the client's part in the round.
        mechanism: the offered one, with the round's seed.
        layout: which arrays of the model are trained.
    """

    request: RoundMessage
    own: Membership
    mechanism: UpdateMechanism
    layout: Layout


@dataclass(frozen=True)
class Member:
    """One client: what it keeps, and what it answers.

    Without secure aggregation a round is `agree`, `charge`, `encode` and `upload`; in a secure sum
    `answer` takes the steps before and after these.

    Attributes:
        number: this client's.
        limits: what it allows.
        state: what it keeps between two messages of a run.
        files: what its operator has set: names of files (`randquant-ledger`, `randquant-identity`,
            `randquant-directory`).
        log: takes a level and a text, for the client's own log.
        drawn: whether a round's seed is drawn together with the server; else it follows from the
            round's session.
        examples: the account is for one of so many examples; None for all data of this client.
    """

    number: int
    limits: ClientLimits
    state: State
    files: Mapping[str, Any]
    log: Callable[[int, str], object]
    drawn: bool = True
    examples: int | None = None

    @property
    def ledger(self) -> AnswerLedger:
        """This client's account."""
        path = self.files.get("randquant-ledger")
        path = None if path is None else str(path)
        return AnswerLedger(self.limits.accountant(), path, self.state)

    def agree(self, request: RoundMessage, model: Arrays) -> Agreed:
        """Check a request to upload, and the model that came with it; nothing is spent yet.

        Raises:
            ProtocolError: this client does not agree.
        """
        if request.offer:  # in one message: without secure aggregation, or with a helper
            own = Membership(request.session, request.offer, examples=self.examples)
            own.check_same(self.state)
            if request.terms:
                own = replace(own, helped=_helped(own, request.terms))
        else:
            own = self._recalled(request.session)
        mechanism = self._in_round(own, request)
        if own.client is not None:
            own.client.look_at(request.of_others)
        layout = self.limits.layout(own.offer, model)
        if layout.kept:
            self.log(INFO, f"randquant: no update is sent of {logged(', '.join(layout.kept))}.")
        return Agreed(request, own, mechanism, layout)

    def _recalled(self, session: bytes) -> Membership:
        """What this client has agreed to in a round's earlier messages."""
        own = Membership.recall(self.state, session, self.files)
        return replace(own, examples=self.examples)

    def _in_round(self, own: Membership, request: RoundMessage) -> UpdateMechanism:
        """The offered mechanism with the round's seed; ProtocolError unless its proof is valid."""
        mechanism = own.offer.mechanism
        if own.helped is not None and own.offer.drawn:
            from randquant.secure_sums.helper.joint_seed import proved

            return mechanism.in_round(proved(own.session, request.proof, self.limits.of_helper))
        if self.drawn:
            return own.mechanism(self.number, request.proof)
        return mechanism.in_round(protocol.public_seed(request.session))

    def charge(self, own: Membership, step: str = "") -> None:
        """Count an answer, on the disk, before anything of it is sent; without a step only check.

        Raises:
            ProtocolError: a limit does not allow it, or this request was answered before.
        """
        ledger, terms = self.ledger, own.terms

        def check(account: RunAccountant) -> None:
            self.limits.check_offer(own.offer, terms, account)

        if not step:
            check(ledger.look())
            return
        with ledger.checked(check):
            ledger.take(own.session, step)
            ledger.accountant.compose(RoundEvent(own.offer, frozenset({OWN})))
            ledger.save()
        known = whether_known(terms, "randquant-directory" in self.files)
        account = ledger.accountant.told()
        self.log(INFO, f"randquant: this client's answers so far: {account}{known}.")

    def encode(
        self,
        agreed: Agreed,
        old: Arrays,
        new: Arrays,
        numbers: Mapping[str, float],
        whole: bool = True,
    ) -> bytes:
        """Encode what training has made of a model; an error may reveal data.

        Args:
            agreed: the request.
            old: the model before training.
            new: the arrays after it, or the update itself.
            numbers: what training has measured, by name.
            whole: whether `new` is a model.
        """
        offer, layout = agreed.own.offer, agreed.layout
        if offer.buffers == "frozen" and whole:
            layout.check_frozen(old, new)
        update = layout.update(old if whole else None, new)
        weights, relative_loss = layout.update(None, old), numbers.get(RELATIVE_LOSS, 1.0)
        vector = offer.preparation.vector(update, weights, relative_loss, numbers)
        return agreed.mechanism.encode(vector, Key.generate())

    def upload(self, agreed: Agreed, payload: bytes) -> RoundMessage:
        """The answer with an encoded update: masked, if the round is a secure sum."""
        own, request, size = agreed.own, agreed.request, agreed.own.offer.size
        if own.terms is None:
            payload = protocol.addressed(agreed.mechanism, payload, own.session, self.number, size)
        else:
            assert agreed.mechanism.coding is not None  # a sum's offer sends codes
            codes = wire.unpack(agreed.mechanism.coding, payload, size)
            payload = self._masked(own, codes, request)
        return RoundMessage(request.step, own.session, payload=payload)

    def _masked(self, own: Membership, codes: np.ndarray, request: RoundMessage) -> bytes:
        """The codes of a secure sum as they are sent."""
        if own.client is not None:
            payload = own.client.mask(codes, request.of_others)
            own.remember(self.state)
            return payload
        from randquant.secure_sums.helper import masked_message, proven_message

        assert own.helped is not None  # there are terms
        key, _ = identity(self.files)
        message = proven_message if own.helped.largest else masked_message
        return message(own.helped, self.number, codes, self.limits.of_helper, key)

    def answer(self, request: RoundMessage) -> RoundMessage:
        """Take a step of a round other than the upload; those of a secure sum are taken once.

        Raises:
            ProtocolError: this client refuses, and has left the sum if it was in one.
        """
        if (step := request.step) == protocol.ADVERTISE:
            own = self._advertised(request)
            # Not recorded: each request gets new keys, and a server may ask any number of times.
            inbox = {} if own.client is None else {self.number: own.client.advertise()}
            own.remember(self.state)
            return RoundMessage(step, own.session, part=own.part, inbox=inbox)
        own = self._recalled(request.session)
        if own.client is None:
            raise ProtocolError("Expected a step of a secure sum in a secure sum only.")
        ledger = self.ledger
        with ledger.held():
            ledger.take(own.session, step)
            ledger.save()
        Membership.forget(self.state)  # after a failed step the client has left the sum
        inbox = _after_advertising(own.client, request)
        if step != protocol.REVEAL:  # deleted secrets cannot be stolen
            own.remember(self.state)
        return RoundMessage(step, own.session, inbox=inbox)

    def _advertised(self, request: RoundMessage) -> Membership:
        """Agree to the server's offer, and draw this client's secrets of the round."""
        own = Membership(request.session, request.offer, examples=self.examples)
        own.check_same(self.state)
        offer = own.offer
        if request.terms or not offer.drawn:  # without secure aggregation only the seed is drawn
            terms = protocol.read_terms(request.terms, request.session, offer.size)
            keys = identity(self.files)
            own = replace(own, client=Client(terms, self.number, *keys, self.limits.threshold))
        self.charge(own)
        if offer.drawn != bool(request.commitment):
            raise ProtocolError(
                "Expected the server's commitment to its part of a seed exactly where an offer "
                "needs one: for a subset of the coordinates."
            )
        if len(request.commitment) not in (0, HASH_BYTES):
            raise ProtocolError(
                f"Expected a commitment in {HASH_BYTES} bytes, got {len(request.commitment)}."
            )
        part = os.urandom(PART_BYTES) if offer.drawn else b""
        return replace(own, commitment=request.commitment, part=part)


def _helped(own: Membership, text: str) -> HelperTerms:
    """The terms of a sum with a helper; ProtocolError unless they are of this round's offer."""
    from randquant.secure_sums.helper.message import HelperTerms

    terms = HelperTerms.from_text(text)
    offered = hashlib.sha256(own.text.encode()).digest()
    if (terms.session, terms.dimension, terms.offer) != (own.session, own.offer.size, offered):
        raise ProtocolError("Expected terms of this round's offer, got another's.")
    return terms


def _after_advertising(client: Client, request: RoundMessage) -> dict[int, bytes]:
    """A client's messages to others in a step of a secure sum."""
    if request.step == protocol.SHARE:
        return client.share(request.of_others)
    if request.step == protocol.CONFIRM:
        return client.confirm(request.survivors)
    return client.reveal(request.of_others)


def told(error: Exception) -> tuple[str, BaseException | None]:
    """What the server is told of an error, and what is only in this client's log."""
    if isinstance(error, ProtocolError):
        return str(error), error.__cause__
    if isinstance(error, NothingToSend):
        return NOTHING, error.__cause__
    if isinstance(error, OSError | DamagedFile):  # the error may name files of this machine
        return FILES, error
    return REFUSED, error


def refusal_line(reason: str, why: BaseException | None) -> str:
    """A refusal in the client's own log."""
    return f"randquant: refused: {reason}{'' if why is None else logged(f' {why!r}')}"
