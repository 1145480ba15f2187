"""Parts of composition, one by one, against fractions and 60 digits: each errs to its side only."""

import importlib
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lower_ends import (
    LowerLoss,
    by_fourier_below,
    by_normal_below,
    epsilon_below,
    log_delta_below,
    on_grid_below,
    rounded_down_by,
    single_below,
    strongest_pair,
)
from oracle import binary_log_delta
from slow import slow
from strategies import weight_rows

from randquant.channels import Channel
from randquant.privacy import (
    LOSS_ERROR,
    UNIT,
    PrivacyLoss,
    Tilted,
    best_tilt,
    by_fourier,
    by_normal,
    compose,
    dominating_pair,
)
from randquant.privacy.accounting.composition import _single_release
from randquant.privacy.accounting.privacy_loss import _reach, _smoothed, log_moments

# `composition.compose` is the function; this is the module that defines it.
composition = importlib.import_module(compose.__module__)

mpmath.mp.dps = 60
SIDES = pytest.mark.parametrize("upward", [True, False])


def loss_of(p, q, total, upward):
    return PrivacyLoss.from_rows(p, q, total) if upward else LowerLoss.from_rows(p, q, total)


def tilted_of(loss, releases, tilt):
    return (
        Tilted.from_loss(loss, releases, tilt)
        if isinstance(loss, PrivacyLoss)
        else loss.tilted(releases, tilt)
    )


def exact_loss(p, q, total):
    """(loss, mass) of every code that both rows send, and the mass of those that only p sends."""
    pairs = [(int(a), int(b)) for a, b in zip(p, q, strict=True) if a]
    both = [(mpmath.log(mpmath.mpf(a) / b), Fraction(a, total)) for a, b in pairs if b]
    return both, sum((Fraction(a, total) for a, b in pairs if not b), Fraction(0))


def number(value) -> mpmath.mpf:
    value = Fraction(value)
    return mpmath.mpf(value.numerator) / value.denominator


@SIDES
@settings(max_examples=60, deadline=None)
@given(table=weight_rows(2, 4, 62), loss_error=st.sampled_from([0.0, LOSS_ERROR, 0.1]))
def test_losses_and_masses_are_rounded_to_their_side(upward, table, loss_error):
    p, q = table
    loss_error = loss_error if upward else 0.0  # which dominating pairs alone need
    found = (
        PrivacyLoss.from_rows(p, q, 2**62, loss_error=loss_error)
        if upward
        else LowerLoss.from_rows(p, q, 2**62)
    )
    both, infinite = exact_loss(p, q, 2**62)
    sign = 1 if upward else -1
    assert len(found.losses) == len(both)
    for loss, mass, (exact, share) in zip(found.losses, found.masses, both, strict=True):
        assert sign * (mpmath.mpf(float(loss)) - exact - loss_error) >= 0
        assert abs(mpmath.mpf(float(loss)) - exact - loss_error) <= 64 * UNIT * (
            abs(exact) + loss_error
        )
        assert sign * (Fraction(float(mass)) - share) >= 0
    assert min(Fraction(1), infinite) <= Fraction(found.infinite) or not upward
    assert Fraction(found.infinite) <= infinite or upward
    assert (found.infinite > 0) == (infinite > 0)


@SIDES
@pytest.mark.parametrize("releases", [1, 2, 7, 1000])
@pytest.mark.parametrize("rare", [1, 12345, 2**40 + 1, 2**61 - 7])
def test_infinite_losses_of_any_release_count(upward, releases, rare):
    p, q = np.array([2**62 - rare, rare]), np.array([2**62, 0])
    found = loss_of(p, q, 2**62, upward).infinite_probability(releases)
    exact = 1 - (1 - number(Fraction(rare, 2**62))) ** releases
    assert (exact <= found) if upward else (found <= exact)
    assert abs(found / exact - 1) < 1e-14


@SIDES
@pytest.mark.parametrize("tilt", [1e-3, 0.7, 30.0])
def test_tilted_weights_are_within_their_error(upward, tilt):
    random = np.random.default_rng(5)
    side = PrivacyLoss if upward else LowerLoss
    loss = side(random.normal(size=40), random.random(40) / 40, 0.0)
    tilted = tilted_of(loss, 3, tilt)
    for weight, value, mass in zip(tilted.weights, loss.losses, loss.masses, strict=True):
        exact = mpmath.mpf(float(mass)) * mpmath.exp(
            mpmath.mpf(tilt) * mpmath.mpf(float(value)) - mpmath.mpf(tilted.constant)
        )
        assert abs(mpmath.mpf(float(weight)) / exact - 1) <= tilted.error
    # Proposition 3.
    terms = np.abs(tilt * loss.losses) + np.abs(tilt * loss.losses - tilted.constant)
    assert tilted.error == pytest.approx(1.01 * UNIT * (terms.max() + 12), rel=1e-9, abs=0)
    # No x > 0 has more than the peak: the maximum is at e^-x = tilt/(tilt + 1).
    top = (mpmath.mpf(tilt) / (tilt + 1)) ** tilt / (tilt + 1)
    assert top <= tilted.peak <= 3 * top


