"""Hidden cohorts with Gaussian noise: against 50 digits, planes, and dp-accounting's figures."""

import dataclasses
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from slow import slow

import randquant as rq
from randquant.privacy import Mixture, Sampled, compose_pairs, gaussian_epsilon
from randquant.privacy.accounting import composition
from randquant.privacy.accounting.composition import _log_relative

DELTA = 1e-5
CASES = [(0.001, 1.0), (0.02, 0.25), (0.3, 2.0), (0.97, 0.7), (1.0, 1.3), (0.01, 6.0)]
"""Rates and distances."""


def absence(rate, apart):
    return Mixture.from_distances(rate, apart, apart, 0.0)


def zeros(rate, apart):
    return Mixture.from_distances(rate, apart, 2 * apart, apart)


def between(rate, apart):
    return Mixture.from_distances(rate, 2 * apart, apart, apart)


def anywhere(rate, apart):
    return Mixture.from_distances(rate, apart, apart, apart)


def density(rate, shift, x):
    return (1 - rate) * mpmath.npdf(x) + rate * mpmath.npdf(x - shift)


def tail(rate, shift, x):
    return (1 - rate) * mpmath.ncdf(-x) + rate * mpmath.ncdf(shift - x)


def stick(rate, shifts, epsilon):
    """Exact hockey-stick divergence at epsilon >= 0, by the root of the ratio."""
    rate, epsilon = mpmath.mpf(rate), mpmath.mpf(epsilon)
    m, n = map(mpmath.mpf, shifts)

    def excess(x):
        return mpmath.log(density(rate, m, x) / density(rate, n, x)) - epsilon

    low, high = (m + n) / 2, (m + n) / 2 + 1
    while excess(high) < 0:
        high += high - low
        if high > 1e6:
            return mpmath.mpf(0)  # a ratio that is never reached
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return tail(rate, m, high) - mpmath.exp(epsilon) * tail(rate, n, high)


def curve(mixture, way, epsilon):
    """The exact curve of a way, on either side of zero (docs/theory/sampling.md, Prop. 15)."""
    above, below = mixture.directions[way]
    if epsilon >= 0:
        return stick(mixture.rate, above, epsilon)
    ratio = mpmath.exp(epsilon)
    return 1 - ratio + ratio * stick(mixture.rate, below, -epsilon)


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(("rate", "apart"), CASES)
@pytest.mark.parametrize("make", [absence, zeros, between, anywhere])
def test_a_round_is_above_the_exact_curve_and_close_to_it(make, rate, apart):
    """Every way, both signs of epsilon: one direction less, or a mass rounded down, fails here."""
    mixture = make(rate, apart)
    for way, loss in enumerate(mixture.losses(10, DELTA)):
        assert loss.masses.min() >= 0
        reach = float(loss.losses.max())
        for part in (-1.0, -0.1, -0.01, 0.0, 0.1, 0.97, 1.0):
            epsilon = part * reach  # at its end infinite losses alone are left
            with mpmath.workdps(50):
                exact = float(curve(mixture, way, epsilon))
            over = np.maximum(loss.losses - epsilon, 0.0)
            found = float(loss.masses @ -np.expm1(-over)) + loss.infinite
            assert exact <= found <= exact * (1 + 3e-4) + DELTA / 1e6


@pytest.mark.parametrize(("rate", "shift"), [(0.02, 2.5), (0.6, -1.3)])
def test_the_margin_of_a_log_ratio_is_that_of_the_theory(rate, shift):
    """Proposition 17: 32 units of the logarithm, and of 1 and the exponent where it is far off."""
    x = np.linspace(-9.0, 9.0, 61)
    found, error = _log_relative(rate, shift, x)
    for at, value, margin in zip(x, found, error, strict=True):
        with mpmath.workdps(40):
            s = mpmath.mpf(shift)
            change = rate * mpmath.expm1(s * (mpmath.mpf(at) - s / 2))
            exact = mpmath.log1p(change)
        assert abs(value - exact) <= margin
        size = abs(shift * (at - shift / 2))
        stated = 32 * abs(value) + (2 * size if abs(change) <= 0.5 else 32 * (1 + size))
        assert margin == pytest.approx(2.0**-53 * stated, rel=1e-9, abs=0)


