"""Many small steps against Gaussian noise: every step of the proof, and exact deltas of runs."""

import itertools
import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

import randquant as rq
from randquant.privacy import (
    MAX_NORMAL_DERIVATIVES,
    RATIO_ORDERS,
    GaussianRelease,
    RoundLoss,
    VectorRelease,
    account,
    epsilon_at,
    gaussian_epsilon,
    kappa_sum,
    martingale_epsilon,
    ratio_moments,
    sum_round_loss,
)
from randquant.privacy.accounting.gaussian import _choose, _integrated_errors, _lognormal_moment

DELTA = 1e-5
NAMES = ("second", "third", "skew", "excess", "fifth", "sixth")


def bit(ratio: float):
    """One bit with values at `ratio` times the clip, 1."""
    return rq.stochastic_rounding(clip=1.0, levels=2, margin=ratio - 1)


def uneven(*rows):
    return rq.Channel(np.array([-1.0, 1.0]), np.array([-2.0, 3.0]), np.array(rows), 16)


def share(channel, clients: int) -> float:
    return kappa_sum(channel, clients, 2.0).upper * float(np.ptp(channel.inputs)) ** 2


def laws(channel, clients: int, right: int, exact: bool = False):
    """Laws of the sum with one client at either end and `right` of the others at the right."""
    kind = Fraction if exact else float
    ends = [[kind(int(w)) / channel.denominator for w in row] for row in channel.weights]
    law = [kind(1)]
    for i in range(clients - 1):
        law = convolve(law, ends[1] if i < right else ends[0])
    return convolve(law, ends[0]), convolve(law, ends[1])


def convolve(first, second):
    out = [0] * (len(first) + len(second) - 1)
    for (i, a), (j, b) in itertools.product(enumerate(first), enumerate(second)):
        out[i + j] += a * b
    return out


@pytest.mark.parametrize(
    ("channel", "clients"),
    [
        (bit(4.0), 1),
        (bit(4.0), 2),
        (bit(2.0), 5),
        (uneven([4, 12], [10, 6]), 6),
        (uneven([4, 12], [8, 8]), 6),  # one row is its own mirror image, and the channel is not
        (uneven([8, 8], [4, 12]), 6),
    ],
)
def test_moments_are_above_those_of_every_pair_and_every_spread_of_the_others(channel, clients):
    found = ratio_moments(channel, clients)
    assert found is not None
    met: dict[str, float] = dict.fromkeys(NAMES, 0.0)
    tilted = [0.0] * len(RATIO_ORDERS)
    grid = [Fraction(i, 6) for i in range(7)]
    for right in range(clients):
        a, b = laws(channel, clients, right, exact=True)
        pairs = [(x, y) for x, y in zip(a, b, strict=True) if x or y]
        for p, q in itertools.permutations(grid, 2):
            outcomes = [(x + p * (y - x), x + q * (y - x)) for x, y in pairs]
            m = [sum(v * (u / v - 1) ** k for u, v in outcomes) for k in range(7)]
            way = abs(p - q)
            seen = {
                "second": m[2] / way**2,
                "third": abs(m[3]) / way**3,
                "skew": abs(m[3] - 3 * m[2] ** 2) / way**2,
                "excess": abs(m[4] - 3 * m[2] ** 2) / way**4,
                "fifth": abs(m[5]) / way**5,
                "sixth": m[6] / way**6,
            }
            for name, value in seen.items():
                assert value <= float(getattr(found, name))
                met[name] = max(met[name], float(value))
            if way == 1 or (p, q) == (grid[1], grid[4]):
                for i, power in enumerate(RATIO_ORDERS):
                    value = sum(v * (u / v - 1) ** 6 * (u / v) ** power for u, v in outcomes)
                    assert value / way**6 <= found.tilted[i]
                    tilted[i] = max(tilted[i], float(value / way**6))
    for name in ("second", "third", "fifth", "sixth"):  # met at the ends
        assert getattr(found, name) <= met[name] * (1 + 1e-9)
    assert found.tilted == pytest.approx(tilted, rel=1e-9, abs=0)
    assert found.skew <= 1.3 * met["skew"]
    assert found.excess <= 7 * met["excess"]