@SIDES
@pytest.mark.parametrize("infinite", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize("integral", [1e-12, 0.03, 0.5])
def test_log_delta_is_rounded_to_its_side(upward, infinite, integral):
    side = PrivacyLoss if upward else LowerLoss
    loss = side(np.array([-0.3, 0.4]), np.array([0.4, 0.6 - infinite]), infinite)
    for releases, tilt, epsilon in ((5, 2.0, 1.1), (400, 0.5, 40.0), (4000, 0.5, 40.0)):
        tilted = tilted_of(loss, releases, tilt)
        whole = 1 - (1 - mpmath.mpf(infinite)) ** releases
        parts = releases * mpmath.mpf(tilted.constant), mpmath.mpf(tilt) * mpmath.mpf(epsilon)
        power = parts[0] - parts[1]
        weights = releases * mpmath.mpf(tilted.error)  # what each weight may be off by
        sign = 1 if upward else -1
        exact = mpmath.log(whole + mpmath.exp(power + sign * weights) * mpmath.mpf(integral))
        rounded = Tilted.log_delta if upward else log_delta_below
        found = rounded(tilted, epsilon, integral)
        assert sign * (found - exact) >= 0
        terms = sum(map(abs, parts)) + abs(mpmath.log(integral)) + 2
        assert abs(found - exact) <= 0.02 * weights + 64 * UNIT * terms


@pytest.mark.parametrize("spread", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("tilt", [0.01, 1.3])
def test_the_normal_integral_is_within_its_error_and_that_is_of_its_parts(spread, tilt):
    """Proposition 8; beyond 35 deviations only that it lies between 0 and its peak."""
    peak = 1 / (1 + tilt)
    for steps in (-36.0, -4.0, -0.5, 0.0, 0.5, 1.0, 6.0, 36.0):
        offset = steps * spread
        value, error = _smoothed(offset, spread, tilt, peak)
        parts = []
        for rate in (mpmath.mpf(tilt), mpmath.mpf(tilt) + 1):
            shift = (rate * spread - mpmath.mpf(offset) / spread) / mpmath.sqrt(2)
            height = mpmath.exp(rate * rate * spread**2 / 2 - rate * mpmath.mpf(offset))
            parts.append(height * mpmath.erfc(shift) / 2)
        assert abs(parts[0] - parts[1] - mpmath.mpf(value)) <= mpmath.mpf(error)
        assert error > 0
        if abs(steps) > 35:
            assert (value - error, value + error) == (0.0, peak)
            continue
        first = abs(tilt * spread - steps) / math.sqrt(2)
        relative = 1e-12 + 8 * UNIT * ((tilt + 1) * spread + abs(steps)) * (2 + 2 * first)
        assert error <= sum(parts) * relative * 1.01


def binomial_tail(trials, share, beyond):
    """P(X > beyond) of a binomial law, in 60 digits."""
    first = int(mpmath.floor(beyond)) + 1
    terms = (
        mpmath.binomial(trials, k) * share**k * (1 - share) ** (trials - k)
        for k in range(max(first, 0), trials + 1)
    )
    return mpmath.fsum(terms)


@pytest.mark.parametrize("share", [1, 8, 13])
def test_totals_beyond_the_reach_are_as_rare_as_stated(share):
    loss = PrivacyLoss.from_rows(np.array([16 - share, share]), np.array([8, 8]), 16)
    for releases in (3, 600):
        tilted = Tilted.from_loss(loss, releases, 1e-9)
        reach, rare = _reach(tilted, 0.0)
        mean = releases * tilted.centre[0]
        step = abs(float(loss.losses[1] - loss.losses[0]))
        if step == 0:
            continue
        rises = loss.losses[1] > loss.losses[0]
        count = (mean + reach - releases * min(loss.losses)) / step
        chance = mpmath.mpf(share if rises else 16 - share) / 16
        above = binomial_tail(releases, chance, count + 1e-9)
        below = binomial_tail(
            releases,
            1 - chance,
            releases - (mean - reach - releases * min(loss.losses)) / step + 1e-9,
        )
        assert above + below <= rare
        if releases == 600:  # Proposition 5
            assert 2 * math.exp(-40) <= rare <= 2.2 * math.exp(-40)


def test_rounding_down_took_less_than_the_shift_as_rarely_as_stated():
    """Two losses: one on the grid, one that loses nearly a step."""
    loss = LowerLoss(np.array([0.0, 0.9375]), np.array([0.5, 0.5]), 0.0)
    rounded, _, lost = on_grid_below(loss, 1.0)
    releases = 2000
    shift, rare = rounded_down_by(rounded.tilted(releases, 1e-9), lost, 1.0)
    assert 0 < shift < releases * 0.9375 / 2
    fewer = binomial_tail(releases, mpmath.mpf(1) / 2, releases - shift / 0.9375)
    assert 0 < fewer <= rare
    assert math.exp(-24) <= rare <= 1.2 * math.exp(-24)  # Proposition 6


@pytest.mark.parametrize(
    ("up", "releases"),
    [(9, 2), (13, 9), (9, 40), (13, 40), (13, 1000), (9, 3000), *slow((13, 20_000), (9, 10**6))],
)
def test_both_methods_stay_on_their_side_of_the_binomial_sum(up, releases):
    """Far out too, where nearly nothing is left but rounding and rare events."""
    p, q = np.array([up, 16 - up]), np.array([16 - up, up])
    most = releases * math.log(up / (16 - up))
    for upward in (True, False):
        loss = loss_of(p, q, 16, upward)
        fourier, normal = (by_fourier, by_normal) if upward else (by_fourier_below, by_normal_below)
        for delta in (1e-12, 0.2):
            tilt = best_tilt(loss, releases, delta)
            ways = [fourier(loss, releases, tilt)] if releases <= 20_000 else []
            for log_delta, centre in filter(None, [*ways, normal(loss, releases, tilt)]):
                near = [max(centre, 0.0) * part for part in (0.9, 0.99, 0.999, 1.001, 1.01)]
                parts = (0.0, 0.02, 0.1, 0.4, 0.8, 0.97) if releases < 10**4 else (0.0, 0.02)
                far = [max(centre, 0.0) + part * (most - max(centre, 0.0)) for part in parts]
                for epsilon in near + far:
                    exact = binary_log_delta(up, 16, releases, epsilon)
                    found = log_delta(epsilon)
                    assert (found >= exact) if upward else (found <= exact)


def stick(p, q, ratio):
    return sum(max(Fraction(0), int(a) - ratio * int(b)) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("delta", [1e-9, 1e-3, 0.1])
def test_one_release_of_uneven_rows_is_exact_in_the_worse_direction(delta):
    weights = np.array([[8, 8], [15, 1], [12, 4]])
    channel = Channel(np.linspace(-1, 1, 3), np.arange(2.0), weights, 16)
    upper, lower = compose(channel, 1, delta)[0], single_below(channel, delta)

    def worst(epsilon):
        ratio = Fraction(str(mpmath.exp(mpmath.mpf(epsilon))))
        pairs = ((a, b) for a in weights for b in weights)
        return max(stick(a, b, ratio) for a, b in pairs) / 16

    assert worst(upper) <= Fraction(delta) <= worst(lower)
    assert upper - lower < 1e-8 + 1e-14 / delta


def test_the_strongest_pair_of_rows_is_found():
    weights = np.array([[8, 8], [9, 7], [15, 1], [8, 8]])
    channel = Channel(np.linspace(-1, 1, 4), np.arange(2.0), weights, 16)
    p, q = strongest_pair(channel, 50, 1e-5, np.array([0.1, 1.0, 8.0]))
    assert {tuple(p), tuple(q)} == {(8, 8), (15, 1)}
    rare = np.array([[2**20 - 2**10, 2**10, 0], [2**20 - 2**10 - 1, 2**10, 1], [2**19, 2**19, 0]])
    channel = Channel(np.linspace(-1, 1, 3), np.arange(3.0), rare, 2**20)
    p, q = strongest_pair(channel, 1000, 1e-5, np.array([0.1, 1.0, 8.0]))
    assert p[2] == 1 > q[2] == 0  # a thousandth of it is infinite


def test_the_dominating_loss_is_above_the_dominating_pairs_by_its_slip():
    """The pair's codes may be sorted wrongly by as much."""
    weights = np.array([[8, 8, 16], [15, 1, 16], [12, 15, 5]])
    channel = Channel(np.linspace(-1, 1, 3), np.arange(3.0), weights, 32)
    p, q = dominating_pair(channel)
    above = _single_release(channel, 1e-5)[1]
    for loss, (exact, _) in zip(above.losses, exact_loss(p, q, 32)[0], strict=True):
        assert mpmath.mpf(float(loss)) >= exact + LOSS_ERROR


@SIDES
def test_a_poor_tilt_leaves_rounding_alone_and_is_right_all_the_same(upward):
    """Without a tilt the tail is all error of the transform: neither side may lean on it."""
    p, q = np.array([9, 7]), np.array([7, 9])
    way = by_fourier if upward else by_fourier_below
    log_delta, centre = way(loss_of(p, q, 16, upward), 200, 1e-6)
    for epsilon in np.linspace(centre, 200 * math.log(9 / 7), 40)[:-1]:
        exact = binary_log_delta(9, 16, 200, float(epsilon))
        assert (log_delta(epsilon) >= exact) if upward else (log_delta(epsilon) <= exact)


@pytest.mark.parametrize("releases", [600, 10**6])
def test_the_normal_bound_pays_for_all_of_berry_and_esseens_distance(releases):
    """At the centre: the normal integral and twice the distance times the kernel's peak."""
    loss = PrivacyLoss.from_rows(np.array([13, 3]), np.array([3, 13]), 16)
    tilt = best_tilt(loss, releases, 1e-5)
    tilted = Tilted.from_loss(loss, releases, tilt)
    mass = tilted.weights / tilted.weights.sum()
    mean = mass @ loss.losses
    variance, third = mass @ (loss.losses - mean) ** 2, mass @ np.abs(loss.losses - mean) ** 3
    distance = 0.4748 * third / (variance**1.5 * math.sqrt(releases))
    found = by_normal(loss, releases, tilt)
    assert found is not None
    log_delta, centre = found
    value, _ = _smoothed(0.0, math.sqrt(releases * variance), tilt, tilted.peak)
    whole = math.log(value + 2 * distance / (1 + tilt))
    wanted = releases * tilted.constant - tilt * centre + whole
    assert wanted <= log_delta(centre) <= wanted + 0.01


@SIDES
@pytest.mark.parametrize("shift", [-0.01, 0.003])
@pytest.mark.parametrize("ways", [(by_fourier_below, by_fourier), (by_normal_below, by_normal)])
def test_any_constant_of_the_tilt_gives_the_same_bound(monkeypatch, upward, shift, ways):
    """The weights then sum to e^-shift: what is forgotten of that counts once a release."""
    loss, way = loss_of(np.array([13, 3]), np.array([3, 13]), 16, upward), ways[upward]
    tilt, releases = best_tilt(loss, 600, 1e-5), 600
    usual, centre = way(loss, releases, tilt)
    for module in ("randquant.privacy.accounting.privacy_loss", "lower_ends"):
        monkeypatch.setattr(f"{module}.log_moments", lambda *asked: log_moments(*asked) + shift)
    assert sum(tilted_of(loss, releases, tilt).weights) == pytest.approx(math.exp(-shift))
    shifted, same_centre = way(loss, releases, tilt)
    assert same_centre == pytest.approx(centre, rel=1e-9)
    for epsilon in (0.98 * centre, centre, 1.02 * centre):
        exact = binary_log_delta(13, 16, releases, epsilon)
        assert (shifted(epsilon) >= exact) if upward else (shifted(epsilon) <= exact)
        assert shifted(epsilon) == pytest.approx(usual(epsilon), abs=1e-6)


# One release, and what is made of the ways there are.


def weights(*values):
    return np.array(values, dtype=object)


@pytest.mark.parametrize("edge", [0.0, 0.7, 31.5, 33.0, math.nextafter(33.0, 0), 44.0])
def test_the_slip_is_not_rounded_away(monkeypatch, edge):
    """From 32 on floats are 64 units apart: adding 2 LOSS_ERROR, 32 units, may be rounded away."""
    monkeypatch.setattr(composition, "crossing", lambda *_: (edge, edge))
    upper = composition._release_epsilon(weights(5, 5), weights(9, 1), 10, 0.1)
    assert Fraction(upper) >= Fraction(edge) + Fraction(LOSS_ERROR)
    assert upper == edge + 2 * LOSS_ERROR or edge >= 32


def test_without_a_way_nothing_is_known(monkeypatch):
    p, q = weights(5, 3), weights(3, 5)
    for way in ("by_fourier", "by_normal"):
        monkeypatch.setattr(composition, way, lambda *_: None)
        monkeypatch.setattr(f"lower_ends.{way}_below", lambda *_: None)
    many = composition.MIN_NORMAL_RELEASES
    assert composition._epsilon(PrivacyLoss.from_rows(p, q, 8), many, 1e-5, 1.0) == math.inf
    assert epsilon_below(LowerLoss.from_rows(p, q, 8), many, 1e-5, 1.0) == 0.0
