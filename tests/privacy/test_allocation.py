"""Random allocation: against integrals, moments and adversaries that choose as they go."""

import itertools
import math

import numpy as np
import pytest
from every_release import repeated
from scipy.special import ndtr
from seldom import seldom

import randquant as rq
from randquant.mechanisms.noise.laws import Skellam
from randquant.privacy.accounting.allocated import Allocated
from randquant.privacy.accounting.composition.allocation import Allocation, _split
from randquant.privacy.accounting.composition.mixture import Mixture
from randquant.privacy.accounting.composition.rule import compose_worlds
from randquant.privacy.accounting.gaussian import gaussian_epsilon
from randquant.privacy.accounting.integer_noise import NoiseRelease
from randquant.privacy.guarantee import Neighboring

DELTA = 1e-5
Z, STEP = np.linspace(-12, 14, 4001, retstep=True)
WEIGHTS = np.exp(-(Z**2) / 2) / math.sqrt(2 * math.pi) * STEP


def term(apart, z):
    return np.exp(apart * (z - apart / 2))


def excess(apart, c):
    """E max(0, Y - c) of one term."""
    with np.errstate(divide="ignore"):
        z = np.log(np.maximum(c, 0.0)) / apart + apart / 2
    return np.where(c > 0, ndtr(apart - z) - c * ndtr(-z), 1 - c)


def two_rounds(apart, epsilon, present):
    """Exact divergence of a block of two rounds: an integral over the first."""
    ratio = math.exp(epsilon if present else -epsilon)
    over = float(WEIGHTS @ excess(apart, 2 * ratio - term(apart, Z))) / 2  # E max(0, S - ratio)
    # max(0, 1 - gS) = 1 - gS + g max(0, S - 1/g), and S has mean 1.
    return over if present else 1 - 1 / ratio + over / ratio


@pytest.mark.parametrize("apart", [0.1, 3.0])
def test_beyond_the_last_cell_is_what_rounding_may_hide_there(apart):
    """Propositions 20 and 21: 256 units of 1 + apart, although the terms' law ends before it."""
    far = math.ceil(float(term(apart, 45.0)) / 1e3)
    last = _split(apart, 1e3 * far / 8, 8, 1)[-1]
    assert 255 * 2.0**-53 * (1 + apart) < last < 600 * 2.0**-53 * (1 + apart)


def divergence(loss, epsilon):
    over = np.maximum(loss.losses - epsilon, 0.0)
    return float(loss.masses @ -np.expm1(-over)) + loss.infinite


@pytest.mark.parametrize("apart", [0.2, 1.0, 1.7])
def test_two_rounds_are_above_the_integral_and_close_to_it(apart):
    for loss, present in zip(Allocation(apart, 2).losses(1, DELTA), (True, False), strict=True):
        for epsilon in (-1.0, -0.1, 0.0, 0.05, 0.3, 1.0, 2.5, 10.0):
            exact = two_rounds(apart, epsilon, present)
            found = divergence(loss, epsilon)
            # Sums below a step are zero: of no more than two terms they have some mass.
            assert exact * (1 - 1e-6) - 1e-15 <= found <= exact * (1 + 2e-3) + DELTA / 10


@pytest.mark.parametrize("apart", [0.05, 0.6])
def test_a_block_of_one_round_is_full_participation(apart):
    epsilon, _ = compose_worlds(Allocation(apart, 1), 5, DELTA)
    exact = gaussian_epsilon(apart * math.sqrt(5), DELTA)
    assert exact * (1 - 1e-9) <= epsilon <= exact * 1.001


@pytest.mark.parametrize(("apart", "rounds"), [(1.0, 10), (1.0, 1000), (0.25, 300), (1.8, 10_000)])
def test_moments_are_those_of_a_mean_of_lognormal_terms(apart, rounds):
    """E S^2 and E S^3 without the client; with it, of one power less."""
    grow = math.exp(apart**2)
    second = 1 + (grow - 1) / rounds
    third = (grow**3 + 3 * (rounds - 1) * grow + (rounds - 1) * (rounds - 2)) / rounds**2
    present, absent = Allocation(apart, rounds).losses(1, DELTA)
    # Only what is missed, at the upper end, may be lacking: it is put at infinity.
    top = math.exp(float(present.losses.max()))
    for power, exact in ((1, second), (2, third)):
        found = float(present.masses @ np.exp(power * present.losses))
        assert exact * (1 - 1e-6) <= found + present.infinite * top**power
        assert found <= exact * 1.01
    assert float(absent.masses.sum()) + absent.infinite >= 1 - 1e-12
    assert float(absent.masses @ np.exp(-absent.losses)) == pytest.approx(1, abs=2e-3)
    assert float(absent.masses @ np.exp(-2 * absent.losses)) <= second * 1.01
    assert present.infinite < DELTA / 100
    assert absent.infinite < DELTA / 100


