"""Sums whose noise the helper and the server add: what each sees, and what each may try."""

import hashlib
import json
import math
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flower_rounds import all_refuse, changed_terms, fedavg, grid_of, model, one_round, refusals
from helper_sums import offered_terms

import randquant as rq
from randquant.aggregation import AdditiveMechanism, HelperNoise
from randquant.channels import Key, wire
from randquant.flower import AmongClients, Offer, QuantizedStrategy, QuantizeMod, WithHelper
from randquant.integrations import HEAD
from randquant.mechanisms import DiscreteGaussian
from randquant.rounds import ClientLimits, RoundEvent, draw_noise, within
from randquant.secure_sums import (
    Helper,
    HelperLimits,
    HelperSum,
    ProtocolError,
    masked_message,
)
from randquant.statistics import SurveyMechanism, survey

NODES, DIMENSION, CLIP = range(1, 6), 2048, 64.0
IDENTITY = Ed25519PrivateKey.generate()
PINNED = IDENTITY.public_key().public_bytes_raw()
TRUSTING = QuantizeMod(epsilon=math.inf, helper=PINNED.hex())


def noisy(server_noise=True, multiplier=4.0, **fields):
    return HelperNoise(CLIP, multiplier, clients=5, server_noise=server_noise, **fields)


def helper_in(folder, limits=None, **options):
    return Helper(folder, IDENTITY, limits, **{"draw_noise": draw_noise, **options})


def trained(mechanism, folder, mod=TRUSTING, helper=None, **options):
    helper = helper or helper_in(folder)
    return one_round(
        mechanism, mod=mod, sums=WithHelper(helper), arrays=model(DIMENSION), **options
    )


def noise_in(weights, mechanism, nodes):
    """What was added to the sum of these clients, in steps: their updates are -1, 0 or 1."""
    plan, projection = mechanism.plan(DIMENSION), mechanism.projection(DIMENSION)
    true = np.mean([np.random.default_rng(n).integers(-1, 2, DIMENSION) for n in nodes], axis=0)
    return projection.rotation.forward(weights - true) * plan.scale * len(nodes)


def is_of_variance(values, variance):
    """Whether the mean square is that of the law within 6 of its standard deviations."""
    spread = 6 * math.sqrt(2 / len(values)) * variance
    return abs(float(np.mean(np.square(values))) - variance) < spread


# --- what is added --------------------------------------------------------------------------------


@pytest.mark.parametrize("server_noise", [False, True])
def test_a_round_has_the_noise_of_each_party_and_none_of_the_clients(tmp_path, server_noise):
    mechanism = noisy(server_noise)
    weights, grid, strategy = trained(mechanism, tmp_path)
    noise = noise_in(weights, mechanism, NODES)
    rounding = len(NODES) / 4  # at most, of all clients' rounding
    variance = mechanism.plan(DIMENSION).noise.variance * (2 if server_noise else 1)
    assert is_of_variance(noise, variance + rounding / 2)
    assert rounding < 0.01 * variance
    assert not refusals(grid)
    expected = rq.account([mechanism.release(DIMENSION, 1)], 1e-5)
    assert strategy.accountant.get_epsilon(1e-5) >= expected.epsilon > 0.3


@pytest.mark.parametrize("server_noise", [False, True])
def test_a_sum_has_room_for_the_noise_of_each_party_and_clients_know_of_it(server_noise):
    mechanism = noisy(server_noise, multiplier=18.0)
    plan, parties = mechanism.plan(DIMENSION), 1 + server_noise
    assert plan.deviation**2 >= parties * plan.noise.variance
    assert plan.deviation * mechanism.deviations <= 2 ** (mechanism.bits - 1) * (1 + 1e-9)
    # Of a sum of all that it is made for, not of one client, of which nobody relies on more.
    share = mechanism.expected_error(DIMENSION).deviation(5, 0.0) / CLIP
    prepared = Offer(mechanism, DIMENSION, scaled=True).preparation
    assert prepared.noise == pytest.approx(DIMENSION * share**2)


