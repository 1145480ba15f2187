"""A public random subset of the coordinates: drawn uniformly, safe whatever it is, unbiased."""

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import randquant as rq
from randquant.aggregation import (
    AdditiveMechanism,
    CoordinateError,
    HelperNoise,
    Projection,
    Rotation,
    Subset,
    VectorMechanism,
    update_mechanism,
)
from randquant.aggregation import rotation as module
from randquant.channels import Key, wire
from randquant.privacy import account

COIN = rq.stochastic_rounding(clip=0.5, levels=2, margin=1.0)
ROOT = Key.from_seed(0)


def sending(k, trust="aggregate", cohort=4, channel=COIN):
    return VectorMechanism(channel, 1.0, trust, cohort, coordinates=k)


def skellam(k, noise=1.0):
    return AdditiveMechanism("skellam", 1.0, noise, 4, coordinates=k)


def helped(k, server_noise, noise=0.4):
    return HelperNoise(1.0, noise, 4, server_noise, coordinates=k)


def updates(clients, dimension, length):
    x = np.random.default_rng(1).standard_normal((clients, dimension))
    return (length * x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


# The subset


def slowly(size, count, seed):
    """The first different indices of a stream, one word at a time, or all but those."""
    words = Key.from_seed(seed).fold_in("subset").words(64 * size)
    fewer, found = min(count, size - count), []
    for word in words:
        if len(found) == fewer:
            break
        if (index := int(word) % size) not in found:
            found.append(index)
    rest = [index for index in range(size) if index not in found]
    return sorted(found) if 2 * count <= size else rest


@pytest.mark.parametrize(("size", "count"), [(1, 1), (8, 3), (8, 4), (8, 7), (64, 64), (256, 100)])
def test_a_subset_is_the_first_different_indices_of_its_keys_stream(size, count):
    for seed in (0, 1, 2**64 - 1):
        indices = Subset(size, count, seed).indices
        assert indices.tolist() == slowly(size, count, seed)
        assert not indices.flags.writeable


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((6, 2, 0), "a power of two, got 6"),
        ((8, 9, 0), "coordinates >= 1 and <= 8, got coordinates=9: a rotated update has 8"),
        ((8, 0, 0), "coordinates >= 1"),
        ((8, 2, -1), "subset_seed >= 0"),
        ((8, 2, 2**64), "subset_seed .* it is 8 bytes"),
    ],
)
def test_a_subset_that_cannot_be_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Subset(*arguments)


# What is sent


def exact_square(y):
    return sum(Fraction(float(value)) ** 2 for value in y)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=40),
    st.integers(0, 2**64 - 1),
    st.floats(1e-6, 1e6),
    st.data(),
)
def test_no_update_is_longer_than_the_norm_that_is_accounted_for(vector, seed, clip_norm, data):
    rotated = Rotation(len(vector), 0).size
    k = data.draw(st.integers(1, rotated))
    some = Projection(len(vector), clip_norm, coordinates=k, subset_seed=seed)
    sent = some.forward(np.array(vector, dtype=np.float32))
    assert sent.shape == (k,) == (some.size,)
    assert exact_square(sent) <= Fraction(some.norm_sent) ** 2
    every = Projection(len(vector), clip_norm).forward(np.array(vector, dtype=np.float32))
    assert exact_square(every) <= Fraction(clip_norm) ** 2
    assert abs((some.norm_sent / clip_norm) ** 2 * rotated - k) < 1e-12 * k


def hidden_in(some):
    """An update all of whose length the rotation moves into the subset: the worst case."""
    inside = np.zeros(some.rotated)
    inside[some.indices] = 1.0
    return Rotation(some.dimension, some.rotation_seed).inverse(inside).astype(np.float32)


def _row(channel, value):
    weights, total = channel.mix(value)
    return np.array(weights, dtype=float) / total


