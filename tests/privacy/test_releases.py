"""What a release states, recomputed in fractions from the certificates that it rests on."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from seldom import seldom
from whole import over_square, summed

import randquant as rq
from randquant.mechanisms.noise.laws import Skellam
from randquant.privacy.accounting.examples import of_one_example
from randquant.privacy.accounting.integer_noise import NoiseRelease
from randquant.privacy.accounting.releases import (
    ChannelRelease,
    GaussianRelease,
    VectorRelease,
)
from randquant.privacy.certificates.noise import shift_divergence
from randquant.privacy.certificates.sums.certificate import certify_sum
from randquant.privacy.certificates.sums.sum_curvature import kappa_sum
from randquant.privacy.certificates.vector import squared_distance

RQM = rq.rqm(clip=1.5, margin=1.5, levels=5, keep=0.42)
BIT = rq.stochastic_rounding(clip=0.25, levels=2, margin=1.75)
HAIR = Fraction(1, 10**12)


def is_just_above(found: float, exact: Fraction | float) -> bool:
    """Whether a bound is not below what it bounds, and above it by rounding only."""
    exact = Fraction(exact)
    return exact <= Fraction(found) <= exact * (1 + HAIR)


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
@pytest.mark.parametrize("order", [2.0, math.inf])
def test_coordinates_and_rounds_of_a_channel_add_up(neighboring, order):
    release = ChannelRelease(RQM, 7, 3, neighboring=neighboring)
    one = rq.certify(RQM, order, neighboring).epsilon.upper
    assert is_just_above(release.renyi(order), 21 * Fraction(one))
    assert release.releases == 21
    assert (
        rq.certify(RQM, order, "zero_out").epsilon.upper
        < 0.9 * rq.certify(RQM, order).epsilon.lower
    )


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
def test_a_sum_counts_the_clients_it_has(neighboring):
    """Two levels: the others send bits; the worst of them are all one way or the other."""
    release = ChannelRelease(BIT, 4, 2, "aggregate", neighboring, cohort=3)
    upper = certify_sum(BIT, 3, 2.0, neighboring).epsilon.upper
    assert is_just_above(release.renyi(2.0), 8 * Fraction(upper))
    rows = BIT.weights.tolist()
    inputs = [*rows, BIT.mix(0.0)[0].tolist()]
    pairs = itertools.permutations(inputs[:2] if neighboring == "replace_one" else inputs, 2)
    exact = 0
    for p, q in pairs:
        if neighboring == "zero_out" and inputs[2] not in (p, q):
            continue
        for others in itertools.combinations_with_replacement(rows, 2):
            laws = (summed([each, *others]) for each in (p, q))
            exact = max(exact, over_square(*laws, 2.0, 1))
    assert exact * (1 - 1e-12) <= upper <= exact * 1.01


@pytest.mark.parametrize("make", [
    lambda trust, cohort: ChannelRelease(BIT, 4, 2, trust, cohort=cohort),
    lambda trust, cohort: VectorRelease(BIT, 1.0, 4, 2, trust, cohort=cohort),
])  # fmt: skip
def test_nobody_counts_on_others_whose_codes_are_seen_one_by_one(make):
    with pytest.raises(ValueError, match="cohort=1 under local trust, got 3"):
        make("local", 3)
    assert make("aggregate", 3).renyi(2.0) < make("local", 1).renyi(2.0)
    assert make("aggregate", 3).under("local") == make("local", 1)


@pytest.mark.parametrize(("neighboring", "worlds"), [("replace_one", 2), ("zero_out", 1)])
@pytest.mark.parametrize("clip_norm", [1e-25, 0.01, 1.0, 1e6])
@pytest.mark.parametrize("cohort", [1, 3])
def test_whole_updates_cost_the_least_of_three_bounds(neighboring, worlds, clip_norm, cohort):
    trust = "local" if cohort == 1 else "aggregate"
    release = VectorRelease(BIT, clip_norm, 40, 3, trust, neighboring, cohort)
    apart, clip = worlds * Fraction(clip_norm), Fraction(BIT.clip)
    widest, root = Fraction(float(np.diff(BIT.inputs).max())), Fraction(math.sqrt(40))
    steepest = Fraction(rq.certify_metric(BIT, "l1").epsilon.upper) / clip
    pure = Fraction(rq.certify(BIT, math.inf, neighboring).epsilon.upper)
    in_l1 = apart * root + widest * 40 / 2**32
    for order in (1.5, 8.0, math.inf):
        bounds = [40 * pure, steepest * in_l1]
        if order < math.inf:
            kappa = Fraction(kappa_sum(BIT, cohort, order).upper)
            bounds.append(kappa * (apart + root * widest / 2**32) ** 2)
        least = 3 * min(bounds)
        # The encoder's rounding is bounded within 2^-17 of itself.
        assert (
            least * (1 - HAIR) <= Fraction(release.renyi(order)) <= least * (1 + Fraction(1, 2**15))
        )


@pytest.mark.parametrize(("neighboring", "far"), [("replace_one", -1), ("zero_out", 0)])
def test_two_updates_at_the_largest_distance_are_within_the_bound_and_close(neighboring, far):
    update, other = np.full(4, 0.05), far * np.full(4, 0.05)  # 0.1 long
    release = VectorRelease(BIT, 0.1, 4, 2, neighboring=neighboring)
    for order in (2.0, 8.0):
        exact = 2 * sum(
            rq.certify_pair(BIT, x, y, order).epsilon.lower
            for x, y in zip(update, other, strict=True)
        )
        assert exact <= release.renyi(order) <= 1.1 * exact


@pytest.mark.parametrize("examples", [1, 10, 10**6])
def test_one_example_of_many_is_that_many_times_closer_and_a_rounding(examples):
    share = Fraction(1, examples) + Fraction(1, 2**20)
    gaussian = of_one_example(GaussianRelease(3.0, 5, 2), examples)
    assert gaussian.noise_multiplier <= 3 / share <= gaussian.noise_multiplier * (1 + HAIR)
    vector = of_one_example(VectorRelease(BIT, 1.0, 40, 3), examples)
    square = squared_distance(BIT, float(2 * share), 40)
    assert vector.renyi(2.0) >= 3 * kappa_sum(BIT, 1, 2.0).upper * square * (1 - 1e-12)
    assert vector.renyi(2.0) <= 3 * kappa_sum(BIT, 1, 2.0).upper * square * (1 + 1e-12)
    assert of_one_example(None, examples) is None


def test_one_example_is_bounded_in_l2_only():
    with pytest.raises(ValueError, match="norm in L2"):
        of_one_example(ChannelRelease(BIT, 4, 2), 10)


def test_one_example_of_integer_noise_pays_for_rounding():
    """Of two means that are 1/n as far apart, each coordinate is rounded by less than a step."""
    steps, dimension = 10**6, 16
    noise = NoiseRelease(Skellam(1e9), 4, (2 * steps) ** 2, dimension, 3, longest=steps)
    one = of_one_example(noise, 100)
    apart = 2 * steps / 100
    assert (apart + 8) ** 2 < one.squared_distance < (apart + 2 * steps * 2**-19 + 8) ** 2
    assert (one.unit, one.rounds, one.longest) == ("example", 3, 0)
    # On a coarse grid rounding is all there is, and no more than a whole client.
    coarse = NoiseRelease(Skellam(100.0), 40, 400, 16, 3)
    assert of_one_example(coarse, 10**9).squared_distance in range(64, 66)
    assert of_one_example(coarse, 1).squared_distance == 400
    # Every pair of roundings of two such means lies within it.
    rng = np.random.default_rng(0)
    for _ in range(200):
        x = rng.normal(size=dimension) * steps / 8
        away = rng.normal(size=dimension)
        y = x + away / np.linalg.norm(away) * apart
        gap = max(
            np.square(np.ceil(y) - np.floor(x)).sum(), np.square(np.ceil(x) - np.floor(y)).sum()
        )
        assert gap <= one.squared_distance


def test_a_gaussian_costs_what_it_does():
    for rounds, multiplier, order in ((1, 3.0, 2.0), (7, 0.3, 1.5), (3, 1e-3, 64.0)):
        exact = rounds * Fraction(order) / (2 * Fraction(multiplier) ** 2)
        assert is_just_above(GaussianRelease(multiplier, 5, rounds).renyi(order), exact)


def test_noise_counts_the_clients_the_coordinates_and_the_rounds():
    release = NoiseRelease(Skellam(50.0), 20, 400, 6, 3)
    noise = release.noise
    one = shift_divergence(noise.curvature(20), noise.spread(20), 400, 4.0)
    assert is_just_above(release.renyi(4.0), 3 * Fraction(one))
    assert is_just_above(release.distance, 18 * Fraction(noise.distance(20)))
    assert release.distance > 0
    # Noise of variance 1000 against a squared distance of 400, nearly a Gaussian's.
    assert 1 < release.renyi(4.0) / (3 * 4.0 * 400 / (2 * 1000)) < 1.05


@pytest.mark.parametrize("order", [2, *seldom(8, 32)])
def test_one_example_in_a_sum_is_bounded_by_exact_enumeration(order):
    """Of three clients' bits, whatever the others hold; their means are 2 clip_norm / n apart."""
    channel, examples = rq.stochastic_rounding(clip=0.5, levels=2, margin=0.1), 10
    mechanism = rq.VectorMechanism(channel, clip_norm=0.5, trust="aggregate", cohort=3)
    bound = mechanism.release(1, 1).of_one_example(examples).renyi(order)
    apart, worst = 2 * 0.5 / examples, 0.0

    def law(*inputs):
        total = np.ones(1)
        for x in inputs:
            one = (x + 0.6) / 1.2  # of the upper code, by linear interpolation
            total = np.convolve(total, [1 - one, one])
        return total

    for x in np.linspace(-0.5, 0.5 - apart, 9):
        for others in itertools.combinations_with_replacement(np.linspace(-0.5, 0.5, 5), 2):
            p, q = law(x, *others), law(x + apart, *others)
            for one, other in ((p, q), (q, p)):
                divergence = np.log(np.sum(one**order * other ** (1.0 - order))) / (order - 1)
                worst = max(worst, divergence)
    assert worst <= bound
    assert worst >= bound / 3  # the bound is of this size
