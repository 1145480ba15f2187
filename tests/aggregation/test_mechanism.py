import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import mechanism_channels

import randquant as rq
from randquant.aggregation import (
    CentralGaussian,
    ChannelMechanism,
    ClippedSGD,
    ClippedSum,
    LocalGaussian,
    Rotation,
    VectorMechanism,
    clip_to_norm,
    update_mechanism,
)
from randquant.aggregation.clipping import _room
from randquant.channels import Key, encode_payload, wire
from randquant.privacy import ChannelRelease, GaussianRelease, VectorRelease

PAPER = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
ROOT = Key.from_seed(0)
FLOATS = st.floats(-(2.0**127), 2.0**127, width=32)


def updates(clients: int, dimension: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((clients, dimension)).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(mechanism_channels(), st.integers(1, 6), st.integers(1, 50))
def test_the_mean_is_the_mean_of_the_decoded_codes(channel, clients, dimension):
    mechanism = ChannelMechanism(channel)
    x = updates(clients, dimension) * channel.clip
    payloads = [mechanism.encode(u, ROOT.fold_in(c)) for c, u in enumerate(x)]
    codes = np.array([wire.unpack(channel, payload, dimension) for payload in payloads])
    expected = channel.values[codes].mean(axis=0)
    got = mechanism.mean(payloads, dimension, ROOT)
    assert got.dtype == np.float32
    assert np.abs(got - expected).max() <= 1e-6 * np.abs(channel.values).max()


def squared(update: np.ndarray) -> Fraction:
    """The square of the L2 norm, exactly."""
    return sum((Fraction(float(v)) ** 2 for v in update), Fraction(0))


@given(
    st.lists(FLOATS | st.floats(-(2.0**-123), 2.0**-123, width=32), min_size=1, max_size=40),
    st.floats(1e-30, 1e30) | st.just(1e-30),
)
def test_a_clipped_update_has_at_most_the_norm_and_keeps_its_direction(update, clip_norm):
    given_update = np.array(update, dtype=np.float32)
    clipped = clip_to_norm(given_update, clip_norm)
    norm = math.sqrt(sum(Fraction(float(v)) ** 2 for v in clipped))
    whole = math.sqrt(sum(Fraction(float(v)) ** 2 for v in given_update))
    assert clipped.dtype == np.float32
    assert sum(Fraction(float(v)) ** 2 for v in clipped) <= Fraction(clip_norm) ** 2
    if whole <= clip_norm * (1 - 2**-21):
        assert (clipped == given_update).all()
    else:
        assert norm >= clip_norm * (1 - 2**-20) - 1e-40
        expected = given_update.astype(float) * (clip_norm / whole)
        assert np.abs(clipped - expected).max() <= 1e-6 * clip_norm
    total = ClippedSum(len(update), clip_norm)
    total.add(given_update)
    assert sum(Fraction(v) ** 2 for v in total.value().tolist()) <= Fraction(clip_norm) ** 2
    assert np.abs(total.value() - clipped).max() <= 2**-23 * clip_norm
    total.add(given_update)
    assert np.abs(total.value() - 2.0 * clipped).max() <= 2**-22 * clip_norm


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_added(bad):
    total = ClippedSum(3, 9.0)
    total.add(np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"Expected finite values to send, got .* at index \[1\]"):
        total.add(np.float32([1, bad, 2]))
    assert (total.value() == 1).all()


@pytest.mark.parametrize("count", [31, 32, 33, 1000, 70_001])
def test_a_long_sum_of_clipped_vectors_has_the_error_of_its_proposition(count):
    """Of vectors that are nearly alike, whose roundings do not cancel."""
    draw = np.random.default_rng(count)
    rows = np.float32([3, 7]) + draw.uniform(0, 0.01, (count, 2)).astype(np.float32)
    total, exact = ClippedSum(2, 1.0), [[], []]
    for row in rows:
        one = ClippedSum(2, 1.0)
        one.add(row)
        total.add(row)
        for column, value in zip(exact, one.value().tolist(), strict=True):
            column.append(value)
    error = [value - math.fsum(column) for value, column in zip(total.value(), exact, strict=True)]
    assert np.linalg.norm(error) <= 4 * count * 2.0**-53


def test_updates_near_the_largest_float64_leave_the_norm_within_its_bound():
    """The threshold over such a number is no float with 53 bits any more."""
    for clip_norm in np.geomspace(1e-30, 1e-12, 200):
        for update in ([1e308, 0.0], [-1.2e301, 1.7e248], [8.9e302, 9.2e302]):
            clipped = clip_to_norm(np.array(update), float(clip_norm))
            assert squared(clipped) <= Fraction(clip_norm) ** 2
            assert float(np.abs(clipped).max()) >= clip_norm / 3


@given(st.floats(1e-30, 1e-29) | st.floats(1e-30, 1e30), st.integers(1, 2**30) | st.just(2**30))
def test_denormals_that_are_rounded_up_leave_the_norm_within_its_bound(clip_norm, size):
    """All coordinates alike, the sum as wrong as float64 may make it, rounded up by a hair less
    than half a step: of 2**30 denormals that is 7e-7 of the least norm."""
    room = Fraction(_room(clip_norm, size))
    each = room / size * (1 + Fraction(1, 2**23) + Fraction(16, 2**53))
    rounded = each + max(each / 2**24, Fraction(1, 2**150))
    assert rounded * size <= Fraction(clip_norm)
    assert room >= Fraction(clip_norm) * (1 - Fraction(1, 2**19))


@pytest.mark.parametrize("clip_norm", [1e-20, 1.0, 3.7e12])
def test_no_more_room_is_left_than_rounding_takes(clip_norm):
    """A long update comes out within 2^-22 of its threshold, and two roundings of it."""
    update = np.random.default_rng(0).normal(0, 1e15, 7)
    exact = squared(clip_to_norm(update, clip_norm))
    least = Fraction(clip_norm) * (1 - Fraction(1, 2**22) - Fraction(2, 2**24))
    assert exact >= least**2


def test_more_coordinates_than_rounding_is_bounded_for_are_refused():
    assert _room(1.0, 2**30) > 0
    many = np.broadcast_to(np.float32(0), (2**30 + 1,))
    with pytest.raises(ValueError, match="coordinates"):
        clip_to_norm(many, 1.0)


@given(st.floats(1e-45, 1e6), st.integers(1, 5))
def test_no_coordinate_that_is_sent_is_beyond_its_threshold(clip, far):
    """Thresholds that float32 has not are rounded towards zero: noise is scaled to them."""
    update = far * clip * np.array([1.0, -1.0, 0.5 / far])
    for mechanism in (ClippedSGD(clip), CentralGaussian(clip, 2.0)):
        sent = np.frombuffer(mechanism.encode(update, Key.from_seed(0)), "<f4")
        assert (np.abs(sent.astype(np.float64)) <= clip).all()
        if clip > 1e-37:  # of numbers that float32 has, the nearest
            assert sent[:2] == pytest.approx(clip * np.array([1, -1]), rel=2.0**-23, abs=0)


def test_clipping_as_a_whole_changes_what_central_noise_is_scaled_by():
    x = updates(7, 1000)
    for mechanism, longest in (
        (CentralGaussian(None, 1.5, clip_norm=3.0), 3.0),
        (CentralGaussian(3.0, 1.5), 3.0 * math.sqrt(1000)),
    ):
        exact = ClippedSGD(mechanism.clip, mechanism.clip_norm)
        payloads = [mechanism.encode(u, ROOT) for u in x]
        assert payloads == [exact.encode(u, ROOT) for u in x]
        noise = mechanism.mean(payloads, 1000, ROOT) - exact.mean(payloads, 1000, ROOT)
        assert abs(noise.std() / (1.5 * longest / 7) - 1) < 6 * math.sqrt(0.5 / 1000)
    assert np.linalg.norm(np.frombuffer(ClippedSGD(None, 3.0).encode(x[0], ROOT), "<f4")) <= 3.0
    for clip, clip_norm in ((None, None), (1.0, 1.0)):
        with pytest.raises(ValueError, match="one of clip and clip_norm"):
            ClippedSGD(clip, clip_norm)
        with pytest.raises(ValueError, match="one of clip and clip_norm"):
            CentralGaussian(clip, 2.0, clip_norm)


@pytest.mark.parametrize("cohort", [1, 7, 50])
def test_the_error_that_is_stated_of_noise_on_a_sum_is_that_of_the_mean(cohort):
    """It is added once, however many clients there are."""
    central, plain = CentralGaussian(None, 1.0, clip_norm=3.0), ClippedSGD(None, 3.0)
    payloads = [central.encode(u, ROOT) for u in updates(cohort, 1000)]
    noise = central.mean(payloads, 1000, ROOT) - plain.mean(payloads, 1000, ROOT)
    stated = central.expected_error(1000).deviation(cohort)
    assert abs(noise.std() / stated - 1) < 6 * math.sqrt(0.5 / 1000)


def test_uneven_values_refuse_aggregate_trust_and_name_the_way_out():
    channel = rq.erm(clip=1.0, bins=[-3.0, -0.5, 0.5, 3.0], gamma=1.0)
    assert ChannelMechanism(channel).trust == "local"
    with pytest.raises(ValueError, match=r"does not decode .* lattice=True"):
        ChannelMechanism(channel, "aggregate")
    with pytest.raises(ValueError, match="trust"):
        ChannelMechanism(PAPER, "central")  # type: ignore[arg-type]


# Who is in a sum ----------------------------------------------------------------------------------

ONE_BIT = rq.stochastic_rounding(clip=0.5, levels=2, margin=0.5)


def test_local_trust_counts_on_nobody():
    """A server that sees each client's codes is kept from nothing by the others' randomness."""
    for build in (
        lambda: ChannelMechanism(ONE_BIT, "local", 2),
        lambda: VectorMechanism(ONE_BIT, 1.0, "local", 2),
        lambda: VectorMechanism(ONE_BIT, 1.0, cohort=1000),
    ):
        with pytest.raises(ValueError, match="cohort=1 under local trust"):
            build()
    rqm = {"clip": 1.5, "margin": 1.5, "levels": 16, "keep": 0.42}
    for clip_norm in (None, 1.0):
        for trust, cohort in (("", 1), ("local", 1), ("aggregate", 50)):
            options = {"trust": trust, "cohort": 50, "clip_norm": clip_norm}
            assert update_mechanism("rqm", rqm, **options).cohort == cohort
    for cohort in (0, -1, 10**6 + 1):
        with pytest.raises(ValueError, match="cohort"):
            ChannelMechanism(ONE_BIT, "aggregate", cohort)


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
def test_what_is_accounted_for_is_what_is_sent(neighboring):
    release = ChannelMechanism(ONE_BIT, "aggregate", 3).release(6, 7, neighboring)
    assert release == ChannelRelease(ONE_BIT, 6, 7, "aggregate", neighboring, 3)
    mechanism = VectorMechanism(ONE_BIT, 2.0, "aggregate", 3)
    assert mechanism.size(6) == 8  # a rotation fills up to a power of two
    expected = VectorRelease(ONE_BIT, 2.0, 8, 7, "aggregate", neighboring, 3)
    assert mechanism.release(6, 7, neighboring) == expected
    payload = mechanism.encode(updates(1, 6)[0], ROOT)
    assert len(payload) == 40 + wire.body_bytes(ONE_BIT, 8)
    twice = 2 if neighboring == "zero_out" else 1
    gaussian = LocalGaussian(2.0, 3.0).release(6, 7, neighboring)
    assert gaussian == GaussianRelease(twice * 1.5, 6, 7, "local", neighboring)
    central = CentralGaussian(None, 3.0, 2.0).release(6, 7, neighboring)
    assert central == GaussianRelease(twice * 1.5, 6, 7, "central", neighboring)


# Whole updates through one channel ----------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 5])
def test_a_vector_is_clipped_rotated_and_encoded(seed):
    mechanism = VectorMechanism(PAPER, 2.0, rotation_seed=seed)
    update, key = updates(1, 20)[0], ROOT.fold_in(3)
    assert np.linalg.norm(update) > 2
    sent = Rotation(20, seed).forward(clip_to_norm(update, 2.0))
    payload = mechanism.encode(update, key)
    assert payload == encode_payload(PAPER, sent, key, padding=12)
    decoded = PAPER.values[wire.unpack(PAPER, payload, 32)]
    back = Rotation(20, seed).inverse(decoded)
    assert np.abs(mechanism.mean([payload], 20, ROOT) - back).max() < 1e-6


def test_small_updates_are_not_lost_in_a_sum_of_floats():
    payloads = [np.array([value], dtype="<f4").tobytes() for value in (2.0**25, 1, 1, 1, 1)]
    mean = ClippedSGD(clip_norm=1.0).mean(payloads, 1, ROOT)
    assert mean[0] == np.float32((2**25 + 4) / 5) != np.float32(2**25 / 5)
