"""What `encode` takes as an update, what `mean` takes as payloads, and which it refuses."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import erf

import randquant as rq
from randquant.aggregation import (
    MAX_LOG_COLLISION,
    AdditiveMechanism,
    ChannelMechanism,
    ClippedSGD,
    LocalGaussian,
    SignSGD,
    VectorMechanism,
    gaussian,
    log_equal_codes,
)
from randquant.channels import Key
from randquant.mechanisms import NOISES

torch = pytest.importorskip("torch")

COIN = rq.stochastic_rounding(clip=0.3, levels=2, margin=0.7)
SURE = rq.stochastic_rounding(clip=1.0, levels=3, margin=0.0)
MECHANISMS = {
    "channel": ChannelMechanism(COIN),
    "vector": VectorMechanism(COIN, 1.0),
    "clipped": ClippedSGD(clip=0.5),
    "clipped as a whole": ClippedSGD(clip_norm=0.5),
    "central": gaussian(2.0, clip=0.5),
    "local": LocalGaussian(1.0, 2.0),
    "signs": SignSGD(1.0, 2.0),
    "skellam": AdditiveMechanism("skellam", 1.0, 2.0, cohort=2),
}
HALVES = np.array([0.5, -0.25, 0.0, 0.125, -2.0], dtype=np.float32)  # the same in every format


@pytest.fixture(params=MECHANISMS.values(), ids=MECHANISMS)
def mechanism(request):
    return request.param


SAME = {
    "list": HALVES.tolist(),
    "tuple": tuple(HALVES.tolist()),
    "float16": HALVES.astype(np.float16),
    "float64": HALVES.astype(np.float64),
    "big-endian": HALVES.astype(">f4"),
    "strided": np.repeat(HALVES, 2)[::2],
    "tensor": torch.tensor(HALVES),
    "half tensor": torch.tensor(HALVES).half(),
    "bfloat16 tensor": torch.tensor(HALVES).bfloat16(),
    "negated tensor": torch.complex(torch.zeros(5), torch.tensor(-HALVES)).conj().imag,
    "tensor with a gradient": torch.tensor(HALVES, requires_grad=True),
}


@pytest.mark.parametrize("update", SAME.values(), ids=SAME)
def test_the_same_numbers_are_encoded_the_same_whatever_holds_them(mechanism, update):
    wanted = mechanism.encode(HALVES, Key.from_seed(1))
    assert mechanism.encode(update, Key.from_seed(1)) == wanted
    mechanism.mean([wanted, mechanism.encode(update, Key.from_seed(2))], 5, Key.from_seed(3))


REFUSED = {
    "a matrix": (np.zeros((2, 3), np.float32), ValueError, r"got shape \(2, 3\): flatten it"),
    "a tensor of two dimensions": (torch.zeros(2, 3), ValueError, r"shape \(2, 3\)"),
    "a number": (0.5, ValueError, r"shape \(\)"),
    "integers": (np.zeros(5, int), TypeError, "got int64"),
    "a list of integers": ([1, 2], TypeError, "got int64"),
    "an integer tensor": (torch.zeros(5, dtype=torch.int32), TypeError, "got int32"),
    "uneven lists": ([[0.5], [0.5, 1.0]], TypeError, "lists of uneven lengths"),
    "nothing": (None, TypeError, "got object"),
    "text": (["0.5"], TypeError, "got <U3"),
    "complex": (np.zeros(5, complex), TypeError, "got complex128"),
    "a complex tensor": (torch.zeros(5, dtype=torch.complex64).conj(), TypeError, "complex64"),
    "a tensor of 8 bits": (torch.zeros(5, dtype=torch.float8_e4m3fn), TypeError, "float8_e4m3fn"),
    "a tensor without memory": (torch.empty(5, device="meta"), TypeError, "dense tensor"),
    "a sparse tensor": (torch.zeros(5).to_sparse(), TypeError, "got torch.float32, torch.sparse"),
    "a NaN": (torch.tensor([0.0, float("nan")]), ValueError, r"finite values .*nan at index \[1\]"),
    "an infinity": ([0.0, -math.inf], ValueError, r"finite values .*-inf at index \[1\]"),
    "a NaN in bfloat16": (torch.tensor([math.nan]).bfloat16(), ValueError, "got nan at index"),
}


@pytest.mark.parametrize(("update", "kind", "match"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_update_is_refused_for_the_true_reason(mechanism, update, kind, match):
    with pytest.raises(kind, match=match):
        mechanism.encode(update, Key.from_seed(1))


# Copies


@pytest.mark.parametrize(
    "mechanism",
    [VectorMechanism(COIN, 1.0, "aggregate", 40), ChannelMechanism(COIN, "aggregate", 40),
     AdditiveMechanism("skellam", 1.0, 2.0, cohort=40), ChannelMechanism(COIN),
     VectorMechanism(COIN, 1.0), SignSGD(1.0, 2.0), LocalGaussian(1.0, 2.0)],
)  # fmt: skip
def test_one_payload_forty_times_is_no_cohort_of_forty(mechanism):
    update = np.zeros(650, np.float32)
    payloads = [mechanism.encode(update, Key.from_seed(n)) for n in range(40)]
    assert mechanism.mean(payloads, 650, Key.from_seed(0)).shape == (650,)
    with pytest.raises(ValueError, match="payload once in a sum, got 39 duplicates among 40"):
        mechanism.mean(payloads[:1] * 40, 650, Key.from_seed(0))
    with pytest.raises(ValueError, match="among 41, payload 40 is payload 7 again: a duplicate"):
        mechanism.mean([*payloads, payloads[7]], 650, Key.from_seed(0))
    if mechanism.trust == "aggregate":
        with pytest.raises(ValueError, match="Expected at least 40 payloads in a sum, got 39"):
            mechanism.mean(payloads[:39], 650, Key.from_seed(0))
    with pytest.raises(ValueError, match="at least one payload"):
        mechanism.mean([], 650, Key.from_seed(0))


def test_payloads_that_may_be_equal_by_chance_are_added_up():
    """One bit, codes that are sure, floats without noise, next to none of it."""
    for mechanism, dimension in (
        (ChannelMechanism(COIN, "aggregate", 2), 1),
        (ChannelMechanism(COIN), 1),
        (ChannelMechanism(SURE, "aggregate", 2), 650),
        (AdditiveMechanism("skellam", 1.0, 2.0, cohort=2), 1),
        (SignSGD(1.0, 2.0), 1),
        (SignSGD(1.0, 2e-9), 650),
        (ClippedSGD(clip_norm=1.0), 650),
        (gaussian(2.0, clip=0.5), 650),
        (LocalGaussian(1.0, 2e-9), 650),
    ):
        payload = mechanism.encode(np.zeros(dimension, np.float32), Key.from_seed(1))
        assert mechanism.mean([payload] * 3, dimension, Key.from_seed(0)).shape == (dimension,)


def test_copies_are_refused_where_chance_makes_one_in_a_trillion_sums_have_them():
    """The threshold, 2**-40, at two clients and at more: pairs count."""
    assert math.exp(MAX_LOG_COLLISION) == pytest.approx(2.0**-40, rel=1e-9, abs=0)
    each = log_equal_codes(COIN)
    longest = math.floor(MAX_LOG_COLLISION / each)  # a pair is equal more often than in 2**-40
    for dimension, clients, refused in (
        (longest, 2, False),
        (longest + 1, 2, True),
        (longest + 1, 10, False),
        (longest + 1 + math.ceil(-math.log(45) / each), 10, True),
    ):
        mechanism = ChannelMechanism(COIN, "aggregate", 2)
        payload = mechanism.encode(np.zeros(dimension, np.float32), Key.from_seed(1))
        if refused:
            with pytest.raises(ValueError, match="payload once"):
                mechanism.mean([payload] * clients, dimension, Key.from_seed(0))
        else:
            mechanism.mean([payload] * clients, dimension, Key.from_seed(0))


@pytest.mark.parametrize(
    "channel",
    [COIN, SURE, rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42), rq.pbm(1.0, 0.3, 7, inputs=5)],
)
def test_no_two_inputs_draw_equal_codes_more_often_than_is_said(channel):
    """Exactly, over all pairs of vertices and of mixes half way; and it is attained."""
    rows = [[Fraction(int(w), channel.denominator) for w in row] for row in channel.weights]
    halves = [
        [(a + b) / 2 for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(rows)
    ]
    equal = [
        sum(a * b for a, b in zip(*pair, strict=True))
        for pair in itertools.product(rows + halves, repeat=2)
    ]
    said = math.exp(log_equal_codes(channel))
    assert float(max(equal)) <= said <= float(max(equal)) * (1 + 1e-9)


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("noise_multiplier", [0.04, 0.6, 6.0])
def test_no_two_updates_add_noise_to_equal_codes_more_often_than_is_said(kind, noise_multiplier):
    """Against the tables that noise is drawn from, folded modulo 2**bits."""
    mechanism = AdditiveMechanism(kind, 1.0, noise_multiplier, cohort=2, bits=9)
    plan = mechanism.plan(2)
    table = plan.noise._table()
    masses = np.diff(np.array([0.0, *(int(h) / 2**64 for h in table.high), 1.0]))
    law = np.convolve(masses, masses[::-1]) if kind == "skellam" else masses
    folded = np.zeros(2**9)
    np.add.at(folded, np.arange(len(law)) % 2**9, law)
    said = math.exp(mechanism._log_equal(plan))
    assert folded.max() <= said
    assert said <= 1
    if noise_multiplier == 6.0:
        assert said < 0.5  # it says something


def test_signs_are_not_equal_more_often_than_is_said():
    """Of two coordinates of norm 1, for all pairs of updates on a grid."""
    mechanism = SignSGD(1.0, 0.8)
    angles = np.linspace(0, 2 * np.pi, 73)
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    up = 0.5 * (1 + erf(x / (0.8 * math.sqrt(2))))
    equal = up[:, None] * up + (1 - up[:, None]) * (1 - up)
    assert equal.prod(axis=-1).max() <= math.exp(mechanism.log_equal(2)) < 1


def test_floats_with_noise_are_not_equal_more_often_than_is_said():
    """Most often near clip_norm, where floats are coarse; in one coordinate."""
    for noise in (2e-9, 2e-3, 2.0):
        mechanism = LocalGaussian(1.0, noise)
        said = math.exp(mechanism.log_equal(1))
        step = float(np.spacing(np.float32(1.0 + noise)))
        assert erf(step / (2 * noise) / math.sqrt(2)) <= said


# Payloads


def some_payloads(mechanism, count=3, dimension=5):
    update = np.full(dimension, 0.1, np.float32)
    return [mechanism.encode(update, Key.from_seed(n)) for n in range(count)]


def test_the_dimension_is_read_from_the_payloads(mechanism):
    for dimension in (1, 5, 8):
        payloads = some_payloads(mechanism, dimension=dimension)
        wanted = mechanism.mean(payloads, dimension, Key.from_seed(9))
        assert np.array_equal(mechanism.mean(payloads, key=Key.from_seed(9)), wanted)
        assert wanted.shape == (dimension,)


def test_a_key_is_wanted_only_where_the_server_adds_noise():
    for name, each in MECHANISMS.items():
        if name == "central":
            with pytest.raises(TypeError, match=r"Expected a key, got key=None: .*Key\.generate"):
                each.mean(some_payloads(each))
        else:
            assert each.mean(some_payloads(each)).shape == (5,)


def test_what_is_no_payload_is_named_too(mechanism):
    payloads = some_payloads(mechanism)
    with pytest.raises(TypeError, match=r"^payload 2: Expected bytes from encode, got ndarray"):
        mechanism.mean([*payloads[:2], np.zeros(5)], 5, Key.from_seed(9))
    with pytest.raises(TypeError, match=r"Expected a list of payloads, got bytes: put it in \[\]"):
        mechanism.mean(payloads[0], 5, Key.from_seed(9))
    with pytest.raises(ValueError, match="at least one payload"):
        mechanism.mean(iter([]), 5, Key.from_seed(9))
    again = mechanism.mean((bytearray(p) for p in payloads), 5, Key.from_seed(9))
    assert np.array_equal(again, mechanism.mean(payloads, 5, Key.from_seed(9)))