@pytest.mark.parametrize("present", [True, False])
def test_choosing_as_the_run_goes_gains_nothing(present):
    """Of two rounds the second's update depends on the first's outcome: all rules of a kind."""
    apart = 1.1
    for below, above, at in itertools.product((0.0, 0.5, 1.1), (0.3, 1.1), (-1.0, 0.5)):
        second = np.where(at > Z, below, above)[:, None]
        likelihood = (term(apart, Z)[:, None] + term(second, Z[None, ::8])) / 2
        both = WEIGHTS[:, None] * WEIGHTS[None, ::8] * 8
        for epsilon in (0.1, 0.8):
            ratio = math.exp(epsilon)
            gain = likelihood - ratio if present else 1 - ratio * likelihood
            adaptive = float((both * np.maximum(gain, 0.0)).sum())
            assert adaptive <= two_rounds(apart, epsilon, present) + 1e-6


@pytest.mark.parametrize("present", [True, False])
def test_two_of_four_rounds_are_within_two_blocks_of_two(present):
    """All sets of rounds, by quadrature; a single block of two is not enough."""
    apart = 0.8
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    y, weights = term(apart, nodes), weights / weights.sum()
    terms = np.meshgrid(y, y, y, y, sparse=True)
    parts = np.meshgrid(weights, weights, weights, weights, sparse=True)
    likelihood = sum(a * b for a, b in itertools.combinations(terms, 2)) / 6
    chance = parts[0] * parts[1] * parts[2] * parts[3]
    loss = Allocation(apart, 2).losses(2, DELTA)[0 if present else 1]
    for epsilon in (0.2, 1.0, 1.8):
        ratio = math.exp(epsilon)
        gain = likelihood - ratio if present else 1 - ratio * likelihood
        exact = float((chance * np.maximum(gain, 0.0)).sum())
        pair = loss.losses[:, None] + loss.losses[None]
        bound = float(loss.masses @ -np.expm1(-np.maximum(pair - epsilon, 0.0)) @ loss.masses)
        assert exact * (1 - 1e-3) <= bound + 2 * loss.infinite
        assert divergence(loss, epsilon) < exact


def one_round(multiplier, neighboring: Neighboring = "zero_out", trust="central"):
    return rq.GaussianRelease(multiplier, 10, 1, trust, neighboring)


@pytest.mark.parametrize(("multiplier", "times", "total"), [
    (0.5, 1, 1000), (1.0, 10, 1003),
    *seldom((1.0, 1, 100), (2.0, 10, 1000), (4.0, 3, 100)),
])  # fmt: skip
def test_a_drawn_run_costs_about_what_independent_rounds_of_its_rate_do(multiplier, times, total):
    release = Allocated(one_round(multiplier), times, total)
    epsilon = rq.account([release], DELTA, attacked=False).epsilon
    poisson = compose_worlds(Mixture.of_absence(times / total, 1 / multiplier), total, DELTA)[0]
    full = rq.account([rq.GaussianRelease(multiplier, 10, times, neighboring="zero_out")], DELTA)
    assert 0.8 * poisson < epsilon < 1.02 * poisson < full.epsilon
    twice = rq.account([release] * 2, DELTA)
    assert twice == rq.account([repeated(release, 2)], DELTA)
    assert twice.epsilon > epsilon * 1.1


@pytest.mark.parametrize(("times", "total", "block"), [(2, 3, 1), (10, 1009, 100), (7, 7, 1)])
def test_blocks_are_no_longer_than_fit_into_the_run(times, total, block):
    """Proposition 19: rounds that are left over hide nothing."""
    worlds = Allocated(one_round(0.5), times, total).worlds
    assert worlds is not None
    assert (worlds[0].rounds, worlds[1]) == (block, times)


