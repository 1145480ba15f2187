"""Sums of codes: against brute force in exact fractions, and against attacks to 60 digits."""

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
from seldom import seldom
from strategies import channels
from whole import summed

import randquant as rq
from randquant.privacy.certificates.sums.attacks import attained
from randquant.privacy.certificates.sums.binomial import LogBinomial
from randquant.privacy.certificates.sums.law import Law, product
from randquant.privacy.certificates.sums.outcomes import Rows, log_moments
from randquant.privacy.divergence import UNIT

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


@pytest.mark.seldom(1)
@pytest.mark.parametrize(("clients", "order"), [(2, 2.0), (3, 2.5), (2, 16.0), (3, math.inf)])
@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
def test_small_channels_are_certified_exactly(clients, order, neighboring):
    for channel in (
        rq.rqm(1.0, 1.0, 4, 0.4),
        rq.stochastic_rounding(1.0, 2, 1.0),
        rq.qmgeo(1.0, 4, 0.4, mixing=0.3),
    ):
        found = rq.certify_sum(channel, clients, order, neighboring)
        exact = float(brute_force(channel, clients, order, neighboring))
        assert found.epsilon.lower <= exact <= found.epsilon.upper
        assert found.epsilon.upper == pytest.approx(exact, rel=1e-10, abs=0)
        assert found.epsilon.lower == pytest.approx(exact, rel=1e-10, abs=0)


@pytest.mark.parametrize(
    ("clients", "divergence", "method"),
    [(2, 4.31929708, "exhaustive"), *seldom((10, 1.85674475, None), (40, 0.50270479, None))],
)
def test_known_values(paper, clients, divergence, method):
    found = rq.certify_sum(paper, clients, 2.0)
    assert found.epsilon.lower >= divergence - 2e-8
    if method:
        assert found.method == method
        assert found.epsilon.upper == pytest.approx(divergence, abs=6e-9)
        assert found.epsilon.lower == pytest.approx(divergence, abs=6e-9)
    else:
        assert found.epsilon.upper < 1.3 * divergence


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


@pytest.mark.parametrize(("others", "order"), [(99, 32.0), *seldom((60, 64.0), (400, 64.0))])
def test_the_attack_knows_sums_that_hardly_ever_occur(paper, others, order):
    """At high orders they decide: no tail that counts is left out, and nothing is counted twice."""
    rows = Rows.of(paper, "replace_one")
    found = rq.certify_sum(paper, others + 1, order).epsilon
    exact = []
    # Numbers down to 1e-4900: nothing is lost.
    own = rows.weights.astype(np.longdouble) / rows.total
    for vertex in (0, 1):
        beside = functools.reduce(np.convolve, [own[vertex]] * others)
        p, q = (np.convolve(beside, own[end]) for end in (0, -1))
        exact += [np.log((a * (a / b) ** (order - 1)).sum()) for a, b in ((p, q), (q, p))]
    assert found.lower * (order - 1) == pytest.approx(float(max(exact)), rel=1e-6)


@pytest.mark.seldom(1)
@pytest.mark.parametrize("clients", [3, 25])
def test_no_inputs_of_others_exceed_the_bound(paper, binomial, clients):
    order = 2.5
    rng = np.random.default_rng(5)
    for channel in (paper, binomial):
        bound = rq.certify_sum(channel, clients, order).epsilon.upper
        clip = channel.clip
        for spread in (0.0, 0.2, 1.0):
            centre = rng.uniform(-clip, clip)
            inputs = np.clip(centre + spread * rng.standard_normal(clients - 1), -clip, clip)
            noise = np.ones(1)
            for value in inputs:
                row, total = channel.mix(float(value))
                noise = np.convolve(noise, (row / total).astype(float))
            for x, other in ((clip, -clip), (-clip, clip), tuple(rng.uniform(-clip, clip, 2))):
                p, q = (
                    np.convolve(noise, (channel.mix(v)[0] / total).astype(float))
                    for v in (x, other)
                )
                use = (q > 1e-250) & (p > 1e-250)
                logs = order * np.log(p[use]) + (1 - order) * np.log(q[use])
                moment = float(np.logaddexp.reduce(logs))
                assert moment / (order - 1) <= bound * (1 + 1e-9)


@pytest.mark.seldom
def test_many_binomial_clients_do_not_underflow(binomial):
    for order in (2.0, 64.0):
        found = rq.certify_sum(binomial, 40, order)
        assert 0 < found.epsilon.lower <= found.epsilon.upper < math.inf
        for count in (0, 13, 39):  # others at one end or the other
            others = [binomial.weights[0]] * count + [binomial.weights[-1]] * (39 - count)
            exact = divergence(binomial, binomial.weights[0], binomial.weights[-1], others, order)
            assert exact <= found.epsilon.upper
    assert rq.certify_sum(binomial, 40, 2.0).epsilon.upper < 0.7


@pytest.mark.slow
def test_a_million_clients(paper):
    found = rq.certify_sum(paper, 10**6, 2.0)
    assert 0 == found.epsilon.lower < found.epsilon.upper < 2e-4  # 2^17 of them are counted


def test_one_client_is_certify(paper):
    for order in ORDERS:
        assert rq.certify_sum(paper, 1, order).epsilon == rq.certify(paper, order).epsilon