def test_clients_add_nothing_to_their_codes():
    """So that all noise is the parties': codes are the update rounded to a neighbouring step."""
    mechanism, update = noisy(), np.linspace(-1, 1, DIMENSION)
    payload = mechanism.encode(update, Key.from_seed(1))
    codes = wire.unpack(mechanism.coding, payload, DIMENSION).astype(np.int64)
    half = 1 << (mechanism.bits - 1)
    steps = mechanism.projection(DIMENSION).forward(update) * mechanism.plan(DIMENSION).scale
    assert np.abs(((codes + half) & (2 * half - 1)) - half - steps).max() <= 1


@pytest.mark.parametrize("lost", [0, 2, 4])
def test_a_sum_of_one_client_is_as_safe_as_of_all(lost, tmp_path):
    """The noise, and each client's figure, are the same however many are lost."""
    mechanism = noisy()
    fault = lambda step, node, reply: [] if node <= lost else [reply]  # noqa: E731
    weights, _, strategy = trained(mechanism, tmp_path, fault=fault)
    noise = noise_in(weights, mechanism, NODES[lost:])
    assert is_of_variance(noise, 2 * mechanism.plan(DIMENSION).noise.variance)
    assert strategy.history[0].dropped == lost
    whole = rq.account([mechanism.release(DIMENSION, 1)], strategy.accountant.delta).epsilon
    for others in (False, True):
        spent = strategy.accountant.get_epsilon(1e-5, without_others=others)
        assert whole <= spent <= 1.02 * whole


def sum_of(helper, mechanism, clients, honest, update, session=b"s", **fields):
    """(server's sum, what is in it): all clients but one are invented, and send zeros."""
    offer = Offer(mechanism, DIMENSION)
    fields = {"bits": mechanism.bits, "noise_variance": offer.helper_variance, **fields}
    text, terms = offered_terms(helper.key, offer, clients, 1, session, **fields)
    server = HelperSum(terms)
    payload = mechanism.encode(update, Key.generate())
    codes = wire.unpack(mechanism.coding, payload, offer.size)
    for client in range(clients):
        vector = codes if client == honest else np.zeros_like(codes)
        server.add(client, masked_message(terms, client, vector, PINNED))
    return server, codes, text


def centred(codes, bits):
    half = 1 << (bits - 1)
    return ((codes.astype(np.int64) + half) & (2 * half - 1)) - half


def test_a_server_that_invents_all_others_sees_one_client_under_the_whole_noise(tmp_path):
    """399 of 400: what it learns is that client's codes and noise of the variance accounted for."""
    mechanism, update = replace(noisy(), clients=400), np.full(DIMENSION, 0.5)
    helper = helper_in(tmp_path, HelperLimits(affords=within(math.inf)))
    server, codes, text = sum_of(helper, mechanism, 400, 17, update)
    seen = server.unmask(helper.answer(server.request(text)))
    bits, plan = mechanism.bits, mechanism.plan(DIMENSION)
    assert is_of_variance(centred(seen, bits) - centred(codes, bits), plan.noise.variance)


# --- a server -------------------------------------------------------------------------------------


def test_a_client_that_adds_its_own_noise_refuses_terms_with_the_helpers(tmp_path):
    """Its log would no longer say that it counts on the other clients."""
    mechanism = AdditiveMechanism("skellam", CLIP, 4.0, 5)
    grid = grid_of(mod=TRUSTING, change=changed_terms("upload", noise_variance=0.25))
    sums = WithHelper(helper_in(tmp_path))
    all_refuse("without a helper's noise", mechanism, grid, sums=sums, arrays=model(DIMENSION))


def test_colluders_do_not_matter_to_a_client_that_counts_on_no_others(tmp_path):
    mod = QuantizeMod(epsilon=math.inf, colluders=3, helper=PINNED.hex())
    weights, grid, _ = trained(noisy(), tmp_path, mod)
    assert weights.any()
    assert not refusals(grid)


