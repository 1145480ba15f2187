"""Rounds whose client may be absent: every vector, arrangement and event against the two laws."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
from noise_laws import log_law
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

import randquant as rq
from randquant.mechanisms import DiscreteGaussian, Skellam
from randquant.privacy import Mixture, NoiseRelease, Sampled
from randquant.privacy.accounting import accountant
from randquant.privacy.accounting.gaussian import spared_cost, unit_squared_mu

RATIOS = (1.0, 1.003, 1.02, 1.1, 1.3, 1.8, 3.0, 7.0)


def stick(p, q, ratio):
    return float(np.maximum(p - ratio * q, 0.0).sum())


@functools.cache
def pair_stick(rate, shifts, ratio):
    """H of the pair of mixtures, by the event beyond the point where their ratio is reached."""

    def tail(shift, x):
        return (1 - rate) * ndtr(-x) + rate * ndtr(shift - x)

    def gap(x):  # the difference of the two laws' densities over that of N(0)
        parts = [1 - rate + rate * math.exp(s * x - s * s / 2) for s in shifts]
        return parts[0] - ratio * parts[1]

    low, high = sum(shifts) / 2, sum(shifts) / 2 + 1
    while gap(high) < 0:
        high += high - low
        if high > 60:
            return 0.0
    at = brentq(gap, low, high, xtol=1e-14) if gap(low) < 0 else low
    return tail(shifts[0], at) - ratio * tail(shifts[1], at)


def distance(p, q):
    """The least c with which N(0), N(c) dominate both orders: over the corners of all tests."""
    order = np.argsort(-p / q)
    corners = [np.cumsum(law[order])[:-1] for law in (p, q)]
    return float((ndtri(corners[0]) - ndtri(corners[1])).max())


def test_any_three_laws_are_within_the_pair_of_two_of_their_distances():
    """Proposition 13, of laws that have no shape: random ones, in every order, to the closest."""
    random, closest = np.random.default_rng(3), 0.0
    for _ in range(3000):
        spread, outcomes = 10 ** random.uniform(-2, 0.5), int(random.integers(2, 6))
        absent, first, second = np.exp(random.normal(size=(3, outcomes)) * spread)
        absent, first, second = (law / law.sum() for law in (absent, first, second))
        if random.random() < 0.3:
            absent = (first + second) / 2
        rate = 10 ** random.uniform(-3, 0)
        away, apart = distance(first, absent), distance(first, second)
        shifts = (away, away - apart)
        world, other = ((1 - rate) * absent + rate * law for law in (first, second))
        for ratio in 1 + rate * random.exponential(size=4) * 3 * spread:
            exact, bound = stick(world, other, ratio), pair_stick(rate, shifts, ratio)
            assert exact <= bound * (1 + 1e-9) + 1e-13
            closest = max(closest, exact / bound if bound > 1e-9 else 0.0)
    assert closest > 0.95


@pytest.mark.parametrize(("away", "apart"), [(1.0, 2.0), (2.0, 1.0), (0.7, 0.7), (0.5, 0.8)])
def test_hockey_sticks_of_two_pairs_are_split_to_the_same_bound(away, apart):
    """The other proof of Proposition 13: no share is below the bound, and the best attains it."""

    def gaussian(c, ratio):
        z = math.log(ratio) / c
        return float(ndtr(c / 2 - z) - ratio * ndtr(-c / 2 - z))

    for rate, ratio in itertools.product((0.02, 0.3, 0.9), (1.01, 1.2, 2.5)):
        weight = (1 - rate) * (ratio - 1) / rate
        shares = np.linspace(0, 1, 4001)[1:-1]
        split = [
            rate * (k * gaussian(away, weight / k) + (1 - k) * gaussian(apart, ratio / (1 - k)))
            for k in shares
        ]
        bound = pair_stick(rate, (away, away - apart), ratio)
        assert bound * (1 - 1e-9) - 1e-15 <= min(split) <= bound * (1 + 1e-3) + 1e-12


def test_the_pair_is_attained_by_gaussian_noise_and_grows_with_both_distances():
    x, step = np.linspace(-12, 14, 40001, retstep=True)
    for away, apart, rate in ((1.0, 2.0, 0.1), (2.0, 1.0, 0.3), (0.0, 0.7, 0.5), (1.5, 1.5, 0.01)):
        shifts = (away, away - apart)
        worlds = [
            ((1 - rate) * np.exp(-(x**2) / 2) + rate * np.exp(-((x - s) ** 2) / 2)) * step
            for s in shifts
        ]
        for ratio in (1.0, 1 + rate / 2):
            found = stick(*worlds, ratio) / math.sqrt(2 * math.pi)
            assert found == pytest.approx(pair_stick(rate, shifts, ratio), rel=1e-5)
            for more in ((away + 0.1, away + 0.1 - apart), (away, away - apart - 0.1)):
                assert pair_stick(rate, more, ratio) >= pair_stick(rate, shifts, ratio) - 1e-15


def claimed(mixture, ratio):
    """The largest divergence that the round's pairs allow, either world first."""
    return [pair_stick(mixture.rate, shifts, ratio) for shifts in mixture.directions[0]]