@settings(max_examples=20, deadline=None)
@given(channels(), st.integers(1, 4), st.sampled_from(ORDERS))
def test_leaving_out_loses_no_more_than_replacing(channel, clients, order):
    replaced = rq.certify_sum(channel, clients, order).epsilon
    left_out = rq.certify_sum(channel, clients, order, "zero_out").epsilon
    assert left_out.lower <= replaced.upper


def test_leaving_out_loses_less(paper):
    for clients in (1, 5, 400):
        replaced = rq.certify_sum(paper, clients, 2.0).epsilon
        left_out = rq.certify_sum(paper, clients, 2.0, "zero_out").epsilon
        assert left_out.lower <= left_out.upper < replaced.lower


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


def test_what_is_wrong_is_said(paper):
    for arguments, word in (((0, 2.0), "clients"), ((3, 1.0), "order"), ((3, 2.0, "x"), "neigh")):
        with pytest.raises(ValueError, match=word):
            rq.certify_sum(paper, *arguments)


# --- the parts ---


@settings(max_examples=60, deadline=None)
@given(channels(), st.integers(1, 6))
def test_convolutions_stay_within_their_error(channel, clients):
    row = channel.weights[0]
    law = product([Law.of(row, channel.denominator)], [clients])
    exact = [Fraction(w, channel.denominator**clients) for w in summed([row] * clients)]
    exact = exact[next(i for i, w in enumerate(exact) if w) :][: len(law)]
    for mantissa, exponent, truth in zip(law.mantissa, law.exponent, exact, strict=False):
        value = Fraction(float(mantissa)) * Fraction(2) ** int(exponent) if mantissa else 0
        assert abs(value - truth) <= truth * Fraction(law.error * UNIT)


def test_deep_powers_do_not_underflow():
    row, total = np.array([1, 2**40 - 2, 1]), 2**40
    law = Law.of(row, total).power(60)
    assert len(law) == 121
    first = mpmath.log(float(law.mantissa[0]), 2) + int(law.exponent[0])
    assert float(first) == pytest.approx(-2400, abs=1e-9)
    exact = summed([row] * 60)
    for mantissa, exponent, truth in zip(law.mantissa, law.exponent, exact, strict=True):
        value = Fraction(float(mantissa)) * Fraction(2) ** int(exponent)
        assert abs(value / Fraction(truth, total**60) - 1) <= Fraction(law.error * UNIT)
    assert len(set(law.exponent.tolist())) > 3
    trimmed = Law.of(row, total, floor=100.0).power(60)
    left_out = 121 - len(trimmed)
    assert 0 < left_out <= trimmed.trimmed * 1e6


@pytest.mark.parametrize("trials", [0, 1, 7, 300, 10**5])
@pytest.mark.parametrize("share", [1, 300, 1023, 1024, 0])
def test_binomial_groups_hold_everything(trials, share):
    chances = LogBinomial.of(trials, share, 1024, 60.0)
    groups = chances.groups()
    assert groups[-1][0] == 0 or share == 1024  # what cannot be is no group
    # What is left out cannot be.
    assert math.exp(chances.below(trials + 1)) == pytest.approx(1, abs=1e-6)
    assert all(a[0] > b[1] for a, b in itertools.pairwise(groups))
    mass = sum(math.exp(log) for *_, log in groups)
    assert 1 <= mass + 1e-15 <= 1 + 1e-6
    if share and (above := chances.last + 1) <= trials:  # on that side of the window too
        p = mpmath.mpf(share) / 1024
        exact = mpmath.log(mpmath.binomial(trials, above) * p**above * (1 - p) ** (trials - above))
        assert exact <= chances._between(above, trials + 1)
    if trials <= 300:
        p = Fraction(share, 1024)
        pmf = [math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(trials + 1)]
        for start, end, log in groups:
            assert mpmath.exp(log) >= mpmath.mpf(1) * float(sum(pmf[start : end + 1])) * (1 - 1e-13)
        for value in (0, 1, trials // 2, trials + 1):
            assert math.exp(chances.below(value)) >= float(sum(pmf[:value])) * (1 - 1e-13)


@settings(max_examples=40, deadline=None)
@given(channels(), st.integers(0, 5), st.sampled_from(ORDERS))
def test_moments_of_a_pair_are_bounded_from_both_sides(channel, others, order):
    rows = Rows.of(channel, "replace_one")
    p, q = rows.weights[0], rows.weights[-1]
    noise = Law.of(rows.weights[0], rows.total).power(others)
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


def test_mirrored_channels_whose_rows_have_equal_means():
    """Rows stand in the order of their means, which two that are no mirror images may share."""
    rows = [[3, 248, 5], [125, 4, 127], [127, 2, 127], [127, 4, 125], [5, 248, 3]]
    channel = rq.Channel(np.linspace(-1.0, 1.0, 5), np.arange(3.0), np.array(rows), 256)
    for order in (2.0, math.inf):
        found = rq.certify_sum(channel, 3, order).epsilon
        assert found.lower <= brute_force(channel, 3, order) <= found.upper
        assert found.upper == pytest.approx(found.lower, rel=1e-9)
