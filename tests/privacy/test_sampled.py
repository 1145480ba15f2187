"""Amplified bounds against exact divergences of mixtures, enumerated subset by subset."""

import dataclasses
import itertools
import math
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import oracle
import pytest

import randquant as rq
from randquant.mechanisms import Skellam
from randquant.privacy import Mixture, NoiseRelease, ReleaseDefaults, Sampled, amplified
from randquant.privacy.accounting.sampling import LARGEST_ORDER, _log_binomial, _log_tilt

SHIFTS = (0, 1, 2, 3, 4, 6, 8, 12)
"""Of which each gives a bound of a remainder (theory/sampling.md, Proposition 8)."""
ORDERS = (1.0001, 1.05, 1.3, 1.9, 2.0, 2.5, 3.0, 3.5, 4.7, 8.0, 17.0, 60.5, math.inf)


def divergence(p, q, order):
    """Exact Rényi divergence of two laws of Fractions, rounded to the nearest float."""
    scale = math.lcm(*(w.denominator for w in (*p, *q)))
    return float(oracle.renyi([int(w * scale) for w in p], [int(w * scale) for w in q], order))


def curve(pairs):
    """The largest divergence of all pairs, both ways, as a function of the order."""
    known = {}

    def renyi(order):
        if order not in known:
            both = [(p, q) for pair in pairs for p, q in (pair, pair[::-1])]
            # Up, for the float nearest to a divergence may be below it.
            known[order] = max(divergence(p, q, order) for p, q in both) * (1 + 1e-15)
        return known[order]

    return renyi


def mixed(p, q, rate):
    return [(1 - rate) * a + rate * b for a, b in zip(p, q, strict=True)]


def random_law(generator, spread, outcomes=3):
    weights = np.exp(generator.normal(size=outcomes) * spread) * 1000 + 1
    whole = [int(w) for w in weights]
    return [Fraction(w, sum(whole)) for w in whole]


def triples(count):
    generator = np.random.default_rng(7)
    for _ in range(count):
        spread = 10 ** generator.uniform(-2, 0.5)
        a, p, other = (random_law(generator, spread) for _ in range(3))
        if generator.random() < 0.4:  # absence between the two
            a = mixed(p, other, Fraction(1, 2))
        yield a, p, other, Fraction(int(10 ** generator.uniform(0, 3.01)), 1024)


PLANTED = {
    "two remainders matter": (
        (0.008265, 0.982097, 0.009638),
        (0.024188, 0.022861, 0.952951),
        (0.878032, 0.016047, 0.105921),
        0.0011954848,
    ),
    "absence is rare where presence is not": ((999, 1), (500, 500), (1, 999), 1 / 128),
    "presence is rare where absence is not": ((500, 500), (999, 1), (1, 999), 1 / 128),
    "alike": ((356, 371, 273), (340, 380, 280), (372, 362, 266), 0.16),
}
"""Triples that show a missing part of the bound."""


def exactly(*laws, rate):
    parts = [[Fraction(w) / sum(map(Fraction, law)) for w in map(Fraction, law)] for law in laws]
    return (*parts, Fraction(rate))


CASES = {name: exactly(*laws, rate=rate) for name, (*laws, rate) in PLANTED.items()}
CASES |= {str(number): case for number, case in enumerate(triples(20))}


@pytest.mark.slow(after=6)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_mixtures_of_three_laws_are_within_the_bound(case):
    absent, present, other, rate = case
    replaced = curve(list(itertools.combinations((absent, present, other), 2)))
    zeroed = curve([(absent, present)])
    world, another = mixed(absent, present, rate), mixed(absent, other, rate)
    for order in ORDERS:
        exact = max(divergence(world, another, order), divergence(another, world, order))
        bound = amplified(replaced, float(rate), order, "replace_one")
        assert exact <= bound <= replaced(order) * (1 + 1e-12)
        away = curve([(absent, present), (absent, other)])
        assert exact <= amplified(replaced, float(rate), order, "replace_one", away) <= bound
        exact = max(divergence(world, absent, order), divergence(absent, world, order))
        bound = amplified(zeroed, float(rate), order, "zero_out")
        assert exact <= bound <= zeroed(order) * (1 + 1e-12)