WAYS = list(itertools.product(["poisson", "fixed"], ["replace_one", "zero_out"]))


def sampled(make, draw, relation, rate):
    """A round under `model` trust; make(relation) is the release if the client takes part."""
    other = {"replace_one": "zero_out", "zero_out": "replace_one"}[relation]
    absent = make(other) if (draw == "fixed") == (relation == "zero_out") else None
    return Sampled(make(relation), rate, 1, draw, draw == "poisson", absent, True)


def farthest(worlds, zeros, mixture, draw, relation):
    """Check every client, other update and absence; return exact over claimed, at its largest."""
    largest = 0.0
    absences = [zeros] if draw == "poisson" else worlds
    others = [zeros] if relation == "zero_out" else worlds
    for absent, client, other in itertools.product(absences, worlds, others):
        first, second = (
            (1 - mixture.rate) * absent + mixture.rate * law for law in (client, other)
        )
        for ratio in RATIOS:
            there, back = claimed(mixture, ratio)
            for exact, bound in ((stick(first, second, ratio), there),
                                 (stick(second, first, ratio), back)):  # fmt: skip
                assert exact <= bound * (1 + 1e-9) + 1e-12
                largest = max(largest, exact / bound if bound > 1e-4 else 0.0)
    return largest


@pytest.mark.parametrize(("draw", "relation"), WAYS)
@pytest.mark.parametrize("noise", [DiscreteGaussian(2.0), Skellam(4.0)], ids=["normal", "skellam"])
def test_no_integer_vectors_are_farther_apart_than_the_pair(noise, draw, relation):
    """Every vector of the ball for client, other update and stand-in, on a lattice of the plane."""
    square, clients = 2, 2

    def make(neighboring):
        diameter = 4 * square if neighboring == "replace_one" else square
        return NoiseRelease(noise, clients, diameter, 2, 1, neighboring)

    reach = 40
    logs, _ = log_law(noise, clients, reach)
    row = np.exp(np.append(np.asarray(logs)[::-1], np.asarray(logs)[1:]))
    row = row / row.sum()
    middle = len(row) // 2
    cut = slice(middle - 24, middle + 25)

    def law(vector):
        return np.outer(*(np.roll(row, shift)[cut] for shift in vector)).ravel()

    vectors = [
        v for v in itertools.product((-1, 0, 1), repeat=2) if v[0] ** 2 + v[1] ** 2 <= square
    ]
    worlds = [law(vector) for vector in vectors]
    largest = 0.0
    for rate in (0.05, 0.6):
        mixture = sampled(make, draw, relation, rate).dominating_pairs[0].pairs(lost=0.0)
        largest = max(largest, farthest(worlds, law((0, 0)), mixture, draw, relation))
    assert largest > 0.85


