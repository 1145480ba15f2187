import copy
import hashlib
import math
import pickle
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import channels

import randquant as rq
from randquant.channels import DITHER_STEPS, MAX_DENOMINATOR, Channel, from_probabilities
from randquant.mechanisms import rqm

INPUTS, VALUES = [-1.0, 1.0], [-2.0, 2.0]
WEIGHTS = np.array([[3, 1], [1, 3]])


@pytest.mark.parametrize(
    ("inputs", "values", "weights", "denominator", "message"),
    [
        ([-1, 1], [0.0], [[4], [4]], 4, "levels >= 2"),
        ([-1, 1], VALUES, [[3, 1]], 4, "shapes"),
        ([1, -1], VALUES, WEIGHTS, 4, "rise"),
        ([-1, 2], VALUES, WEIGHTS, 4, "rise"),
        ([0, 0], VALUES, WEIGHTS, 4, "rise"),
        ([-1, np.nan], VALUES, WEIGHTS, 4, "finite"),
        ([-1, -1, 1], VALUES, [[3, 1], [3, 1], [3, 1]], 4, "jump"),
        ([-1, 1, 1], VALUES, [[3, 1], [3, 1], [3, 1]], 4, "jump"),
        ([-1, 0, 0, 0, 1], VALUES, [[3, 1]] * 5, 4, "jump"),
        ([-1, 1e-12, 2e-12, 1], VALUES, [[3, 1]] * 4, 4, "apart"),
        ([-1e-31, 1e-31], VALUES, WEIGHTS, 4, "1e-30"),
        ([-1e31, 1e31], VALUES, WEIGHTS, 4, "1e-30"),
        (INPUTS, [0, 1e31], WEIGHTS, 4, "1e-30"),
        (INPUTS, VALUES, WEIGHTS, 3, "power of two"),
        (INPUTS, VALUES, WEIGHTS, 8, "row 0 has 4"),
        (INPUTS, VALUES, [[5, -1], [1, 3]], 4, ">= 0"),
        (INPUTS, np.arange(5.0), [[2**62] * 5] * 2, 2**62, "row 0 has 23058430092136939520"),
        (INPUTS, VALUES, np.array([[2**63, 0], [2**63, 0]], dtype=np.uint64), 2**62, "2\\*\\*62"),
        (INPUTS, VALUES, np.array([[2**64, 0], [2**64, 0]], dtype=object), 2**62, "2\\*\\*62"),
    ],
)
def test_wrong_channels_are_refused(inputs, values, weights, denominator, message):
    with pytest.raises(ValueError, match=message):
        Channel(np.array(inputs, float), np.array(values), np.array(weights), denominator)


def test_float_weights_are_refused():
    with pytest.raises(TypeError, match="integer weights"):
        Channel(np.array(INPUTS), np.array(VALUES), WEIGHTS / 4, 4)


@given(channels())
def test_two_channels_are_equal_exactly_when_their_fingerprints_are(channel):
    twin = Channel(channel.inputs, channel.values, channel.weights, channel.denominator)
    assert twin == channel
    assert hash(twin) == hash(channel)
    other = Channel(channel.inputs, channel.values * 2, channel.weights, channel.denominator)
    assert (other == channel) == (not channel.values.any())


def test_channels_of_one_fingerprint_are_told_apart(monkeypatch):
    """Whoever found two, 2**64 hashes, could have one certified, and the other used."""
    monkeypatch.setattr("randquant.channels.channel._fingerprint", lambda channel: bytes(16))
    noisy, plain = rqm(1.0, 1.0, 4, 0.5), rq.stochastic_rounding(1.0, 4)
    assert noisy.fingerprint == plain.fingerprint
    assert noisy != plain
    assert math.isfinite(rq.certify(noisy).epsilon.upper)
    assert math.isinf(rq.certify(plain).epsilon.upper)
    released = [rq.ChannelRelease(each, 4, 1) for each in (noisy, plain)]
    assert math.isfinite(rq.account(released[:1], 0.0).epsilon)
    assert math.isinf(rq.account(released[1:], 0.0).epsilon)


def test_a_fingerprint_is_that_of_these_bytes():
    """By `openssl dgst -sha256`, and again here: payloads of old versions must stay readable."""
    channel = Channel(np.array(INPUTS), np.array(VALUES), WEIGHTS, 4)
    words = struct.pack("<3Q 2d 2d 4q", 2, 2, 3, -1, 1, -2, 2, 3, 1, 1, 3)
    digest = hashlib.sha256(b"randquant channel 1\0" + words).hexdigest()
    assert channel.fingerprint.hex() == digest[:32] == "5fa21a877a2fdcad36ce5d66ca9951f7"