@pytest.mark.parametrize(("deviation", "rate", "order"), [(1, 0.02, 2), (2, 0.5, 2), (4, 0.1, 8)])
def test_whoever_takes_an_absent_clients_place_may_be_as_far_as_two_clients(deviation, rate, order):
    """Under zero_out in cohorts of a fixed size: a stand-in at -1, the client at 1, zeros at 0."""
    x = np.linspace(-40, 40, 20001)

    def log_law(client):
        parts = [
            math.log(weight) - ((x - mean) / deviation) ** 2 / 2
            for weight, mean in ((1 - rate, -1), (rate, client))
        ]
        log = np.logaddexp(*parts)
        return log - np.logaddexp.reduce(log)

    p, q = log_law(1), log_law(0)
    exact = max(
        np.logaddexp.reduce(order * one + (1 - order) * other) / (order - 1)
        for one, other in ((p, q), (q, p))
    )
    to_zeros = rq.GaussianRelease(deviation, 1, 1, neighboring="zero_out")
    to_others = rq.GaussianRelease(deviation / 2, 1, 1)
    bound = Sampled(to_zeros, rate, 3, "fixed", absent=to_others).renyi(order)
    # With nobody in its place the client costs less than that.
    assert Sampled(to_zeros, rate, 3).renyi(order) < 3 * exact <= bound


@dataclasses.dataclass(frozen=True)
class Published(ReleaseDefaults):
    """A trusted server publishes how many of a cohort's randomised bits are set."""

    rows: tuple
    cohort: int
    rounds: int = 1
    trust: str = "central"
    neighboring: str = "replace_one"
    releases: int = 1
    distance: float = 0.0

    def law(self, bits):
        """Law of the number of ones that clients with these bits send."""
        law = [Fraction(1)]
        for bit in bits:
            one = self.rows[bit]
            stay, step = [*law, 0], [0, *law]
            law = [(1 - one) * a + one * b for a, b in zip(stay, step, strict=True)]
        return law

    def renyi(self, order):
        """Over everything that the others in the cohort may hold."""
        others = itertools.product((0, 1), repeat=self.cohort - 1)
        laws = [(self.law((0, *rest)), self.law((1, *rest))) for rest in others]
        return curve(laws)(order)


@pytest.mark.parametrize(("population", "cohort"), [(4, 1), (4, 2), (5, 2), (4, 4)])
def test_cohorts_of_a_fixed_size_are_within_the_bound(population, cohort):
    """Every cohort enumerated, for every set of bits and a client that changes its own."""
    release = Published((Fraction(3, 10), Fraction(7, 10)), cohort)
    sampled = Sampled.from_cohort(release, population, cohort, rounds=1)

    def law(bits):
        drawn = Counter(itertools.combinations(bits, cohort))
        total = math.comb(population, cohort)
        parts = [(count, release.law(cohort_bits)) for cohort_bits, count in drawn.items()]
        return [
            sum(Fraction(count, total) * part[k] for count, part in parts)
            for k in range(cohort + 1)
        ]

    for rest in itertools.combinations_with_replacement((0, 1), population - 1):
        exact = curve([(law((0, *rest)), law((1, *rest)))])
        for order in (1.5, 2.0, 5.0, math.inf):
            assert exact(order) * (1 - 1e-14) <= sampled.renyi(order)


@pytest.mark.parametrize("rate", [0.001, 0.25, 1.0])
def test_however_seldom_a_client_takes_part_every_rounds_draws_are_as_far_from_their_law(rate):
    """Whoever takes part draws noise: the law of each cohort is off, so their mixture is, too."""
    rows, off, rounds = (Fraction(3, 10), Fraction(7, 10)), 2.0**-30, 300
    sampled = Sampled(Published(rows, cohort=4, distance=off), rate, rounds)
    assert off * rounds <= sampled.distance <= off * rounds * (1 + 1e-12)
    # Whatever epsilon: a delta below the distance is used up by it.
    assert rq.account([sampled], 0.9 * off * rounds, quick=True).epsilon == math.inf