@pytest.mark.parametrize(("draw", "relation"), WAYS)
def test_no_updates_of_one_bit_are_farther_apart_than_the_pair(draw, relation):
    """Sums of three clients' bits in two coordinates: directions and lengths, and the others'."""
    channel, norm = rq.stochastic_rounding(clip=0.5, levels=2, margin=3.0), 0.5

    def make(neighboring):
        return rq.VectorRelease(channel, norm, 2, 1, "aggregate", neighboring, cohort=3)

    def law(vector, others):
        sums = []
        for x, pair in zip(vector, others, strict=True):
            sent = np.array([1.0])
            for place in (x, *pair):
                weights, total = channel.mix(place)
                sent = np.convolve(sent, [int(w) / total for w in weights])
            sums.append(sent)
        return np.outer(*sums).ravel()

    directions = [(1, 0), (-1, 0), (0, -1), (0.7071, 0.7071), (-0.7071, -0.7071), (0.6, -0.8)]
    vectors = [(norm * a, norm * b) for a, b in directions] + [(norm / 2, 0.0)]
    ends = [(-0.5, -0.5), (-0.5, 0.5), (0.5, 0.5)]
    mixture = sampled(make, draw, relation, 0.2).dominating_pairs[0].pairs(lost=0.0)
    largest = 0.0
    for others in itertools.combinations_with_replacement(ends, 2):
        worlds = [law(vector, others) for vector in vectors]
        largest = max(largest, farthest(worlds, law((0, 0), others), mixture, draw, relation))
    assert largest > 0.6


@pytest.mark.parametrize(("away", "claims_less"), [(2, True), (4, False)])
def test_a_smaller_distance_of_absence_than_there_is_would_be_seen(away, claims_less):
    """What the tests above would find if absence were taken to be half as far as it may be."""
    release = NoiseRelease(DiscreteGaussian(30.0), 1, 16, 1, 1)
    x = np.arange(-60, 61)

    def law(shift):
        mass = np.exp(-((x - shift) ** 2) / 60)
        return mass / mass.sum()

    absent = dataclasses.replace(release, neighboring="zero_out", squared_distance=away**2)
    run = Sampled(release, 0.1, 1, hidden=True, absent=absent, models=True)
    mixture = run.dominating_pairs[0].pairs(lost=0.0)
    # A stand-in as far as any update: the client at 4, another at 0, absence at 0.
    first, second = (0.9 * law(0) + 0.1 * law(shift) for shift in (4, 0))
    exact, bound = stick(first, second, 1.06), claimed(mixture, 1.06)[0]
    assert (exact > bound) == claims_less


def test_two_distances_may_be_far_from_each_other():
    """Rounded down: s - Δ where a float has no room for it."""
    ((m, n), _), *_ = Mixture.from_distances(0.1, apart=1.0, first=1e20, second=1.0).directions
    assert m == 1e20
    assert n < 1e20 - 1


@pytest.mark.parametrize("tau", [1e-2, 1e-4])
def test_tests_that_are_left_out_cost_no_more_than_what_is_paid_for_them(tau):
    """Vector-sums, Proposition 22: every arrangement of 80 others, inputs, orders and ratios."""
    channel, clients = rq.stochastic_rounding(clip=1.0, levels=2, margin=0.8), 81
    less, more = (math.sqrt(unit_squared_mu(channel, clients, each)) for each in (tau, 0.0))
    assert less < 0.93 * more
    cost = spared_cost(channel)
    rows = [np.array([int(w) / channel.mix(x)[1] for w in channel.mix(x)[0]]) for x in (-1.0, 1.0)]
    assert cost == pytest.approx((rows[1] / rows[0]).max())
    needed = False
    for k in range(clients):
        others = np.array([1.0])
        for place in [1] * k + [0] * (clients - 1 - k):
            others = np.convolve(others, rows[place])
        laws = {
            x: np.convolve(others, (rows[0] * (1 - x) + rows[1] * (1 + x)) / 2)
            for x in (-1.0, -0.2, 0.4, 1.0)
        }
        for (x, p), (y, q) in itertools.permutations(laws.items(), 2):
            c = less * abs(x - y)
            for ratio in (1.0, 1.3, 1.7, 2.1, 2.5, 3.0, 3.4):
                z = math.log(ratio) / c
                bound = float(ndtr(c / 2 - z) - ratio * ndtr(-c / 2 - z))
                exact = stick(p, q, ratio)
                assert exact <= bound + cost * tau
                needed = needed or exact > bound * (1 + 1e-9) + 1e-12
    assert needed  # without what is paid the bound would be false