def losses(channel, y, other, order=2.0):
    """Exact Rényi divergence of the codes of two vectors, by the rows themselves."""
    p, q = (np.array([_row(channel, value) for value in each]) for each in (y, other))
    return float(np.log((p**order * q ** (1 - order)).sum(axis=1)).sum() / (order - 1))


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_for_an_update_made_for_the_subset_and_not_without_the_second_clip(seed):
    channel = rq.stochastic_rounding(clip=0.5, levels=2, margin=2.0)
    mechanism = VectorMechanism(channel, 1.0, coordinates=4).in_round(seed)
    some = mechanism.projection(16)
    update = hidden_in(some)
    stated = mechanism.release(16, 1).renyi(2.0)
    sent = [np.clip(some.forward(sign * 1024 * update), -0.5, 0.5) for sign in (1, -1)]
    shown = losses(channel, *sent)
    assert 0.9 * stated < shown <= stated
    unclipped = [sign * np.full(4, 0.5) for sign in (1, -1)]  # norm 1, all within the clip
    assert losses(channel, *unclipped) > 3 * stated


def test_the_release_is_the_same_for_every_seed_and_that_of_the_shorter_norm():
    for mechanism in (sending(256), skellam(256)):
        before = mechanism.release(650, 3, "zero_out")
        assert mechanism.in_round(9).release(650, 3, "zero_out") == before
        assert before.dimension == 256
    release = sending(256).release(650, 3)
    assert release.clip_norm == 0.5  # sqrt(256/1024)
    plain = dataclasses.replace(release, whole_norm=None)
    assert account([release], 1e-5).epsilon == account([plain], 1e-5).epsilon
    noise = skellam(256).release(650, 3)
    plan = skellam(256).plan(650)
    assert noise.squared_distance == 4 * plan.bound
    assert plan.bound >= (plan.scale * 0.5) ** 2


def test_an_example_may_change_all_that_is_sent():
    """Its share of the whole norm counts, not of the norm that is sent."""
    release, whole = sending(256).release(650, 1), sending(None).release(650, 1)
    few, many = (sending(256).example_release(650, 1, "replace_one", n) for n in (2, 100))
    assert few.renyi(2.0) <= release.renyi(2.0)
    longer = dataclasses.replace(whole, dimension=256, examples=100)
    assert many.renyi(2.0) == longer.renyi(2.0) > 0


@pytest.mark.parametrize("k", [1, 3, 8])
def test_over_all_subsets_the_mean_is_the_update_and_the_error_what_is_stated(k, monkeypatch):
    """Every subset once: exact. No update here is long enough to be clipped again."""
    some = Projection(8, 1.0, coordinates=k, subset_seed=0)
    x = updates(1, 8, 0.9 * some.norm_sent)[0]
    found = []
    for chosen in itertools.combinations(range(8), k):
        monkeypatch.setattr(module, "_indices", lambda *_, chosen=chosen: np.array(chosen))
        found.append(some.inverse(some.forward(x)))
    assert np.abs(np.mean(found, axis=0) - x).max() < 1e-6
    square = float(np.mean([np.sum((each - x) ** 2) for each in found]))
    omitted = some.error(CoordinateError(0.0)).omitted
    assert abs(square / float(x @ x) - (8 / k - 1)) < 1e-5
    assert abs(8 * omitted - (8 / k - 1)) < 1e-12


def errors_of(mechanism, x, rounds):
    """Of the decoded mean, one row a round, each round with a subset of its own."""
    found = []
    for number in range(rounds):
        now, keys = mechanism.in_round(number), [ROOT.fold_in(number, c) for c in range(len(x))]
        mean = now.mean(now.encode_many(x, keys), key=ROOT.fold_in(number, "server"))
        found.append(mean - x.mean(axis=0))
    return np.array(found)