@pytest.mark.parametrize(
    ("variance", "reason"),
    [
        (None, "adds noise of a variance"),
        (0.0, "terms of a sum with a helper"),
        (1.0, "adds noise of a variance"),
        (-5.0, "terms of a sum with a helper"),
        (math.nan, "terms of a sum with a helper"),
        (math.inf, "terms of a sum with a helper"),
        ("many", "terms of a sum with a helper"),
    ],
)
def test_a_client_refuses_terms_with_less_noise_than_the_offer_counts_on(
    variance, reason, tmp_path
):
    change = changed_terms("upload", noise_variance=variance)
    if variance is None:

        def without(message):
            head = message.content["randquant"]
            record = json.loads(head["terms"])
            del record["noise_variance"]
            head["terms"] = json.dumps({**record, "least": 2})

        change = "upload", without
    weights, grid, _ = trained(noisy(), tmp_path, change=change)
    assert not weights.any()
    assert len(refusals(grid)) == len(NODES)
    assert all(reason in text for text in refusals(grid).values()), refusals(grid)


@pytest.mark.parametrize(("multiplier", "bits"), [(0.05, 8), (0.05, 16), (2.0, 16)])
def test_what_a_client_charges_covers_terms_with_more_noise(multiplier, bits):
    """It accepts them, and charges the offer's variance; the law itself need not hide more."""
    mechanism = noisy(multiplier=multiplier, bits=bits)
    release = mechanism.release(DIMENSION, 3)
    variance, charged = release.noise.variance, rq.account([release], 1e-5).epsilon
    for times in (1 + 1e-12, 1.1, 2.0, 16.0):
        wider = replace(release, noise=DiscreteGaussian(times * variance))
        assert rq.account([wider], 1e-5).epsilon <= charged * (1 + 1e-12)


@pytest.mark.parametrize("mechanism", [noisy(), AdditiveMechanism("skellam", CLIP, 4.0, 5)])
@pytest.mark.parametrize("helped", [True, False])
def test_a_client_refuses_a_wider_modulus_than_its_remainders_have(mechanism, helped, tmp_path):
    """The sum of remainders shows how many wrapped around: at 32 bits the signs of one client's."""
    if mechanism.helper_noise and not helped:
        pytest.skip("refused anyway: nobody would add the noise")
    sums = WithHelper(helper_in(tmp_path)) if helped else AmongClients()
    change = changed_terms("upload" if helped else "advertise", bits=mechanism.bits + 1)
    grid = grid_of(mod=TRUSTING, change=change)
    all_refuse("a wider sum reveals more", mechanism, grid, sums=sums, arrays=model(DIMENSION))


def test_a_helper_that_counts_leaves_out_clients_of_a_wider_modulus(tmp_path):
    """Whoever seals by hand, without the checks of a `ClientLimits`, is not in such a sum."""
    helper = helper_in(tmp_path, HelperLimits(affords=within(math.inf)))
    server, _, text = sum_of(helper, noisy(), 3, 0, np.zeros(DIMENSION), bits=32)
    with pytest.raises(ProtocolError, match="within the helper's limits, got 0"):
        helper.answer(server.request(text))


def test_proofs_of_remainders_are_refused_since_a_proven_sum_is_exact(tmp_path):
    """It is one of integers below 2**64, whatever the modulus of its terms says."""
    offer = Offer(AdditiveMechanism("skellam", CLIP, 4.0, 5), DIMENSION)
    proven = {"largest": offer.largest, "commitment": bytes(32)}
    text, terms = offered_terms(helper_in(tmp_path).key, offer, 5, 5, **proven)
    limits = ClientLimits(math.inf, helper=PINNED.hex())
    with pytest.raises(ProtocolError, match="Expected no proofs of remainders modulo 65536"):
        limits.check_offer(offer, terms, limits.empty_account())
    assert not within(math.inf)(terms, {text: 1}, print)
    plain = replace(terms, largest=0, commitment=b"")
    limits.check_offer(offer, plain, limits.empty_account())
    assert within(math.inf)(plain, {text: 1}, print)


