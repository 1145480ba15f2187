"""Intervals, guarantees and certificates as values, and the codes and witnesses that they name."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import randquant as rq
from randquant.mechanisms.noise.laws import Skellam
from randquant.privacy.accounting.integer_noise import NoiseRelease
from randquant.privacy.accounting.releases import (
    ChannelRelease,
    VectorRelease,
)
from randquant.privacy.guarantee import Guarantee, Interval, rounded_up

BIT = rq.stochastic_rounding(clip=0.25, levels=2, margin=1.75)
SURE = rq.stochastic_rounding(clip=1.0, levels=2)


def test_the_width_of_an_interval():
    assert Interval(1.0, 3.5).width == 2.5
    assert Interval(math.inf, math.inf).width == 0.0
    assert Interval(1.0, math.inf).width == math.inf


@pytest.mark.parametrize("value", [1.0, 0.75, 3.0, 1e-300, 1e300])
def test_eight_roundings_are_paid_for_and_no_more(value):
    paid = Fraction(rounded_up(value)) / Fraction(value) - 1
    assert (
        Fraction(8, 2**53) - Fraction(1, 2**53) <= paid <= Fraction(8, 2**53) + Fraction(1, 2**53)
    )
    assert rounded_up(1.0) == 1 + 8 * 2.0**-53


def test_a_cohort_has_a_million_clients_at_most():
    assert ChannelRelease(BIT, 4, 2, "aggregate", cohort=10**6).cohort == 10**6
    assert NoiseRelease(Skellam(50.0), 10**6, 4, 4, 2).cohort == 10**6
    with pytest.raises(ValueError, match="cohort"):
        ChannelRelease(BIT, 4, 2, "aggregate", cohort=10**6 + 1)
    with pytest.raises(ValueError, match="cohort"):
        NoiseRelease(Skellam(50.0), 10**6 + 1, 4, 4, 2)


def test_no_round_costs_nothing_even_where_one_has_no_bound():
    for make in (lambda n: ChannelRelease(SURE, 5, n), lambda n: VectorRelease(SURE, 1.0, 5, n)):
        assert make(1).renyi(math.inf) == math.inf
        assert make(0).renyi(math.inf) == 0.0


def test_a_sum_that_nobody_changes_costs_nothing():
    assert NoiseRelease(Skellam(50.0), 20, 0, 5, 3).renyi(2.0) == 0.0
    with pytest.raises(ValueError, match="squared_distance"):
        NoiseRelease(Skellam(50.0), 20, -1, 5, 3)


@pytest.mark.parametrize("order", [2.0, math.inf])
def test_a_witness_against_zero_is_zero_and_another_input_in_the_right_order(order):
    """Channels whose worst direction is to zero, and from it."""
    seen = set()
    for rows in ([[1, 7], [4, 4], [5, 3]], [[7, 1], [4, 4], [3, 5]], [[6, 2], [1, 7], [6, 2]]):
        channel = rq.Channel(np.array([-1.0, 0.0, 1.0]), np.array([-1.0, 1.0]), np.array(rows), 8)
        found = rq.certify(channel, order, "zero_out")
        assert 0.0 in found.witness
        assert set(found.witness) < {-1.0, 0.0, 1.0}
        pair = rq.certify_pair(channel, *found.witness, order)
        assert pair.epsilon.upper >= found.epsilon.lower > 0
        assert pair.code == found.code
        seen.add(found.witness[0] == 0.0)
    assert seen == {True, False}


def test_the_code_that_tells_most_is_named():
    """Ratios 3/2, 7/4, and 5/4 against it: whole parts say nothing. Impossible codes say most."""
    for rows, code in (
        ([[6, 7, 3], [4, 4, 8]], 1), ([[7, 6, 3], [4, 4, 8]], 0), ([[0, 8, 8], [1, 8, 7]], 2),
        ([[8, 7, 1], [8, 8, 0]], 2),
    ):  # fmt: skip
        channel = rq.Channel(np.array([-1.0, 1.0]), np.arange(3.0), np.array(rows), 16)
        assert rq.certify_pair(channel, -1.0, 1.0).code == code


def test_guarantees_add_up_and_those_of_other_adversaries_do_not():
    one = Guarantee(0.1, 1e-6, "replace_one", "aggregate", 3.0, 5, lower=0.05, unit="example")
    other = replace(one, epsilon=0.2, delta=0.3, lower=0.1, simulated=True)
    both = one + other
    assert (
        Fraction(both.epsilon) >= Fraction(0.1) + Fraction(0.2) > Fraction(0.1 + 0.2) * (1 - 2**-50)
    )
    assert both.epsilon <= math.nextafter(0.1 + 0.2, 1)
    assert (both.lower, both.releases, both.simulated, both.unit) == (0.0, 10, True, "example")
    assert (other + replace(other, delta=0.9)).delta == 1.0
    for change in ({"trust": "local"}, {"unit": "client"}, {"neighboring": "zero_out"}):
        with pytest.raises(ValueError, match=f"Expected guarantees of one {next(iter(change))}"):
            one + replace(one, **change)
    with pytest.raises(TypeError):
        one + 1.0
