"""Sums of codes: against brute force in exact fractions, and against attacks to 60 digits."""

import dataclasses
import functools
import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf
from slow import slow
from strategies import channels
from whole import summed

import randquant as rq
from randquant.privacy import UNIT, Law, LogBinomial, Rows, attained, log_trimmed, product
from randquant.privacy.certificates.sum_laws import log_moments

ORDERS = [1.01, 2.0, 3.5, 8.0, 40.0, math.inf]


@pytest.fixture(scope="module")
def paper():
    return rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)


@pytest.fixture(scope="module")
def binomial():
    return rq.pbm(clip=1.0, theta=0.25, trials=15)


def divergence(channel, x, other, others, order):
    """Of the sum with these inputs, to 60 digits; inputs as rows of integers."""
    noise = summed(others)
    return oracle.renyi(summed([noise, x]), summed([noise, other]), order)


def brute_force(channel, clients, order, neighboring="replace_one"):
    """The worst pair of vertices behind the worst vertices, by trying them all."""
    rows = [tuple(int(w) for w in row) for row in np.unique(channel.weights, axis=0)]
    if neighboring == "replace_one":
        pairs = list(itertools.permutations(rows, 2))
    else:
        zero, total = channel.mix(0.0)
        scale = total // channel.denominator
        zero = tuple(int(w) for w in zero)
        ends = [tuple(w * scale for w in row) for row in rows]
        pairs = [pair for row in ends for pair in ((row, zero), (zero, row))]
    return max(
        (
            divergence(channel, x, other, others, order)
            for others in itertools.combinations_with_replacement(rows, clients - 1)
            for x, other in pairs
        ),
        default=mpmath.mpf(0),
    )


@settings(max_examples=25, deadline=None)
@given(
    channels().filter(lambda c: c.levels <= 5 and len(c.inputs) <= 4),
    st.integers(1, 4),
    st.sampled_from(ORDERS),
    st.sampled_from(["replace_one", "zero_out"]),
)
def test_brute_force_lies_in_the_interval(channel, clients, order, neighboring):
    found = rq.certify_sum(channel, clients, order, neighboring)
    exact = brute_force(channel, clients, order, neighboring)
    assert found.epsilon.lower <= exact <= found.epsilon.upper
    if found.method == "exhaustive" and math.isfinite(found.epsilon.upper):
        assert found.epsilon.upper <= exact + 1e-9 / min(order - 1, 1)


def test_the_attack_is_one(paper):
    """The witness and the others, put through the exact channel, lose what is said."""
    for order in (2.0, 8.0, math.inf):
        found = rq.certify_sum(paper, 5, order)
        others = [paper.mix(x)[0] for x, count in found.others.items() for _ in range(count)]
        assert len(others) == 4
        x, other = (paper.mix(value)[0] for value in found.witness)
        exact = divergence(paper, x, other, others, order)
        assert found.epsilon.lower <= exact
        assert found.epsilon.lower == pytest.approx(float(exact), rel=1e-9, abs=0)


@pytest.mark.parametrize(("others", "order"), [(99, 32.0), *slow((60, 64.0), (400, 64.0))])
def test_the_attack_knows_sums_that_hardly_ever_occur(paper, others, order):
    """At high orders they decide: no tail that counts is left out, and nothing is counted twice."""
    rows = Rows.from_channel(paper, "replace_one")
    found = rq.certify_sum(paper, others + 1, order).epsilon
    exact = []
    # Numbers down to 1e-4900: nothing is lost.
    own = rows.weights.astype(np.longdouble) / rows.total
    for vertex in (0, 1):
        beside = functools.reduce(np.convolve, [own[vertex]] * others)
        p, q = (np.convolve(beside, own[end]) for end in (0, -1))
        exact += [np.log((a * (a / b) ** (order - 1)).sum()) for a, b in ((p, q), (q, p))]
    assert found.lower * (order - 1) == pytest.approx(float(max(exact)), rel=1e-6)


@pytest.mark.slow
def test_a_million_clients(paper):
    found = rq.certify_sum(paper, 10**6, 2.0)
    assert 0 == found.epsilon.lower < found.epsilon.upper < 2e-4  # 2^17 of them are counted


def test_one_client_is_certify(paper):
    for order in ORDERS:
        assert rq.certify_sum(paper, 1, order).epsilon == rq.certify(paper, order).epsilon


def test_pure_epsilon_may_not_fall_at_all(paper, binomial):
    """The least sum is sent only if every client sends its least code: nothing is hidden."""
    found = rq.certify_sum(binomial, 1000)
    assert found.method == "one client"
    assert found.epsilon.lower == pytest.approx(rq.certify(binomial).epsilon.upper, rel=1e-9, abs=0)
    assert rq.certify_sum(paper, 3).epsilon.upper <= rq.certify(paper).epsilon.upper