def test_sums_among_clients_are_refused_since_nobody_would_add_the_noise():
    with pytest.raises(ValueError, match="Expected sums with a helper, which adds the noise"):
        QuantizedStrategy(fedavg(), noisy(), sums=AmongClients())


def test_a_helper_counts_epsilon_by_the_noise_that_it_adds(tmp_path):
    offer = Offer(noisy(), DIMENSION)
    noise = {"noise_variance": offer.helper_variance}
    text, terms = offered_terms(helper_in(tmp_path).key, offer, 9, 1, **noise)
    one = rq.account([offer.release(1, "replace_one", "aggregate")], 1e-5).epsilon
    assert within(1.1 * one)(terms, {text: 1}, print)
    assert not within(1.1 * one)(terms, {text: 2}, print)
    less = replace(terms, noise_variance=0.99 * offer.helper_variance)
    assert not within(1e9)(less, {text: 1}, print)


def test_a_helper_that_adds_no_noise_or_demands_it_refuses(tmp_path):
    mechanism, update = noisy(), np.zeros(DIMENSION)
    plain = helper_in(tmp_path / "plain", draw_noise=None)
    server, _, text = sum_of(plain, mechanism, 3, 0, update)
    with pytest.raises(ProtocolError, match="Expected a sum without noise"):
        plain.answer(server.request(text))
    least = mechanism.plan(DIMENSION).noise.variance
    strict = helper_in(tmp_path / "strict", HelperLimits(least_noise=least))
    for variance in (0.0, 0.5 * least):
        server, _, text = sum_of(
            strict, mechanism, 3, 0, update, f"{variance}".encode(), noise_variance=variance,
        ) if variance else _without_noise(strict, mechanism)  # fmt: skip
        with pytest.raises(ProtocolError, match=r"Expected noise of a variance of .* got"):
            strict.answer(server.request(text))
    server, _, text = sum_of(strict, mechanism, 3, 0, update)
    assert strict.answer(server.request(text))
    assert strict.sums == dict.fromkeys(range(3), 1)


def _without_noise(helper, mechanism):
    offer = Offer(mechanism, DIMENSION)
    text, terms = offered_terms(helper.key, offer, 3, 2, b"none")
    server = HelperSum(terms)
    for client in range(3):
        server.add(client, masked_message(terms, client, np.zeros(offer.size, np.uint32), PINNED))
    return server, None, text


@pytest.mark.parametrize("variance", [0.1, 2.0**31])
def test_noise_that_nobody_can_draw_is_refused_and_nothing_answered(variance, tmp_path):
    helper = helper_in(tmp_path)
    server, _, text = sum_of(helper, noisy(), 3, 0, np.zeros(DIMENSION), noise_variance=variance)
    with pytest.raises(ProtocolError, match="noise variance"):
        helper.answer(server.request(text))
    assert not helper.sums


def test_a_little_noise_does_not_get_a_server_past_the_fewest_clients_of_an_operator(tmp_path):
    """A quarter of a squared step hides nothing: the sum of one would be that client's codes."""
    helper = helper_in(tmp_path, HelperLimits(least=50))
    server, _, text = sum_of(helper, noisy(), 1, 0, np.zeros(DIMENSION), noise_variance=0.25)
    with pytest.raises(ProtocolError, match="Expected sums of 50 clients or more"):
        helper.answer(server.request(text))


@pytest.mark.parametrize("mechanism", [noisy(), AdditiveMechanism("skellam", CLIP, 4.0, 1)])
def test_an_offer_whose_bits_cannot_hold_its_noise_is_refused_by_a_helper(mechanism, tmp_path):
    """And is no error of the helper's own, after which a server would ask again."""
    offer = Offer(replace(mechanism, noise_multiplier=2e6), DIMENSION)
    noise = {"bits": 16, "noise_variance": 1}
    text, terms = offered_terms(helper_in(tmp_path).key, offer, 9, 1, **noise)
    with pytest.raises(ProtocolError, match="for noise on 2048 coordinates"):
        within(8.0)(terms, {text: 1}, print)


