"""Factors, margins and pairs that every bound rests on, one by one: each against what it is for."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import oracle  # noqa: F401 - figures of 60 digits
import pytest
from mpmath import mpf

import randquant as rq
from randquant.aggregation.additive import AdditiveMechanism, round_within
from randquant.aggregation.baselines import CentralGaussian, ClippedSGD, LocalGaussian
from randquant.aggregation.sign_sgd import SignSGD
from randquant.channels.keys import Key
from randquant.mechanisms.noise.laws import Binomial, DiscreteGaussian, Skellam
from randquant.privacy.accounting import releases
from randquant.privacy.accounting.integer_noise import NoiseRelease
from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.noise import shift_divergence
from randquant.privacy.certificates.vector import BoxSearch, squared_distance

ROOT = Key.from_seed(0)
LEVEL = rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0)
BENT = rq.Channel(  # furthest from 0 at 1/2
    np.array([-1.0, 0.0, 0.5, 1.0]), np.array([-2.0, 2.0]),
    np.array([[60, 68], [64, 64], [4, 124], [60, 68]]), 128,
)  # fmt: skip


def test_every_coordinate_of_every_round_adds_the_distance_of_its_noise():
    for noise in (Skellam(100.0), DiscreteGaussian(4.0), Binomial(400)):
        for size, rounds in ((1, 1), (4096, 1), (16, 7)):
            release = NoiseRelease(noise, 40, 100, size, rounds)
            assert release.distance >= size * rounds * noise.distance(40)
            assert release.distance <= size * rounds * noise.distance(40) * (1 + 1e-12)


@pytest.mark.parametrize("draws", [(DiscreteGaussian(4.0), 1), (Skellam(100.0), 2)])
def test_every_clients_draws_are_as_far_from_the_law_as_their_tables(draws):
    noise, times = draws
    for terms in (1, 10, 1000):
        assert noise.distance(terms) >= times * terms * noise._table().distance
        assert noise.distance(terms) <= times * terms * noise._table().distance * (1 + 1e-12)


@pytest.mark.parametrize(("trials", "terms"), [(400, 1), (2**20, 1000)])
def test_a_binomial_is_as_far_as_its_tables_and_what_is_beyond_the_window(trials, terms):
    noise = Binomial(trials)
    total, reach = noise._window(terms)
    slope = mpmath.log((mpf(total) / 2 + reach) / (mpf(total) / 2 - reach + 1))
    outside = 2 * mpmath.exp(-2 * mpf(reach) ** 2 / total) * (1 + 1 / slope)
    assert noise.distance(terms) >= outside + terms * mpf(noise._table().distance)


@pytest.mark.parametrize("mean", [0.1, 0.9, 1.0, 1.5, 4.0, 100.0])
def test_a_skellams_spread_bounds_its_moments(mean):
    spread = Skellam(mean).spread(1)
    assert math.isinf(spread) == (mean < 1)
    if mean >= 1:
        for part in (0.2, 0.7, 1.0):
            a = part / mpf(spread)
            assert mean * (mpmath.cosh(a) - 1) <= a**2 * spread / 2


@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 3.75])
def test_a_shift_costs_more_between_whole_orders(order):
    part = Fraction(order) - math.floor(order)
    for k, v in ((0.5, 3.0), (0.25, 4.0), (0.5, math.inf)):
        over = Fraction(0) if math.isinf(v) else 1 / Fraction(v)
        excess = (Fraction(k) - over) * part * (1 - part) / (Fraction(order) - 1)
        exact = Fraction(9, 2) * (Fraction(order) * Fraction(k) + excess)
        assert exact <= Fraction(shift_divergence(k, v, 9.0, order)) <= exact * (1 + 2**-40)


@pytest.mark.parametrize("variance", [0.3, 1.0, 1.3, 77.77])
def test_noise_has_at_least_the_variance_that_was_asked_for(variance):
    for kind in (Binomial, Skellam, DiscreteGaussian):
        assert variance <= kind.at_least(variance).variance <= variance + 0.5


@pytest.mark.parametrize("kind", ["skellam", "discrete-gaussian", "binomial"])
def test_a_cohorts_noise_is_all_of_what_was_asked_for(kind):
    """In fractions: the share of a client is rounded, and must be rounded up."""
    for cohort, multiplier in itertools.product((3, 7, 10, 49, 333), (0.1, 0.7, 1.1, 3.3)):
        mechanism = AdditiveMechanism(kind, 1.0, multiplier, cohort, bits=16)
        plan = mechanism.plan(100)
        noise = Fraction(plan.noise.variance) * cohort
        assert noise >= 4 * Fraction(multiplier) ** 2 * plan.bound
        whole, left_out = mechanism.release(100, 2), mechanism.release(100, 2, "zero_out")
        for release, times in ((whole, 4), (left_out, 1)):
            assert isinstance(release, NoiseRelease)
            assert release.squared_distance == times * plan.bound
            assert (release.dimension, release.cohort) == (plan.size, cohort)


def test_every_rounding_is_another():
    seen = []

    class Recorded:
        def fold_in(self, attempt):
            assert attempt not in seen
            seen.append(attempt)
            return ROOT.fold_in(attempt)

    round_within(np.full(4, 0.5), 0, Recorded())  # type: ignore[arg-type]
    assert len(seen) > 1


@pytest.mark.parametrize("mechanism", [
    CentralGaussian(None, 1.5, clip_norm=2.0), LocalGaussian(2.0, 1.5), SignSGD(2.0, 1.5),
])  # fmt: skip
def test_zeros_are_half_as_far_as_the_opposite_update(mechanism):
    found = [mechanism.release(5, 1, n).noise_multiplier for n in ("replace_one", "zero_out")]
    assert found == [1.5, 3.0]


@pytest.mark.parametrize("clip", [0.1, 0.3, 1 / 3, 1e-3, 7.7])
def test_what_is_sent_is_within_the_threshold_although_a_float32(clip):
    sent = np.frombuffer(ClippedSGD(clip=clip).encode(np.array([1e9, -1e9]), ROOT), "<f4")
    assert [abs(Fraction(float(v))) <= Fraction(clip) for v in sent] == [True, True]
    assert np.abs(sent).min() >= clip * (1 - 2.0**-22)


def test_the_encoder_rounds_every_coordinate():
    for size in (1, 100, 10**6):
        moved = 2 * Fraction(1, 2**32)  # cells are 2 wide; both vectors, half a step each
        square = size * moved**2
        assert Fraction(squared_distance(LEVEL, 0.0, size)) >= square
        assert Fraction(squared_distance(LEVEL, 3.0, size)) >= 9 + square


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_a_search_that_settles_every_pair_at_once_still_bounds_them(order):
    """What is not looked at again counts with the bound that it was settled by."""
    lines = CellLines.of(BENT)
    settled = BoxSearch(lines, order, 0.0, 1e9).run()
    exact = rq.certify_pair(BENT, 0.5, 1.0, order).epsilon.lower / 0.25
    assert settled >= exact > 0


def test_a_log_likelihood_changes_by_no_more_than_its_slope_is_rounded_to():
    """At the steepest vertex: the slope of a cell over the probability of its code there."""
    steepest = max(
        abs(Fraction(int(b)) - int(a)) / (Fraction(end) - Fraction(start)) / min(int(a), int(b))
        for start, end, low, high in zip(
            BENT.inputs[:-1], BENT.inputs[1:], BENT.weights[:-1], BENT.weights[1:], strict=True
        )
        for a, b in zip(low, high, strict=True)
    )
    found = Fraction(releases._lipschitz(BENT))
    assert steepest <= found <= steepest * (1 + Fraction(1, 10**12))