@pytest.mark.parametrize("seed", range(2))
def test_no_stand_in_is_worse_than_one_opposite_the_client(seed):
    """Proposition 19, on a grid of the plane: zeros in one world, both directions."""
    random = np.random.default_rng(seed)
    axis = np.linspace(-9, 9, 241)
    x, y = np.meshgrid(axis, axis)

    def law(rate, absent, there):
        parts = ((1 - rate, absent), (rate, there))
        return sum(k * np.exp(-((x - a) ** 2 + (y - b) ** 2) / 2) for k, (a, b) in parts)

    for _ in range(6):
        rate, apart = 10 ** random.uniform(-2, 0), random.uniform(0.3, 2)
        ratio = 1 + rate * random.exponential()
        angles, lengths = random.uniform(0, 2 * math.pi, 2), apart * random.uniform(0, 1, 2) ** 0.1
        random_pair = [
            (r * math.cos(a), r * math.sin(a)) for r, a in zip(lengths, angles, strict=True)
        ]
        for client, other in (random_pair, ((apart, 0.0), (-apart, 0.0))):
            worlds = law(rate, other, client), law(rate, other, (0.0, 0.0))
            for (first, second), (shifts, _) in zip(
                (worlds, worlds[::-1]), zeros(rate, apart).directions, strict=True
            ):
                found = np.maximum(first - ratio * second, 0.0).sum() * 0.075**2 / (2 * math.pi)
                worst = float(stick(rate, shifts, math.log(ratio)))
                assert found <= worst * (1 + 2e-3) + 1e-9


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("make", "theirs"), [
    (absence, NeighboringRelation.REPLACE_SPECIAL),
    (between, NeighboringRelation.REPLACE_ONE),
])  # fmt: skip
@pytest.mark.parametrize(("rate", "sigma", "rounds"), [
    (0.001, 1.0, 10_000), (0.5, 4.0, 1), *slow((0.01, 1.0, 100), (0.1, 4.0, 600)),
])  # fmt: skip
def test_epsilon_is_between_dp_accountings_bounds_within_three_percent(
    make, theirs, rate, sigma, rounds
):
    epsilon, _ = compose_pairs(make(rate, 1 / sigma), rounds, DELTA)
    lower, upper = (
        privacy_loss_distribution.from_gaussian_mechanism(
            sigma,
            sampling_prob=rate,
            neighboring_relation=theirs,
            value_discretization_interval=2e-4,
            pessimistic_estimate=side,
            use_connect_dots=side,
        )
        .self_compose(rounds)
        .get_epsilon_for_delta(DELTA)
        for side in (False, True)
    )
    assert lower <= epsilon <= 1.03 * upper


@pytest.mark.parametrize(("make", "shifts"), [
    (absence, lambda c: (c, 0.0)), (between, lambda c: (c, -c)),
])  # fmt: skip
@pytest.mark.parametrize(("rate", "apart", "plain"), [(0.02, 1.0, 0.5), (0.4, 0.6, 0.2)])
def test_a_round_with_plain_noise_is_within_a_thousandth_of_the_integral(
    make, shifts, rate, apart, plain
):
    """Proposition 20, on a grid of the plane: the round's noise and the plain one."""
    x, step = np.linspace(-9, 10, 761, retstep=True)
    normal = {s: np.exp(-((x - s) ** 2) / 2) / math.sqrt(2 * math.pi) for s in (0.0, plain)}
    worlds = [
        (1 - rate) * normal[0.0] + rate * np.exp(-((x - s) ** 2) / 2) / math.sqrt(2 * math.pi)
        for s in shifts(apart)
    ]
    loss = make(rate, apart).losses(1, DELTA)[0]
    both = composition._with_noise(loss, 1, DELTA, plain**2)
    for epsilon in (-0.5, 0.1, 0.9):
        first, second = np.outer(worlds[0], normal[plain]), np.outer(worlds[1], normal[0.0])
        exact = float(np.maximum(first - math.exp(epsilon) * second, 0).sum()) * step**2
        over = np.maximum(both.losses - epsilon, 0.0)
        found = float(both.masses @ -np.expm1(-over)) + both.infinite
        assert exact * (1 - 1e-4) <= found <= exact * (1 + 1e-3) + DELTA / 1e6


