"""Lower ends: against exact laws and their composition, and below every bound."""

import dataclasses
import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
from lower_ends import (
    INSIDE,
    DrawnRound,
    IntegerRound,
    NormalRound,
    SumRound,
    attacked_epsilon,
    attacked_rounds,
    attacks_on,
    gaussian_epsilon_below,
    lower_end,
    on_updates,
    places_of,
)
from noise_laws import log_law
from oracle import epsilon_of_laws
from slow import slow
from whole import summed

import randquant as rq
from randquant.aggregation import AdditiveMechanism
from randquant.mechanisms import Binomial, DiscreteGaussian, Skellam
from randquant.privacy import (
    NEIGHBORINGS,
    ChannelRelease,
    Neighboring,
    NoiseRelease,
    Sampled,
    VectorRelease,
    gaussian_epsilon,
)

BIT = rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0)
RQM = rq.rqm(1.0, 1.0, 4, 0.42)


def law_of(channel, clients, others, place):
    return summed([channel.mix(place)[0], *[channel.mix(others)[0]] * (clients - 1)])


def exact_epsilon(first, second, times, delta):
    """Of so many independent copies of a pair, by all outcomes."""
    laws = (np.array([w / sum(law) for w in law]) for law in (first, second))
    copies = (functools.reduce(np.multiply.outer, [law] * times) for law in laws)
    return epsilon_of_laws(*copies, delta)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("channel", "clients", "neighboring"),
    [(BIT, 1, "zero_out"), (RQM, 3, "zero_out"), *slow((BIT, 4, "replace_one"))],
)
def test_an_attack_is_composed_exactly(channel, clients, neighboring):
    """Whatever attack is taken, its epsilon is no more than the exact one, and hardly less."""
    reach, dimension = 1.2, 2
    release = VectorRelease(channel, reach, dimension, 1, "aggregate", neighboring, clients)
    best = 0.0
    for attack, times in attacks_on(release):
        first, second = (
            law_of(channel, clients, attack.seen.others, at) for at in attack.seen.place[:2]
        )
        exact = exact_epsilon(first, second, times, 0.02)
        found = attacked_epsilon([(attack, times)], 0.02, 3.0)
        other = exact_epsilon(second, first, times, 0.02)
        assert found <= max(exact, other) + 1e-12
        assert found >= 0.99 * min(exact, other)
        best = max(best, exact, other)
    assert 0.9 * best <= attacked_epsilon(attacks_on(release), 0.02, 3.0) <= best + 1e-12


def test_no_update_of_an_attack_is_clipped():
    release = VectorRelease(RQM, 3.3, 100, 2, "aggregate", cohort=9)
    for attack, times in attacks_on(release):
        here, there, _ = attack.seen.place
        assert times % 2 == 0
        assert here == -there <= RQM.clip
        assert np.float32(here) == here
        assert math.sqrt(times / 2) * here <= 3.3 * (1 - 2**-21)
    assert {times for _, times in attacks_on(release)} == {20, 200}
    part = VectorRelease(RQM, 3.3, 100, 1, "aggregate", cohort=9, examples=3)
    assert all(math.sqrt(times) * attack.seen.place[0] <= 1.1 for attack, times in attacks_on(part))


def test_a_secure_sum_has_a_lower_end_close_to_its_bound():
    channel = rq.stochastic_rounding(1.0, 2, 9.0)
    whole, *parts = (
        VectorRelease(channel, 10.0, 900, rounds, "aggregate", cohort=200) for rounds in (20, 5, 15)
    )
    upper, lower = rq.account([whole], 1e-5).epsilon, lower_end([whole], 1e-5)
    assert lower <= upper <= 1.01 * lower
    # Several releases of one attack add up.
    assert lower_end(parts, 1e-5) == pytest.approx(lower, rel=1e-12)


def test_coordinates_that_are_clipped_one_by_one():
    release = ChannelRelease(BIT, 10, 1, "aggregate", cohort=5)
    upper = rq.account([release], 1e-3).epsilon
    assert 0.8 * upper < lower_end([release], 1e-3) < upper


