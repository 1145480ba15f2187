"""Whatever a server offers, and a client agrees to, arrives and is kept: every field of it."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest
from flower_rounds import NOISY
from helper_sums import helper_in

from randquant.aggregation import AuxiliaryNumbers, Number, VectorMechanism
from randquant.integrations.flower import messages
from randquant.rounds import ClientLimits, Member, Membership, Offer, RoundMessage, protocol
from randquant.secure_sums import Client, Draw, HelperTerms, Terms

SESSION = bytes(16)
PLAIN = VectorMechanism(NOISY, 1.0, "aggregate", 3)
OFFER = Offer(PLAIN, 8)
OFFERS = {
    "mechanism": VectorMechanism(NOISY, 1.0, "aggregate", 4),
    "dimension": 9,
    "parts": ("head",),
    "buffers": "server",
    "scalars": AuxiliaryNumbers(1.0, (Number("accuracy"),), None),
    "examples": 10,
    "scaled": True,
}


def named(kind):
    return {field.name for field in dataclasses.fields(kind) if field.init}


@pytest.mark.parametrize("name", OFFERS)
def test_every_field_of_an_offer_is_in_its_text(name):
    assert OFFERS.keys() == named(Offer)
    other = dataclasses.replace(OFFER, **{name: OFFERS[name]})
    assert Offer.from_text(other.to_text()) == other != OFFER
    assert other.digest != OFFER.digest


MESSAGE = {
    "step": "upload", "session": b"s", "offer": "an offer", "terms": "some terms",
    "survivors": (1, 2**63 + 1), "commitment": b"c", "part": b"p", "proof": b"q",
    "inbox": {2: b"a", 2**63: b"b"}, "payload": b"codes",
}  # fmt: skip


def test_every_field_of_a_message_travels_on_flower():
    assert MESSAGE.keys() == named(RoundMessage)
    message = RoundMessage(**MESSAGE)
    assert messages.read(messages.RecordDict({**messages.records(message)})) == message


def test_every_field_of_terms_is_in_their_text(tmp_path):
    terms = Terms(SESSION, (1, 2, 3, 4, 9), 7, 11, least=3, neighbours=4, threshold=4)
    changes = {"clients": (1, 2, 3, 4, 8), "bits": 12, "least": 4, "neighbours": 2, "threshold": 3}
    known = {"session", "dimension", "offer"}  # of the message
    assert named(Terms) == {*known, *changes}
    digest = hashlib.sha256(b"an offer").digest()
    for name, value in changes.items():
        more = {"threshold": 2} if name == "neighbours" else {}
        other = dataclasses.replace(terms, **{name: value}, **more, offer=digest)
        text = protocol.terms_text(other)
        assert protocol.read_terms(text, SESSION, 7, "an offer") == other != terms
    helped = HelperTerms(b"other", helper_in(tmp_path).key, 9, 3, 7, 11, b"o" * 32, 3, b"c" * 32)
    assert HelperTerms.from_text(helped.to_text()) == helped


def test_every_field_of_a_membership_is_kept_between_two_messages():
    """`helped` is of one message; what a client counts for is its own setting, see below."""
    offer = bytes.fromhex(OFFER.digest)
    terms = Terms(SESSION, (1, 2, 3), OFFER.size, OFFER.sum_bits(3), 3, 2, offer=offer)
    own = Membership(SESSION, OFFER.to_text(), Client(terms, 1), b"c" * 32, b"p" * 32)
    state = {}
    own.remember(state)
    again = Membership.recall(state, SESSION, {})
    kept = named(Membership) - {"helped", "examples", "client"}
    assert {name: getattr(again, name) for name in kept} == {n: getattr(own, n) for n in kept}
    assert again.client.to_bytes() == own.client.to_bytes()
    assert again.terms == terms


@pytest.mark.parametrize("examples", [None, 20])
def test_a_client_counts_for_its_unit_also_in_a_round_of_several_messages(examples):
    """A round whose seed is drawn: agreed to in one message, and uploaded in the next."""
    offer = Offer(VectorMechanism(NOISY, 1.0, coordinates=4), 8)
    state, limits = {}, ClientLimits(99.0, trust="local")
    limits = dataclasses.replace(limits, examples=examples, clip_norm=1.0)
    model, draw = {"w": np.zeros(8, np.float32)}, Draw(SESSION)

    def member():
        return Member(1, limits, state, {}, lambda level, line: None)

    request = RoundMessage(protocol.ADVERTISE, SESSION, offer.to_text(), commitment=draw.commitment)
    draw.add(1, member().answer(request).part)
    _, proofs = draw.close()
    agreed = member().agree(RoundMessage(protocol.UPLOAD, SESSION, proof=proofs[1]), model)
    assert agreed.membership.offer == offer.for_unit(examples)
