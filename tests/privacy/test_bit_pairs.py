"""Every arrangement of the others' bits: against fractions, also where floats have no range."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from whole import partly_even, worst

import randquant as rq
from randquant.channels import probabilities
from randquant.mechanisms.poisson_binomial import binomial
from randquant.privacy.certificates.sums import bit_pairs
from randquant.privacy.certificates.sums.bit_pairs import _groups, _laws, by_arrangements
from randquant.privacy.certificates.sums.bits import curvature_of_bits
from randquant.privacy.certificates.sums.pairs_kernel import scaled_curvatures
from randquant.privacy.certificates.sums.reachable import reached

SMALL = rq.pbm(clip=1.0, theta=0.25, trials=2, inputs=5)
MIRRORED = rq.Channel(SMALL.inputs, SMALL.values, SMALL.weights[:, ::-1], SMALL.denominator)
PLACES = [Fraction(k, 16) for k in (-16, -15, -12, -7, -1, 8, 9, 16)]


def leaning() -> rq.Channel:
    """Two trials, of success probability 0.1 to 0.5: no mirror image of itself."""
    success = np.linspace(0.1, 0.5, 5)
    rows = binomial(2, success, 1 - success)
    return probabilities.from_probabilities(SMALL.inputs, SMALL.values, rows)


@pytest.mark.parametrize("order", [2.0, 16.0, 300.0])
@pytest.mark.parametrize("channel", [SMALL, MIRRORED, leaning()])
def test_no_inputs_exceed_the_bound_of_all_arrangements(channel, order):
    """At order 300 ratios have powers of e^660: in logarithms."""
    exact, attained = worst(channel, 3, order, PLACES), reached(channel, 3, order)[0]
    assert exact <= curvature_of_bits(channel, 3, order, attained) <= 1.06 * max(exact, attained)


@pytest.mark.parametrize("order", [2.0, 32.0])
def test_what_others_draw_evenly_hides_too(order, monkeypatch):
    """It is known who draws evenly, an eighth of all, which tells a part."""
    channel = partly_even(monkeypatch)
    exact, attained = worst(channel, 4, order, PLACES[::3]), reached(channel, 4, order)[0]
    assert exact <= curvature_of_bits(channel, 4, order, attained) <= 1.3 * attained


@pytest.mark.parametrize("order", [1.05, 2.5, 64.0])
def test_values_in_logarithms_are_at_least_the_exact_ones_and_hardly_more(order):
    """Outcomes likely by e^-1500 with ratios of e^20, whose powers decide."""
    mpmath.mp.dps = 60
    random, length = np.random.default_rng(3), 40
    rows = np.exp(-np.abs(np.cumsum(random.normal(0, 0.5, (4, length)), axis=1)))
    rows[3] = rows[2] * (1 + 1e-4 * random.random(length))
    rows[0] *= np.exp(-np.linspace(0, 20, length))
    rows /= rows.max(axis=0)
    steep = random.random((1, length)) + 0.1
    # From likely to hardly likely, so that the powers rise, fall, and may not be left out.
    scale = -(np.linspace(0, 1500, length) ** 0.8)
    most = 2 * np.log(2.0) - np.log(rows.min(axis=0))
    first, second = np.array([0, 1, 2, 3, 1]), np.array([1, 0, 3, 2, 2])
    start, low = np.arange(6), np.zeros(5, int)
    out, excess = np.empty(5), np.empty(5)
    scaled_curvatures(
        rows, np.log(rows), scale, most, steep, first, second, low, start, order, 0.0, out, excess
    )
    for at, (i, j) in enumerate(zip(first, second, strict=True)):
        moment = slope = mpmath.mpf(0)
        for z in range(length):
            p, q, mass = (mpmath.mpf(v) for v in (rows[i, z], rows[j, z], scale[z]))
            value = p**order * q ** (1 - order) - q - order * (p - q)
            moment += mpmath.exp(mass) * value
            slope += mpmath.exp(mass) * steep[0, z] ** 2 * value / ((order - 1) * (p - q) ** 2)
        assert mpmath.log(moment) - 1e-12 <= excess[at] <= mpmath.log(moment) + 1e-6
        if slope < 1e300:
            assert slope * (1 - 1e-9) <= out[at] <= slope * (1 + 1e-6)
        else:
            assert out[at] > 1e290


@pytest.mark.parametrize(("trials", "clients", "order"), [(15, 10, 64.0), (31, 10, 32.0)])
def test_orders_whose_powers_are_beyond_floats_are_close_to_the_attack(trials, clients, order):
    found = rq.kappa_sum(rq.pbm(1.0, 0.25, trials, 17), clients, order)
    assert found.lower <= found.upper <= 1.05 * found.lower


@pytest.mark.parametrize("mirrored", [True, False])
def test_blocks_hide_no_more_than_any_arrangement_in_them(mirrored):
    """For each number of bits at the far end there is a law with no more of either kind."""
    ends = np.array([[3, 1], [1, 3]])
    found = list(_laws(ends, 11, 4, mirrored, 1e15))
    assert [len(law) - 1 for law in found] == [9, 9] if mirrored else [9, 9, 9, 9]
    for start, law in zip((0, 3, 6, 9), found, strict=False):
        # The mean tells how many are at either end: 1/4 and 3/4 each.
        up = round(float((law.mantissa @ np.arange(len(law))) * 2 - (len(law) - 1) / 2))
        assert up == start
        assert len(law) - 1 - up <= 11 - (start + 2)


def test_what_is_rounded_too_much_gives_no_bound(monkeypatch):
    ends = np.array([[3, 1], [1, 3]])
    few = (SMALL, ends, 0.0, 1e-9, 3, 2.0, 0.1)
    assert by_arrangements(*few) < np.inf
    monkeypatch.setattr(bit_pairs, "PRECISE", 1e-9)
    assert by_arrangements(*few) == np.inf


@pytest.mark.parametrize("others", [1, 2, 5, 40])
def test_every_number_of_codes_drawn_evenly_is_in_a_group(others):
    """Of which at least so much is counted, and of bits and codes at most what there is."""
    even = Fraction(1, 8)
    rest = _groups(others, float(even))
    for k in range(others + 1):
        if k and k > others - rest[0][1]:
            rest = rest[1:]
        log_mass, sending, draws = rest[0]
        assert sending <= others - k
        assert draws <= k
        several = range(draws if draws < bit_pairs.DRAWS else k, others - sending + 1)
        exact = sum(math.comb(others, j) * even**j * (1 - even) ** (others - j) for j in several)
        assert float(exact) <= math.exp(log_mass) * (1 + 1e-12)
    assert len(rest) == 1