CHANNEL = rq.rqm(clip=1.0, margin=1.0, levels=4, keep=0.4)
GAUSSIAN = rq.GaussianRelease(1.0, 5, 1)
CLOSER = rq.GaussianRelease(2.0, 5, 1, neighboring="zero_out")


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
def test_hidden_participation_is_within_the_bound_for_whole_updates(neighboring):
    """Two coordinates, joint laws enumerated: one coin decides for both."""
    release = rq.ChannelRelease(CHANNEL, dimension=2, rounds=1, neighboring=neighboring)
    rate = Fraction(1, 8)
    sampled = Sampled(release, float(rate), rounds=1, hidden=True)

    def joint(x, y):
        rows = [[Fraction(int(w), total) for w in row] for row, total in map(CHANNEL.mix, (x, y))]
        return [a * b for a, b in itertools.product(*rows)]

    absent = joint(0.0, 0.0)
    inputs = (-1.0, 0.3, 1.0)
    worlds = [mixed(absent, joint(x, y), rate) for x, y in itertools.product(inputs, repeat=2)]
    if neighboring == "zero_out":
        pairs = [(world, absent) for world in worlds]
    else:
        pairs = list(itertools.combinations(worlds, 2))
    exact = curve(pairs)
    for order in (2.0, 3.0, 6.0):
        assert exact(order) <= sampled.renyi(order) <= 4 * exact(order)
        if (neighboring, order) == ("zero_out", 6.0):
            # Amplifying each coordinate by itself would promise what does not hold.
            one = rq.ChannelRelease(CHANNEL, dimension=1, rounds=1, neighboring="zero_out")
            apart = Sampled(one, float(rate), rounds=1, hidden=True)
            assert 2 * apart.renyi(order) < exact(order)


def test_whoever_takes_part_rarely_is_hidden_and_whoever_always_does_is_not():
    many, all_rounds = Sampled(GAUSSIAN, 0.01, 50), dataclasses.replace(GAUSSIAN, rounds=50)
    assert many.releases == 250
    assert rq.account([many], 1e-5).epsilon < rq.account([all_rounds], 1e-5).epsilon / 20
    assert Sampled(GAUSSIAN, 1.0, rounds=50).renyi(4.0) >= all_rounds.renyi(4.0)


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
@pytest.mark.parametrize("order", [1 + 2.0**-50, 1.5, 2.0, 255.9, LARGEST_ORDER, 257.0, 1e9])
def test_extremes_stay_proven_and_finite(neighboring, order):
    for rate in (5e-324, 1e-12, 0.3, 1 - 2.0**-53):
        assert amplified(lambda _: 0.0, rate, order, neighboring) <= 1e-300
        huge = amplified(lambda k: min(k, 1e6) * 1e6, rate, order, neighboring)
        # Chords over 25 % exceed a quadratic curve by (1.25 + 1/1.25 - 2)/4 of it, at most.
        assert 0 < huge <= min(order, 1e6) * 1e6 * (1 + 0.0125 * (order > 16) + 1e-9)
        assert amplified(lambda _: math.inf, rate, order, neighboring) == math.inf
        # A curve that ends: orders above 40 say nothing.
        ends = amplified(lambda k: k / 8 if k <= 40 else math.inf, rate, order, neighboring)
        assert (ends < math.inf) == (order <= 40)
    tiny = amplified(lambda k: 1e-30 * min(k, 1e9), 0.5, order, neighboring)
    assert 0 < tiny <= 1e-30 * order * (1 + 1e-12)


