"""Numbers beside an update: one vector of bounded norm, and a threshold that follows a quantile."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from randquant.aggregation.alongside import Alongside, QuantileClip

NUMBERS = st.floats(-1e6, 1e6)


@given(
    update=st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=6),
    numbers=st.lists(NUMBERS, min_size=1, max_size=3),
    clip_norm=st.floats(1e-3, 1e3),
    threshold=st.floats(1e-6, 1e6),
    share=st.floats(0.01, 0.57),
)
def test_a_joined_vector_is_within_the_mechanisms_norm(
    update, numbers, clip_norm, threshold, share
):
    # An exact norm: the true one is at most clip_norm, up to the rounding to float32 that the
    # mechanism's own clipping takes off.
    beside = Alongside(clip_norm, len(numbers), share)
    vector = beside.joined(np.array(update), numbers, threshold)
    square = sum(Fraction(float(x)) ** 2 for x in vector)
    assert square <= Fraction(clip_norm) ** 2 * (1 + Fraction(1, 2**21))


def test_the_norm_is_used_up_by_an_update_at_the_threshold_with_extreme_numbers():
    # Without the factor of the update's part the norm would be above the threshold.
    vector = Alongside(2.0, 2, 0.3).joined(np.array([0.0, 70.0]), [-1.0, 1.0], 7.0)
    assert 2.0 * (1 - 1e-6) <= np.linalg.norm(vector.astype(np.float64)) <= 2.0 * (1 + 1e-6)


@given(threshold=st.floats(0.01, 100.0), size=st.floats(0.0, 0.99), number=st.floats(-1, 1))
def test_what_is_joined_comes_apart_again(threshold, size, number):
    update = np.array([3.0, -4.0]) / 5 * threshold * size
    beside = Alongside(0.7)
    mean, numbers = beside.parted(beside.joined(update, [number], threshold), threshold)
    np.testing.assert_allclose(mean, update, rtol=1e-5, atol=1e-6 * threshold)
    np.testing.assert_allclose(numbers, [number], rtol=1e-5, atol=1e-6)


def test_the_threshold_goes_to_the_quantile_from_below_and_from_above():
    norms = np.exp(np.random.default_rng(0).normal(size=60))[:, None]
    for quantile in (0.2, 0.5, 0.8):
        clip, wanted = QuantileClip(1.0, quantile), float(np.quantile(norms, quantile))
        for threshold in (wanted / 3, wanted * 3):
            for _ in range(80):
                mean = clip.joined(norms, threshold).mean(axis=0)
                _, threshold = clip.parted(mean, threshold)
            assert abs(math.log(threshold / wanted)) < 0.25


def test_the_mean_is_that_of_updates_clipped_to_the_rounds_threshold():
    clip, updates = QuantileClip(0.3, 0.5), np.array([[3.0, 4.0], [0.0, 1.0]])
    mean, threshold = clip.parted(clip.joined(updates, 2.5).mean(axis=0), 2.5)
    np.testing.assert_allclose(mean, [0.75, 1.5], rtol=1e-6)
    assert threshold == pytest.approx(2.5, rel=1e-7, abs=0)  # half of them are below


@given(threshold=st.floats(1e-3, 1e3), mean=st.floats(-1e9, 1e9), quantile=st.floats(0.01, 0.99))
def test_no_noise_moves_the_threshold_further_than_its_rate(threshold, mean, quantile):
    moved = QuantileClip(1.0, quantile, rate=0.2).moved(threshold, mean)
    assert abs(math.log(moved / threshold)) <= 0.2 + 1e-12


def test_shares_that_leave_nothing_for_the_update_are_refused():
    with pytest.raises(ValueError, match="Expected share"):
        Alongside(1.0, 25, 0.2)
