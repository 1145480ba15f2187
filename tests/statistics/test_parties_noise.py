"""Tables whose noise the helper of a secure sum adds, and the server: nothing counts on clients."""

import hashlib
import json
import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flower_grid import InProcessGrid
from flower_rounds import changed_request, changed_terms, refusals
from flower_surveys import answers, asked_once

import randquant as rq
from randquant.channels import Key, wire
from randquant.flower import AmongClients, Offer, QuantizeMod, WithHelper
from randquant.rounds import ClientLimits, draw_noise
from randquant.secure_sums import Helper, HelperSum, HelperTerms, ProtocolError, masked_message
from randquant.statistics import SurveyMechanism, survey

WARDS = 4
CODES = [str(n) for n in range(800)]
NAMES = [f"x{n}" for n in range(16)]  # for few questions Laplace noise is better
ASKED = {"code": rq.Counts(CODES)}
IDENTITY = Ed25519PrivateKey.generate()
PINNED = IDENTITY.public_key().public_bytes_raw()


def ward(number):
    return {"code": np.random.default_rng(number).choice(CODES, 500).tolist()}


def terms_of(noise="helper", clients=WARDS, **options):
    options = {"unit": "example", "most": 500, **options}
    return survey(ASKED, 1.0, 1e-6, "aggregate", clients, clients * 500, noise=noise, **options)


def exact(asked, wards):
    """The sum without noise: counts need no rounding."""
    frames = [{"code": np.array(ward(k)["code"])} for k in wards]
    return sum(asked.vector(frame, Key.from_seed(0)) for frame in frames)


def is_of_variance(values, variance):
    """Whether the mean square is that of the law within 6 of its standard deviations."""
    return abs(float(np.mean(values**2)) - variance) < 6 * math.sqrt(2 / values.size) * variance


# --- what is added --------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "parties"), [("helper", 1), ("parties", 2)])
def test_a_table_has_the_noise_of_each_party_whatever_the_number_of_clients(noise, parties):
    asked = terms_of(noise)
    mechanism = SurveyMechanism(asked)
    for wards in (range(1), range(WARDS)):
        updates = [mechanism.update(ward(k), Key.generate()) for k in wards]
        payloads = [mechanism.encode(update, Key.generate()) for update in updates]
        mean = mechanism.mean(payloads, key=Key.generate())
        noise_in_sum = mean[: asked.dimension] * len(payloads) - exact(asked, wards)
        assert is_of_variance(noise_in_sum, parties * asked.law.variance)
        table = mechanism.table(mean, len(payloads), 500 * len(payloads))
        error = math.sqrt(parties * asked.law.variance) / asked.amplitudes["code"]
        assert table["code"]["0"].noise_error == pytest.approx(error, rel=0.01)


@pytest.mark.parametrize(("noise", "times"), [("helper", 1.0), ("parties", math.sqrt(2))])
def test_errors_are_those_of_a_trusted_server_whatever_the_number_of_clients(noise, times):
    people = [dict.fromkeys(NAMES, k) for k in range(300)]
    queries = {name: rq.Mean(0, 300) for name in NAMES}
    central = rq.statistics(people, 1.0, queries=queries, trust="central", seed=0)
    table = rq.statistics(people, 1.0, queries=queries, noise=noise, seed=0)
    error, trusted = (each["x0"]["mean"].noise_error for each in (table, central))
    assert error == pytest.approx(times * trusted, rel=0.02)
    assert table.guarantee.epsilon <= 1
    assert rq.statistics(people[:1], 1.0, queries=queries, noise=noise, seed=0).clients == 1


def test_a_client_sends_its_integers_as_they_are():
    asked = terms_of()
    mechanism = SurveyMechanism(asked)
    payload = mechanism.encode(mechanism.update(ward(0), Key.generate()), Key.generate())
    codes = wire.unpack(mechanism.coding, payload, asked.dimension)
    assert (codes == exact(asked, [0]) % (1 << asked.bits)).all()
    with pytest.raises(TypeError, match=r"give mean\(payloads, key=rq.Key.generate\(\)\)"):
        mechanism.mean([payload])


# --- on an engine ---------------------------------------------------------------------------------


def asked_of_wards(noise, folder, lost=0, change=None, limit=math.inf):
    """(strategy, sum without the digest's place, grid) of one round with a helper."""
    mechanism = SurveyMechanism(terms_of(noise))
    mod = QuantizeMod(epsilon=limit, delta=1e-6, helper=PINNED.hex(), examples=500)
    fault = lambda step, node, reply: [] if node <= lost else [reply]  # noqa: E731
    grid = InProcessGrid(answers(mod, ward, "update"), range(1, WARDS + 1), fault)
    grid = changed_request(grid, *change) if change else grid
    sums = WithHelper(Helper(folder, IDENTITY, draw_noise=draw_noise))
    strategy, mean = asked_once(mechanism, grid, sums=sums, examples=500)
    return strategy, mean[: mechanism.terms.dimension] * (WARDS - lost), grid