@pytest.mark.parametrize(
    ("release", "options", "message"),
    [
        (rq.ChannelRelease(CHANNEL, 5, 1), {}, "sees who takes part"),
        (rq.ChannelRelease(CHANNEL, 5, 1, "aggregate"), {}, "sees who takes part"),
        (rq.ChannelRelease(CHANNEL, 5, 1), {"scheme": "fixed"}, "sees who takes part"),
        (rq.ChannelRelease(CHANNEL, 5, 1), {"models": True}, "noise of absent clients"),
        (rq.ChannelRelease(CHANNEL, 5, 1, "aggregate"), {"models": True}, "noise of absent clie"),
        (rq.ChannelRelease(CHANNEL, 5, 1), {"scheme": "fixed", "hidden": True}, "poisson"),
        (
            dataclasses.replace(GAUSSIAN, neighboring="zero_out"),
            {"scheme": "fixed"},
            "another takes its place",
        ),
        (rq.GaussianRelease(1.0, 5, 2), {}, "rounds=1"),
        (Sampled(GAUSSIAN, 0.5, 1), {}, "multiply the rates"),
        (GAUSSIAN, {"absent": rq.GaussianRelease(2.0, 5, 1)}, "absent"),
        (
            GAUSSIAN,
            {"absent": CLOSER, "scheme": "fixed"},
            "absent",
        ),
        (GAUSSIAN, {"rate": 0}, "rate"),
        (GAUSSIAN, {"rate": 1.1}, "rate"),
        (GAUSSIAN, {"rounds": -1}, "rounds"),
        (GAUSSIAN, {"scheme": "shuffled"}, "scheme"),
        (GAUSSIAN, {"absent": dataclasses.replace(CLOSER, rounds=2)}, "rounds=1"),
        (GAUSSIAN, {"absent": dataclasses.replace(CLOSER, rounds=0)}, "rounds=1"),
        (GAUSSIAN, {"absent": dataclasses.replace(CLOSER, trust="local")}, "absent"),
        (dataclasses.replace(GAUSSIAN, neighboring="zero_out"), {"absent": CLOSER}, "absent"),
    ],
)
def test_what_is_not_proven_is_refused(release, options, message):
    with pytest.raises(ValueError, match=message):
        Sampled(release, **{"rate": 0.1, "rounds": 3, **options})


def moment(renyi, k):
    """V_k of the theory; the divergence of order 2 is above that of order 1."""
    if k == 1:
        return min(moment(renyi, 2), mpmath.mpf(renyi(2.0)))
    return mpmath.expm1((k - 1) * mpmath.mpf(renyi(float(k)))) / (k * (k - 1))


def between(renyi, order):
    """V of the whole orders around one, mixed."""
    least = int(mpmath.floor(order))
    upper = (order - least) * moment(renyi, least + 1) if order > least else 0
    return (1 + least - order) * moment(renyi, least) + upper


def convex(renyi, rate, order):
    """What M - 1 is at most by convexity in the rate alone."""
    if order < 2:
        return rate * mpmath.expm1((order - 1) * mpmath.mpf(renyi(float(order))))
    return rate * order * (order - 1) * between(renyi, order)


def theorem(renyi, rate, order):
    """`replace_one` as the theory states it, in mpmath: no logarithms, nothing rounded."""
    rate, order = mpmath.mpf(rate), mpmath.mpf(order)

    def tilt(y):
        return y**y / (1 + y) ** (1 + y) if y > 0 else mpmath.mpf(1)

    def remainder(x):
        return min(tilt(x + by) * moment(renyi, 2 + by) for by in SHIFTS)

    def weights(trials):
        least = int(mpmath.floor(trials))
        part = trials - least
        return [
            (1 - part) * mpmath.binomial(least, k) * rate**k * (1 - rate) ** (least - k)
            + part * mpmath.binomial(least + 1, k) * rate**k * (1 - rate) ** (least + 1 - k)
            if k <= least
            else part * rate**k
            for k in range(least + 2)
        ]

    main = sum(w * moment(renyi, k + 1) for k, w in enumerate(weights(order - 1)))
    rest = remainder(1 + rate * order) + remainder(rate * (order + 1))
    if order < 2:
        rest += remainder(rate * (2 - order))
    else:
        ws = enumerate(weights(order - 2))
        rest += sum(w * min(tilt(mpmath.mpf(by)) * moment(renyi, 2 + by + k) for by in SHIFTS)
                    for k, w in ws)  # fmt: skip
    joint = order * (order - 1) * rate**2 * (main + (1 - rate) * rest)
    return mpmath.log1p(min(joint, convex(renyi, rate, order))) / (order - 1)


def present(renyi, rate, order):
    """Of a world where the client may take part against one where it does not."""
    rate, order = mpmath.mpf(rate), mpmath.mpf(order)
    if order < 2:
        total = between(renyi, 2 - rate * (2 - order))
    else:
        least = int(order) - 2
        assert order == least + 2
        total = sum(
            mpmath.binomial(least, k) * rate**k * (1 - rate) ** (least - k) * moment(renyi, k + 2)
            for k in range(least + 1)
        )
    total = min(order * (order - 1) * rate**2 * total, convex(renyi, rate, order))
    return mpmath.log1p(total) / (order - 1)


