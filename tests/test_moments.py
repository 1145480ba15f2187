from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import channels

import randquant as rq


def exact_moments(channel, x):
    """Bias, variance, MAE, MSE at x from the rows, in fractions, dither not rounded."""
    cell = min(int(np.searchsorted(channel.inputs, x, side="right")) - 1, len(channel.inputs) - 2)
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


@settings(max_examples=40, deadline=None)
@given(channels())
def test_averages_are_the_integrals(channel):
    m = rq.moments(channel)
    edges = np.linspace(-channel.clip, channel.clip, 200_001)
    middle = (edges[1:] + edges[:-1]) / 2
    scale = np.abs(channel.values).max() + channel.clip
    assert m.mse == pytest.approx(m.mse_at(middle).mean(), abs=2e-5 * scale**2)
    assert m.mae == pytest.approx(m.mae_at(middle).mean(), abs=2e-5 * scale)
    assert m.variance == pytest.approx(m.variance_at(middle).mean(), abs=2e-5 * scale**2)
    assert np.abs(m.bias_at(middle)).max() <= m.bias_max


def test_closed_forms_of_two_level_rounding():
    m = rq.moments(rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0))
    # Var = 4 - x^2, E|error| = (4 - x^2)/2: averages 11/3 and 11/6.
    assert m.variance == pytest.approx(11 / 3, rel=1e-14, abs=0)
    assert m.mse == pytest.approx(11 / 3, rel=1e-14, abs=0)
    assert m.mae == pytest.approx(11 / 6, rel=1e-14, abs=0)
    assert m.bias_max < 2e-9


@settings(max_examples=100, deadline=None)
@given(channels(), st.floats(-1, 1))
def test_no_input_is_encoded_with_more_than_the_stated_bias(channel, part):
    x = part * channel.clip
    weights, total = channel.mix(x)
    values = [Fraction(float(value)) for value in channel.values]
    mean = sum(int(w) * v for w, v in zip(weights, values, strict=True)) / total
    assert abs(mean - Fraction(x)) <= rq.moments(channel).bias_max


def test_points_outside_clip_are_refused():
    with pytest.raises(ValueError, match="within"):
        rq.moments(rq.stochastic_rounding(1.0, 2)).mae_at(1.5)