def test_every_part_of_a_channel_is_in_its_fingerprint():
    inputs, values = np.array([-1.0, 0, 0, 1]), np.array([-2.0, 0.0, 2.0])
    weights = np.array([[2, 1, 1], [1, 2, 1], [1, 1, 2], [0, 1, 3]])
    plain = Channel(inputs, values, weights, 4)
    moved, heavier = inputs.copy(), weights.copy()
    moved[1:3] = 2.0**-50
    heavier[3] = [1, 0, 3]
    others = [
        Channel(moved, values, weights, 4),
        Channel(2 * inputs, values, weights, 4),
        Channel(inputs, values * (1 + 2.0**-40), weights, 4),
        Channel(inputs, values, heavier, 4),
        Channel(inputs, values, 2 * weights, 8),
    ]
    assert len({each.fingerprint for each in (plain, *others)}) == 6
    assert all(each != plain for each in others)
    zeros = Channel(-inputs[::-1], -values[::-1], weights, 4)  # -0.0 where there was 0.0
    assert np.signbit(zeros.values[1])
    assert (zeros == plain, zeros.fingerprint) == (True, plain.fingerprint)


def test_the_arrays_cannot_be_written_to():
    channel = rqm(1.0, 1.0, 4, 0.5)
    for array in (channel.inputs, channel.values, channel.weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_copies_and_pickles_are_channels_as_immutable():
    channel = rqm(1.0, 1.0, 4, 0.5)
    for twin in (copy.deepcopy(channel), copy.copy(channel), pickle.loads(pickle.dumps(channel))):
        assert twin == channel
        with pytest.raises(ValueError, match="read-only"):
            twin.weights[0] = 0


@given(channels(), st.floats(-1, 1))
def test_mix_is_the_convex_mix_of_the_neighbouring_rows(channel, part):
    x = part * channel.clip
    weights, total = channel.mix(x)
    cell, position = channel.locate(np.array(x))
    steps = round(Fraction(float(position)) * DITHER_STEPS)
    left, right = channel.weights[int(cell)], channel.weights[int(cell) + 1]
    assert sum(weights) == total == DITHER_STEPS * channel.denominator
    for got, a, b in zip(weights, left, right, strict=True):
        exact = (DITHER_STEPS - steps) * int(a) + steps * int(b)
        assert abs(got - exact) <= abs(int(a) - int(b))  # a tie in rounding may go either way
    start, end = channel.inputs[int(cell)], channel.inputs[int(cell) + 1]
    assert start <= x <= end
    assert abs(start + position * (end - start) - x) <= 1e-12 * channel.clip


def test_a_jump_takes_its_right_limit_at_the_input_itself():
    weights = np.array([[4, 0], [3, 1], [1, 3], [0, 4]])
    channel = Channel(np.array([-1.0, 0, 0, 1]), np.array(VALUES), weights, 4)
    at, total = channel.mix(0.0)
    assert [w / total for w in at] == [0.25, 0.75]
    before, total = channel.mix(-1e-9)
    assert before[0] / total == pytest.approx(0.75, abs=1e-8)


def test_inputs_beyond_clip_are_refused():
    for x in (1.01, np.nextafter(1, 2), -np.nextafter(1, 2), np.inf, -np.inf, np.nan):
        with pytest.raises(ValueError, match=r"within \[-1, 1\]"):
            rqm(1.0, 1.0, 4, 0.5).mix(x)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30).filter(lambda p: sum(p) > 0.1))
def test_rounding_never_makes_a_code_impossible(masses):
    row = np.array(masses) / sum(masses)
    channel = from_probabilities(np.array(INPUTS), np.arange(len(row)), np.array([row, row]))
    assert ((channel.weights[0] > 0) == (row > 0)).all()
    exact = [Fraction(float(p)) * MAX_DENOMINATOR for p in row]
    errors = [abs(int(w) - e) for w, e in zip(channel.weights[0], exact, strict=True)]
    errors.pop(int(row.argmax()))
    assert all(error <= 1 for error in errors)


def test_probabilities_must_be_a_distribution():
    wrong = [([0.5, 0.5 + off], "sum to 1") for off in (0.1, 1e-11, -1e-11)]
    for row, message in (*wrong, ([-0.5, 1.5], ">= 0"), ([np.nan, 1], ">= 0")):
        with pytest.raises(ValueError, match=message):
            from_probabilities(np.array(INPUTS), np.array(VALUES), np.array([row, row]))


def test_lattice_tells_even_from_uneven_values():
    assert rqm(1.0, 1.0, 5, 0.5).lattice == (-2.0, 1.0)
    uneven = Channel(np.array(INPUTS), np.array([-1.0, 0.0, 3.0]), np.array([[2, 1, 1]] * 2), 4)
    assert uneven.lattice is None
    values = np.array([-1.0, 1e-9, 1.0])  # sums of codes would decode to means that are off
    nearly = Channel(np.array(INPUTS), values, np.array([[2, 1, 1]] * 2), 4)
    assert nearly.lattice is None