def absent(renyi, rate, order):
    """Of a world without the client against one where it may take part."""
    rate, order = mpmath.mpf(rate), mpmath.mpf(order)
    total = order * (order - 1) * rate**2 * between(renyi, max(2, rate * (order + 1) - 1))
    total = min(total, convex(renyi, rate, order))
    return min(mpmath.log1p(total) / (order - 1), -mpmath.log1p(-rate))


def is_just_above(found, exact):
    return exact * (1 - mpmath.mpf(1e-15)) <= found <= exact * (1 + mpmath.mpf(1e-9))


@pytest.mark.parametrize("order", [1.05, 1.2, 1.5, 1.9, 2.0, 2.4, 2.9, 3.0, 8.0])
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.2, 0.7])
@pytest.mark.parametrize("noise", [0.7, 3.0])
def test_the_bounds_are_the_theorems_to_nine_digits(order, rate, noise):
    def gaussian(at):
        return min(at / (2 * noise**2), 1e3)

    def closer(at):
        return gaussian(at) / 4

    joint = theorem(gaussian, rate, order)
    assert is_just_above(amplified(gaussian, rate, order, "replace_one"), joint)
    if order > 2 and order != int(order):
        return  # the bounds by absence are stated here for whole orders
    ways = max(present(gaussian, rate, order), absent(gaussian, rate, order))
    assert is_just_above(amplified(gaussian, rate, order, "zero_out"), min(ways, joint))
    if 1.5 < order < 2:
        return  # twice the order less one is beyond 2 and no whole number
    first = 2 * mpmath.mpf(order) / (2 * order - 1) * present(closer, rate, 2 * order - 1)
    exact = min(joint, first + absent(closer, rate, 2 * order))
    assert is_just_above(amplified(gaussian, rate, order, "replace_one", closer), exact)


def test_absence_of_a_channels_client_is_known_without_being_given():
    release = rq.ChannelRelease(CHANNEL, dimension=2, rounds=1)
    zeroed = rq.ChannelRelease(CHANNEL, dimension=2, rounds=1, neighboring="zero_out")
    sampled = Sampled(release, 0.125, rounds=1, hidden=True)
    for order in (1.5, 3.0):
        told = amplified(release.renyi, 0.125, order, "replace_one", zeroed.renyi)
        untold = amplified(release.renyi, 0.125, order, "replace_one")
        assert sampled.renyi(order) == pytest.approx(told, rel=1e-12, abs=0)
        assert told < untold


@pytest.mark.parametrize("population", [3, 7, 10, 49, 1000])
def test_no_rate_of_a_fixed_size_is_below_its_fraction(population):
    for cohort in range(1, min(population, 60)):
        sampled = Sampled.from_cohort(GAUSSIAN, population, cohort, rounds=1)
        assert Fraction(cohort, population) <= Fraction(sampled.rate) < 1.0001 * cohort / population
    assert Sampled.from_cohort(GAUSSIAN, population, population, 2).rate == 1
    for wrong in (0, population + 1):
        with pytest.raises(ValueError, match="cohort"):
            Sampled.from_cohort(GAUSSIAN, population, wrong, rounds=2)
    with pytest.raises(ValueError, match="population"):  # a float64 does not count so far
        Sampled.from_cohort(GAUSSIAN, 2**53 + population, cohort=1, rounds=2)


def test_a_cohort_of_a_fixed_size_takes_a_stand_in_and_the_trust_of_models():
    """3 of 7 is no float: a rate that was divided by hand might be below the fraction."""
    summed = {
        relation: rq.VectorRelease(CHANNEL, 1.0, 2, 1, "aggregate", relation, cohort=3)
        for relation in ("zero_out", "replace_one")
    }
    release, stand_in = summed["zero_out"], summed["replace_one"]
    sampled = Sampled.from_cohort(release, 7, 3, rounds=5, absent=stand_in, models=True)
    assert Fraction(3, 7) <= Fraction(sampled.rate)
    assert sampled == Sampled(release, sampled.rate, 5, "fixed", absent=stand_in, models=True)
    with pytest.raises(ValueError, match="Expected absent for a zero_out release"):
        Sampled.from_cohort(release, 7, 3, rounds=5, models=True)