def test_infinite_where_a_code_gives_a_client_away():
    channel = rq.stochastic_rounding(clip=1.0, levels=4)
    found = rq.certify_sum(channel, 5, 2.0)
    assert found.epsilon.lower == found.epsilon.upper == math.inf


@pytest.mark.parametrize("order", [1e5, 1e8, 1e12])
def test_great_orders_are_finite(paper, order):
    found = rq.certify_sum(paper, 4, order).epsilon
    assert 0 < found.lower <= found.upper <= rq.certify(paper).epsilon.upper * (1 + 1e-12)


# --- the parts ---


@settings(max_examples=60, deadline=None)
@given(channels(), st.integers(1, 6))
def test_convolutions_stay_within_their_error(channel, clients):
    row = channel.weights[0]
    law = product([Law.from_weights(row, channel.denominator)], [clients])
    exact = [Fraction(w, channel.denominator**clients) for w in summed([row] * clients)]
    exact = exact[next(i for i, w in enumerate(exact) if w) :][: len(law)]
    for mantissa, exponent, truth in zip(law.mantissa, law.exponent, exact, strict=False):
        value = Fraction(float(mantissa)) * Fraction(2) ** int(exponent) if mantissa else 0
        assert abs(value - truth) <= truth * Fraction(law.error * UNIT)


def test_deep_powers_do_not_underflow():
    row, total = np.array([1, 2**40 - 2, 1]), 2**40
    law = Law.from_weights(row, total).power(60)
    assert len(law) == 121
    first = mpmath.log(float(law.mantissa[0]), 2) + int(law.exponent[0])
    assert float(first) == pytest.approx(-2400, abs=1e-9)
    exact = summed([row] * 60)
    for mantissa, exponent, truth in zip(law.mantissa, law.exponent, exact, strict=True):
        value = Fraction(float(mantissa)) * Fraction(2) ** int(exponent)
        assert abs(value / Fraction(truth, total**60) - 1) <= Fraction(law.error * UNIT)
    assert len(set(law.exponent.tolist())) > 3
    trimmed = Law.from_weights(row, total, floor=100.0).power(60)
    left_out = 121 - len(trimmed)
    assert 0 < left_out <= trimmed.trimmed * 1e6


@settings(max_examples=40, deadline=None)
@given(channels(), st.integers(0, 5), st.sampled_from(ORDERS))
def test_moments_of_a_pair_are_bounded_from_both_sides(channel, others, order):
    rows = Rows.from_channel(channel, "replace_one")
    p, q = rows.weights[0], rows.weights[-1]
    noise = Law.from_weights(rows.weights[0], rows.total).power(others)
    p_row, q_row = (row / rows.total for row in (p, q))
    lower = attained(noise, p_row, q_row, order)
    upper = float(log_moments(noise, p_row[None], q_row[None], order)[0][0, 0])
    exact = divergence(channel, p, q, [p] * others, order)
    assert lower <= exact * (1 if math.isinf(order) else mpmath.mpf(order) - 1) <= upper


def test_tiny_divergences_keep_their_digits():
    channel = rq.stochastic_rounding(1.0, 2, 1e5)
    found = rq.certify_sum(channel, 300, 2.0).epsilon
    assert 0 < found.lower <= found.upper
    assert found.upper < (1 + 1e-3) * found.lower


@pytest.mark.parametrize("rows", [
    [[3, 248, 5], [125, 4, 127], [127, 2, 127], [127, 4, 125], [5, 248, 3]],
    [[9, 5, 2], [7, 2, 7], [9, 5, 2], [2, 5, 9], [7, 2, 7], [2, 5, 9]],
])  # fmt: skip
def test_mirrored_channels_whose_rows_have_equal_means_or_come_twice(rows):
    """Rows stand in the order of their means, which two that are no mirror images may share."""
    inputs = np.linspace(-1.0, 1.0, len(rows))
    channel = rq.Channel(inputs, np.arange(3.0), np.array(rows), sum(rows[0]))
    for order in (2.0, math.inf):
        found = rq.certify_sum(channel, 4, order).epsilon
        assert found.lower <= brute_force(channel, 4, order) <= found.upper
        assert found.upper == pytest.approx(found.lower, rel=1e-9)


# What rounding, and what is trimmed, may have hidden.


BIT = rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0)
SKEWED = rq.Channel(
    np.array([-1.0, 1.0]), np.array([-2.0, 0.0, 2.0]), np.array([[5, 2, 1], [1, 3, 4]]), 8
)


def test_factors_of_a_law_hand_on_their_errors_and_what_they_trimmed():
    first = dataclasses.replace(Law.from_weights(np.array([1, 3]), 4, 50.0), error=7.0, trimmed=2.0)
    second = dataclasses.replace(
        Law.from_weights(np.array([1, 2, 1]), 4, 40.0), error=11.0, trimmed=5.0
    )
    for found in (first * second, second * first):
        assert found.error >= 7 + 11 + 2 + 1
        assert found.trimmed == 7.0
        assert found.floor == 40.0


