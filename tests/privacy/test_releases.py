"""What a release states, recomputed in fractions from what it rests on: certificates and noise."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import oracle  # noqa: F401 - figures of 60 digits
import pytest
from mpmath import mpf

import randquant as rq
from randquant.aggregation import (
    AdditiveMechanism,
    CentralGaussian,
    ClippedSGD,
    LocalGaussian,
    SignSGD,
    round_within,
)
from randquant.channels import Key
from randquant.mechanisms import Binomial, DiscreteGaussian, Skellam
from randquant.privacy import (
    ChannelRelease,
    GaussianRelease,
    NoiseRelease,
    VectorRelease,
    certify_sum,
    kappa_sum,
    shift_divergence,
    squared_distance,
)

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
    release = ChannelRelease(BIT, 4, 2, "aggregate", neighboring, cohort=3)
    upper = certify_sum(BIT, 3, 2.0, neighboring).epsilon.upper
    assert is_just_above(release.renyi(2.0), 8 * Fraction(upper))


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
            moved = math.sqrt(squared_distance(BIT, 0.0, 1))
            ends = 2 * BIT.clip if neighboring == "replace_one" else BIT.clip + moved
            reach = min(math.sqrt(squared_distance(BIT, float(apart), 1)), ends)
            code = rq.kappa(BIT, order, neighboring, reach)
            sums = kappa_sum(BIT, cohort, order, neighboring, reach)
            kappa = Fraction(min(sums.upper, code.upper))
            square = min((apart + root * widest / 2**32) ** 2, 40 * Fraction(ends) ** 2)
            bounds.append(kappa * square)
        least = 3 * min(bounds)
        # The encoder's rounding is bounded within 2^-17 of itself.
        found = Fraction(release.renyi(order))
        assert least * (1 - HAIR) <= found <= least * (1 + Fraction(1, 2**15))


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


@pytest.mark.parametrize("margin", [0.01, 0.05])
def test_means_that_differ_in_one_gradient_of_zero_are_both_anything(margin):
    """Of ten gradients one is 1/2 everywhere, or zero: means are 0.025 or -0.025 everywhere."""
    channel = rq.stochastic_rounding(clip=0.01, levels=2, margin=margin)
    release = VectorRelease(channel, 1.0, 4, 1, neighboring="zero_out", examples=10)
    others = -0.25 / 9  # of each coordinate of nine gradients
    means = (9 * others + 0.5) / 10, 9 * others / 10
    assert 0.1 <= np.linalg.norm(4 * [means[0] - means[1]]) <= release.sensitivity
    ends = (float(np.clip(mean, -0.01, 0.01)) for mean in means)
    exact = 4 * rq.certify_pair(channel, *ends).epsilon.lower
    assert (
        release.renyi(math.inf)
        >= exact
        > 1.5 * 4 * rq.certify(channel, neighboring="zero_out").epsilon.upper
    )
    assert rq.account([release], 1e-9).epsilon >= 0.99 * exact  # that loss is likely


@pytest.mark.parametrize("examples", [1, 10, 10**6])
def test_one_example_of_many_is_that_many_times_closer_and_a_rounding(examples):
    share = min(Fraction(1, examples) + Fraction(1, 2**20), Fraction(1))
    gaussian = CentralGaussian(None, 6.0, 1.0).example_release(5, 2, "replace_one", examples)
    assert gaussian.relative_deviation <= 3 / share <= gaussian.relative_deviation * (1 + HAIR)
    vector = VectorRelease(BIT, 1.0, 40, 3, examples=examples)
    square = squared_distance(BIT, float(2 * share), 40)
    assert vector.renyi(2.0) >= 3 * kappa_sum(BIT, 1, 2.0).upper * square * (1 - 1e-12)
    assert vector.renyi(2.0) <= 3 * kappa_sum(BIT, 1, 2.0).upper * square * (1 + 1e-12)


@pytest.mark.parametrize("coordinates", [None, 4])
def test_one_example_of_integer_noise_pays_for_rounding_and_may_lie_in_what_is_sent(coordinates):
    """Each coordinate of two means is rounded by less than a step; a subset hides no gradient."""
    mechanism = AdditiveMechanism("skellam", 1.0, 8.0, cohort=4, bits=18, coordinates=coordinates)
    plan, size = mechanism.plan(16), coordinates or 16
    one = mechanism.example_release(16, 3, "replace_one", 100)
    apart, rounding = 2 * plan.scale / 100, 2 * math.sqrt(size)
    assert (apart + rounding) ** 2 < one.squared_distance
    assert one.squared_distance < (apart * (1 + 100 * 2**-19) + rounding) ** 2 + 1
    assert (one.unit, one.rounds) == ("example", 3)
    # On a coarse grid rounding is all there is, and no more than a whole client.
    coarse = AdditiveMechanism("skellam", 1.0, 2.0, cohort=4, bits=7, coordinates=coordinates)
    whole = coarse.release(16, 1).squared_distance
    assert coarse.example_release(16, 1, "replace_one", 1).squared_distance == whole
    assert coarse.example_release(16, 1, "replace_one", 10**9).squared_distance <= whole


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


# Factors and margins of noise.


ROOT = Key.from_seed(0)


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
    for cohort, multiplier in itertools.product((3, 7, 10, 49, 333), (0.2, 1.4, 2.2, 6.6)):
        mechanism = AdditiveMechanism(kind, 1.0, multiplier, cohort, bits=16)
        plan = mechanism.plan(100)
        noise = Fraction(plan.noise.variance) * cohort
        assert noise >= Fraction(multiplier) ** 2 * plan.bound
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
    CentralGaussian(None, 3.0, clip_norm=2.0), LocalGaussian(2.0, 3.0), SignSGD(2.0, 3.0),
])  # fmt: skip
def test_zeros_are_half_as_far_as_the_opposite_update(mechanism):
    found = [mechanism.release(5, 1, n).relative_deviation for n in ("replace_one", "zero_out")]
    assert found == [1.5, 3.0]


@pytest.mark.parametrize("clip", [0.1, 0.3, 1 / 3, 1e-3, 7.7])
def test_what_is_sent_is_within_the_threshold_although_a_float32(clip):
    sent = np.frombuffer(ClippedSGD(clip=clip).encode(np.array([1e9, -1e9]), ROOT), "<f4")
    assert [abs(Fraction(float(v))) <= Fraction(clip) for v in sent] == [True, True]
    assert np.abs(sent).min() >= clip * (1 - 2.0**-22)
