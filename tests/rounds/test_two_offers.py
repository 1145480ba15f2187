"""Hostile servers: different offers to the clients of one sum, and steps asked for again."""

from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from helper_sums import PINNED, helper_in

import randquant as rq
from randquant.aggregation import VectorMechanism
from randquant.channels import Channel, wire
from randquant.rounds import (
    MEMBERSHIP_RECORD,
    AmongClients,
    ClientLimits,
    Member,
    Membership,
    Offer,
    RoundEvent,
    RunAccountant,
    WithHelper,
    protocol,
)
from randquant.secure_sums import ProtocolError

CLIENTS, DIMENSION = 8, 16
MODEL = {"w": np.zeros(DIMENSION, np.float32)}
UPDATE = {"w": np.linspace(-0.3, 0.3, DIMENSION, dtype=np.float32)}
BIT = rq.stochastic_rounding(clip=0.25, levels=2, margin=0.75)
OFFER = Offer(VectorMechanism(BIT, 1.0, "aggregate", CLIENTS), DIMENSION)


def without_noise():
    """An offer for the same sum whose codes are zero, but once in 65,536, whatever is encoded."""
    rare, rise = BIT.denominator >> 16, BIT.denominator >> 30
    ones = (rare, rare + rise)
    weights = np.array([[BIT.denominator - one, one] for one in ones])
    quiet = Channel(BIT.inputs, BIT.values, weights, BIT.denominator)
    return Offer(VectorMechanism(quiet, 1.0, "aggregate", CLIENTS), DIMENSION)


def identities(folder):
    """Each client's settings: its own key and the directory of all."""
    keys = {client: Ed25519PrivateKey.generate() for client in range(CLIENTS)}
    public = ", ".join(
        f'"{n}": "{key.public_key().public_bytes_raw().hex()}"' for n, key in keys.items()
    )
    (folder / "directory").write_text(f"{{{public}}}")
    for n, key in keys.items():
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / f"{n}.pem").write_bytes(pem)
    return {
        n: {"randquant-identity": folder / f"{n}.pem", "randquant-directory": folder / "directory"}
        for n in keys
    }


def summed(sums, folder, tell, limits):
    """One round whose server sends client n the request `tell(n, request)`: its sum, and codes."""
    log, files = lambda level, line: None, identities(folder)
    members = {n: Member(n, limits[n], {}, files[n], log) for n in range(CLIENTS)}
    started, codes = sums.begin(OFFER, list(members), log), {}
    while started.pending:
        answers = []
        for n, request in started.pending.items():
            told, member = tell(n, request), members[n]
            try:
                if told.step == protocol.UPLOAD:
                    agreed = member.agree(told, MODEL)
                    member.charge(agreed.membership, told.step)
                    payload = member.encode(agreed, MODEL, UPDATE, {})
                    coding = agreed.mechanism.coding
                    codes[n] = wire.unpack(coding, payload, agreed.membership.offer.size)
                    answers.append((n, member.upload(agreed, payload)))
                else:
                    answers.append((n, member.answer(told)))
            except ProtocolError as error:
                answers.append((n, error))
        started.take(answers)
    return started._totals, codes


def same_for_all(n, request):
    return request


def another_offer_to_all_but_the_first(n, request):
    other = without_noise().to_text() if n and request.offer else request.offer
    return dataclasses.replace(request, offer=other)


