"""Every setting of an account beside every other: at server, client and helper the figure is that
of what was sent, which `tests/figures.py` knows from the settings alone."""

from __future__ import annotations

import dataclasses
import inspect
import math

import figures
import pytest
from helper_sums import PINNED, helper_in, offered_terms

import randquant as rq
from randquant.aggregation import AdditiveMechanism, AuxiliaryNumbers, VectorMechanism
from randquant.privacy import NEIGHBORINGS, account
from randquant.rounds import (
    ClientLimits,
    Member,
    Membership,
    Offer,
    RoundEvent,
    RunAccountant,
    protocol,
    within,
)
from randquant.secure_sums import ProtocolError

NOISE, BITS, CLIP, MARGIN = 5.0, 15, 0.3, 0.9
SESSION = bytes(16)

SETTINGS = {
    "mechanism": {"noise": "noise", "bits": "bits", "own bits": "own bits"},
    "cohort": {"3": 3, "5": 5},
    "clip_norm": {"1": 1.0, "0.5": 0.5},
    "coordinates": {"all": None, "3": 3},
    "dimension": {"5": 5, "11": 11},
    "beside": {"nothing": None, "loss": ("loss", 0.0, 4.0)},
    "examples": {"client": None, "3": 3},
    "rounds": {"1": 1, "3": 3},
    "others": {"none": 0, "some": 2},
    "delta": {"1e-5": 1e-5, "1e-3": 1e-3},
    "neighboring": {"replace_one": "replace_one", "zero_out": "zero_out"},
    "trust": {"offered": "offered", "alone": "alone"},
}
"""Of an offer, of how often it is answered, of other offers answered too, and of the account."""

ELSEWHERE = {"parts", "buffers", "scaled", "mechanism", "dimension", "scalars", "examples"}
"""Fields of an offer: those that are not here decide what is trained, not what it costs."""


def test_every_field_of_an_offer_and_every_argument_of_an_account_has_a_row():
    assert {f.name for f in dataclasses.fields(Offer) if f.init} == ELSEWHERE
    assert {*inspect.signature(Offer.release).parameters} == {"self", "rounds", "neighboring",
                                                              "trust"}  # fmt: skip
    accountant = {*inspect.signature(RunAccountant).parameters}
    assert accountant == {"delta", "neighboring", "max_epsilon", "stable", "counts_on"}
    reached = {"epsilon", "delta", "examples", "neighboring"}
    assert {*inspect.signature(within).parameters} == reached


def allowed(row):
    return not (
        (row["examples"] != "client" and row["beside"] != "nothing")
        or (row["mechanism"] == "own bits" and row["cohort"] != "3")
    )


def value(row, name):
    return SETTINGS[name][row[name]]


def offer_of(row, cohort=None, clip=CLIP):
    norm, beside = value(row, "clip_norm"), value(row, "beside")
    some = {"coordinates": value(row, "coordinates")}
    if row["mechanism"] == "noise":
        n = cohort or value(row, "cohort")
        mechanism = AdditiveMechanism("skellam", norm, NOISE, n, BITS, **some)
    else:
        trust = "local" if row["mechanism"] == "own bits" else "aggregate"
        n = 1 if trust == "local" else cohort or value(row, "cohort")
        channel = rq.stochastic_rounding(clip, 2, MARGIN)
        mechanism = VectorMechanism(channel, norm, trust, n, **some)
    numbers = None if beside is None else AuxiliaryNumbers(norm, (rq.Number(*beside),))
    size = value(row, "dimension") + (0 if numbers is None else numbers.extra)
    return Offer(mechanism, size, scalars=numbers, examples=value(row, "examples"))


def size_of(row):
    """Numbers that are sent, and their norm over that of the whole."""
    dimension = value(row, "dimension") + (row["beside"] != "nothing")
    padded = 1 << (dimension - 1).bit_length()
    sent = value(row, "coordinates") or padded
    return sent, math.sqrt(sent / padded)


def square_of(row):
    """Squared distance over the variance of noise in a sum, of one round."""
    norm, (_, share) = value(row, "clip_norm"), size_of(row)
    sigma = NOISE * norm * share
    if row["trust"] == "alone":
        sigma /= math.sqrt(value(row, "cohort"))
    neighboring = value(row, "neighboring")
    whole = figures.apart(norm, neighboring, value(row, "examples"))
    return (min(whole, figures.apart(norm * share, neighboring)) / sigma) ** 2


def exact(row, rounds, delta=None):
    """What so many rounds cost, and how much above it a figure may be."""
    delta = value(row, "delta") if delta is None else delta
    if row["mechanism"] == "noise":
        return figures.of_gaussian(rounds * square_of(row), delta), 1.2 if examples(row) else 1.06
    norm, (size, share) = value(row, "clip_norm"), size_of(row)
    alone = row["trust"] == "alone" or row["mechanism"] == "own bits"
    cohort = 1 if alone else value(row, "cohort")
    found = figures.of_bit_vectors(
        CLIP + MARGIN, CLIP, norm if examples(row) else norm * share, size, cohort,
        value(row, "neighboring"), rounds, delta, examples(row),
    )  # fmt: skip
    return found, LOOSE_BITS


LOOSE_BITS = 1.5
"""Bits of few clients: others may hide a client less than those of the oracle do."""


def examples(row):
    return value(row, "examples")


ROWS = figures.rows({name: list(values) for name, values in SETTINGS.items()}, allowed)
NAMED = {"ids": lambda row: figures.changed(row, SETTINGS)}