@pytest.mark.parametrize(
    "mechanism",
    [sending(100), skellam(100), helped(100, False), helped(100, True)],
    ids=["bits", "skellam", "helper", "helper and server"],
)
def test_a_mean_is_unbiased_over_subsets_and_codes_with_the_error_expected(mechanism):
    x = updates(4, 200, 0.3)  # shorter than sqrt(100/256), whatever the subset
    errors = errors_of(mechanism, x, 120)
    direction = x.mean(axis=0) / np.linalg.norm(x.mean(axis=0))

    def centred(sample):  # a normal limit; false alarm 1e-6
        z = sample.mean() / (sample.std() / math.sqrt(sample.size))
        return abs(z) <= stats.norm.isf(0.5e-6)

    assert centred(errors @ direction)
    length = float(np.linalg.norm(x.mean(axis=0)))
    expected = mechanism.expected_error(200)
    # Updates of 0.3 are not shortened: without the gain of those of norm 1.
    stated = dataclasses.replace(expected, gain=1.0).deviation(4, length)
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(stated, rel=0.03)
    if mechanism.channel is None:  # little noise: a mean scaled by k/D is noticed
        shrunk = errors @ direction - (1 - (100 / 256) ** 2) * length
        assert not centred(shrunk)


@pytest.mark.parametrize("mechanism", [sending(100), skellam(100)], ids=["bits", "skellam"])
def test_unless_a_length_is_given_the_error_is_that_of_means_as_long_as_they_can_be(mechanism):
    error = mechanism.expected_error(200)
    assert error.deviation(4) == error.deviation(4, mechanism.clip_norm) > error.deviation(4, 0.0)


@pytest.mark.parametrize("k", [100, None])
def test_the_length_of_the_mean_is_measured_on_released_means(k):
    mechanism, x = skellam(k, 0.1), updates(4, 200, 0.3)
    length = float(np.linalg.norm(x.mean(axis=0)))
    means = errors_of(mechanism, x, 60) + x.mean(axis=0)
    error = dataclasses.replace(mechanism.expected_error(200), gain=1.0)
    assert error.mean_norm(means, 4) == pytest.approx(length, rel=0.1)
    assert error.mean_norm([np.zeros(200)], 4) == 0
    with pytest.raises(ValueError, match=r"^Expected a decoded mean of at least one round"):
        error.mean_norm([], 4)


def test_a_mean_is_that_of_the_decoded_codes_in_their_places_and_of_zeros_elsewhere():
    now, x = sending(100).in_round(5), updates(4, 200, 1.0)
    keys = [ROOT.fold_in(client) for client in range(4)]
    payloads = [now.encode(*each) for each in zip(x, keys, strict=True)]
    codes = np.array([wire.unpack(now.coding, payload, 100) for payload in payloads])
    whole = np.zeros(256)
    values = COIN.values[codes].mean(axis=0).astype(np.float32).astype(float)
    whole[Subset(256, 100, 5).indices] = values * 2.56
    assert np.abs(now.mean(payloads) - Rotation(200, 0).inverse(whole)).max() < 1e-6
    alone = rq.encode(COIN, now.projection(200).forward(x[0]), keys[0])
    assert np.array_equal(alone, codes[0])


def test_a_sum_over_many_alike_is_decoded_without_wrapping_around():
    """Its bits are those of coordinates as long as the whole update has, whatever is sent of it."""
    clients, update, draw = 400, updates(1, 1024, 1.0)[0], np.random.default_rng(0)
    narrow = rq.stochastic_rounding(clip=3 / 32, levels=2, margin=0.6 / 32)
    mechanism = sending(64, cohort=clients, channel=narrow)
    bits, (first, step) = mechanism.sum_bits(1024, clients), narrow.lattice
    for seed in range(20):
        now = mechanism.in_round(seed)
        sent = now.projection(1024).forward(update)
        ones = np.interp(sent, narrow.inputs, narrow.probabilities[:, 1])
        totals = draw.binomial(clients, ones)
        exact = now.projection(1024).inverse(first + step / clients * totals)
        decoded = now.decode(totals % 2**bits, clients, 1024)
        np.testing.assert_allclose(decoded, exact, rtol=1e-5, atol=1e-5)


