import math
from fractions import Fraction

import mpmath
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import weight_rows

from randquant.privacy import divergence, hockey_stick, log_ratio, renyi
from randquant.privacy.divergence import LARGEST_ORDER

ORDERS = [1 + 1e-12, 1 + 1e-6, 1.0005, 1.5, 2.0, 8.0, 64.0, 1000.0, 1e6, 1e9, math.inf]


def rows(codes: int, bits: int = 62):
    return weight_rows(2, codes, bits)


@settings(max_examples=150)
@given(st.integers(2, 64).flatmap(rows), st.sampled_from(ORDERS))
def test_the_interval_holds_the_exact_divergence(table, order):
    lower, upper = renyi(table[0], table[1], 2**62, order)
    exact = oracle.renyi(table[0], table[1], order)
    assert lower <= exact <= upper
    if exact < mpmath.inf:
        assert upper - lower <= 1e-11


@settings(max_examples=100)
@given(st.integers(2, 16), st.integers(0, 40), st.sampled_from(ORDERS), st.randoms())
def test_nearly_equal_rows_keep_their_digits(codes, shift, order, random):
    even = np.full(codes, 2**62 // codes)
    even[0] += 2**62 - int(even.sum())
    other = even.copy()
    moved = random.randint(1, 2**shift)
    other[0] += moved
    other[1] -= moved
    lower, upper = renyi(even, other, 2**62, order)
    exact = oracle.renyi(even, other, order)
    assert lower <= exact <= upper
    # First-order terms cancel in the exact value, but not in the bound of their rounding:
    # 2 · 1.01 · (48 + codes) · 2**-53 of the mean |log ratio|, which is below `size` for 2+ codes.
    size = moved / int(even[0])
    assert upper - lower <= 1.5e-14 * size + 1e-12 * exact


def test_orders_beyond_the_largest_are_bounded_by_their_neighbours():
    p, q = np.array([3, 5]) << 59, np.array([5, 3]) << 59
    lower, upper = renyi(p, q, 2**62, 10 * LARGEST_ORDER)
    assert lower <= oracle.renyi(p, q, 10 * LARGEST_ORDER) <= upper
    assert upper - lower < 1e-8


@pytest.mark.parametrize("order", ORDERS)
def test_equal_rows_have_divergence_zero(order):
    p = np.array([1, 2, 5]) << 59
    lower, upper = renyi(p, p, 2**62, order)
    assert lower == 0
    assert 0 <= upper < 1e-13


def test_log_ratios_are_right_to_sixteen_units_however_far_apart_the_weights_are():
    weights = [1, 2, 3, 5, 10**6, 2**31 + 1, 2**53 + 1, 2**61 + 1, 2**62 - 1, 2**62]
    pairs = [(p, q) for p in weights for q in weights]
    pairs += [(2**61 + step, 2**61) for step in (1, 2**40, 2**60 - 1, 2**60, 2**60 + 1)]
    found = log_ratio(*np.array(pairs).T)
    for (p, q), value in zip(pairs, found.tolist(), strict=True):
        exact = mpmath.log(mpmath.mpf(p) / q)
        assert abs(mpmath.mpf(value) - exact) <= 16 * mpmath.mpf(2) ** -53 * abs(exact), (p, q)


def test_the_margins_of_a_hockey_stick_are_those_of_the_theory():
    """Proposition 7: 12 units of a term and codes + 4 of the sum, where nothing else is rounded."""
    for codes in (2, 4, 6):
        p, q = np.zeros((2, codes), np.int64)
        p[0], q[1] = 2**60, 2**62
        units = 2.0**-53 * (12 + codes + 4)
        lower, upper = hockey_stick(p, q, 2**62, 0.0)
        assert (lower, upper) == (0.25 * (1 - units), 0.25 * (1 + units))


def test_the_margins_of_moments_are_those_of_the_theory():
    """Propositions 3 and 4, with exponents for which one of their terms is most of it."""
    unit, mass = 2.0**-53, np.array([0.5, 0.5])
    for size in (3.0, 1000.0):
        found, error = divergence._far_from_one(mass, np.array([size, -size]), np.array(size), 2)
        shift, log_sum = size, math.log(0.5) + math.log1p(math.exp(-2 * size))
        assert found == pytest.approx(shift + log_sum, rel=1e-12, abs=0)
        margin = unit * (20 * size + 1.01 * (2 + 12) + 10 * (shift + abs(log_sum)))
        assert error == pytest.approx(margin, rel=1e-9, abs=0)
    exponents = np.array([0.5, -0.25])
    found, error = divergence._near_one(mass, exponents, 2)
    terms = mass * np.expm1(exponents)
    assert found == pytest.approx(math.log1p(terms.sum()), rel=1e-12, abs=0)
    margin = unit * (1.01 * (48 + 2) * np.abs(terms).sum() + 9 * found)
    assert error == pytest.approx(margin, rel=1e-9, abs=0)


def test_a_quotient_by_the_order_is_rounded_outward(monkeypatch):
    """Proposition 5: what bounds the moment still bounds it after the division by order - 1."""
    row = np.array([1, 3])
    for moment in (0.1, 0.3, 0.7, 0.9):
        monkeypatch.setattr(divergence, "_near_one", lambda *_, moment=moment: (moment, 0.0))
        for order in (1.0005, 1.3, 1.7, 2.6, 7.1, 33.3):
            lower, upper = renyi(row, row, 4, order)
            exact = Fraction(moment) / (Fraction(order) - 1)
            assert Fraction(float(lower)) < exact < Fraction(float(upper))
            assert upper - lower < 40 * 2.0**-53 * upper
