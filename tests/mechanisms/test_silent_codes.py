"""Sparse ternary codes: moments, bounds, and what a sum of them costs beside one-bit codes."""

import math
from fractions import Fraction

import numpy as np
import pytest

import randquant as rq
from randquant.channels import moments
from randquant.mechanisms import MIN_ACTIVE_CODES, MIN_COHORT, UpdateSetting, sparse_ternary
from randquant.planning import update_family


@pytest.mark.parametrize(("margin", "rate"), [(9.0, 0.25), (3.0, 0.25), (0.0, 1.0), (99.0, 0.02)])
def test_it_is_unbiased_and_has_the_variance_of_nearer_levels(margin, rate):
    channel, x = sparse_ternary(1.0, margin, rate), np.linspace(-1, 1, 41)
    exact = moments(channel)
    np.testing.assert_allclose(exact.bias_at(x), 0, rtol=0, atol=1e-13)
    near = rq.stochastic_rounding(1.0, 2, (1 + margin) * math.sqrt(rate) - 1)
    np.testing.assert_allclose(
        exact.variance_at(x), moments(near).variance_at(x), rtol=1e-12, atol=1e-12
    )


def test_the_rows_are_the_formula_to_one_unit():
    channel = sparse_ternary(0.5, 3.5, 0.375)
    for x, row in zip((-0.5, 0.5), channel.weights, strict=True):
        shift = Fraction(x) / 8
        for code, wanted in ((0, Fraction(3, 16) - shift), (2, Fraction(3, 16) + shift)):
            assert abs(Fraction(int(row[code]), channel.denominator) - wanted) < Fraction(1, 2**52)


@pytest.mark.parametrize("rate", [0.0999, 1.0001, 0.0, -0.5, float("nan")])
def test_rates_that_are_none_are_refused(rate):
    with pytest.raises(ValueError, match="Expected rate"):
        sparse_ternary(1.0, 9.0, rate)


def test_the_family_is_for_large_sums_and_three_codes():
    for bits, cohort, trust, reason in (
        (1, 1000, "aggregate", "needs bits=2"),
        (2, MIN_COHORT - 1, "aggregate", "two levels are as narrow"),
        (2, 1000, "local", "aggregate trust only"),
    ):
        with pytest.raises(ValueError, match=reason):
            update_family("sparse-ternary", UpdateSetting(1000, cohort, bits, trust))
    family = update_family("sparse-ternary", UpdateSetting(1000, 1000, 2, "aggregate"))
    for t in (1.05, 2.0, 3.0, 30.0, 1e6):
        channel = sparse_ternary(**family.parameters(t))
        rate = float(channel.probabilities[:, [0, 2]].sum(axis=1).max())
        assert rate == pytest.approx(min(max(MIN_ACTIVE_CODES / 1000, 4 / t**2), 1), rel=1e-5)
        assert channel.values[2] * math.sqrt(rate) == pytest.approx(channel.clip * t, rel=1e-5)