KINDS = {
    "among clients": lambda folder: AmongClients(),
    "with a helper": lambda folder: WithHelper(helper_in(folder)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_clients_with_another_offer_are_in_no_sum_with_a_client(kind, tmp_path):
    """One client counts on the noise of seven others, who are honest, signed and hardly asked for
    any privacy: by their offer they add none, and the sum would be the client's own codes."""
    summing, trusts = KINDS[kind](tmp_path), {"helper": PINNED.hex()}
    own = OFFER.release(1, "replace_one", "aggregate")
    counted, alone = (rq.account([each], 1e-5).epsilon for each in (own, own.under("local")))
    assert alone > 2 * counted
    limits = {n: ClientLimits(0.01 if n else 1.01 * counted, **trusts) for n in range(CLIENTS)}
    with pytest.raises(ProtocolError, match=f"{CLIENTS} clients or more"):
        summed(summing, tmp_path, another_offer_to_all_but_the_first, limits)
    for n in range(1, CLIENTS):
        limits[n] = limits[0]
    totals, codes = summed(summing, tmp_path, same_for_all, limits)
    np.testing.assert_array_equal(totals, sum(each.astype(np.int64) for each in codes.values()))


def test_the_digest_in_the_terms_is_of_the_clients_own_text_and_never_the_servers_word():
    terms = AmongClients().begin(OFFER, list(range(CLIENTS)), lambda *_: None).terms
    text, session = protocol.terms_text(terms), terms.session
    assert protocol.read_terms(text, session, OFFER.size, OFFER.to_text()) == terms
    other = protocol.read_terms(text, session, OFFER.size, without_noise().to_text())
    assert other.digest != terms.digest
    forged = json.dumps({**json.loads(text), "offer": OFFER.digest})
    with pytest.raises(ProtocolError, match="terms of a secure sum"):
        protocol.read_terms(forged, session, OFFER.size, without_noise().to_text())


@pytest.mark.parametrize("step", [step for step in protocol.STEPS if step != protocol.ADVERTISE])
def test_a_client_that_is_killed_before_its_engine_keeps_its_state_takes_no_step_twice(
    step, tmp_path
):
    """The first answer may have left: only the file of its account knows."""
    log, states = lambda level, line: None, {n: {} for n in range(3)}
    limits, refusals = ClientLimits(99.0), []
    offer = Offer(VectorMechanism(BIT, 1.0, "aggregate", 2), DIMENSION)

    def answer(n, request, state):
        member = Member(n, limits, state, {"randquant-ledger": tmp_path / f"{n}"}, log)
        if request.step != protocol.UPLOAD:
            return member.answer(request)
        agreed = member.agree(request, MODEL)
        member.charge(agreed.membership, request.step)
        return member.upload(agreed, member.encode(agreed, MODEL, UPDATE, {}))

    started = AmongClients().begin(offer, list(states), log)
    while started.pending:
        before, answers = copy.deepcopy(states[0]), []
        for n, request in started.pending.items():
            answers.append((n, answer(n, request, states[n])))
        if started.step == step:
            with pytest.raises(ProtocolError, match="each step of a round once") as refused:
                answer(0, started.pending[0], before)
            refusals.append(refused)
        started.take(answers)
    assert len(refusals) == 1
    assert started.mean().shape == (DIMENSION,)


def first_requests(offer):
    """Of a sum among all clients, with a session of its own."""
    return AmongClients().begin(offer, list(range(CLIENTS)), lambda *_: None).pending[0]


LARGER = Offer(VectorMechanism(BIT, 4.0, "aggregate", CLIENTS), 16 * DIMENSION)
REFUSED_STEPS = {
    "a later step": lambda now, then: dataclasses.replace(then, step=protocol.UPLOAD),
    "of this round": lambda now, then: now,
    "another offer": lambda now, then: dataclasses.replace(then, offer=without_noise().to_text()),
    "no terms": lambda now, then: dataclasses.replace(then, session=b"a third", terms="{}"),
    "beyond the limit": lambda now, then: first_requests(LARGER),
    "keys of nobody": lambda now, then: dataclasses.replace(then, step=protocol.SHARE, inbox={}),
}


@pytest.mark.parametrize("step", REFUSED_STEPS)
def test_a_step_that_is_refused_of_the_next_sum_leaves_this_rounds_as_it_was(step):
    state, log = {}, lambda level, line: None
    spent = RunAccountant(1e-5)
    spent.compose(RoundEvent(OFFER, frozenset({0})))
    limits = ClientLimits(1.01 * spent.get_epsilon(1e-5))
    member = Member(0, limits, state, {}, log)
    now, then = first_requests(OFFER), first_requests(OFFER)
    member.answer(now)
    member.prepare(then)
    before = copy.deepcopy(state[MEMBERSHIP_RECORD])
    with pytest.raises(ProtocolError):
        member.prepare(REFUSED_STEPS[step](now, then))
    assert state[MEMBERSHIP_RECORD] == before
    assert Membership.recall(state, now.session, {}).text == OFFER.to_text()