def test_the_same_request_gets_the_same_noise_and_another_session_another(tmp_path):
    helper, update = helper_in(tmp_path, kept=True), np.zeros(DIMENSION)
    server, _, text = sum_of(helper, noisy(), 3, 0, update)
    first = helper.answer(server.request(text))
    # Killed between drawing and answering, or its answer lost: another process of the same helper.
    assert helper_in(tmp_path, kept=True).answer(server.request(text)) == first
    other, *_ = sum_of(helper, noisy(), 3, 0, update, b"t")
    sums = [server.unmask(first), other.unmask(helper.answer(other.request(text)))]
    differ = centred(sums[0], 16) - centred(sums[1], 16)
    rounding = 2 * DIMENSION / 4 / DIMENSION
    assert is_of_variance(differ, 2 * noisy().plan(DIMENSION).noise.variance + rounding)


def test_a_copied_helper_that_answers_two_sets_adds_two_noises(tmp_path):
    """A restored folder, or a copied process: their difference is not one client's codes."""
    mechanism, update = noisy(), np.full(DIMENSION, 0.5)
    helper = helper_in(tmp_path / "helper", kept=True)
    shutil.copytree(tmp_path / "helper", tmp_path / "copy")
    copy = helper_in(tmp_path / "copy", kept=True)
    server, codes, text = sum_of(helper, mechanism, 4, 0, update)
    request = server.request(text)
    # The same messages but one, to the copy: the set without client 0.
    other = HelperSum(server.terms)
    other._seeds = {c: seed for c, seed in server._seeds.items() if c}
    answers = helper.answer(request), copy.answer(other.request(text))
    found = alone(server, answers, (request, other.request(text))) - centred(codes, 16)
    assert is_of_variance(found, 2 * mechanism.plan(DIMENSION).noise.variance)


def test_a_copied_helper_that_leaves_out_others_of_one_request_adds_two_noises(tmp_path):
    """Client 0 is beyond the copy's limit: the same bytes are then answered for another set."""
    mechanism, update = noisy(), np.full(DIMENSION, 0.5)
    helper = helper_in(tmp_path / "helper", kept=True)
    shutil.copytree(tmp_path / "helper", tmp_path / "copy")
    copy = helper_in(tmp_path / "copy", HelperLimits(most_sums=1), kept=True)
    before, _, text = sum_of(copy, mechanism, 1, 0, update, b"before")
    copy.answer(before.request(text))
    server, codes, _ = sum_of(helper, mechanism, 4, 0, update)
    request = server.request(text)
    answers = helper.answer(request), copy.answer(request)
    found = alone(server, answers, (request, request)) - centred(codes, 16)
    assert is_of_variance(found, 2 * mechanism.plan(DIMENSION).noise.variance)


def alone(server, answers, requests):
    """What a server computes of client 0 from an answer with it and one without it."""
    with_it, rest = (
        wire_total(server.terms, each, request)
        for each, request in zip(answers, requests, strict=True)
    )
    # Exact masks would differ by the mask of client 0, and the server knows its masked codes.
    own = server._running_sum.without([], with_it).astype(np.int64)
    rest = server._running_sum.without([(0, server._vector(0))], rest).astype(np.int64)
    return centred((own - rest) & 0xFFFF, 16)


def wire_total(terms, answer, request):
    from randquant.secure_sums.helper.request import read_answer

    clients = dict.fromkeys(range(4))
    return read_answer(terms, hashlib.sha256(request).digest(), clients, answer)[1]


# --- a helper that sees the models ----------------------------------------------------------------


