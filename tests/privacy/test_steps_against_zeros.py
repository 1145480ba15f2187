"""Steps of sums from an update of zeros: their moments at any length, and exact runs."""

import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import randquant as rq
from randquant.privacy import (
    RATIO_ORDERS,
    VectorRelease,
    martingale_epsilon,
    sum_round_loss,
)

TOTAL = 2**30


def two_codes(inputs, chances):
    """A channel of one bit whose chance of a 1 is given at some inputs."""
    ones = np.round(np.array(chances) * TOTAL).astype(np.int64)
    rows = np.stack([TOTAL - ones, ones], axis=1)
    return rq.Channel(np.array(inputs), np.array([-2.0, 2.0]), rows, TOTAL)


CHANNELS = {
    "even": two_codes([-1.0, 1.0], [0.375, 0.625]),
    "skewed": two_codes([-1.0, 1.0], [0.05, 0.3]),
    "wide": two_codes([-1.0, 1.0], [0.15, 0.75]),
    "steep at the left": two_codes([-1.0, -0.5, 0.1, 1.0], [0.1, 0.5, 0.55, 0.6]),
    "there and back": two_codes([-1.0, 0.3, 1.0], [0.2, 0.7, 0.4]),
}


def chance(channel, x):
    """Of a 1 at an input."""
    return float(np.interp(x, channel.inputs, channel.weights[:, 1] / channel.denominator))


def sum_law(own, others):
    """The law of a sum of bits: the client's, and groups of others (how many, chance)."""
    law = np.array([1 - own, own])
    for count, p in others:
        for _ in range(count):
            law = np.convolve(law, [1 - p, p])
    return law