@pytest.mark.parametrize("rate", [1e-100, 0.01, 0.5, 0.999])
@pytest.mark.parametrize("trials", [1, 7, 60])
def test_weights_of_a_binomial_law_are_rounded_up(trials, rate):
    with mpmath.workdps(60):
        p = mpmath.mpf(rate)
        for k, found in enumerate(_log_binomial(trials, rate)):
            ways = mpmath.log(mpmath.binomial(trials, k))
            parts = ways, k * mpmath.log(p), (trials - k) * mpmath.log1p(-p)
            slack = mpmath.mpf(float(found)) - sum(parts)
            terms = 1 + sum(map(abs, parts))
            assert 10 * 2.0**-53 * terms <= slack <= 22 * 2.0**-53 * terms


@pytest.mark.parametrize("decay", [1e-9, 0.3, 2.0, 31.7, 255.45597998528066, 269.0])
def test_the_largest_remainder_is_rounded_up(decay):
    """Where the decay is large it multiplies the rounding of decay/(1 + decay): 146 units once."""
    with mpmath.workdps(60):
        exact = decay * mpmath.log(mpmath.mpf(decay) / (1 + mpmath.mpf(decay)))
        exact -= mpmath.log1p(mpmath.mpf(decay))
        assert exact <= mpmath.mpf(_log_tilt(decay)) <= exact + 1e-11


@pytest.mark.parametrize("order", [2.0, 6.0])
def test_a_stand_in_in_a_cohort_of_a_fixed_size_is_not_taken_for_zeros(order):
    """Who takes the place of an absent client may send what one of the two neighbours sends."""
    release = rq.ChannelRelease(CHANNEL, dimension=1, rounds=1)
    rate = Fraction(1, 8)
    sampled = Sampled(release, float(rate), rounds=1, scheme="fixed", models=True)
    first, second = (
        [Fraction(int(w), total) for w in row] for row, total in map(CHANNEL.mix, (1.0, -1.0))
    )
    exact = curve([(mixed(second, first, rate), second)])
    assert exact(order) <= sampled.renyi(order)
    untold = amplified(release.renyi, float(rate), order, "replace_one")
    assert sampled.renyi(order) == pytest.approx(untold, rel=1e-12, abs=0)


@pytest.mark.parametrize("release", [
    GAUSSIAN,
    NoiseRelease(Skellam(50.0), 20, 4 * 900, 4, 1),
    rq.VectorRelease(rq.stochastic_rounding(clip=0.5, levels=2, margin=4.0), 2.0, 64, 1),
], ids=lambda release: type(release).__name__)  # fmt: skip
def test_how_far_absence_is_counts_for_every_kind_of_noise(release):
    """Proposition 14 and 19: c and a, whatever dominates."""
    square = {"squared_distance": 900} if isinstance(release, NoiseRelease) else {}
    if release is GAUSSIAN:
        square = {"relative_deviation": 2.0}
    zeroed = dataclasses.replace(release, neighboring="zero_out", **square)
    a, c = (math.sqrt(one.squared_mu) for one in (release, zeroed))
    assert a == pytest.approx(2 * c, rel=1e-4)

    def shifts(*arguments, **options):
        one, _ = Sampled(*arguments, **options).dominating_pairs
        mixture = one if isinstance(one, Mixture) else one.pairs(lost=0.0)
        return mixture.directions[0][0]

    sent = {"hidden": True}
    assert shifts(release, 0.1, 5, absent=zeroed, **sent) == pytest.approx((c, c - a))
    assert shifts(zeroed, 0.1, 5, **sent) == pytest.approx((c, 0))
    models = {"scheme": "fixed", "models": True}
    assert shifts(release, 0.1, 5, **models) == pytest.approx((a, 0))
    assert shifts(zeroed, 0.1, 5, absent=release, **models) == pytest.approx((a, a - c), rel=1e-4)
    # A channel's zeros are known; of other releases nothing is, and absence may be anywhere.
    known = (c, c - a) if isinstance(release, rq.VectorRelease) else (a, 0)
    assert shifts(release, 0.1, 5, **sent) == pytest.approx(known)
