"""I-MVU against its definition, in 60-digit arithmetic."""

import math

import mpmath
import numpy as np
import oracle  # noqa: F401  (sets 60 digits)
import pytest
import reference_encoder
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

import randquant as rq
from randquant.channels import Key

LEVELS = [2, 3, 4, 8, 16]


def rows_at_0_and_1(levels: int, epsilon: float) -> tuple[list, list]:
    """How many of levels - 1 randomised responses answer 1."""
    trials = levels - 1
    high = 1 / (1 + mpmath.exp(-mpf(epsilon) / trials))
    second = [math.comb(trials, j) * high**j * (1 - high) ** (trials - j) for j in range(levels)]
    return second[::-1], second


def smooth_row(first, second, z) -> list:
    """Equations 2 and 3 of the paper."""
    eta = [(1 - z) * mpmath.log(p) + z * mpmath.log(q) for p, q in zip(first, second, strict=True)]
    top = max(eta)
    masses = [mpmath.exp(e - top) for e in eta]
    return [mass / mpmath.fsum(masses) for mass in masses]


def unbiased_values(levels: int, second) -> list:
    """Evenly spaced around 1/2, with mean 1 under the second row."""
    centred = [j - mpf(levels - 1) / 2 for j in range(levels)]
    step = 1 / (2 * mpmath.fsum(p * c for p, c in zip(second, centred, strict=True)))
    return [mpf(1) / 2 + step * c for c in centred]


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize(
    ("epsilon", "beta"), [(1e-6, 1.0), (0.25, 128.0), (2.0, 1.5), (10.0, 1024.0), (20.0, 1e4)]
)
def test_the_rows_of_its_vertices_and_its_values_are_the_mechanisms(levels, epsilon, beta):
    channel = rq.imvu(1.5, levels, epsilon, beta)
    first, second = rows_at_0_and_1(levels, epsilon)
    values = unbiased_values(levels, second)
    for value, exact in zip(channel.values, values, strict=True):
        assert abs(value - (exact - mpf(1) / 2) * 3 / beta) <= 1e-15 * channel.values[-1]
    for vertex in range(0, len(channel.inputs), max(1, len(channel.inputs) // 40)):
        z = mpf(1) / 2 + mpf(beta) * mpf(float(channel.inputs[vertex])) / 3
        for weight, p in zip(channel.weights[vertex], smooth_row(first, second, z), strict=True):
            wanted = p * channel.denominator
            # Inputs are float64: where the log odds are 48, their last digit moves a rare code.
            assert abs(int(weight) - wanted) <= wanted * mpf(1e-12) + levels
            assert weight >= 1


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize(("epsilon", "beta"), [(0.1, 1.0), (3.0, 4.0), (12.0, 128.0)])
def test_compiling_moves_the_moments_by_no_more_than_stated(levels, epsilon, beta):
    channel = rq.imvu(1.5, levels, epsilon, beta)
    largest = channel.values[-1]
    rng = np.random.default_rng(levels)
    points = np.concatenate([rng.uniform(-1.5, 1.5, 30), rng.uniform(-1.5, 1.5, 60) / beta])
    x = epsilon / (2 * (levels - 1))
    m = np.tanh(x * beta * points / 1.5)
    means = rq.moments(channel).bias_at(points) + points
    assert np.abs(means / largest - m).max() <= 1e-4
    seconds = rq.moments(channel).variance_at(points) + means**2
    exact = m**2 + (1 - m**2) / (levels - 1)
    assert np.abs(seconds / largest**2 - exact).max() <= 2.5e-4
    assert largest == pytest.approx(1.5 / beta / np.tanh(x), rel=1e-12, abs=0)


@given(
    st.integers(2, 16),
    st.floats(1e-6, 20),
    st.floats(1, 1e4) | st.floats(0, 1e-3).map(lambda more: 1 + more),
    st.sampled_from([1e-20, 0.03, 1.0, 1e15]),
)
def test_what_is_promised_of_every_channel(levels, epsilon, beta, clip_norm):
    channel = rq.imvu(clip_norm, levels, epsilon, beta)
    end = clip_norm / beta
    biases = rq.moments(channel).bias_at(np.array([-end, 0.0, end]))
    assert np.abs(biases).max() <= 1e-9 * end * (1 + (levels - 1) / epsilon)
    assert (channel.weights == channel.weights[::-1, ::-1]).all()
    assert (channel.inputs == -channel.inputs[::-1]).all()
    pair = rq.certify_pair(channel, end, -end).epsilon
    assert pair.upper == pytest.approx(epsilon, rel=1e-7, abs=1e-12)
    # in units of z
    scaled = rq.fisher_information(channel).upper * (2 * clip_norm / beta) ** 2
    assert scaled <= epsilon**2 / (levels - 1) * (1 + levels / 2000)


@pytest.mark.parametrize(("levels", "beta"), [(2, 1024.0), (16, 128.0)])
def test_the_encoder_equals_the_reference_where_vertices_crowd(levels, beta):
    channel = rq.imvu(1.0, levels, 10.0, beta)
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-1, 1, 300), rng.standard_normal(300) / beta, channel.inputs])
    key = Key.from_seed(1)
    assert (rq.encode(channel, x, key) == reference_encoder.encode(channel, x, key)).all()