def test_sums_of_too_many_are_not_attacked():
    assert on_updates(BIT, 2**17 + 1, "replace_one", [(1, 1.0)]) == ()
    attack = DrawnRound(SumRound(BIT, 2, 1, (INSIDE, -INSIDE, 0.0), -1.0), 1.0)
    assert attacked_epsilon([(attack, 0)], 1e-5, 2.0) == 0


# Hidden cohorts and integer noise.


DELTA = 1e-5
WIDE = rq.stochastic_rounding(1.0, 2, 3.0)


def gaussian(multiplier, neighboring: Neighboring = "replace_one"):
    return rq.GaussianRelease(multiplier, 10, 1, neighboring=neighboring)


def exact(noise, terms, k):
    """Mass of a sum of noise at k, by 40 digits."""
    if isinstance(noise, Skellam):
        mu = mpmath.mpf(noise.variance) * terms
        return mpmath.exp(-mu) * mpmath.besseli(k, mu)
    if isinstance(noise, Binomial):
        trials = noise.trials * terms
        return mpmath.binomial(trials, trials // 2 + k) / mpmath.mpf(2) ** trials
    law = {0: mpmath.mpf(1)}
    reach = 60
    one = {z: mpmath.exp(-mpmath.mpf(z * z) / (2 * noise.variance)) for z in range(-reach, reach)}
    for _ in range(terms):
        new = {}
        for (a, p), (b, q) in itertools.product(law.items(), one.items()):
            new[a + b] = new.get(a + b, 0) + p * q
        law = new
    return law.get(k, mpmath.mpf(0)) / sum(law.values())


@pytest.mark.parametrize(
    ("noise", "terms"),
    [(Skellam(0.4), 3), (Skellam(500.0), 4), (Binomial(40), 3), (DiscreteGaussian(0.6), 2)],
)
def test_laws_of_integer_noise_are_within_their_errors(noise, terms):
    logs, errors = log_law(noise, terms, 600)
    with mpmath.workdps(40):
        middle = exact(noise, terms, 0)
        for k in (1, 2, 7, 23, 40):
            assert abs(logs[k] - mpmath.log(exact(noise, terms, k) / middle)) <= errors[k]
    assert errors[1:40].max() < (0.1 if isinstance(noise, DiscreteGaussian) else 1e-12)
    laws = IntegerRound(noise, terms, 3, -2).laws()
    for law, shift in ((laws.first, 3), (laws.second, -2), (laws.absent, 0)):
        at = int(np.argmax(laws.absent)) + 1  # the law's middle is at 0
        with mpmath.workdps(40):
            truth = exact(noise, terms, 1 - shift)
            assert abs(law[at] - truth) <= 1.01 * laws.error[at] * truth


@pytest.fixture(scope="module")
def masses():
    """Mass of one client's Skellam noise at every k that matters, by 30 digits."""
    with mpmath.workdps(30):
        half = [exact(Skellam(9.0), 1, k) for k in range(91)]  # negative orders take mpmath seconds
        return {k: half[abs(k)] for k in range(-90, 91)}


@pytest.mark.parametrize("modulus", [2, 16, 64, 256])
def test_a_sum_modulo_a_number_is_attacked_as_it_is_sent(modulus, masses):
    laws = IntegerRound(Skellam(9.0), 1, 7, -7, modulus).laws()
    for shift, found in ((-7, laws.second), (7, laws.first)):
        with mpmath.workdps(30):
            truth = [mpmath.mpf(0)] * modulus
            for k, each in masses.items():
                truth[(k + shift) % modulus] += each
        error = 1.01 * laws.error * found + 1e-60
        assert any(
            (np.abs(found - np.roll(np.array(truth, float), start)) <= error + 1e-15).all()
            for start in range(modulus)
        )


def test_noise_that_wraps_is_not_attacked_beyond_what_it_reveals():
    """Every pair of inputs has at most 0.0985 (by enumeration)."""
    mechanism = AdditiveMechanism("skellam", 1.0, 1.6, 1, bits=4, deviations=1.0)
    release = mechanism.release(1, 1)
    reach = math.isqrt(release.squared_distance) // 2
    wrapped = IntegerRound(release.noise, 1, reach, -reach, 1 << mechanism.bits)
    assert attacked_epsilon([(DrawnRound(wrapped, 1.0), 1)], 1e-5, 2.0) <= 0.0986


def test_laws_of_cells_and_of_codes_are_within_their_errors():
    found = NormalRound(1.5, -0.5).laws()
    edges = np.linspace(-14.5, 15.5, 2**12 + 1)
    with mpmath.workdps(90):
        for cell in (100, 2000, 2047, 2048, 2500, 4000):
            left, right = (mpmath.mpf(edges[cell + k]) - 1.5 for k in (0, 1))
            truth = mpmath.ncdf(-left) - mpmath.ncdf(-right)
            assert abs(found.first[cell] - truth) <= found.error[cell] * truth
    seen = SumRound(RQM, 2, 2, (0.5, -0.5, 0.0), 1.0)
    rows = [np.array(w, float) / float(t) for w, t in map(RQM.mix, (*seen.place, 1.0))]
    law = seen.laws()
    for row, found in zip(rows, (law.first, law.second, law.absent), strict=False):
        truth = np.convolve(np.convolve(row, row), np.convolve(rows[3], rows[3]))
        assert found == pytest.approx(truth, rel=1e-12, abs=0)
    assert 0 < law.error[0] < 1e-13


def delta_of(first, second, epsilon):
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


@pytest.mark.parametrize("way", [0, 1])
def test_two_rounds_are_below_the_exact_divergence(way):
    """By all pairs of outcomes; a score or a loss rounded up would be above them."""
    seen = IntegerRound(Skellam(1.0), 3, 2, -1)
    laws = seen.laws()
    mixed = [0.7 * laws.absent + 0.3 * law for law in (laws.first, laws.second)]
    pair = [np.outer(law, law) for law in mixed]
    loss = DrawnRound(seen, 0.3).together(2)[way]
    for epsilon in (0.0, 0.1, 0.4, 1.0):
        found = float(loss.masses @ -np.expm1(-np.maximum(loss.losses - epsilon, 0)))
        truth = delta_of(pair[way], pair[1 - way], epsilon)
        assert 0.98 * truth - 1e-9 <= found <= truth * (1 + 1e-12)


@pytest.mark.parametrize("scheme", ["fixed", *slow("poisson")])
def test_lower_ends_are_below_the_bounds_at_random_settings(scheme):
    random, everybody = np.random.default_rng(7), scheme == "poisson"
    for _ in range(2):
        size, rate = 10 ** random.uniform(-0.3, 1), 10 ** random.uniform(-3, -0.1)
        rounds, delta = int(10 ** random.uniform(0, 3)), 10 ** random.uniform(-9, -1)
        steps, clients = int(random.integers(2, 40)), int(random.integers(2, 50))
        noise = (Skellam, DiscreteGaussian)[random.integers(2)](steps * steps * size / clients + 1)
        pairs = [
            (gaussian(size / 2), gaussian(size, "zero_out")),
            (
                NoiseRelease(noise, clients, 4 * steps**2, 5, 1),
                NoiseRelease(noise, clients, steps**2, 5, 1, "zero_out"),
            ),
        ]
        for release, zeros in pairs:
            sent = everybody and release.trust == "aggregate"
            runs = [(release, None)] if scheme == "fixed" else [(release, zeros), (zeros, None)]
            for one, absent in runs:
                run = Sampled(one, rate, rounds, scheme, sent, absent, not everybody)
                assert 0 <= lower_end([run], delta) <= rq.account([run], delta).epsilon


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("release", "ratio"),
    [
        (Sampled(gaussian(1.0, "zero_out"), 0.01, 1000), 1.005),
        (Sampled(gaussian(0.5), 0.01, 1000, absent=gaussian(1.0, "zero_out")), 1.005),
        (Sampled(gaussian(0.5), 0.1, 100, "fixed"), 1.12),
        (Sampled(gaussian(1.0, "zero_out"), 0.1, 100, "fixed", absent=gaussian(0.5)), 1.06),
        (
            Sampled(NoiseRelease(Skellam(50.0), 200, 4 * 900, 700, 1), 0.1, 40, hidden=True,
                absent=NoiseRelease(Skellam(50.0), 200, 900, 700, 1, "zero_out")),
            1.002,
        ),
        (
            Sampled(NoiseRelease(Skellam(5.0), 200, 900, 700, 1, "zero_out"), 0.1, 40, "fixed",
                absent=NoiseRelease(Skellam(5.0), 200, 4 * 900, 700, 1), models=True),
            1.06,
        ),
        (NoiseRelease(Skellam(50.0), 200, 4 * 900, 700, 20), 1.002),
        (NoiseRelease(DiscreteGaussian(50.0), 200, 4 * 900, 700, 20), 1.002),
        (
            Sampled(ChannelRelease(WIDE, 9, 1, "aggregate", "zero_out", 50), 0.1, 50, hidden=True),
            1.25,
        ),
        *slow((
            Sampled(VectorRelease(WIDE, 4.0, 100, 1, "aggregate", cohort=50), 0.1, 50, "fixed",
                models=True),
            1.25,
        )),
    ],
)  # fmt: skip
def test_lower_ends_are_close(release, ratio):
    lower = lower_end([release], DELTA)
    assert lower <= rq.account([release], DELTA).epsilon <= ratio * lower
    # The same inputs in the rest of the run add up.
    if release.rounds == 1000:
        half = dataclasses.replace(release, rounds=500)
        assert lower_end([half, half], DELTA) == lower


