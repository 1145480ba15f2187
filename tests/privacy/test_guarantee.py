"""Intervals, guarantees and certificates as values, and the codes and witnesses that they name."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest

import randquant as rq
from randquant.mechanisms import Skellam
from randquant.privacy import (
    ChannelRelease,
    Guarantee,
    Interval,
    NoiseRelease,
    VectorRelease,
    at_most,
    compose,
    hockey_stick,
    rounded_up,
)

BIT = rq.stochastic_rounding(clip=0.25, levels=2, margin=1.75)
SURE = rq.stochastic_rounding(clip=1.0, levels=2)


def test_the_width_of_an_interval():
    assert Interval(1.0, 3.5).width == 2.5
    assert Interval(math.inf, math.inf).width == 0.0
    assert Interval(1.0, math.inf).width == math.inf


@pytest.mark.parametrize("wrong", [(2.0, 1.0), (math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0)])
def test_two_ends_that_cross_are_refused(wrong):
    lower, upper = wrong
    with pytest.raises(ValueError, match=r"^Expected lower <= upper, got "):
        Interval(lower, upper)
    with pytest.raises(ArithmeticError, match="above the bound"):
        at_most(lower, upper)


def test_ends_that_meet_are_kept():
    assert (at_most(1.0, 1.5), at_most(1.0 + 1e-12, 1.0), at_most(1.0, math.inf)) == (1, 1, 1)


@pytest.mark.parametrize("epsilon", [-0.1, math.nan])
def test_an_epsilon_below_zero_is_refused(epsilon):
    with pytest.raises(ValueError, match=r"^Expected epsilon >= 0, got epsilon="):
        Guarantee(epsilon, 1e-5, "replace_one", "central", 2.0, 1)


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


def test_no_round_costs_nothing_even_where_one_has_no_bound():
    for make in (lambda n: ChannelRelease(SURE, 5, n), lambda n: VectorRelease(SURE, 1.0, 5, n)):
        assert make(1).renyi(math.inf) == math.inf
        assert make(0).renyi(math.inf) == 0.0


def test_a_sum_that_nobody_changes_costs_nothing():
    assert NoiseRelease(Skellam(50.0), 20, 0, 5, 3).renyi(2.0) == 0.0


def test_guarantees_add_up_and_those_of_other_adversaries_do_not():
    one = Guarantee(0.1, 1e-6, "replace_one", "aggregate", 3.0, 5, unit="example")
    other = replace(one, epsilon=0.2, delta=0.3, simulated=True)
    both = one + other
    assert (
        Fraction(both.epsilon) >= Fraction(0.1) + Fraction(0.2) > Fraction(0.1 + 0.2) * (1 - 2**-50)
    )
    assert both.epsilon <= math.nextafter(0.1 + 0.2, 1)
    assert (both.releases, both.simulated, both.unit) == (10, True, "example")
    assert (other + replace(other, delta=0.9)).delta == 1.0
    for change in ({"trust": "local"}, {"unit": "client"}, {"neighboring": "zero_out"}):
        with pytest.raises(ValueError, match=f"Expected guarantees of one {next(iter(change))}"):
            one + replace(one, **change)
    with pytest.raises(TypeError):
        one + 1.0


@pytest.mark.parametrize(("call", "error", "word"), [
    *((lambda order=order: rq.certify(BIT, order), ValueError, "order")
      for order in (1.0, 0.5, -3, math.nan)),
    (lambda: rq.certify_sum(BIT, 0, 2.0), ValueError, "clients"),
    (lambda: rq.certify_sum(BIT, 3, 1.0), ValueError, "order"),
    (lambda: rq.certify_sum(BIT, 3, 2.0, "x"), ValueError, "neigh"),
    (lambda: rq.certify_metric(BIT, "linf"), ValueError, "l1, l2, fisher"),
    (lambda: rq.kappa(BIT, math.inf), ValueError, "pure epsilon"),
    (lambda: rq.kappa(BIT, 1.0), ValueError, "order"),
    (lambda: rq.kappa_sum(BIT, 0, 2.0), ValueError, "clients"),
    (lambda: rq.kappa_sum(BIT, 3, 1.0), ValueError, "order"),
    (lambda: compose(BIT, -1, 1e-5), ValueError, "releases"),
    (lambda: compose(BIT, 1, 1.0), ValueError, "delta"),
    (lambda: rq.squared_distance(BIT, -1.0, 1), ValueError, "distance"),
    (lambda: rq.squared_distance(BIT, 1.0, 0), ValueError, "dimension"),
    (lambda: hockey_stick(*BIT.weights, BIT.denominator, 701.0), ValueError, "700"),
    (lambda: rq.account([ChannelRelease(BIT, 1, 1)], 1.0), ValueError, "delta"),
    (lambda: rq.GaussianRelease(1e154, 1, 1), ValueError, "relative_deviation"),
    (lambda: ChannelRelease(BIT, 1, 1, "central"), ValueError, "trust"),
    (lambda: rq.GaussianRelease(1.0, 1, 1, "aggregate"), ValueError, "trust"),
    (lambda: rq.kappa("rqm", 2.0), TypeError, "channel"),
    (lambda: rq.kappa_sum("rqm", 3, 2.0), TypeError, "channel"),
    (lambda: rq.fisher_information("rqm"), TypeError, "channel"),
    (lambda: compose("rqm", 1, 1e-5), TypeError, "channel"),
])  # fmt: skip
def test_what_is_wrong_is_said(call, error, word):
    with pytest.raises(error, match=word):
        call()


def test_what_is_left_of_a_target_and_what_was_spent_are_within_it():
    """Exactly: differences of floats, rounded to nearest, are above the true ones half the time."""
    for spent in (0.1, 0.3, 0.7, 1e-3):
        before = Guarantee(spent, spent / 8, "replace_one", "local", math.inf, 1)
        for target in (1.0, 0.8, 0.9, 2.3):
            left = before.remaining(target, target / 8)
            for rest, used, whole in zip(
                left, (spent, spent / 8), (target, target / 8), strict=True
            ):
                assert Fraction(rest) + Fraction(used) <= Fraction(whole)
                assert rest == pytest.approx(whole - used, rel=1e-15, abs=0)


def test_a_sum_of_guarantees_rests_on_hidden_cohorts_if_one_of_them_does():
    seen = Guarantee(0.1, 1e-6, "replace_one", "model", 3.0, 5)
    hidden = replace(seen, hidden=True)
    assert [(one + other).hidden for one in (seen, hidden) for other in (seen, hidden)] == [
        False, True, True, True,
    ]  # fmt: skip
