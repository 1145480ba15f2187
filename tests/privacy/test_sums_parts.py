"""What bounds of sums are built from: how many draw, bits, routes that agree."""

import itertools
import math
from fractions import Fraction

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import randquant as rq
from randquant.privacy.accounting.composition.rule import compose
from randquant.privacy.certificates.sums.binomial import LogBinomial
from randquant.privacy.certificates.sums.sum_curvature import kappa_sum
from randquant.privacy.guarantee import Guarantee, Interval, at_most


@settings(max_examples=30)
@given(st.integers(1, 400), st.integers(1, 999))
def test_groups_of_a_binomial_are_a_partition_with_its_masses(trials, share):
    law = oracle.binomial_row(trials, Fraction(share, 1000))
    chances = LogBinomial.of(trials, share, 1000, 60.0)
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


def of_bits(*chances):
    """Codes that are sums of two bits, of chances in eighths, from -1 to 1."""
    rows = [[(8 - p) ** 2, 2 * p * (8 - p), p**2] for p in chances]
    return rq.Channel(np.linspace(-1, 1, len(rows)), np.arange(3.0), np.array(rows), 64)


@pytest.mark.parametrize("order", [1.5])
@pytest.mark.parametrize("chances", [(2, 4, 6), (3, 5, 7), (1, 3, 5), (7, 5, 3)])
def test_every_arrangement_of_bits_comes_close_to_the_best_attack(chances, order):
    channel = of_bits(*chances)
    attained = kappa_sum(channel, 3, order).lower
    assert attained <= kappa_sum(channel, 3, order).upper <= 1.03 * attained


CHANNELS = {
    "bit": rq.stochastic_rounding(1.0, 2, 1.0), "rqm": rq.rqm(1.0, 1.0, 4, 0.4),
    "pbm": rq.pbm(1.0, 0.25, 3, 5), "qmgeo": rq.qmgeo(1.0, 4, 0.4, mixing=0.3),
}  # fmt: skip


@pytest.mark.seldom(1)
@pytest.mark.parametrize("order", [1.5, 4.0, 16.0])
@pytest.mark.parametrize("channel", [CHANNELS[name] for name in ("bit", "rqm", "pbm")])
def test_a_sum_loses_no_more_than_its_curvature_times_the_distance_squared(channel, order):
    uppers = []
    for clients in (1, 2, 5):
        by_distance = kappa_sum(channel, clients, order)
        whole = rq.certify_sum(channel, clients, order)
        assert whole.epsilon.lower <= by_distance.upper * (2 * channel.clip) ** 2
        x, other = whole.witness
        apart = (x - other) ** 2
        assert whole.epsilon.lower <= by_distance.upper * apart * (1 + 1e-12)
        assert by_distance.upper <= 1.3 * by_distance.lower
        uppers.append((whole.epsilon.upper, by_distance.upper))
    for one, two in itertools.pairwise(uppers):
        assert two[0] < one[0]
        assert two[1] < one[1]


@pytest.mark.parametrize("order", [1.5, 8.0, math.inf])
@pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
def test_a_certificate_is_the_worst_of_all_pairs(channel, order):
    """One by one, both ways; against zero all pairs with zero."""
    ends = [channel.input_of(vertex) for vertex in range(len(channel.weights))]
    pairs = [rq.certify_pair(channel, *two, order).epsilon
             for two in itertools.permutations(ends, 2)]  # fmt: skip
    whole = rq.certify(channel, order).epsilon
    assert whole.upper == pytest.approx(max(each.upper for each in pairs), rel=1e-14, abs=0)
    assert whole.lower == pytest.approx(max(each.lower for each in pairs), rel=1e-14, abs=0)
    zeros = [rq.certify_pair(channel, *two, order).epsilon
             for x in ends for two in ((x, 0.0), (0.0, x))]  # fmt: skip
    against = rq.certify(channel, order, "zero_out").epsilon
    assert against.upper == pytest.approx(max(each.upper for each in zeros), rel=1e-12, abs=0)
    assert against.upper <= whole.upper * (1 + 1e-12)


@pytest.mark.parametrize("name", ["bit", "rqm"])
def test_many_releases_cost_more_than_few_and_both_ends_agree(name):
    channel = CHANNELS[name]
    found = [compose(channel, releases, 1e-5).epsilon for releases in (1, 2, 600)]
    for few, many in itertools.pairwise(found):
        assert few.upper < many.lower
    assert all(each.upper <= 1.02 * each.lower for each in found)
    quick = compose(channel, 600, 1e-5, quick=True).epsilon
    assert found[-1].upper <= quick.upper <= 1.03 * found[-1].upper


@pytest.mark.parametrize("wrong", [(2.0, 1.0), (math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0)])
def test_two_ends_that_cross_are_refused(wrong):
    lower, upper = wrong
    with pytest.raises(ValueError, match=r"^Expected lower <= upper, got "):
        Interval(lower, upper)
    with pytest.raises(ValueError, match=r"^Expected 0 <= lower <= epsilon, got "):
        Guarantee(upper, 1e-5, "replace_one", "central", 2.0, 1, lower)
    with pytest.raises(ArithmeticError, match="above the bound"):
        at_most(lower, upper)


def test_ends_that_meet_are_kept():
    assert Guarantee(1.0, 1e-5, "replace_one", "central", 2.0, 1, 1.0).lower == 1.0
    assert Guarantee(math.inf, 0.0, "replace_one", "local", 2.0, 1, math.inf).lower == math.inf
    with pytest.raises(ValueError, match="lower"):
        Guarantee(1.0, 1e-5, "replace_one", "central", 2.0, 1, -0.1)
    assert (at_most(1.0, 1.5), at_most(1.0 + 1e-12, 1.0), at_most(1.0, math.inf)) == (1, 1, 1)
