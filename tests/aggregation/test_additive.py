"""Integer noise on whole updates: rounding, range, the sum, and its guarantee end to end."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow import slow

from randquant.aggregation import (
    AdditiveMechanism,
    clip_to_norm,
    most_bits,
    round_within,
    squared_bound,
    squared_norm,
)
from randquant.channels import Key, wire
from randquant.mechanisms import BITS, NOISES
from randquant.privacy import account

ROOT = Key.from_seed(0)


def updates(clients: int, dimension: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((clients, dimension)).astype(np.float32)


@settings(max_examples=150)
@given(st.lists(st.floats(-4, 4), min_size=1, max_size=7))
def test_the_norm_bound_is_kept_and_rarely_in_the_way(steps):
    """All 2^d roundings, with their exact probabilities."""
    x = np.array(steps)
    bound = math.floor(squared_bound(float(np.linalg.norm(x)), x.size))
    within = Fraction(0)
    for up in itertools.product((0, 1), repeat=x.size):
        chance, norm = Fraction(1), 0
        for value, raised in zip(steps, up, strict=True):
            part = Fraction(value) - math.floor(value)
            chance *= part if raised else 1 - part
            norm += (math.floor(value) + raised) ** 2
        within += chance * (norm <= bound)
    assert within >= 1 - math.exp(-0.5)
    rounded = round_within(x, bound, ROOT)
    assert int(rounded @ rounded) <= bound
    assert np.abs(rounded - x).max() < 1


def test_a_tight_bound_is_met_by_repeating():
    x = np.full(8, 0.5)
    for attempt in range(50):
        rounded = round_within(x, 1, ROOT.fold_in(attempt))
        assert int(rounded @ rounded) <= 1
    assert (round_within(np.array([2.0, -3.0]), 13, ROOT) == [2, -3]).all()


@pytest.mark.parametrize("steps", [[2.0**32, 2.0**32], [2.0**33], [3.1e9] * 2, [-(2.0**40), 5.0]])
def test_a_norm_whose_square_is_beyond_64_bits_is_not_taken_for_a_small_one(steps):
    exact = sum(int(x) ** 2 for x in steps)  # modulo 2**64 the first two are 0
    x = np.array(steps)
    assert (round_within(x, exact, ROOT) == x).all()

    class Repeated(Exception):
        pass

    class Once:
        """A key that is asked for one rounding only."""

        def fold_in(self, attempt):
            if attempt > 0:
                raise Repeated
            return ROOT

    with pytest.raises(Repeated):
        round_within(x, exact - 1, Once())  # type: ignore[arg-type]


@settings(max_examples=50)
@given(st.lists(st.integers(-(2**40), 2**40), max_size=6), st.sampled_from([1, 3 * 2**19]))
def test_squares_are_summed_exactly(values, times):
    """Beyond one part's 2**20 coordinates too."""
    array = np.resize(np.array(values, dtype=np.int64), times if values else 0)
    whole, rest = divmod(len(array), max(len(values), 1))
    exact = whole * sum(v * v for v in values) + sum(v * v for v in values[:rest])
    assert squared_norm(array) == exact


def test_steps_that_no_plan_has_are_refused():
    for bad in (2.0**41, -1e300, math.inf, math.nan):
        with pytest.raises(ValueError, match="within"):
            round_within(np.array([1.0, bad]), 5, ROOT)


def test_rounding_is_unbiased():
    x = np.linspace(-2, 2, 41)
    total = sum(round_within(x, 10**6, ROOT.fold_in(k)) for k in range(4000))
    # A mean of 4000 coins deviates by at most 1/(2 sqrt 4000): six of them.
    assert np.abs(total / 4000 - x).max() < 3 / math.sqrt(4000)
    assert np.abs(total / 4000 - x).max() > 1e-4


@pytest.mark.parametrize("kind", NOISES)
def test_the_sum_is_modular_and_lifted_to_the_middle(kind):
    """Six bits and one deviation: sums do wrap around, and only their remainder is used."""
    mechanism = AdditiveMechanism(kind, 1.0, 2.0, 3, bits=8, deviations=1.0)
    x = updates(3, 30)
    payloads = [mechanism.encode(u, ROOT.fold_in(c)) for c, u in enumerate(x)]
    plan = mechanism.plan(30)
    codes = [wire.unpack(mechanism.coding, payload, 32) for payload in payloads]
    totals = np.sum(np.array(codes, dtype=object), axis=0)
    assert max(totals) >= 256
    lifted = np.array([(int(t) + 128) % 256 - 128 for t in totals], dtype=float)
    expected = mechanism.projection(30).inverse(lifted / (plan.scale * 3))
    assert np.abs(mechanism.mean(payloads, 30, ROOT) - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("setting", "value"),
    [("kind", "discrete-gaussian"), ("clip_norm", 2.0), ("noise_multiplier", 3.0), ("cohort", 3),
     ("bits", 9), ("deviations", 5.0), ("rotation_seed", 1)],
)  # fmt: skip
def test_payloads_of_other_settings_are_not_added(setting, value):
    mechanism = AdditiveMechanism("skellam", 1.0, 4.0, 2, bits=8)
    other = replace(mechanism, **{setting: value})
    own, strange = (
        m.encode(np.ones(5, np.float32), ROOT.fold_in(m.kind)) for m in (mechanism, other)
    )
    with pytest.raises(ValueError, match=r"^payload 1: Expected a payload of"):
        mechanism.mean([own, strange], 5)


