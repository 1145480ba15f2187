"""Bounds of sums count what rounding, and what is trimmed, may have hidden."""

import dataclasses
import math

import mpmath
import numpy as np
import oracle  # noqa: F401 - figures of 60 digits
import pytest
from mpmath import mpf

import randquant as rq
from randquant.privacy.certificates.sums import binomial, law
from randquant.privacy.certificates.sums.outcomes import Rows

LEVEL = rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0)
SKEWED = rq.Channel(
    np.array([-1.0, 1.0]), np.array([-2.0, 0.0, 2.0]), np.array([[5, 2, 1], [1, 3, 4]]), 8
)


# --- Laws of sums in scaled floats. ---


def test_factors_of_a_law_hand_on_their_errors_and_what_they_trimmed():
    first = dataclasses.replace(law.Law.of(np.array([1, 3]), 4, 50.0), error=7.0, trimmed=2.0)
    second = dataclasses.replace(law.Law.of(np.array([1, 2, 1]), 4, 40.0), error=11.0, trimmed=5.0)
    for product in (first * second, second * first):
        assert product.error >= 7 + 11 + 2 + 1
        assert product.trimmed == 7.0
        assert product.floor == 40.0


def test_what_is_trimmed_is_so_many_entries_below_the_floor():
    for count, floor in ((1.0, 90.0), (500.0, 90.0), (3.0, 1e3)):
        found = law.log_trimmed(count, floor)
        exact = mpmath.log(count) - mpf(floor) * mpmath.log(2)
        assert exact <= found <= exact + 1
    assert law.log_trimmed(0, 90.0) == -math.inf


@pytest.mark.parametrize("trials", [3, 200, 5000])
def test_chances_of_counts_are_rounded_up(trials):
    found = binomial.LogBinomial.of(trials, 3, 8, 100.0)
    for at in {0, len(found.logs) // 2, len(found.logs) - 1}:
        k = found.first + at
        exact = mpmath.log(mpf(math.comb(trials, k)) * mpf(3) ** k * mpf(5) ** (trials - k))
        exact -= trials * mpmath.log(8)
        assert exact <= found.logs[at] <= exact + found.slack


# --- Bounds of sums. ---


def test_beyond_the_largest_order_the_bound_is_pure():
    found, pure = (rq.certify_sum(LEVEL, 3, order).epsilon for order in (1e12, math.inf))
    assert found.upper == pure.upper
    assert found.lower <= pure.lower


def test_rows_are_apart_where_a_code_is_possible_in_one_of_them_only():
    assert not Rows.of(SKEWED, "replace_one").apart
    rows = np.array([[4, 4, 0], [1, 3, 4]])
    levels = np.array([-2.0, 0.0, 2.0])
    apart = rq.Channel(np.array([-1.0, 1.0]), levels, rows, 8)
    assert Rows.of(apart, "replace_one").apart
    never = rq.Channel(np.array([-1.0, 1.0]), levels, np.array([[4, 0, 4], [1, 0, 7]]), 8)
    assert not Rows.of(never, "replace_one").apart