def test_a_payload_states_k_and_its_subset():
    x = updates(1, 200, 1.0)[0]
    for mechanism in (sending(100), skellam(100)):
        payload = mechanism.in_round(1).encode(x, ROOT)
        assert wire.sizes(payload) == (100, -100)
        assert mechanism.in_round(1).payload_dimension(payload) == 200
        others = (
            mechanism.in_round(2),
            dataclasses.replace(mechanism, coordinates=99, subset_seed=1),
        )
        for other in others:
            with pytest.raises(ValueError, match="another round's subset"):
                other.payload_dimension(payload)
        mixed = [
            mechanism.in_round(seed).encode(x, ROOT.fold_in(client))
            for client, seed in enumerate((1, 1, 2, 1))
        ]
        with pytest.raises(ValueError, match=r"^payload 2: Expected a payload of channel"):
            mechanism.in_round(1).mean(mixed)
    # More codes than parameters, fewer than a rotated update has.
    assert wire.sizes(sending(230).in_round(1).encode(x, ROOT)) == (230, 30)
    assert sending(200).in_round(1).payload_bytes(200) == 40 + 25


def test_the_same_subset_of_another_mechanisms_codes_is_refused():
    x, wider = updates(1, 200, 1.0)[0], rq.stochastic_rounding(clip=0.5, levels=2, margin=2.0)
    pairs = (sending(100), sending(100, channel=wider)), (skellam(100), skellam(100, noise=1.4))
    for mechanism, other in pairs:
        mine, theirs = mechanism.in_round(1), other.in_round(1)
        assert mine.coding.fingerprint != theirs.coding.fingerprint
        with pytest.raises(ValueError, match=r"^payload 1: Expected a payload of channel"):
            mine.mean([each.encode(x, ROOT.fold_in(c)) for c, each in enumerate(
                (mine, theirs, mine, mine))])  # fmt: skip


@pytest.mark.parametrize("mechanism", [sending(100), skellam(100)], ids=["bits", "skellam"])
def test_what_a_round_cannot_be_encoded_with_is_refused(mechanism):
    x = updates(1, 200, 1.0)[0]
    for use in (lambda: mechanism.encode(x, ROOT), lambda: mechanism.coding):
        with pytest.raises(ValueError, match=r"^Expected the public seed .*\.in_round\(seed\)"):
            use()
    with pytest.raises(ValueError, match=r"^Expected subset_seed >= 0 and <= 18446744073709551615"):
        mechanism.in_round(2**64)
    with pytest.raises(TypeError, match=r"^Expected subset_seed to be a whole number"):
        mechanism.in_round(b"12345678")
    with pytest.raises(ValueError, match=r"^Expected coordinates <= 64, as many as a rotated upd"):
        mechanism.release(50, 1)
    with pytest.raises(ValueError, match=r"^Expected coordinates >= 1"):
        dataclasses.replace(mechanism, coordinates=0)


def test_where_no_subset_can_be_sent_it_is_said():
    bits = {"clip": 0.5, "levels": 2, "margin": 1.0}
    with pytest.raises(
        ValueError, match=r"^Expected clip_norm with coordinates=5, got clip_norm=None"
    ):
        update_mechanism("stochastic-rounding", bits, coordinates=5)
    noise = {"clip_norm": 1.0, "noise_multiplier": 2.0}
    with pytest.raises(ValueError, match=r"^Expected no coordinates with local-gaussian"):
        update_mechanism("local-gaussian", noise, coordinates=5)
    assert update_mechanism("skellam", noise, cohort=3, coordinates=5).size(9) == 5
    with pytest.raises(ValueError, match=r"^Expected subset_seed"):
        update_mechanism("local-gaussian", noise).in_round(-1)
