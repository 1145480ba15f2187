"""The client's side on Flower: a mod that sends nothing of training but protected updates."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from logging import INFO
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import log

from randquant._internal import validate
from randquant._internal.rounding import round_up
from randquant.aggregation.secagg.client import Client
from randquant.aggregation.secagg.draw import HASH_BYTES, PART_BYTES
from randquant.aggregation.secagg.terms import TWO_THIRDS, ProtocolError, Terms
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.integrations.accountant import Accountant
from randquant.integrations.flower import answers, messages
from randquant.integrations.flower.accountant import RoundEvent, RunAccountant
from randquant.integrations.flower.answers import NOTHING, refusal, reply, told
from randquant.integrations.flower.demands import check_terms, whether_known
from randquant.integrations.flower.ledger import OWN, SPENT, ClientLedger
from randquant.integrations.flower.membership import Membership, identity
from randquant.integrations.flower.messages import Head
from randquant.integrations.flower.numbers import numbers_in
from randquant.integrations.flower.updates import (
    BUFFERS,
    WAY_OUT,
    Buffers,
    Layout,
    Patterns,
    UnknownPart,
    parts_of,
)
from randquant.integrations.foreign import logged
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring, Trust

if TYPE_CHECKING:
    from randquant.aggregation.mechanism import UpdateMechanism
    from randquant.integrations.flower.offer import Offer


@dataclass(frozen=True, slots=True)
class QuantizeMod:
    """Clips, encodes and masks what a train function returns, as the server's offer says.

    The train function returns the whole model, as on Flower without this mod. Only the codes of
    the update are sent, drawn with a key from the operating system. Of its metrics only numbers
    that the offer names are sent, within the offer's bounds and in the same codes, which the
    guarantee covers; no other metric is.

    Args:
        epsilon: limit of this client's epsilon at `delta`, by a proven bound that it computes
            itself from the offered channel. It counts its own answers, and refuses any answer that
            would exceed the limit. Infinity sets no limit.
        delta: in (0, 1).
        neighboring: what the guarantee hides.
        trust: `local` refuses offers that need secure aggregation.
        all_neighbours: refuse sums in which this client does not share masks with all others.
            Without it a malicious server can learn sums of a few clients
            (`docs/secure-aggregation.md`); one that follows the protocol cannot.
        colluders: how many of the other clients in a sum may tell the server all they know: refuse
            offers that need the noise of more than `least` minus this number, and sums whose
            threshold this number of clients could get around.
        threshold: least fraction of a client's neighbours that must answer to remove its mask; no
            server can ask for less.
        parts, frozen: patterns of the names of arrays, as `QuantizedStrategy` takes them: refuse
            offers to train others than these. None accepts the offer's.
        buffers: what is done about running statistics: refuse offers that say something else. None
            accepts the offer's.
        coordinates: the fewest and the most that this client sends in a round: refuse offers of
            other numbers, which may change from round to round. None accepts the offer's.
        epsilon_alone: limit of what epsilon would be if all other clients were invented by the
            server, or told it all they know: of this client's codes alone. Infinity sets no limit.

    A SuperNode's `--node-config` takes precedence over these arguments: `randquant-epsilon`,
    `randquant-epsilon-alone`, `randquant-delta`, `randquant-all-neighbours`, `randquant-threshold`.
    It may also name files of the client: `randquant-ledger`, its account over all runs (without it,
    an account lasts one run), and `randquant-identity` with `randquant-directory`: its Ed25519 key
    in PEM, and the public keys of all clients, in JSON by node number in 64 hexadecimal digits.
    Without these keys `epsilon` assumes that the other clients exist, which this client cannot
    know: a server that invents them sees its codes. Each answer's log says what epsilon assumes.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp()
        >>> @app.train(mods=[QuantizeMod(epsilon=8.0, delta=1e-5)])
        ... def train(message, context): ...
    """

    epsilon: float
    delta: float = 1e-5
    neighboring: Neighboring = "replace_one"
    trust: Trust = "aggregate"
    all_neighbours: bool = True
    colluders: int = 0
    threshold: float = TWO_THIRDS
    parts: Patterns = None
    frozen: Patterns = None
    buffers: Buffers | None = None
    coordinates: tuple[int, int] | None = None
    epsilon_alone: float = math.inf

    def __post_init__(self) -> None:
        for name in ("epsilon", "epsilon_alone"):
            if (limit := getattr(self, name)) != math.inf:
                validate.real(name, limit, above=0)
        validate.real("delta", self.delta, above=0, below=1)
        validate.choice("neighboring", self.neighboring, NEIGHBORINGS)
        validate.choice("trust", self.trust, ("local", "aggregate"))
        validate.whole("colluders", self.colluders, low=0)
        validate.real("threshold", self.threshold, above=0, high=1)
        if self.buffers is not None:
            validate.choice("buffers", self.buffers, BUFFERS)
        if self.coordinates is not None:
            validate.kind("coordinates", self.coordinates, tuple)
            fewest, most = self.coordinates
            validate.whole("most coordinates", most, low=validate.whole("fewest", fewest, low=1))

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message; a refusal is an error reply with the reason and without data.

        Other message types are passed through: evaluation is not covered by any guarantee.
        """
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        try:
            return self._answer(message, context, call_next)
        except Exception as error:  # any error that a malicious message causes
            return refusal(message, *told(error))

    def _answer(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a train message, or raise an error about it."""
        head = Head.read(message.content)
        if head.step != messages.UPLOAD:
            return self._key_step(message, head, context)
        own, mechanism = self._begin(head, message.content, context)
        offer, client = own.offer, own.client
        old, inbox = (
            _only_arrays(message.content, "the request"),
            message.content.get(messages.INBOX),
        )
        account, following = context.state.get(SPENT), messages.next_of(message.content)
        rest = {key: r for key, r in message.content.items() if key not in messages.OURS}
        message.content = RecordDict(rest)
        try:  # an error here may reveal data, so its text must not reach the server
            answer = call_next(message, context)
            if answer.has_error():
                raise RuntimeError(answer.error.reason)
            new = _only_arrays(answer.content, "the train function's reply")
            layout = Layout.of(old, offer.parts or None)
            if offer.buffers == "frozen":
                layout.check_frozen(old, new)
            update = layout.update(old, new)
            if offer.beside is not None:
                update = offer.beside.joined(update, numbers_in(answer.content), head.threshold)
            payload = mechanism.of_client(context.node_id).encode(update, Key.generate())
        except Exception as error:
            return refusal(message, NOTHING, error)
        finally:  # whatever the train function did to the content
            Membership.forget_all(context)  # it is in this sum, and in the next one at most
            if account is not None:
                context.state[SPENT] = account
        if client is None:
            payload = messages.addressed(
                mechanism, payload, head.session, context.node_id, offer.size
            )
        else:
            assert isinstance(inbox, ConfigRecord)
            codes = wire.unpack(messages.coding_of(mechanism), payload, offer.size)
            payload = client.mask(codes, messages.read_inbox(RecordDict({messages.INBOX: inbox})))
            own.remember(context)
        records = {messages.PAYLOAD: messages.payload_record(payload, offer.size)}
        if following is not None:
            records |= self._next_step(following, messages.ADVERTISE, head.session, context)
        return reply(message, head, records)

    def _key_step(self, message: Message, head: Head, context: Context) -> Message:
        """The steps of a round other than the upload; those of a secure sum are taken once."""
        ledger, following = self._ledger(context), messages.next_of(message.content)
        if following is not None and head.step != messages.CONFIRM:
            raise ProtocolError(
                "Expected steps of the next sum with an upload and a confirmation only."
            )
        if head.step == messages.ADVERTISE:
            own = self._advertise(head, ledger, context)
            # Not recorded: each request gets new keys, and a server may ask any number of times.
            answer = {} if own.client is None else {context.node_id: own.client.advertise()}
            Membership.forget_all(context)  # a message of its own begins anew
            own.remember(context)
            return reply(message, head, {messages.INBOX: messages.inbox_record(answer)}, own.part)
        own = Membership.recall(context, head.session)
        if own.client is None:
            raise ProtocolError("Expected a step of a secure sum in a secure sum only.")
        with ledger.held():
            ledger.take(head.session, head.step)
            if following is not None:  # both are on the disk before either is answered
                ledger.take(Head.read(following).session, messages.SHARE)
            ledger.save()
        own.forget(context)  # after a failed step the client has left the sum
        if head.step == messages.SHARE:
            answer = own.client.share(messages.read_inbox(message.content))
        elif head.step == messages.CONFIRM:
            answer = own.client.confirm(head.survivors)
        else:
            answer = own.client.reveal(messages.read_inbox(message.content))
        if head.step != messages.REVEAL:  # deleted secrets cannot be stolen
            own.remember(context)
        records: dict[str, Any] = {messages.INBOX: messages.inbox_record(answer)}
        if following is not None:
            records |= self._next_step(following, messages.SHARE, head.session, context)
        return reply(message, head, records)

    def _next_step(
        self, content: RecordDict, step: str, current: bytes, context: Context
    ) -> dict[str, ConfigRecord]:
        """The next sum's step, which travels with a message of the current one.

        Neither sum depends on the other (theory/shares.md, Proposition 5). If it fails, this client
        has left the next sum, and stays in the current one.
        """
        try:
            head = Head.read(content)
            if head.step != step or head.session == current:
                raise ProtocolError(f"Expected {step!r} of the next sum, got another message.")
            if step == messages.ADVERTISE:
                own = self._advertise(head, self._ledger(context), context)
            else:
                own = Membership.recall(context, head.session)
                own.forget(context)
            if own.client is None:
                raise ProtocolError("Expected the next sum to be a secure one, got another.")
            if step == messages.ADVERTISE:
                answer = {context.node_id: own.client.advertise()}
            else:
                answer = own.client.share(messages.read_inbox(content))
            own.remember(context)
        except Exception as error:
            return messages.as_next({messages.HEAD: answers.refused_next(error)})
        part = own.part if step == messages.ADVERTISE else b""
        own_head = Head(step, head.session, part=part).record()
        return messages.as_next(
            {messages.HEAD: own_head, messages.INBOX: messages.inbox_record(answer)}
        )

    def _advertise(self, head: Head, ledger: ClientLedger, context: Context) -> Membership:
        """Agree to the server's offer, and draw this client's secrets of the round."""
        Membership.check_same(context, head)
        own = Membership(head.session, head.offer)
        offer, terms, client = own.offer, None, None
        if head.terms or not offer.drawn:  # without secure aggregation only the seed is drawn
            terms = messages.read_terms(head.terms, head.session, offer.size)
            threshold = float(context.node_config.get("randquant-threshold", self.threshold))
            client = Client(terms, context.node_id, *identity(context.node_config), threshold)
        with ledger.checked(lambda accountant: self._check(offer, terms, accountant, context)):
            pass  # nothing is spent yet
        if offer.drawn != bool(head.commitment):
            raise ProtocolError(
                "Expected the server's commitment to its part of a seed exactly where an offer "
                "needs one: for a subset of the coordinates, or rotations."
            )
        if len(head.commitment) not in (0, HASH_BYTES):
            raise ProtocolError(
                f"Expected a commitment in {HASH_BYTES} bytes, got {len(head.commitment)}."
            )
        part = os.urandom(PART_BYTES) if offer.drawn else b""
        return Membership(head.session, head.offer, client, head.commitment, part)

    def _begin(
        self, head: Head, content: RecordDict, context: Context
    ) -> tuple[Membership, UpdateMechanism]:
        """This client's part in the round, and its mechanism; the ledger is charged here."""
        if head.offer:  # in one message, without secure aggregation and seed
            Membership.check_same(context, head)
            own = Membership(head.session, head.offer)
        else:
            own = Membership.recall(context, head.session)
        mechanism, terms = own.mechanism(context.node_id, head.proof), None
        if own.client is not None:
            own.client.look_at(messages.read_inbox(content))
            terms = own.client.terms
        self._check_layout(own.offer, _only_arrays(content, "the request"))
        ledger = self._ledger(context)
        with ledger.checked(lambda each: self._check(own.offer, terms, each, context)):
            if not head.offer:
                ledger.take(head.session, head.step)
            ledger.accountant.compose(RoundEvent(own.offer, frozenset({OWN})))
            ledger.save()
        known = whether_known(terms, "randquant-directory" in context.node_config)
        log(INFO, "randquant: this client's answers so far: %s%s.", ledger.accountant.told(), known)
        return own, mechanism

    def _check(
        self, offer: Offer, terms: Terms | None, accountant: Accountant, context: Context
    ) -> None:
        """Raise ProtocolError unless this client agrees to the server's offer."""
        mechanism = offer.mechanism
        if terms is None and mechanism.trust != "local":
            raise ProtocolError("Expected secure aggregation, which the offer needs, got none.")
        if self.trust == "local" and mechanism.trust != "local":
            raise ProtocolError("Expected an offer of local trust, as this client demands.")
        if terms is not None and mechanism.channel is None:
            raise ProtocolError("Expected no secure sum of an offer that sends no codes, got one.")
        fewest, most = self.coordinates or (1, math.inf)
        if not fewest <= offer.size <= most:
            raise ProtocolError(
                f"Expected an offer to send {fewest} to {most} coordinates, as this client "
                f"demands, got {offer.size}."
            )
        if terms is not None:
            own = context.node_config.get("randquant-all-neighbours", self.all_neighbours)
            check_terms(offer, terms, self.colluders, own not in (False, "false"))
        event = RoundEvent(offer, frozenset({OWN}))
        limit = float(context.node_config.get("randquant-epsilon-alone", self.epsilon_alone))
        limits = [(accountant.max_epsilon, False, "")]
        if limit != math.inf:
            limits.append((limit, True, " if all other clients are invented"))
        for most, alone, when in limits:
            if accountant.would_exceed(event, most, alone=alone):
                accountant.compose(event)
                got = accountant.get_epsilon(accountant.delta, alone=alone)
                raise ProtocolError(
                    f"Expected an offer within epsilon {most}, this client's limit{when}, got "
                    f"{_shown(got)} with all earlier answers, at delta {accountant.delta}."
                )

    def _check_layout(self, offer: Offer, model: ArrayRecord) -> None:
        """Raise ProtocolError unless the model matches the offer."""
        try:
            layout = Layout.of(model, offer.parts or None)
        except UnknownPart as error:
            raise ProtocolError(
                "Expected an offer to train arrays of floating-point numbers that the model has, "
                "other than running statistics, got another."
            ) from error
        own = layout.parts
        if self.parts is not None or self.frozen is not None:
            own = parts_of(model, self.parts, self.frozen)
        if layout.parts != own:
            raise ProtocolError(
                f"Expected an offer to train the {len(own)} arrays that this client trains, got "
                f"one of {len(layout.parts)} or of others."
            )
        if layout.dimension != offer.of_model:
            raise ProtocolError(
                f"Expected {offer.of_model} coordinates as offered, got {layout.dimension}."
            )
        if offer.buffers != (self.buffers or offer.buffers):
            raise ProtocolError(
                f"Expected an offer with buffers={self.buffers!r}, as this client demands, got "
                f"{offer.buffers!r}."
            )
        if layout.running and offer.buffers == "refuse":
            raise ProtocolError(
                "Expected a model without running statistics, as the offer says, got one with "
                f"{len(layout.running)}: {WAY_OUT}."
            )
        if not layout.finite(model):
            raise ProtocolError("Expected finite numbers in the model, got others.")
        if layout.kept:
            log(INFO, "randquant: no update is sent of %s.", logged(", ".join(layout.kept)))

    def _ledger(self, context: Context) -> ClientLedger:
        """This client's account, with the limit of its SuperNode or else of this mod."""
        config = context.node_config
        delta = float(config.get("randquant-delta", self.delta))
        limit = float(config.get("randquant-epsilon", self.epsilon))
        return ClientLedger(RunAccountant(delta, self.neighboring, limit), context)


def _only_arrays(content: RecordDict, what: str) -> ArrayRecord:
    records = [r for key, r in content.array_records.items() if key not in messages.OURS]
    if len(records) != 1:
        raise ProtocolError(f"Expected one record of arrays in {what}, got {len(records)}.")
    return records[0]


def _shown(value: float) -> str:
    return "infinity" if math.isinf(value) else round_up(value)
