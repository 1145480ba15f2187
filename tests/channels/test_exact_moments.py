import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import channels

import randquant as rq


def cell_of(channel, x) -> int:
    return min(int(np.searchsorted(channel.inputs, x, side="right")) - 1, len(channel.inputs) - 2)


def exact_moments(channel, x, cell=None):
    """Bias, variance, MAE, MSE at x from the rows, in fractions, dither not rounded."""
    cell = cell_of(channel, x) if cell is None else cell
    left, right = (Fraction(float(u)) for u in channel.inputs[cell : cell + 2])
    part = (Fraction(x) - left) / (right - left)
    values = [Fraction(float(v)) for v in channel.values]
    row = [
        ((1 - part) * int(a) + part * int(b)) / channel.denominator
        for a, b in zip(channel.weights[cell], channel.weights[cell + 1], strict=True)
    ]
    mean = sum(p * v for p, v in zip(row, values, strict=True))
    mse = sum(p * (v - Fraction(x)) ** 2 for p, v in zip(row, values, strict=True))
    mae = sum(p * abs(v - Fraction(x)) for p, v in zip(row, values, strict=True))
    bias = mean - Fraction(x)
    return bias, mse - bias**2, mae, mse


@settings(max_examples=100, deadline=None)
@given(channels(), st.floats(-1, 1))
def test_moments_at_a_point_are_exact(channel, part):
    x = part * channel.clip
    m = rq.moments(channel)
    got = (m.bias_at(x), m.variance_at(x), m.mae_at(x), m.mse_at(x))
    scale = np.abs(channel.values).max() + channel.clip
    for value, exact, power in zip(got, exact_moments(channel, x), (1, 2, 1, 2), strict=True):
        assert abs(Fraction(float(value)) - exact) <= 1e-9 * scale**power


def exact_averages(channel) -> list[Fraction]:
    """Of variance, MAE and MSE: quadratics between vertices and values, by three points of each."""
    points = {Fraction(float(u)) for u in (*channel.inputs, *channel.values)}
    clip = Fraction(float(channel.clip))
    pieces = itertools.pairwise(sorted(point for point in points if abs(point) <= clip))
    sums = [Fraction(0)] * 3
    for left, right in pieces:
        middle = (left + right) / 2
        cell = max(v for v, u in enumerate(channel.inputs[:-1]) if Fraction(float(u)) < middle)
        ends = [exact_moments(channel, x, cell)[1:] for x in (left, middle, right)]
        for kind, (a, b, c) in enumerate(zip(*ends, strict=True)):
            sums[kind] += (right - left) * (a + 4 * b + c) / 6
    return [total / (2 * clip) for total in sums]


@settings(max_examples=40, deadline=None)
@given(channels())
def test_averages_are_the_integrals(channel):
    m = rq.moments(channel)
    scale = Fraction(float(np.abs(channel.values).max() + channel.clip))
    exact = exact_averages(channel)
    for value, wanted, power in zip((m.variance, m.mae, m.mse), exact, (2, 1, 2), strict=True):
        assert abs(Fraction(value) - wanted) <= Fraction(1, 10**12) * scale**power
    middle = np.linspace(-channel.clip, channel.clip, 2001)
    assert np.abs(m.bias_at(middle)).max() <= m.bias_max


def exact_bias(channel, x) -> Fraction:
    """Of what the encoder really draws, its rounded dither included."""
    weights, total = channel.mix(x)
    values = [Fraction(float(value)) for value in channel.values]
    return sum(int(w) * v for w, v in zip(weights, values, strict=True)) / total - Fraction(x)


@settings(max_examples=100, deadline=None)
@given(channels(), st.floats(-1, 1))
def test_no_input_is_encoded_with_more_than_the_stated_bias(channel, part):
    x = part * channel.clip
    assert abs(exact_bias(channel, x)) <= rq.moments(channel).bias_max


def test_the_rounded_dither_is_in_the_stated_bias():
    """Half a step from the two neighbouring ones: 2**-33 of a cell's range of means."""
    channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0)
    x = -1.0 + 2 * (3 + 0.5) / 2**32
    assert abs(exact_bias(channel, x)) == Fraction(1, 2**32)
    assert Fraction(1, 2**32) <= rq.moments(channel).bias_max < 2.0**-32 * (1 + 1e-4)


def test_rounding_is_in_the_stated_bias():
    """One row everywhere: no dither, so that only the means' rounding is left."""
    random = np.random.default_rng(0)
    for _ in range(100):
        weights = random.multinomial(2**30, random.dirichlet(np.ones(9)))
        values = np.sort(random.normal(0, 1, 9))
        channel = rq.Channel(np.array([-0.1, 0.1]), values, np.array([weights] * 2), 2**30)
        exact = max(abs(exact_bias(channel, x)) for x in (-0.1, 0.1))
        assert exact <= rq.moments(channel).bias_max <= exact * (1 + Fraction(1, 10**12))


@settings(max_examples=40, deadline=None)
@given(channels())
def test_the_largest_variance_is_the_largest(channel):
    m = rq.moments(channel)
    inside = [
        np.linspace(left, right, 403)[:-1]
        for left, right in itertools.pairwise(channel.inputs)
        if left < right
    ]
    found = m.variance_at(np.concatenate([*inside, [channel.clip]])).max()
    limits = (
        channel.probabilities @ channel.values**2 - (channel.probabilities @ channel.values) ** 2
    )
    scale = (np.abs(channel.values).max() + channel.clip) ** 2
    most = max(found, limits.max())  # the left limits of jumps count too
    assert most - 1e-9 * scale <= m.variance_max <= most + 1e-5 * scale


def test_points_outside_clip_are_refused():
    with pytest.raises(ValueError, match="within"):
        rq.moments(rq.stochastic_rounding(1.0, 2)).mae_at(1.5)
