"""Gaussian releases alone: the exact epsilon, rounded up, against mpmath."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from randquant.mechanisms import DiscreteGaussian, Skellam
from randquant.privacy import (
    GaussianRelease,
    NoiseRelease,
    account,
    gaussian_epsilon,
    log_gaussian_delta,
    step_square,
)
from randquant.privacy.accounting import accountant


def exact_delta(epsilon, mu):
    """Balle and Wang 2018, Theorem 8, with digits to spare."""
    with mpmath.workdps(80 + int(math.log10(1 + mu**2))):
        shift, tilt = mpmath.mpf(mu) / 2, mpmath.mpf(epsilon) / mpmath.mpf(mu)

        def below(x):
            return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

        return below(shift - tilt) - mpmath.exp(mpmath.mpf(epsilon)) * below(-shift - tilt)


@settings(max_examples=300, deadline=None)
@given(
    st.floats(-20, 6).map(lambda power: 10**power),
    st.floats(-300, -0.01).map(lambda power: 10**power) | st.floats(0.5, 1 - 1e-16),
)
def test_epsilon_is_above_the_exact_one(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert exact_delta(epsilon, mu) <= delta
    less = epsilon - 1e-7 * (epsilon + mu)
    if less > 0 and delta < 0.9999:
        assert exact_delta(less, mu) > delta


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 7.0, 300.0])
@pytest.mark.parametrize("threshold", [-3.0, -0.5, 0.0, 1.0, 4.0, 20.0, 37.0])
def test_delta_is_rounded_up_and_hardly(mu, threshold):
    epsilon = mpmath.mpf(mu) * (mpmath.mpf(threshold) + mpmath.mpf(mu) / 2)
    if epsilon >= 0:
        found = log_gaussian_delta(threshold, mu)
        exact = mpmath.log(exact_delta(epsilon, mu))
        assert exact <= found <= exact + 1e-5


def test_no_delta_no_distance_and_no_bound():
    assert gaussian_epsilon(0.0, 0.0) == gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_epsilon(1e-9, 0.0) == gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert gaussian_epsilon(1.0, 0.5) == 0.0  # 2 Φ(1/2) - 1 = 0.383
    assert gaussian_epsilon(1e100, 1e-5) == pytest.approx(5e199, rel=1e-9, abs=0)
    assert gaussian_epsilon(1.0, 0.38) > 0.0


def test_releases_of_different_noise_are_one():
    """3/4 + 1/4 + 3 = 4 = mu^2: one Gaussian release of mu = 2, in every order."""
    releases = [GaussianRelease(2.0, 5, 3), GaussianRelease(2.0, 7, 1), GaussianRelease(1.0, 9, 3)]
    for delta in (1e-9, 1e-5, 0.1):
        exact = gaussian_epsilon(2.0, delta)
        for run in (releases, releases[::-1], [GaussianRelease(0.5, 1, 1)]):
            assert exact <= account(run, delta).epsilon <= exact * (1 + 1e-12)
        for multiplier in (0.5, 1.0, 3.0, 10.0):
            exact = gaussian_epsilon(1 / multiplier, delta)
            found = account([GaussianRelease(multiplier, 1, 1)], delta).epsilon
            assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-12)
    assert account(releases, 0.0).epsilon == math.inf
    assert account([GaussianRelease(2.0, 5, 0)], 1e-5).epsilon == 0.0


@pytest.mark.parametrize(("multiplier", "rounds"), [(0.5, 1), (4.0, 30), (40.0, 3)])
def test_the_order_stated_is_about_the_best_one(multiplier, rounds):
    """Rényi composition, which this replaces, is at most 12 % above, and least near that order."""
    release = GaussianRelease(multiplier, 1, rounds)
    exact = account([release], 1e-5)
    assert account([release], 1e-5, quick=True) == exact
    renyi, order = accountant._by_renyi([release], 1e-5)
    assert exact.epsilon < renyi < 1.12 * exact.epsilon
    assert order == pytest.approx(exact.order, rel=0.25)


def steps_of(log_mass, reach: int) -> list:
    """Normal quantiles of a symmetric law's distribution function, from one integer to the next."""
    with mpmath.workdps(60):
        mass = [mpmath.exp(log_mass(k)) for k in range(reach)]
        total = 2 * sum(mass) - mass[0]
        tail, quantiles = mpmath.mpf(0), []
        for k in range(reach - 1, 0, -1):
            tail += mass[k]
            if tail / total > mpmath.mpf(10) ** -40:
                quantiles.append(mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail / total))
        return [2 * quantiles[-1], *(b - a for b, a in itertools.pairwise(quantiles))]


@pytest.mark.parametrize("variance", [0.8, 1.0, 3.0, 20.0])
def test_no_step_of_integer_noise_is_longer_than_that_of_gaussian_noise(variance):
    gaussian = max(steps_of(lambda k: -(mpmath.mpf(k) ** 2) / (2 * variance), 120))
    assert gaussian**2 <= step_square(1 / variance)
    assert gaussian**2 > 1 / variance  # the curvature itself is not enough
    if variance >= 2:
        assert step_square(1 / variance) <= 1 / variance + 0.31 / variance**2
        skellam = max(steps_of(lambda k: mpmath.log(mpmath.besseli(k, variance)), 200))
        assert skellam**2 <= step_square(Skellam(variance).curvature(1))


@settings(max_examples=200, deadline=None)
@given(st.floats(-12, 0.14).map(lambda power: 10**power))
def test_the_step_is_rounded_up_and_hardly(curvature):
    with mpmath.workdps(60):
        exact = -mpmath.log(2 * mpmath.exp(-mpmath.mpf(curvature) / 2) - 1)
    assert exact <= step_square(curvature) <= exact * (1 + 1e-6)
    assert step_square(1.4) == math.inf


@pytest.mark.parametrize("shift", [1, 4, 9])
def test_shifts_of_integer_noise_are_bounded_closely(shift):
    """The exact delta of a shift of one coordinate is met, and hardly more is stated."""
    noise, delta = DiscreteGaussian(16.0), 1e-5
    epsilon = account([NoiseRelease(noise, 1, shift**2, 1, 1)], delta * (1 + 2**-10)).epsilon
    k = np.arange(-120, 160)
    p = np.exp(-(k**2) / 32.0)
    p, q = p / p.sum(), np.exp(-((k - shift) ** 2) / 32.0) / p.sum()

    def exact(epsilon):
        return np.maximum(q - math.exp(epsilon) * p, 0).sum()

    assert exact(epsilon) <= delta < exact(0.97 * epsilon)


def test_rounds_of_integer_noise_add_up_and_compose_with_others():
    once, thrice = (NoiseRelease(Skellam(100.0), 40, 400, 16, n) for n in (1, 3))
    assert once.squared_mu is not None
    assert thrice.squared_mu == pytest.approx(3 * once.squared_mu, rel=1e-12, abs=0)
    assert account([thrice], 1e-5).epsilon == pytest.approx(account([once] * 3, 1e-5).epsilon)
    renyi, _ = accountant._by_renyi([thrice], 1e-5)
    assert account([thrice], 1e-5).epsilon < 0.95 * renyi
    narrow = NoiseRelease(DiscreteGaussian(0.5), 1, 1, 16, 1)
    assert narrow.squared_mu is None
    assert account([narrow, once], 1e-5).epsilon < math.inf