@pytest.mark.parametrize("bits", [10, 16, 20])
def test_sums_stay_within_their_range_at_the_worst_signal(bits):
    clients, dimension = 20, 2000
    mechanism = AdditiveMechanism("discrete-gaussian", 1.0, 0.2, clients, bits)
    plan = mechanism.plan(dimension)
    assert plan.deviation * 6 <= 2 ** (bits - 1) * (1 + 1e-9)
    x = clip_to_norm(updates(1, dimension)[0], 1.0)  # every client sends the same
    totals = np.zeros(2048, dtype=np.int64)
    for client in range(clients):
        key = ROOT.fold_in(client)
        steps = mechanism.projection(dimension).rotation.forward(x) * plan.scale
        totals += round_within(steps, plan.bound, key) + plan.noise.draw(2048, key)
    assert totals.std() <= plan.deviation * (1 + 6 * math.sqrt(0.5 / 2048))
    assert np.abs(totals).max() < 2 ** (bits - 1)
    assert totals.std() >= 0.9 * plan.deviation


def masses(noise) -> dict[int, Fraction]:
    """What one draw's table gives, in whole multiples of 2^-192 (Skellam: two tables)."""
    table = noise._table()
    thresholds = [
        int(high) << (BITS - 64) | low for high, low in zip(table.high, table.low, strict=True)
    ]
    ends = [0, *thresholds, 1 << BITS]
    one = {table.first + k: b - a for k, (a, b) in enumerate(itertools.pairwise(ends))}
    if not hasattr(noise, "trials") and table.first == 0:  # Poisson
        return convolved(one, {-k: mass for k, mass in one.items()})
    return one


def convolved(a: dict, b: dict) -> dict:
    result: dict = {}
    for (j, p), (k, q) in itertools.product(a.items(), b.items()):
        result[j + k] = result.get(j + k, 0) + p * q
    return result


@pytest.mark.parametrize(
    "kind", [*(kind for kind in NOISES if kind != "binomial"), *slow("binomial")]
)
def test_the_guarantee_holds_for_the_modular_sum_that_is_really_sent(kind):
    """One coordinate: every outcome's exact chance, from the tables that noise is drawn from."""
    cohort, bits = (6, 9) if kind == "binomial" else (2, 7)
    mechanism = AdditiveMechanism(kind, 1.0, 3.0, cohort, bits, deviations=3.0)
    modulus = 1 << bits
    plan = mechanism.plan(1)
    noise = {0: 1}
    if kind == "binomial":
        total = plan.noise.trials * cohort
        noise = {k - total // 2: math.comb(total, k) for k in range(total + 1)}
    else:
        noise = convolved(masses(plan.noise), masses(plan.noise))
    wrapped = [0] * modulus
    for k, mass in noise.items():
        wrapped[k % modulus] += mass
    whole = sum(wrapped)
    assert 1 <= cohort * float(plan.noise.variance) / (4 * 1.5**2 * plan.bound) < 1.05
    reach = math.isqrt(plan.bound)
    assert reach >= 3
    delta = Fraction(1, 1000)
    epsilon = account([mechanism.release(1, 1)], float(delta)).epsilon
    assert epsilon < 12

    def worst(epsilon: float) -> Fraction:
        top, bottom = math.exp(epsilon).as_integer_ratio()
        excess = max(
            sum(max(0, bottom * p - top * wrapped[k - s]) for k, p in enumerate(wrapped))
            for s in {min(2 * reach, modulus // 2), reach, 1}
        )
        return Fraction(excess, bottom * whole)

    assert worst(epsilon) <= delta
    assert worst(0.7 * epsilon) > delta  # the test can fail


def test_too_few_bits_say_how_many_are_needed():
    mechanism = AdditiveMechanism("skellam", 1.0, 10.0, cohort=40, bits=8)
    with pytest.raises(ValueError, match=r"bits > 11\.\d"):
        mechanism.plan(1000)
    AdditiveMechanism("skellam", 1.0, 10.0, cohort=40, bits=12).plan(1000)
    with pytest.raises(ValueError, match="noise variance"):
        AdditiveMechanism("discrete-gaussian", 1.0, 2e-6, cohort=1000).plan(10)


@pytest.mark.parametrize("kind", ["skellam", "discrete-gaussian", "binomial"])
@pytest.mark.parametrize("cohort", [1, 2, 10, 100])
@pytest.mark.parametrize("bits", [20, 22, 24])
def test_too_many_bits_say_how_many_will_do(kind, cohort, bits):
    """With as many as the message names there is a plan; with one more there is none."""
    mechanism = AdditiveMechanism(kind, 1.0, 100.0, cohort, bits=bits)
    fewer = most_bits(cohort)
    assert 18 <= fewer <= 21
    if bits > fewer:
        with pytest.raises(ValueError, match=rf"with bits={bits} and .* use {fewer} bits\.$"):
            mechanism.plan(1000)
    assert 2**27 < replace(mechanism, bits=fewer).plan(1000).noise.variance <= 2**30 + 2
    with pytest.raises(ValueError, match=f"use {fewer} bits"):
        replace(mechanism, bits=fewer + 1).plan(1000)


def test_noise_too_wide_for_any_number_of_bits_says_so():
    mechanism = AdditiveMechanism("skellam", 1.0, 2e5, cohort=2, bits=24)
    with pytest.raises(ValueError, match="lower noise_multiplier, or raise cohort"):
        mechanism.plan(16)
