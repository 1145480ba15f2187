"""What an offer, limits, a sum and a certificate must not be: each rule with a call against it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from flower_rounds import exact, noisy
from helper_sums import helper_in
from tls import keep

import randquant as rq
from randquant.aggregation import AuxiliaryNumbers, ClippedSGD
from randquant.rounds import (
    AmongClients,
    ClientLimits,
    DamagedFile,
    Member,
    Offer,
    RoundEvent,
    RoundMessage,
    RunAccountant,
    ServerRun,
    UntunedSteps,
    WithHelper,
    protocol,
)
from randquant.secure_sums import HelperTerms, ProtocolError, Terms

LOG = lambda level, line: None  # noqa: E731
LOSS = AuxiliaryNumbers(2.0, (rq.Number("loss"),))
SESSION = bytes(16)


def changed(text, **fields):
    """An offer's text that says something else."""
    return json.dumps({**json.loads(text), **fields})


def advertised(**files):
    """A client with these files takes the first step of a sum."""
    offer = Offer(exact(), 5)
    terms = protocol.terms_text(Terms(SESSION, (1, 2, 3), offer.size, offer.sum_bits(3), 2, 2))
    member = Member(1, ClientLimits(math.inf), {}, files, LOG)
    member.answer(RoundMessage(protocol.ADVERTISE, SESSION, offer.to_text(), terms))


def counted(answers=1):
    accountant = RunAccountant(1e-5)
    accountant.compose(RoundEvent(Offer(noisy(), 5), frozenset({1})), answers)
    return accountant


REFUSED = {
    "a limit that nobody has set": (
        lambda: counted().would_exceed(RoundEvent(Offer(noisy(), 5), frozenset({1}))), ValueError,
        "Expected max_epsilon, here or in the accountant"),
    "a helper's identity in 63 digits": (
        lambda: ClientLimits(1.0, helper="a" * 63), ValueError, "64 hexadecimal digits"),
    "numbers in another norm than the update": (
        lambda: Offer(noisy(), 5, scalars=LOSS), ValueError, "the mechanism's clip_norm 1.0"),
    "a rotation of more coordinates than there can be": (
        lambda: Offer(noisy(), 2**40), ValueError, "Expected "),
    "numbers with a field more": (
        lambda: Offer.from_text(changed(
            Offer(noisy(), 5, scalars=AuxiliaryNumbers(1.0, LOSS.numbers)).to_text(),
            beside={"numbers": [], "weight": None, "more": 1})), ValueError, "cannot carry"),
    "an offer longer than any channel's": (
        lambda: Offer.from_text(" " * 2**24 + Offer(noisy(), 5).to_text()), ValueError,
        "characters, more than"),
    "steps without a rate where coordinates are clipped one by one": (
        lambda: ServerRun(exact(), RunAccountant(1e-5), LOG, untuned=UntunedSteps("classes")),
        ValueError, "clip_norm for steps without a rate"),
    "a helper that cannot answer": (
        lambda: WithHelper("helper:8443"), TypeError, "a helper that answers requests"),
    "a certificate of a mechanism that protects nothing": (
        lambda: rq.certificate_file(ClippedSGD(None, 1.0), dimension=5, rounds=1), ValueError,
        "a mechanism that protects"),
    "a certificate of a mechanism for an unknown dimension": (
        lambda: rq.certificate_file(noisy(), rounds=1), TypeError, "got dimension=None and"),
    "a certificate of a mechanism for unknown rounds": (
        lambda: rq.certificate_file(noisy(), dimension=5), TypeError, "rounds=None"),
}  # fmt: skip
"""By what is wrong: a call, the error, and what it says."""


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_breaks_a_rule_of_rounds_is_refused(wrong):
    call, error, said = REFUSED[wrong]
    with pytest.raises(error, match=said):
        call()


@pytest.mark.parametrize("kind", ["among clients", "with a helper"])
def test_nobody_is_asked_for_a_sum_of_fewer_than_its_noise_counts_on(kind, tmp_path):
    sums = AmongClients() if kind == "among clients" else WithHelper(helper_in(tmp_path))
    with pytest.raises(ProtocolError, match=r"Expected 3 clients or more in the round, got 2"):
        sums.begin(Offer(noisy(cohort=3), 5), [1, 2], LOG)


def test_with_a_helper_codes_of_local_trust_are_sent_without_it(tmp_path):
    """Each client's own noise protects it: no client needs to trust the helper."""
    begun = WithHelper(helper_in(tmp_path)).begin(Offer(noisy("local"), 5), [1], LOG)
    request = begun.pending[1]
    assert not request.terms
    agreed = Member(1, ClientLimits(math.inf), {}, {}, LOG).agree(
        request, {"w": np.zeros(5, np.float32)}
    )
    assert agreed.membership.terms is None


def test_a_helper_adds_no_noise_to_a_sum_of_proven_codes(tmp_path):
    """No guarantee of such a sum is derived."""
    key = helper_in(tmp_path).key
    proven = {"largest": 1, "commitment": bytes(32)}
    HelperTerms(SESSION, key, 5, 2, 4, 10, bytes(32), **proven)
    with pytest.raises(ValueError, match="no noise of the helper in a sum of proven codes"):
        HelperTerms(SESSION, key, 5, 2, 4, 10, bytes(32), noise_variance=1.0, **proven)


def test_a_client_signs_with_no_other_kind_of_key(tmp_path):
    with pytest.raises(DamagedFile, match="Expected an Ed25519 key"):
        advertised(
            **{"randquant-identity": keep(tmp_path / "k", generate_private_key(SECP256R1()))}
        )


def test_a_state_that_was_changed_between_two_messages_is_no_membership():
    offer, state = Offer(exact(), 5), {}
    terms = protocol.terms_text(Terms(SESSION, (1, 2, 3), offer.size, offer.sum_bits(3), 2, 2))
    member = Member(1, ClientLimits(math.inf), state, {}, LOG)
    member.answer(RoundMessage(protocol.ADVERTISE, SESSION, offer.to_text(), terms))
    [name] = [name for name, record in state.items() if "client" in record]
    state[name] = {**state[name], "dimension": 4}
    with pytest.raises(ValueError, match="state in a sum as it was stored"):
        member.answer(RoundMessage(protocol.SHARE, SESSION))


def test_no_delta_below_one_proves_an_epsilon_of_zero_of_many_answers():
    assert RunAccountant(1e-5).get_delta(0.0) <= 1e-299
    assert counted(10**4).get_delta(0.0) == 1.0