def test_codes_that_nobody_sees_are_not_attacked():
    """Models show sums over a cohort: what a mechanism under local trust sends is not seen."""
    local = VectorRelease(WIDE, 4.0, 100, 1)
    seen = Sampled(local, 0.1, 50, "fixed", models=True)
    assert attacks_on(seen) == ()
    assert attacks_on(Sampled(local, 0.1, 50, hidden=True))


def test_updates_of_integer_noise_are_as_far_apart_as_may_be():
    release = NoiseRelease(Skellam(50.0), 20, 4 * 900, 8, 3)
    assert attacks_on(release) == ((DrawnRound(IntegerRound(Skellam(50.0), 20, 30, -30), 1.0), 3),)
    zeroed = NoiseRelease(Skellam(50.0), 20, 900, 8, 3, "zero_out")
    assert [(each.first, each.second) for each in attacked_rounds(zeroed, True)] == [
        (60, 30), (30, 0),
    ]  # fmt: skip


def test_places_are_within_the_longest_update():
    for neighboring, stand_in in itertools.product(NEIGHBORINGS, (True, False)):
        for first, second, absent in places_of(neighboring, stand_in):
            assert first == 1
            assert second == (-1 if neighboring == "replace_one" else 0)
            assert absent == 0 or (stand_in and absent == -1)