def test_without_a_proof_the_rounds_of_the_client_count():
    full = rq.account([rq.GaussianRelease(2.0, 10, 5)], DELTA).epsilon
    replaced = rq.account([Allocated(one_round(2.0, "replace_one"), 5, 100)], DELTA)
    assert full <= replaced.epsilon < full * (1 + 1e-9)
    assert Allocated(one_round(2.0), 0, 100).renyi(math.inf) == 0
    assert rq.account([Allocated(one_round(2.0), 0, 100)], DELTA).epsilon == 0
    assert Allocated(one_round(2.0), 5, 100).releases == 50
    # Who takes part in each round loses what it loses where everybody sees it.
    whole = rq.account([Allocated(one_round(0.2), 4, 4)], DELTA).epsilon
    seen = rq.account([rq.GaussianRelease(0.2, 10, 4, neighboring="zero_out")], DELTA).epsilon
    assert seen <= whole <= seen * (1 + 1e-9)


@pytest.mark.parametrize(
    ("release", "options", "message"),
    [
        (one_round(1.0, trust="local"), {}, "sees who takes part"),
        (rq.GaussianRelease(1.0, 5, 2), {}, "rounds=1"),
        (one_round(1.0), {"participations": 101}, "participations"),
        (one_round(1.0), {"total": 0}, "total"),
        (Allocated(one_round(1.0), 1, 2), {}, "not sampled"),
    ],
)
def test_what_is_not_proven_is_refused(release, options, message):
    with pytest.raises(ValueError, match=message):
        Allocated(release, **{"participations": 5, "total": 100, **options})


@pytest.mark.parametrize(("apart", "rounds"), [(1e-6, 7), (1e-3, 10**6), (6.0, 7), (40.0, 10**6)])
def test_extremes_stay_bounds(apart, rounds):
    """Far apart, a drawn round shows itself, at a ratio that its likelihood shares with others."""
    epsilon, _ = compose_worlds(Allocation(apart, rounds), 2, DELTA)
    assert epsilon >= 0
    if apart > 1:
        assert epsilon > apart**2 / 2 - math.log(rounds)


def both_worlds(apart, epsilon):
    """Exact divergence of one of two rounds: the client's update against the opposite one."""
    x, step = np.linspace(-9, 9, 601, retstep=True)
    one = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    there, other = (np.exp(-((x - s) ** 2) / 2) / math.sqrt(2 * math.pi) for s in (apart, -apart))
    first, second = (np.outer(law, one) / 2 + np.outer(one, law) / 2 for law in (there, other))
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum() * step**2)


@pytest.mark.parametrize("apart", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_another_update_in_secret_rounds_is_hidden_as_stated(apart, delta):
    """Proposition 25 against the integral; it may not be far above what is true."""
    replaced, absent = (
        rq.GaussianRelease(m, 3, 1, neighboring=n)
        for m, n in ((0.5 / apart, "replace_one"), (1 / apart, "zero_out"))
    )
    stated = rq.account([Allocated(replaced, 1, 2, absent=absent)], delta).epsilon
    assert both_worlds(apart, stated) <= delta
    assert both_worlds(apart, 0.55 * stated) > delta
    seen = rq.account([Allocated(replaced, 1, 2)], delta).epsilon
    assert stated <= seen * (1 + 1e-9)
    assert seen == pytest.approx(gaussian_epsilon(2 * apart, delta), rel=1e-6)


def test_updates_exchanged_in_few_of_many_rounds_gain_most_of_what_zeros_gain():
    replaced = rq.GaussianRelease(2.0, 3, 1)
    absent = rq.GaussianRelease(4.0, 3, 1, neighboring="zero_out")
    exchanged = rq.account([Allocated(replaced, 10, 100, absent=absent)], DELTA).epsilon
    zeros = rq.account([Allocated(absent, 10, 100)], DELTA).epsilon
    assert 2 * zeros < exchanged < 2.3 * zeros
    assert exchanged < 0.3 * rq.account([Allocated(replaced, 10, 100)], DELTA).epsilon


def test_what_is_sent_while_absent_is_only_close_to_its_law_too():
    """Where all send, codes of the absent are drawn from tables as well."""
    noise = NoiseRelease(Skellam(100.0), 20, 1000, 8, 1, "zero_out")
    release = Allocated(noise, 2, 50, hidden=True)
    assert release.distance >= 50 * noise.distance > 0