def test_the_servers_noise_is_its_own_and_fresh_in_each_round(tmp_path, monkeypatch):
    """A helper that adds nothing, or whose noise is known: the server's is left, and new."""
    silent = helper_in(tmp_path, draw_noise=lambda variance, count, key: np.zeros(count, np.int64))
    mechanism = noisy()
    weights = [trained(mechanism, tmp_path, helper=silent)[0] for _ in range(2)]
    noises = [noise_in(each, mechanism, NODES) for each in weights]
    variance = mechanism.plan(DIMENSION).noise.variance
    assert all(is_of_variance(each, variance) for each in noises)
    assert is_of_variance(noises[0] - noises[1], 2 * variance)


def test_the_servers_noise_does_not_follow_from_the_session_that_all_know(tmp_path, monkeypatch):
    drawn, sessions, draw, read = [], [], HelperNoise.party_noise, os.urandom

    def noted(self, dimension, key):
        drawn.append(draw(self, dimension, key))
        return drawn[-1]

    monkeypatch.setattr(HelperNoise, "party_noise", noted)
    monkeypatch.setattr(os, "urandom", lambda count: bytes(16) if count == 16 else read(count))
    for name in "ab":
        _, grid, _ = trained(noisy(), tmp_path / name)
        sessions += {each.content[HEAD]["session"] for step, _, each, _ in grid.seen if step}
    assert sessions == [bytes(16)] * 2
    assert not np.array_equal(*drawn)


def test_without_the_servers_noise_a_silent_helper_leaves_nothing(tmp_path):
    """What `noise="helper"` says: it protects from the server alone, and by the helper alone."""
    silent = helper_in(tmp_path, draw_noise=lambda variance, count, key: np.zeros(count, np.int64))
    mechanism = noisy(server_noise=False)
    weights, _, _ = trained(mechanism, tmp_path, helper=silent)
    assert np.abs(noise_in(weights, mechanism, NODES)).max() <= len(NODES)


# --- what is said ---------------------------------------------------------------------------------


def test_the_account_says_on_whom_it_counts(tmp_path):
    _, _, strategy = trained(noisy(), tmp_path)
    said = strategy.accountant.summary()
    assert "whoever the other clients are, if the helper adds its noise and does not" in said
    assert said.endswith("and no guarantee if it does not")
    mixed = strategy.accountant
    bits = rq.stochastic_rounding(clip=0.3, levels=2, margin=0.7)

    vector = rq.VectorMechanism(bits, 1.0, "aggregate", 3)
    mixed.compose(RoundEvent(Offer(vector, 5), frozenset({1})))
    said = mixed.assumes()
    assert "at least 2 honest others and the helper adds its noise" in said
    assert said.count("if all others are invented") == 1
    assert "no guarantee if it does not" in said


@pytest.mark.parametrize("noise", ["helper", "parties"])
def test_a_target_with_the_helpers_noise_is_met_for_each_client_alone(noise):
    strategy = QuantizedStrategy.for_target(
        epsilon=4.0, rounds=5, cohort=20, dropouts=19, model=100,
        privacy=rq.Privacy(noise=noise), sums=WithHelper(Unused()),
    )  # fmt: skip
    mechanism = strategy.run.mechanism
    assert mechanism.server_noise == (noise == "parties")
    assert (mechanism.clients, strategy.least) == (20, 1)
    spent = rq.account([mechanism.release(100, 5)], 1e-5).epsilon
    assert 3.9 < spent <= 4.0


class Unused:
    key = None

    def answer(self, request):
        raise AssertionError


@pytest.mark.parametrize("kind", ["updates", "table"])
def test_no_party_draws_its_noise_twice_with_one_key(kind):
    """The difference of two sums with the same noise is that of the clients' values."""
    mechanism, dimension = noisy(), 8
    if kind == "table":
        asked = survey(
            {"sex": rq.Counts(["f", "m"])}, 1.0, 1e-6, "aggregate", 5, 5, noise="parties"
        )
        mechanism = SurveyMechanism(asked)
        dimension = mechanism.dimension
    key = Key.generate()
    mechanism.party_noise(dimension, key)
    with pytest.raises(ValueError, match="Expected an unused key"):
        mechanism.party_noise(dimension, key)
    mechanism.party_noise(dimension, key.fold_in("another sum"))
