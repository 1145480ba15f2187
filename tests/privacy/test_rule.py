"""Composition of many releases, against exact enumeration and 60-digit arithmetic."""

import functools
import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lower_ends import (
    LowerLoss,
    by_fourier_below,
    by_normal_below,
    channel_below,
    lower_end,
    on_grid_below,
)
from oracle import binary_log_delta
from strategies import channels, mechanism_channels, weight_rows

import randquant as rq
from randquant.channels import Channel
from randquant.privacy import (
    LOSS_ERROR,
    ChannelRelease,
    PrivacyLoss,
    account,
    best_tilt,
    by_fourier,
    by_normal,
    compose,
    dominating_pair,
    hockey_stick,
    on_grid,
    powered,
)

mpmath.mp.dps = 60
PAPER = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
# The true epsilon at delta = 1e-5 of this many releases at the one pair (clip, -clip).
TRUE_EPSILON = {10**4: 46380.85, 10**6: 4578203.7, 10**8: 457208868.0}


def exp(value: float) -> Fraction:
    """e^value, right to 60 digits."""
    return Fraction(str(mpmath.exp(mpmath.mpf(value))))


def exact_stick(p, q, ratio: Fraction) -> Fraction:
    """Sum of max(0, p - ratio q) of integer rows, over their total."""
    excess = sum(max(Fraction(0), int(a) - ratio * int(b)) for a, b in zip(p, q, strict=True))
    return excess / sum(int(a) for a in p)


def adaptive_delta(channel: Channel, releases: int, ratio: Fraction) -> Fraction:
    """The worst delta of any adversary who chooses each pair of vertices after what was sent."""
    pairs = list(itertools.permutations(channel.weights.tolist(), 2))

    @functools.cache
    def worst(left: int, p: int, q: int) -> Fraction:
        if left == 0:
            return max(Fraction(0), p - ratio * q)
        return max(
            sum((worst(left - 1, p * a, q * b) for a, b in zip(*pair, strict=True)), Fraction(0))
            for pair in pairs
        )

    return worst(releases, 1, 1) / channel.denominator**releases


@st.composite
def small_channels(draw) -> Channel:
    """Two or three vertices, two or three codes, sometimes impossible ones."""
    vertices, codes = draw(st.integers(2, 3)), draw(st.integers(2, 3))
    bits = draw(st.sampled_from([3, 10, 31]))
    weights = draw(weight_rows(vertices, codes, bits))
    return Channel(np.linspace(-1, 1, vertices), np.arange(float(codes)), weights, 2**bits)


@settings(max_examples=25, deadline=None)
@given(small_channels(), st.integers(1, 3), st.sampled_from([1e-9, 1e-3, 0.1, 0.7]))
def test_the_worst_adaptive_adversary_lies_between_both_ends(channel, releases, delta):
    upper, _ = compose(channel, releases, delta)
    lower = channel_below(channel, releases, delta)
    if math.isfinite(upper):
        assert adaptive_delta(channel, releases, exp(upper)) <= Fraction(delta)
    if math.isinf(lower):
        lost = max(
            sum((int(a) for a, b in zip(p, q, strict=True) if b == 0), 0)
            for p, q in itertools.permutations(channel.weights, 2)
        )
        assert 1 - (1 - Fraction(lost, channel.denominator)) ** releases > Fraction(delta)
    elif lower > 0:
        assert adaptive_delta(channel, releases, exp(lower)) >= Fraction(delta)


@settings(max_examples=25, deadline=None)
@given(channels(), st.floats(-44, 44))
def test_the_dominating_pair_is_the_largest_of_all_pairs_and_no_larger(channel, at):
    p, q = dominating_pair(channel)
    assert p.sum() == q.sum() == channel.denominator
    assert min(p.min(), q.min()) >= 0
    ratio = exp(at)
    pairs = itertools.product(channel.weights[:6], channel.weights[-6:])
    worst = max(exact_stick(a, b, ratio) for pair in pairs for a, b in (pair, pair[::-1]))
    assert worst <= exact_stick(p, q, exp(at - LOSS_ERROR))
    whole = max(exact_stick(a, b, ratio) for a in channel.weights for b in channel.weights)
    assert exact_stick(p, q, ratio) <= whole


@settings(max_examples=100, deadline=None)
@given(weight_rows(2, 5), st.floats(-50, 50))
def test_hockey_stick_holds_the_exact_value(table, epsilon):
    lower, upper = hockey_stick(table[0], table[1], 2**62, epsilon)
    exact = exact_stick(table[0], table[1], exp(epsilon))
    assert Fraction(float(lower)) <= exact <= Fraction(float(upper))
    assert upper - lower <= 1e-14 * exact + 1e-14