@pytest.mark.parametrize("longest", [0.03, 0.5, 0.8])
@pytest.mark.parametrize("clients", [1, 2, 9])
@pytest.mark.parametrize("name", ["even", "skewed", "wide"])
def test_moments_of_every_step_are_within_the_bounds_of_its_length(name, clients, longest):
    """martingale.md, Propositions 3 and 4, at all places of the segment and all lengths."""
    channel = CHANNELS[name]
    loss = sum_round_loss(channel, clients, 1.0, 2 * longest, 1)
    assert loss is not None
    share = loss.energy * 4  # a squared distance of 1 is a quarter of the segment's
    low, high = chance(channel, -1), chance(channel, 1)
    for right, place, part in itertools.product(
        range(clients), np.linspace(0, 1, 5), (-1, -0.4, 0.4, 1)
    ):
        d = part * longest
        if not 0 <= place + d <= 1:
            continue
        others = [(clients - 1 - right, low), (right, high)]
        q = sum_law(low + place * (high - low), others)
        p = sum_law(low + (place + d) * (high - low), others)
        r = p / q - 1
        x, v = float(q @ r**2), share * d * d
        assert math.log1p(x) <= v * (1 + 1e-9) <= loss.largest * (1 + 2e-9)
        gaussian = {
            j: sum(
                (-1) ** (j - k) * math.comb(j, k) * (1 + Fraction(x)) ** (k * (k - 1) // 2)
                for k in range(j + 1)
            )
            for j in (3, 4, 5, 6)
        }
        for j, bound in zip((3, 4, 5), loss.apart, strict=True):
            assert abs(float(q @ r**j) - float(gaussian[j])) <= bound * v + 1e-15
        assert float(q @ r**6 + gaussian[6]) <= loss.sixth[0] * v + 1e-15
        assert all(
            float(q @ (r**6 * (1 + r) ** a)) <= bound * v + 1e-15
            for a, bound in zip(RATIO_ORDERS, loss.sixth[1:], strict=True)
        )


def test_all_bounds_fall_with_the_length():
    for name, channel in CHANNELS.items():
        losses = [sum_round_loss(channel, 5, 1.0, 2 * k / 16, 3) for k in range(1, 17)]
        bounds = [(loss.largest, *loss.apart, *loss.sixth) for loss in losses]
        assert len({loss.energy for loss in losses}) == 1, name
        assert all(
            a <= b
            for few, many in itertools.pairwise(bounds)
            for a, b in zip(few, many, strict=True)
        )


@pytest.mark.parametrize("name", CHANNELS)
def test_no_coordinate_moves_farther_from_zeros_than_is_counted(name):
    """vector.md, Propositions 14 and 18: what the encoder makes of a 0 that is no whole step."""
    channel = CHANNELS[name]
    inputs = [Fraction(x) for x in channel.inputs.tolist()]
    k = max(k for k, x in enumerate(inputs[:-1]) if x <= 0)
    left, right = inputs[k : k + 2]
    steps = -left / (right - left) * 2**32
    zeros = [left + (right - left) * n / 2**32 for n in (math.floor(steps), math.ceil(steps))]
    farthest = max(abs(end - zero) for end in (inputs[0], inputs[-1]) for zero in zeros)
    release = VectorRelease(channel, 5.0, 4, 2, "aggregate", "zero_out", cohort=3)
    rounded = Fraction((right - left) / 2**33)
    assert release._coordinate_distance >= min(farthest, 1 + rounded)
    assert release._square >= 4 * min(farthest, 1 + rounded) ** 2
    for terms in ({"examples": 1}, {"neighboring": "replace_one"}):
        other = VectorRelease(
            channel, 5.0, 4, 2, "aggregate", **{"neighboring": "zero_out", "cohort": 3, **terms}
        )
        assert other._coordinate_distance == 2.0
        assert other.round_loss.largest > 2 * release.round_loss.largest or name != "even"


@functools.lru_cache
def exact_epsilon(p: tuple, q: tuple, count: int, delta: float, size: int = 2**15) -> float:
    """Of `count` equal steps, to 10^-3: each loss is shared by the nearest two points."""
    first, second = np.array(p), np.array(q)
    kept = (first > 1e-250) & (second > 1e-250)
    first, losses = first[kept], np.log(first[kept] / second[kept])
    mean, square = count * float(first @ losses), count * float(first @ losses**2)
    step = 2.1 * (mean + 12 * math.sqrt(square) + float(abs(losses).max())) / size
    masses = np.zeros(size)
    below = np.floor(losses / step).astype(int)
    above = losses / step - below
    np.add.at(masses, below % size, first * (1 - above))
    np.add.at(masses, (below + 1) % size, first * above)
    masses = np.fft.irfft(np.fft.rfft(masses) ** count, size)
    masses[masses < 1e-16] = 0.0
    places = np.arange(size)
    totals = np.where(places < size // 2, places, places - size) * step
    low, high = 0.0, float(totals.max())
    for _ in range(24):
        middle = (low + high) / 2
        found = float(masses @ -np.expm1(np.minimum(0.0, middle - totals)))
        low, high = (middle, high) if found > delta else (low, middle)
    return low


RUNS = [
    ("wide", 4, 60, 1, 0.3), ("even", 40, 500, 4, 1e-5),
    ("skewed", 30, 200, 2, 1e-9), ("wide", 60, 20, 1, 1e-5),
    ("steep at the left", 20, 100, 2, 1e-5), ("there and back", 20, 100, 1, 0.01),
]  # fmt: skip


@pytest.mark.parametrize(("name", "clients", "dimension", "rounds", "delta"), RUNS)
@pytest.mark.parametrize("length", [0.4, 1.0])
def test_no_run_against_zeros_is_farther_than_its_bound(
    name, clients, dimension, rounds, delta, length
):
    """All coordinates as far from 0 as one may be, beside others at either end, in both orders."""
    channel = CHANNELS[name]
    norm = length * math.sqrt(dimension)
    release = VectorRelease(
        channel, norm, dimension, rounds, "aggregate", "zero_out", cohort=clients
    )
    bound = martingale_epsilon(release.round_loss, delta)[0]
    ends = channel.weights[:, 1] / channel.denominator
    low, high = float(ends.min()), float(ends.max())
    worst = 0.0
    for right, x in itertools.product((0, clients - 1), (-length, length)):
        others = [(clients - 1 - right, low), (right, high)]
        pair = [tuple(sum_law(chance(channel, y), others)) for y in (x, 0.0)]
        for p, q in (pair, pair[::-1]):
            worst = max(worst, exact_epsilon(p, q, dimension * rounds, delta))
    assert worst * (1 - 1e-3) <= bound
    if (name, delta, length) == ("even", 1e-5, 1.0):
        assert bound <= 1.02 * worst