def test_what_has_other_vertices_or_says_too_much_has_neither_moments_nor_steps():
    """Its curvature may be finite all the same: then the accountant goes on without steps."""
    inner = rq.rqm(clip=1.0, margin=1.0, levels=4, keep=0.4)
    assert kappa_sum(inner, 2, 2.0).upper < math.inf
    three = rq.stochastic_rounding(clip=1.0, levels=3, margin=3.0)
    for channel, clients in ((inner, 10), (three, 1), (bit(1.0), 10), (bit(1.1), 10)):
        assert ratio_moments(channel, clients) is None
        assert sum_round_loss(channel, clients, 4.0, 2.0, 2) is None
    assert ratio_moments(bit(4.0), 2**12 + 1) is None


@pytest.mark.parametrize("x", [1e-6, 0.003, 0.2])
@pytest.mark.parametrize(("power", "tilt"), [(3, 0), (4, 0), (5, 0), (6, 0), (6, 4), (6, 64)])
def test_moments_of_gaussian_noise(power, tilt, x):
    with mpmath.workdps(25):
        w = mpmath.log(1 + mpmath.mpf(x))

        def part(z):
            ratio = mpmath.exp(mpmath.sqrt(w) * z - w / 2)
            return (ratio - 1) ** power * ratio**tilt * mpmath.npdf(z)

        centre = tilt * mpmath.sqrt(w)
        exact: Any = mpmath.quad(part, [centre + 4 * i for i in range(-5, 8)])
    assert (
        float(exact) * (1 - 1e-12) <= _lognormal_moment(power, tilt, x) <= float(exact) * (1 + 2e-9)
    )
    if power == 4:
        polynomial = 3 * x**2 + (16 + 15 * x + 6 * x**2 + x**3) * x**3
        assert _lognormal_moment(4, 0, x) == pytest.approx(polynomial, rel=2e-9, abs=0)


def test_peaks_of_the_density_are_its_derivatives_largest_values():
    for k, peak in enumerate(MAX_NORMAL_DERIVATIVES):
        z = np.linspace(0, 6, 60_001)
        hermite = np.polynomial.hermite_e.hermeval(z, [0] * k + [1])
        largest = np.abs(hermite * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)).max()
        assert largest <= peak <= largest * (1 + 1e-6)