@pytest.mark.parametrize(("noise", "parties", "lost"), [("helper", 1, 0), ("parties", 2, 2)])
def test_a_round_with_a_helper_is_a_table_of_whoever_answers(noise, parties, lost, tmp_path):
    asked = terms_of(noise)
    strategy, total, grid = asked_of_wards(noise, tmp_path, lost)
    assert not refusals(grid)
    noise_in_sum = total - exact(asked, range(1 + lost, WARDS + 1))
    assert is_of_variance(noise_in_sum, parties * asked.law.variance)
    spent = strategy.accountant.get_epsilon(1e-6)
    assert spent == pytest.approx(asked.guarantee.epsilon)
    assert strategy.accountant.get_epsilon(1e-6, without_others=True) == pytest.approx(spent)


def test_a_client_refuses_terms_with_less_noise_than_its_table_counts_on(tmp_path):
    """It adds none itself: the sum would be the exact counts."""
    for number, variance in enumerate((0.0, 0.99 * terms_of().law.variance)):
        change = changed_terms("upload", noise_variance=variance)
        strategy, total, grid = asked_of_wards("helper", tmp_path / str(number), change=change)
        assert not total.any()
        assert len(refusals(grid)) == WARDS
        assert strategy.history[0].failed


def test_sums_without_a_helper_are_refused():
    mechanism = SurveyMechanism(terms_of())
    grid = InProcessGrid(answers(QuantizeMod(epsilon=math.inf), ward), range(1, WARDS + 1))
    for sums in ({}, {"sums": AmongClients()}):
        with pytest.raises(ValueError, match="Expected sums with a helper, which adds the noise"):
            asked_once(mechanism, grid, examples=500, **sums)
    limits = ClientLimits(math.inf, examples=500)
    offer = Offer(mechanism, mechanism.dimension, examples=500)
    with pytest.raises(ProtocolError):
        limits.check_offer(offer, None, limits.empty_account())


def test_a_server_that_invents_all_others_sees_one_client_under_the_whole_noise(tmp_path):
    asked = terms_of(clients=400)
    mechanism = SurveyMechanism(asked)
    offer = Offer(mechanism, mechanism.dimension, examples=500)
    helper = Helper(tmp_path, IDENTITY, draw_noise=draw_noise)
    digest = hashlib.sha256(offer.to_text().encode()).digest()
    terms = HelperTerms(
        b"s", helper.key, 400, 1, offer.size, asked.bits, digest,
        noise_variance=offer.helper_variance,
    )  # fmt: skip
    server = HelperSum(terms)
    payload = mechanism.encode(mechanism.update(ward(7), Key.generate()), Key.generate())
    codes = wire.unpack(mechanism.coding, payload, offer.size)
    for client in range(400):
        vector = codes if client == 7 else np.zeros_like(codes)
        server.add(client, masked_message(terms, client, vector, PINNED))
    seen = server.unmask(helper.answer(server.request(offer.to_text()))).astype(np.int64)
    half = 1 << (asked.bits - 1)
    centred = ((seen + half) & (2 * half - 1)) - half
    assert is_of_variance(centred - exact(asked, [7]), asked.law.variance)


# --- terms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [
    {"cohort": 4}, {"trust": "local"}, {"noise": "server"}, {"noise": None}, {"noise": ["helper"]},
    {"law": {"law": "skellam", "variance": 1e6}},
    {"law": {"law": "discrete-laplace", "scale": 1e3, "clients": 1}},
])  # fmt: skip
def test_terms_that_are_not_derived_are_refused(change):
    text = json.loads(SurveyMechanism(terms_of()).survey)
    assert text["noise"] == "helper"
    with pytest.raises(ValueError, match="Expected"):
        SurveyMechanism(json.dumps({**text, **change}))


@pytest.mark.parametrize("trust", ["local", "central"])
def test_noise_of_the_parties_needs_a_secure_sum(trust):
    with pytest.raises(ValueError, match="Expected trust='aggregate' with noise='helper'"):
        rq.statistics([{"a": 1}] * 9, 1.0, queries={"a": rq.Mean(0, 1)}, trust=trust,
                      noise="helper")  # fmt: skip


def test_a_table_says_who_adds_the_noise():
    table = rq.statistics([{"a": 1}] * 9, 1.0, queries={"a": rq.Mean(0, 1)}, noise="parties")
    assert "added by the helper of each sum, and the server as much again" in str(table)
    assert table.terms.cohort == 1