def test_both_methods_are_close_where_they_should_be():
    p, q = np.array([9, 7]), np.array([7, 9])
    fourier, normal = (by_fourier_below, by_fourier), (by_normal_below, by_normal)
    for releases, ways, close in (
        (60, fourier, 0.02),
        (2000, fourier, 0.15),
        (10**6, normal, 0.05),
    ):
        for side, way in zip((LowerLoss, PrivacyLoss), ways, strict=True):
            loss = side.from_rows(p, q, 16)
            log_delta, centre = way(loss, releases, best_tilt(loss, releases, 1e-5))
            assert log_delta(centre) == pytest.approx(
                float(binary_log_delta(9, 16, releases, centre)), abs=close
            )


@given(weight_rows(2, 4, 12), st.sampled_from([2.0**-3, 0.25, 2.0]), st.floats(-3, 3))
def test_the_grid_moves_the_loss_to_its_side(table, step, at):
    p, q = table
    assume((p[q > 0] > 0).any())
    exact = exact_stick(p, q, exp(at))
    for upward in (True, False):
        loss = (
            on_grid(PrivacyLoss.from_rows(p, q, 2**12), step)[0]
            if upward
            else on_grid_below(LowerLoss.from_rows(p, q, 2**12), step)[0]
        )
        gains = (max(Fraction(0), 1 - exp(at - float(value))) for value in loss.losses)
        delta = Fraction(loss.infinite) + sum(
            Fraction(float(m)) * g for m, g in zip(loss.masses, gains, strict=True)
        )
        assert delta >= exact if upward else delta <= exact


@pytest.mark.parametrize("power", [2, 7, 12])
def test_the_error_of_the_transform_is_bounded(power):
    random = np.random.default_rng(3)
    weights = random.random(5)
    weights /= weights.sum()
    index = np.array([-7, 0, 2, 3, 11])
    size = 32
    sums, error = powered(weights, index, -4, size, power)
    exact = {0: Fraction(1)}
    for _ in range(power):
        grown = {}
        for place, mass in exact.items():
            for step, weight in zip(index.tolist(), weights.tolist(), strict=True):
                grown[place + step] = grown.get(place + step, 0) + mass * Fraction(weight)
        exact = grown
    wrapped = [Fraction(0)] * size
    for place, mass in exact.items():
        wrapped[(place + 4) % size] += mass
    off = math.sqrt(sum(float(Fraction(float(s)) - w) ** 2 for s, w in zip(sums, wrapped)))  # noqa: B905
    assert off <= error < 1e-11


@pytest.mark.parametrize("releases", TRUE_EPSILON)
def test_the_lower_end_is_close_below_the_true_value_of_one_pair(releases):
    release = [ChannelRelease(PAPER, releases, 1)]
    upper, lower = account(release, 1e-5).epsilon, lower_end(release, 1e-5)
    assert TRUE_EPSILON[releases] <= upper <= TRUE_EPSILON[releases] * 1.002
    assert TRUE_EPSILON[releases] * 0.9995 <= lower <= upper


@given(mechanism_channels(), st.integers(0, 10**6), st.sampled_from([0.0, 1e-9, 1e-5, 0.1]))
@settings(max_examples=8, deadline=None)
def test_quick_composition_is_never_below_the_other(channel, releases, delta):
    full, _ = compose(channel, releases, delta)
    quick, _ = compose(channel, releases, delta, quick=True)
    assert full <= quick
    release = [ChannelRelease(channel, 1, releases)]
    low, high = account(release, delta).epsilon, account(release, delta, quick=True).epsilon
    assert low <= high <= 1.05 * low + 1e-9


def test_more_releases_lose_more():
    counts = [1, 2, 3, 8, 200, 511, 512, 2000, 2**17, 2**17 + 1000, 10**6, 2**40]
    releases = [[ChannelRelease(PAPER, n, 1)] for n in counts]
    found = [(lower_end(each, 1e-5), account(each, 1e-5).epsilon) for each in releases]
    for fewer, more in itertools.pairwise(found):
        assert fewer[0] < more[0]
        assert fewer[1] < more[1]
    for lower, upper in found:
        assert lower <= upper <= 1.006 * lower