@pytest.mark.slow
def test_plain_releases_and_hidden_cohorts_are_composed_together():
    zeroed = rq.GaussianRelease(1.0, 10, 1, neighboring="zero_out")
    plain = rq.GaussianRelease(5.0, 10, 5, neighboring="zero_out")
    hidden = Sampled(zeroed, 0.01, 1000)
    apart, both = (rq.account(each, DELTA).epsilon for each in ([hidden], [hidden, plain]))
    assert apart < both < rq.account([hidden, plain], DELTA, quick=True).epsilon / 1.05
    # Twice half of the noise is the noise.
    halves = [dataclasses.replace(plain, relative_deviation=5 * math.sqrt(2))] * 2
    assert rq.account([*halves, hidden], DELTA).epsilon == pytest.approx(both, rel=1e-6)
    # A release of which less is known is not forgotten: Rényi composition is left.
    local = rq.GaussianRelease(9.0, 10, 1, "local")
    codes = rq.ChannelRelease(rq.stochastic_rounding(1.0, 2, 2.0), 4, 1)
    unknown = [Sampled(local, 0.1, 10, hidden=True), codes]
    quick = rq.account(unknown, DELTA, quick=True).epsilon
    assert rq.account(unknown, DELTA).epsilon == quick
    assert rq.account(unknown, DELTA).epsilon > rq.account([unknown[0]], DELTA).epsilon + 0.5
    # Rounds in which everybody takes part are plain noise themselves.
    sure = rq.account([Sampled(zeroed, 1.0, 2), plain], DELTA).epsilon
    assert sure == pytest.approx(gaussian_epsilon(math.sqrt(2 + 0.2), DELTA), rel=2e-3)


def test_both_directions_of_absence_count():
    """With the client in the second world only, less is lost: the larger epsilon is the bound."""
    mixture = absence(0.1, 1.0)
    for way in mixture.directions:
        one = compose_pairs(Mixture(0.1, (way,)), 100, DELTA)
        assert one <= compose_pairs(mixture, 100, DELTA)
    assert {way[::-1] for way in mixture.directions} == set(mixture.directions)


@pytest.mark.parametrize("plain", [0.0, 0.5])
@pytest.mark.parametrize(("first", "second"), [(1.0, 0.3), (2.0, 1.5), (0.4, 2.4)])
def test_which_of_the_two_worlds_is_the_first_changes_no_epsilon(first, second, plain):
    """Also where the world that loses more is the second one."""
    one, other = (
        compose_pairs(Mixture.from_distances(0.1, 2.0, *pair), 50, DELTA, plain)
        for pair in ((first, second), (second, first))
    )
    assert one == other


@pytest.mark.parametrize("rounds", [2**17 + 1, 2**30, 2**41])
def test_many_rounds_are_bounded_by_the_normal_law_or_not_at_all(rounds):
    found, _ = compose_pairs(absence(0.001, 0.25), rounds, DELTA)
    mean = rounds * 1e-6 * math.expm1(1 / 16) / 2  # of the loss, about
    assert found == math.inf if rounds > 2**40 else mean < found < 3 * mean + 10


@pytest.mark.parametrize("make", [absence, zeros, between, anywhere])
@pytest.mark.parametrize(("rate", "apart"), [(5e-324, 1.0), (1.0, 1e-100), (1 - 2.0**-53, 1e4)])
def test_extremes_of_rate_and_noise_stay_bounds(make, rate, apart):
    epsilon, _ = compose_pairs(make(rate, apart), 3, DELTA)
    assert 3 * apart**2 / 2 < epsilon if apart > 1 else 0 <= epsilon < 1e-9