@pytest.mark.parametrize("mu", [1e-8, 1e-3, 0.7, 30.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3, 0.9])
def test_gaussian_noise_reveals_what_is_stated(mu, delta):
    below, above = gaussian_epsilon_below(mu, delta), gaussian_epsilon(mu, delta)
    assert below <= above <= below * (1 + 1e-7)
    with mpmath.workdps(40):
        for epsilon, sign in ((below, 1), (above, -1)):
            e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
            truth = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
            assert epsilon == 0 or sign * (truth - delta) >= 0
    release = rq.GaussianRelease(2.0, 5, 9)
    lower = lower_end([release], 1e-5)
    assert lower <= rq.account([release], 1e-5).epsilon <= lower * (1 + 1e-9)


@pytest.mark.slow
def test_very_long_runs_and_wide_noise_are_bounded_or_not_at_all():
    many = [Sampled(gaussian(4.0, "zero_out"), 1e-4, 10**7)]
    assert 0 <= lower_end(many, DELTA) <= rq.account(many, DELTA).epsilon
    wide = NoiseRelease(Skellam(2.0**29), 20, 10**6, 8, 3)
    assert lower_end([wide], DELTA) == 0


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_worlds_that_share_no_likely_outcome_are_not_attacked(rate):
    """Noise of a fiftieth of the distance: no cell has a mass that is known in both worlds."""
    run = [Sampled(gaussian(0.02, "zero_out"), rate, 5)]
    assert lower_end(run, DELTA) == 0
    assert rq.account(run, DELTA).epsilon > 1000