def test_a_round_pays_for_what_is_left_out_where_that_helps_and_only_there():
    bit = rq.stochastic_rounding(clip=0.1, levels=2, margin=0.3)
    release = rq.VectorRelease(bit, 1.0, 256, 1, "aggregate", cohort=400)
    (one, rounds) = Sampled(release, 0.1, 50, "fixed", models=True).dominating_pairs
    wide, close = one.pairs(0.0), one.pairs(1e-9)
    assert (wide.lost, close.lost) == (0.0, 1e-9)
    assert close.directions[0][0][0] < 0.9 * wide.directions[0][0][0]
    # All that is left out in a round: of every coordinate, if the client takes part.
    spared = 1e-9 / 0.1
    tau = 2.0 ** math.floor(math.log2(spared * (1 - 1e-9) / (spared_cost(bit) * 256)))
    square = unit_squared_mu(bit, 400, tau) / unit_squared_mu(bit, 400)
    assert (close.directions[0][0][0] / wide.directions[0][0][0]) ** 2 == pytest.approx(square)
    for loss in one.losses(rounds, 1e-5):
        assert loss.infinite >= 2.0**-10 * 1e-5 / rounds
    noise = NoiseRelease(Skellam(50.0), 20, 4 * 900, 4, 1)
    assert Sampled(noise, 0.1, 50, hidden=True).dominating_pairs[0].pairs(1e-9).lost == 0.0


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_absence_that_is_farther_than_updates_are_from_each_other_is_charged(rate):
    """Zeros need not be an update: then a client that takes part shows, and so does its update."""
    near, far = rq.GaussianRelease(1.0, 1, 1), rq.GaussianRelease(0.2, 1, 1, "central", "zero_out")
    run, delta = Sampled(near, rate, 1, absent=far), 1e-5
    x, step = np.linspace(-14, 20, 200001, retstep=True)
    absent, *laws = (np.exp(-((x - s) ** 2) / 2) * step / math.sqrt(2 * math.pi) for s in (0, 5, 4))
    first, second = ((1 - rate) * absent + rate * law for law in laws)
    assert stick(first, second, math.exp(rq.account([run], delta).epsilon)) <= delta * (1 + 1e-6)
    for order in (1.5, 4.0, 16.0):
        exact = math.log(float((first * (first / second) ** (order - 1)).sum())) / (order - 1)
        assert exact <= run.renyi(order)
    # The bound for laws of which any two are that near is far below.
    assert run.renyi(16.0) > 2 * Sampled(near, rate, 1).renyi(16.0)


@pytest.mark.parametrize(("draw", "relation"), WAYS)
def test_rates_at_which_delta_pays_for_every_test(draw, relation, monkeypatch):
    """Nothing is left to compare with noise: what bounds all tests is taken, and costs nothing.

    By pairs alone: Rényi bounds of such rates, which take longer, are in `test_sampled`.
    """
    monkeypatch.setattr(accountant, "_renyi_may_help", lambda *_: False)

    def make(neighboring):
        channel = rq.stochastic_rounding(clip=0.3, levels=2, margin=0.7)
        return rq.VectorRelease(channel, 1.0, 8, 1, "aggregate", neighboring, cohort=3)

    for rate in (1e-9, 1e-320):
        run = sampled(make, draw, relation, rate)
        assert run.dominating_pairs[0].pairs(1e-8) == run.dominating_pairs[0].pairs(0.0)
        assert 0 <= rq.account([run], 1e-5).epsilon < 1e-6