@pytest.mark.parametrize(("ratio", "clients", "longest"), [(4.0, 30, 1.0), (3.0, 4, 0.4)])
def test_moments_of_steps_are_as_close_to_those_of_gaussian_noise_as_stated(
    ratio, clients, longest
):
    channel = bit(ratio)
    moments, per_way = ratio_moments(channel, clients), share(channel, clients)
    assert moments is not None
    steps = RoundLoss.from_moments(moments, per_way, longest, 1.0)
    close = [0.0] * (3 + len(steps.sixth))
    for right in (0, clients // 2, clients - 1):
        a, b = (np.array(law) for law in laws(channel, clients, right))
        for q, way in itertools.product(np.linspace(0, 1, 11), (-1.0, -0.5, 0.1, 1.0)):
            way *= longest
            if not 0 <= q + way <= 1:
                continue
            under, over = a + q * (b - a), a + (q + way) * (b - a)
            rho, v = over / under, per_way * way**2
            x = float(under @ (rho - 1) ** 2)
            found = [
                abs(float(under @ (rho - 1) ** k) - _lognormal_moment(k, 0, x)) / v
                for k in (3, 4, 5)
            ] + [
                (float(under @ ((rho - 1) ** 6 * rho**power)) + _lognormal_moment(6, power, x)) / v
                for power in (0, *RATIO_ORDERS)
            ]
            assert np.all(np.array(found) <= [*steps.apart, *steps.sixth])
            close = np.maximum(close, found).tolist()
    if longest == 1:  # hardly above what is met
        pairs = zip([*steps.apart, *steps.sixth], close, strict=True)
        assert all(bound <= 12 * met for bound, met in pairs)


def potential(e, r, steps: RoundLoss, tilt: float, smoothing: float):
    """(price, allowance) of Proposition 5 at K = 1: U is their sum."""
    moments = steps.moments(tilt)
    growth = tilt * (1 + tilt) / 2
    growth += sum(abs(_choose(1 + tilt, k)) * part for k, part in enumerate(moments, 3))
    s, y = math.sqrt(e), np.log(r)
    price = r * ndtr(y / s + s / 2) - ndtr(y / s - s / 2)
    errors = 0.0
    if e > smoothing:
        errors = _integrated_errors(moments, tilt, smoothing - steps.largest, e - steps.largest)
    return price, r ** (1 + tilt) * math.exp(min(growth * e, 300.0)) * errors


@pytest.mark.parametrize(
    ("ratio", "clients"), [(4.0, 100), (4.0, 20), (2.0, 10), (30.0, 1), (6.0, 3)]
)
def test_the_potential_does_not_rise_in_any_step(ratio, clients):
    channel = bit(ratio)
    moments, per_way = ratio_moments(channel, clients), share(channel, clients)
    assert moments is not None
    steps, chance, used = (
        RoundLoss.from_moments(moments, per_way, 1.0, 1.0),
        np.random.default_rng(5),
        0.0,
    )
    for trial in range(120):
        right = int(chance.integers(clients)) if trial % 3 else (trial % 2) * (clients - 1)
        a, b = (np.array(law) for law in laws(channel, clients, right))
        p, q = chance.permutation([0.0, 1.0]) if trial % 2 else chance.random(2)
        under, ratios = a + q * (b - a), (a + p * (b - a)) / (a + q * (b - a))
        v, tilt = per_way * (p - q) ** 2, 10 ** chance.uniform(-1, 1.2)
        smoothing = steps.largest * (1 + 10 ** chance.uniform(-2, 1.5))
        left = smoothing + (trial % 2) * 10 ** chance.uniform(-4, 0)
        r = np.exp(np.linspace(-5, 5, 61) * math.sqrt(left + 0.01))
        before = potential(left + v, r, steps, tilt, smoothing)
        if before[1].max() > 1e120:
            continue  # cut off
        price, allowance = potential(left, r[:, None] * ratios, steps, tilt, smoothing)
        assert ((price + allowance) @ under <= sum(before) * (1 + 1e-12) + 1e-15).all()
        spent, allowed = price @ under - before[0], before[1] - allowance @ under
        used = max(used, float((spent / allowed)[allowed > 1e-9].max(initial=0.0)))
    if clients == 100:
        assert used > 0.2  # the errors are there


def test_gaussian_noise_beside_costs_its_energy_and_nothing_else():
    channel, clients = bit(4.0), 200
    release = VectorRelease(channel, 20.0, 2000, 1, "local", cohort=1)
    assert release.round_loss is not None
    release = VectorRelease(channel, 4.0, 2000, 4, "aggregate", cohort=clients)
    steps = release.round_loss
    assert steps is not None
    both = RoundLoss.combined([steps, RoundLoss(1.5)])
    assert both == RoundLoss.combined([RoundLoss(1.5), steps])  # whichever comes first
    assert both.energy == pytest.approx(steps.energy + 1.5)
    assert (both.largest, both.apart, both.sixth) == (steps.largest, steps.apart, steps.sixth)
    exact = gaussian_epsilon(math.sqrt(steps.energy + 1.5), DELTA)
    assert exact < martingale_epsilon(both, DELTA)[0] < 1.02 * exact
    local = VectorRelease(bit(60.0), 20.0, 2000, 1, "local")
    assert local.round_loss is not None
    mixed = account([local, GaussianRelease(2.0, 5, 1, "local")], DELTA).epsilon
    alone = account([local], DELTA).epsilon
    exact = gaussian_epsilon(math.sqrt(local.round_loss.energy + 0.25), DELTA)
    assert alone < mixed < 1.03 * exact


def test_any_tilt_and_smoothing_is_above_the_gaussian_and_none_is_no_bound():
    steps = VectorRelease(bit(4.0), 4.0, 2000, 4, "aggregate", cohort=200).round_loss
    assert steps is not None
    exact = gaussian_epsilon(math.sqrt(steps.energy), DELTA)
    best, order = martingale_epsilon(steps, DELTA)
    for tilt, smoothing in itertools.product((0.0, 0.5, 3.0, 9.0, 200.0), (1.01, 3.0, 50.0, 1e4)):
        found = epsilon_at(steps, DELTA, tilt, steps.largest * smoothing)
        assert exact < best * (1 - 1e-3) < found
    assert order > 1
    assert martingale_epsilon(steps, 0.0)[0] == math.inf
    assert martingale_epsilon(RoundLoss(0.0), DELTA)[0] == 0.0


@pytest.mark.parametrize("tilt", [0.5, 2.5, 7.0])
@pytest.mark.parametrize("smoothing", [1.5, 20.0])
def test_the_potential_of_the_whole_run_is_delta(tilt, smoothing):
    """The potential at R_0 = 1 and K is K times the one at 1/K."""
    steps = VectorRelease(bit(4.0), 4.0, 2000, 4, "aggregate", cohort=200).round_loss
    assert steps is not None
    smoothing *= steps.largest
    epsilon = epsilon_at(steps, DELTA, tilt, smoothing)
    ratio, whole = np.exp(-epsilon), steps.energy + smoothing
    found = sum(potential(whole, ratio, steps, tilt, smoothing)) / ratio
    assert DELTA * (1 - 1e-5) < found <= DELTA


def test_the_energy_is_that_of_order_two():
    """Cover every pair of one coordinate: D_2 is at most share · way^2, and close to it."""
    channel, clients, close = bit(3.0), 12, 0.0
    release = VectorRelease(channel, 1.0, 1, 1, "aggregate", cohort=clients)
    steps = release.round_loss
    assert steps is not None
    for right in range(clients):
        a, b = (np.array(law) for law in laws(channel, clients, right))
        for p, q in itertools.permutations(np.linspace(0, 1, 9), 2):
            under, other = a + q * (b - a), a + p * (b - a)
            loss = math.log(float((other**2 / under).sum())) / (p - q) ** 2
            close = max(close, loss)
    assert close <= steps.energy <= close * 1.01
    assert steps.largest == pytest.approx(steps.energy, rel=1e-6)
    long = VectorRelease(channel, 1.0, 1, 7, "aggregate", cohort=clients).round_loss
    assert long is not None  # seven rounds
    assert long.energy == pytest.approx(7 * steps.energy, rel=1e-9)
    assert long.largest == steps.largest
    short = VectorRelease(channel, 0.3, 1, 1, "aggregate", cohort=clients).round_loss
    assert short is not None  # the only step of one coordinate is the largest, if it is short too
    assert short.largest == pytest.approx(short.energy, rel=1e-6)
    assert short.energy == pytest.approx(0.3**2 * steps.energy, rel=1e-4)


def test_a_step_from_zeros_is_half_as_long_and_that_of_an_example_is_not():
    """The channel clips to its ends, and the encoder moves zeros by less than 2^-32 of a cell."""

    def steps(relation, examples=None):
        release = VectorRelease(
            bit(4.0), 9.0, 50, 3, "aggregate", relation, cohort=12, examples=examples
        )
        assert release.round_loss is not None
        return release.round_loss

    whole, zeros = steps("replace_one"), steps("zero_out")
    assert 0 < zeros.largest / whole.largest - 0.25 < 1e-8
    assert all(0 < few < many for few, many in zip(zeros.apart, whole.apart, strict=True))
    assert all(0 < few < many for few, many in zip(zeros.sixth, whole.sixth, strict=True))
    assert martingale_epsilon(zeros, DELTA)[0] < 0.5 * martingale_epsilon(whole, DELTA)[0]
    # A mean in which one gradient is zero is not zero.
    example = steps("zero_out", examples=1)
    assert (example.largest, example.apart) == (whole.largest, whole.apart)


def test_two_codes_are_one_bit_however_bent():
    """In units of where the probability is steepest; straight, it is the channel of two ends."""
    total, inputs = 2**30, np.array([-0.1, -0.05, 0.0, 0.05, 0.1])

    def steps(inputs, chances):
        ones = np.round(np.array(chances) * total).astype(np.int64)
        rows = np.stack([total - ones, ones], axis=1)
        channel = rq.Channel(inputs, np.array([-0.5, 0.5]), rows, total)
        return sum_round_loss(channel, 20, 0.04, 0.2, 5)

    ends = steps(inputs[[0, -1]], [0.4, 0.6])
    straight = steps(inputs, [0.4, 0.45, 0.5, 0.55, 0.6])
    bent = steps(inputs, [0.4, 0.44, 0.5, 0.56, 0.6])  # 1.2 times as steep in the middle
    back = steps(inputs, [0.4, 0.6, 0.5, 0.6, 0.55])  # it need not rise
    assert straight.energy == pytest.approx(ends.energy, rel=1e-6, abs=0)
    assert straight.energy >= ends.energy * (1 - 1e-8)
    assert bent.energy == pytest.approx(1.44 * ends.energy, rel=1e-6, abs=0)
    assert back.energy == pytest.approx(16 * ends.energy, rel=1e-6, abs=0)
    turned = steps(inputs, [0.55, 0.6, 0.5, 0.6, 0.4])
    assert turned.energy == pytest.approx(back.energy, rel=1e-12, abs=0)
    assert bent.apart == pytest.approx(ends.apart, rel=1e-6, abs=0)
    jump = np.array([-0.1, -0.05, -0.05, 0.05, 0.1])
    assert steps(jump, [0.4, 0.45, 0.5, 0.55, 0.6]) is None