@pytest.mark.parametrize("row", ROWS, **NAMED)
def test_a_server_counts_what_its_offers_cost(row):
    offer, rounds, delta = offer_of(row), value(row, "rounds"), value(row, "delta")
    neighboring, alone = value(row, "neighboring"), row["trust"] == "alone"
    accountant = RunAccountant(delta, neighboring)
    for _ in range(rounds):
        accountant.compose(RoundEvent(offer, frozenset({1, 2})))
    accountant.compose(RoundEvent(offer, frozenset({3})))
    least, loose = exact(row, rounds)
    if count := value(row, "others"):  # of another offer, as often by the same clients
        other = offer_of(row, cohort=7, clip=CLIP / 2)
        accountant.compose(RoundEvent(other, frozenset({2})), count)
        more = account(
            [
                each.release(n, neighboring, "local" if alone else each.mechanism.trust)
                for each, n in ((offer, rounds), (other, count))
            ],
            delta,
            quick=True,
        ).epsilon
        assert more > least * 1.0005
        assert more * 0.999 <= accountant.get_epsilon(delta, without_others=alone) <= more * 1.06
        return
    found = accountant.get_epsilon(delta, without_others=alone)
    assert least * 0.999 <= found <= least * loose
    other_delta = delta / 30
    there, loose_there = exact(row, rounds, other_delta)
    assert there > least
    at_other_delta = accountant.get_epsilon(other_delta, without_others=alone)
    assert there * 0.999 <= at_other_delta <= there * loose_there
    event = RoundEvent(offer, frozenset({1}))
    after = exact(row, rounds + 1)[0]
    assert accountant.would_exceed(event, after * 0.99, without_others=alone)
    assert not accountant.would_exceed(event, after * loose, without_others=alone)
    again = RunAccountant(delta, neighboring)
    again.load_state_dict(accountant.state_dict())
    assert again.get_epsilon(delta, without_others=alone) == found
    if not alone:
        _check_spent(row, accountant, least, loose, rounds)


def _check_spent(row, accountant, least, loose, rounds):
    spent, size = accountant.get_privacy_spent(), size_of(row)[0]
    assert least * 0.999 <= spent.epsilon <= least * loose
    assert spent.delta == value(row, "delta")
    assert spent.neighboring == value(row, "neighboring")
    assert spent.trust == ("local" if row["mechanism"] == "own bits" else "aggregate")
    assert spent.unit == ("example" if examples(row) else "client")
    assert spent.releases == size * rounds
    whole = accountant.client_guarantee()
    assert (whole.unit, whole.releases) == ("client", spent.releases)
    known, wide = exact({**row, "examples": "client"}, rounds)
    assert known * 0.999 <= whole.epsilon <= known * wide


def terms_of(offer, cohort, folder):
    """Of a sum with a helper."""
    return offered_terms(helper_in(folder).key, offer, 9, cohort, SESSION)[1]


@pytest.mark.parametrize("row", ROWS, **NAMED)
def test_a_client_answers_as_long_as_its_limit_lasts(row, tmp_path):
    """It counts for its own unit, whatever the offer says."""
    offer, rounds = offer_of(row), value(row, "rounds")
    summed, alone = row["mechanism"] != "own bits", row["trust"] == "alone"
    least, loose = exact(row, rounds + 1)
    before = exact(row, rounds)[0]
    limit = {"epsilon_alone" if alone else "epsilon": least * 0.99}
    limits = ClientLimits(**{
        "epsilon": math.inf, "delta": value(row, "delta"), "helper": PINNED.hex(),
        "neighboring": value(row, "neighboring"), **limit,
    })  # fmt: skip
    offered = dataclasses.replace(offer, examples=None)
    state: dict = {}
    limits = dataclasses.replace(limits, examples=examples(row), clip_norm=1e-9)
    member = Member(1, limits, state, {}, lambda level, line: None)
    helped = terms_of(offered, offer.mechanism.cohort, tmp_path) if summed else None
    own = Membership(SESSION, offered.to_text(), examples=examples(row), helped=helped)
    answered = 0
    for session in range(rounds):
        if before * loose <= least * 0.99 or session + 1 < rounds:  # else it may refuse earlier
            member.charge(dataclasses.replace(own, session=bytes([session])), protocol.UPLOAD)
            answered += 1

    def further():
        for session in range(rounds + 1 - answered):
            member.charge(dataclasses.replace(own, session=bytes([9, session])), protocol.UPLOAD)

    with pytest.raises(ProtocolError, match="within epsilon"):
        further()
    with member.ledger.locked() as ledger:
        assert answered <= ledger.accountant.answers(0) <= rounds
        assert ledger.accountant.delta == value(row, "delta")


@pytest.mark.parametrize("row", [
    row for row in ROWS if row["mechanism"] != "own bits" and row["trust"] == "offered"
], **NAMED)  # fmt: skip
@pytest.mark.parametrize("neighboring", NEIGHBORINGS)
def test_a_helper_allows_what_its_limit_allows(neighboring, row, tmp_path):
    row = {**row, "neighboring": neighboring}
    offer, rounds = offer_of(row), value(row, "rounds")
    offered = dataclasses.replace(offer, examples=None)
    terms = terms_of(offered, offer.mechanism.cohort, tmp_path)
    (least, loose), sums = exact(row, rounds), {offered.to_text(): rounds}
    for limit, allows in ((least * 0.99, False), (least * loose, True), (math.inf, True)):
        affords = within(limit, value(row, "delta"), examples(row), neighboring)
        assert affords(terms, sums, lambda: None) == allows
    for wrong in ({"least": offer.mechanism.cohort - 1}, {"dimension": offer.size + 1}):
        changed = dataclasses.replace(terms, **wrong)
        assert not within(math.inf)(changed, sums, lambda: None)