def test_without_delta_both_ends_are_those_of_pure_composition():
    pure = rq.certify(PAPER).epsilon
    release = [ChannelRelease(PAPER, 1000, 1)]
    upper, lower = account(release, 0.0).epsilon, lower_end(release, 0.0)
    assert lower <= 1000 * pure.lower <= 1000 * pure.upper <= upper
    assert upper - lower < 1e-8


def test_a_rare_impossible_code_is_paid_for_out_of_delta():
    weights = [[2**19, 2**19 - 1, 1], [2**19 - 2**16, 2**19 + 2**16, 0]]
    channel = Channel(np.array([-1.0, 1.0]), np.arange(3.0), np.array(weights), 2**20)
    assert rq.certify(channel).epsilon.lower == math.inf
    upper, _ = compose(channel, 5, 1e-5)  # 5/2^20 < delta
    lower = channel_below(channel, 5, 1e-5)
    assert 0 < lower < upper < 2
    assert adaptive_delta(channel, 5, exp(upper)) <= Fraction(1e-5)
    assert adaptive_delta(channel, 5, exp(lower)) >= Fraction(1e-5)
    many = [ChannelRelease(channel, 20, 1)]
    assert (lower_end(many, 1e-5), account(many, 1e-5).epsilon) == (math.inf, math.inf)


def test_a_channel_that_says_nothing_loses_nothing():
    channel = Channel(np.array([-1.0, 1.0]), np.arange(2.0), np.full((2, 2), 4), 8)
    for releases in (1, 2, 700, 10**6, 2**50):
        release = [ChannelRelease(channel, releases, 1)]
        assert (lower_end(release, 1e-5), account(release, 1e-5).epsilon) == (0, 0)
    assert compose(PAPER, 0, 1e-5)[0] == 0


def test_very_many_releases_tell_no_less_than_fewer():
    some, many = ([ChannelRelease(PAPER, count, count)] for count in (2**20, 2**53))
    assert lower_end(some, 1e-5) <= lower_end(many, 1e-5) < account(many, 1e-5).epsilon


def test_a_lower_end_is_of_one_channel_and_its_trust():
    other = rq.rqm(clip=1.5, margin=1.5, levels=8, keep=0.42)
    assert lower_end([ChannelRelease(PAPER, 9, 1), ChannelRelease(other, 9, 1)], 1e-5) == 0
    alone, hidden = ([ChannelRelease(PAPER, 9, 1, trust)] for trust in ("local", "aggregate"))
    assert 0 < lower_end(hidden, 1e-5) <= lower_end(alone, 1e-5) * (1 + 1e-9)
    local, summed = account(alone, 1e-5), account(hidden, 1e-5)
    assert summed.epsilon == local.epsilon
    assert account([ChannelRelease(PAPER, 4, 1), ChannelRelease(PAPER, 5, 1)], 1e-5) == local


# The dominating pair against the hull of all its tests' points, in fractions.


def points(rows):
    """(Q(S), P(S)) of every set of codes S and every ordered pair of rows."""
    codes = range(len(rows[0]))
    sets = [s for size in range(len(rows[0]) + 1) for s in itertools.combinations(codes, size)]
    return {
        (sum(int(q[code]) for code in s), sum(int(p[code]) for code in s))
        for p, q in itertools.product(rows, repeat=2)
        for s in sets
    }


@pytest.mark.parametrize("seed", range(12))
def test_the_pair_is_the_hull_of_all_points_and_its_corners_are_among_them(seed):
    random = np.random.default_rng(seed)
    vertices, levels, total = random.integers(2, 5), random.integers(2, 5), 2**8
    cuts = np.sort(random.integers(0, total + 1, (vertices, levels - 1)), axis=1)
    rows = np.diff(cuts, axis=1, prepend=0, append=total)
    channel = Channel(np.linspace(-1, 1, vertices), np.arange(float(levels)), rows, total)
    p, q = dominating_pair(channel)
    assert p.sum() == q.sum() == total
    corners = [(0, 0), *zip(np.cumsum(q).tolist(), np.cumsum(p).tolist(), strict=True)]
    slopes = [(int(a), int(b)) for a, b in zip(p, q, strict=True)]
    assert all(a * d > c * b for (a, b), (c, d) in itertools.pairwise(slopes))  # it falls, strictly
    every = points(rows)
    assert set(corners) <= every
    for (x, y), (corner, (a, b)) in itertools.product(every, zip(corners, slopes, strict=False)):
        assert (y - corner[1]) * b <= (x - corner[0]) * a  # none is above any edge's line