def test_what_is_trimmed_is_so_many_entries_below_the_floor():
    for count, floor in ((1.0, 90.0), (500.0, 90.0), (3.0, 1e3)):
        found = log_trimmed(count, floor)
        exact = mpmath.log(count) - mpf(floor) * mpmath.log(2)
        assert exact <= found <= exact + 1
    assert log_trimmed(0, 90.0) == -math.inf


@settings(max_examples=30)
@given(st.integers(1, 400), st.integers(1, 999))
def test_groups_of_a_binomial_are_a_partition_with_its_masses(trials, share):
    law = oracle.binomial_row(trials, Fraction(share, 1000))
    chances = LogBinomial.from_share(trials, share, 1000, 60.0)
    groups = sorted(chances.groups())
    ends = [(least, greatest) for least, greatest, _ in groups]
    assert all(b[0] == a[1] + 1 for a, b in itertools.pairwise(ends))
    assert (ends[0][0], ends[-1][1]) == (0, trials)
    for least, greatest, mass in groups:
        exact = float(sum(law[least : greatest + 1]))
        assert exact * (1 - 1e-12) <= math.exp(mass) <= exact * (1 + 1e-9) + 1e-20
    for value in (0, 1, trials // 3, trials, trials + 1):
        exact = float(sum(law[:value]))
        assert exact * (1 - 1e-12) <= math.exp(chances.below(value)) <= exact * (1 + 1e-9) + 1e-20


@pytest.mark.parametrize("trials", [0, 1, 3, 200, 5000, 10**5])
@pytest.mark.parametrize("share", [0, 1, 300, 384, 1023, 1024])
def test_chances_of_counts_are_rounded_up_and_groups_hold_everything(trials, share):
    chances, likely = LogBinomial.from_share(trials, share, 1024, 60.0), mpf(share) / 1024
    groups = chances.groups()
    assert groups[-1][0] == 0 or share == 1024  # what cannot be is no group
    assert 1 <= sum(math.exp(log) for *_, log in groups) + 1e-15 <= 1 + 1e-6
    if not trials or not 0 < share < 1024:
        return

    def exact(k):
        ways = mpmath.binomial(trials, k)
        return mpmath.log(ways * likely**k * (1 - likely) ** (trials - k))

    for at in {0, len(chances.logs) // 2, len(chances.logs) - 1}:
        truth = exact(chances.first + at)
        assert truth <= chances.logs[at] <= truth + chances.slack
    if (above := chances.last + 1) <= trials:  # on that side of the window too
        assert exact(above) <= chances._log_mass_between(above, trials + 1)


def test_beyond_the_largest_order_the_bound_is_pure():
    found, pure = (rq.certify_sum(BIT, 3, order).epsilon for order in (1e12, math.inf))
    assert found.upper == pure.upper
    assert found.lower <= pure.lower


def test_rows_are_apart_where_a_code_is_possible_in_one_of_them_only():
    assert not Rows.from_channel(SKEWED, "replace_one").apart
    rows = np.array([[4, 4, 0], [1, 3, 4]])
    levels = np.array([-2.0, 0.0, 2.0])
    apart = rq.Channel(np.array([-1.0, 1.0]), levels, rows, 8)
    assert Rows.from_channel(apart, "replace_one").apart
    never = rq.Channel(np.array([-1.0, 1.0]), levels, np.array([[4, 0, 4], [1, 0, 7]]), 8)
    assert not Rows.from_channel(never, "replace_one").apart


# What is printed.


@pytest.mark.parametrize("clients", [1, 4, 5])
def test_printed_ends_are_rounded_outward_and_inputs_are_named(clients):
    """Between rows (3, 1)/4 and (1, 3)/4, which order 2 tells apart by log(7/3) alone."""
    found = rq.certify_sum(BIT, clients, 2.0)
    words = str(found).split()
    upper, lower = words[4], words[-5 if clients == 1 else -7].rstrip(":")
    assert len(upper.removeprefix("0.")) == 9
    assert 0 <= Fraction(upper) - Fraction(found.epsilon.upper) < Fraction(1, 10**9)
    assert 0 <= Fraction(found.epsilon.lower) - Fraction(lower) < Fraction(1, 10**5)
    assert f"sum of {clients} ({found.method}); >= " in str(found)
    assert "x=-1, x'=1" in str(found) or "x=1, x'=-1" in str(found)
    around = {1: "others none", 4: "others 3 at -1", 5: "others 4 at -1"}[clients]
    assert str(found).endswith((around, around.replace("-1", "1")))
    if clients == 1:
        assert found.epsilon.upper == pytest.approx(math.log(7 / 3), rel=1e-12, abs=0)
