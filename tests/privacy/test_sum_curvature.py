"""The curvature of sums against sums worked out in fractions, for any inputs of the others."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from whole import over_square, summed

import randquant as rq
from randquant.privacy import MAX_SUM_CLIENTS, MIN_PROB, Powers, kappa_sum, rounding

ONE_BIT = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)
SKEWED = rq.Channel(
    np.array([-1.0, 1.0]), np.array([-2.0, 0.0, 2.0]), np.array([[5, 2, 1], [1, 3, 4]]), 8
)
GAPPED = rq.Channel(  # codes 2 and 4 are never sent, so sums of 3 come about in fewer ways
    np.array([-1.0, 1.0]), np.arange(6.0), np.array([[9, 4, 0, 2, 0, 1], [2, 3, 0, 4, 0, 7]]), 16
)


def row(channel, x: float) -> list[int]:
    return channel.mix(x)[0].tolist()


def divergence(channel, x: float, other: float, inputs, order: float) -> float:
    """Of the sum's law for x from that for x', the others' inputs given; exact until the powers."""
    rest = [row(channel, y) for y in inputs]
    return over_square(*(summed([row(channel, at), *rest]) for at in (x, other)), order, 1)


@pytest.mark.parametrize("order", [1.5, 2.0, 2.5, 8.0])
def test_codes_that_are_never_sent_keep_their_places(order):
    """Without its unused codes the channel would send 0 to 3, whose sums hide more."""
    found = kappa_sum(GAPPED, 3, order)
    arranged = list(itertools.combinations_with_replacement([-1.0, 1.0], 2))
    for x in (-1.0, 1.0):
        worst = max(divergence(GAPPED, x, -x, inputs, order) for inputs in arranged)
        assert worst <= found.upper * 4
    closed = rq.Channel(GAPPED.inputs, np.arange(4.0), GAPPED.weights[:, [0, 1, 3, 5]], 16)
    assert kappa_sum(closed, 3, order).upper < 0.999 * found.upper


def test_one_bit_costs_hardly_more_than_its_least_variance():
    """Values ±4, clip 1, 200 clients."""
    for order, most in ((2.0, 1.0696), (4.0, 1.073), (12.0, 1.084)):
        gaussian = order / (2 * 200 * 16)
        found = kappa_sum(ONE_BIT, 200, order)
        assert 1 / (1 - 1 / 16) <= found.lower / gaussian <= found.upper / gaussian <= most


def test_beyond_the_largest_sums_fewer_clients_are_counted():
    channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=30.0)
    many, more = (kappa_sum(channel, clients, 2.0) for clients in (MAX_SUM_CLIENTS, 10**6))
    assert more.upper == many.upper
    assert more.lower == 0 < many.lower
    gaussian = 2.0 / (2 * MAX_SUM_CLIENTS * 31**2)
    assert gaussian <= many.lower <= many.upper <= 1.04 * gaussian


@pytest.mark.parametrize("likely", [0.5, 77 / 256, 2.0**-9])
def test_laws_of_many_bits_are_exact_within_their_rounding(likely):
    count, exact = 5000, Fraction(likely)
    law = Powers(np.array([1 - likely, likely])).law(count)
    assert law.mass.min() >= MIN_PROB
    assert law.mass.sum() == pytest.approx(1.0, rel=0, abs=1e-11)
    for at in np.linspace(0, len(law.mass) - 1, 30).astype(int).tolist():
        place = law.start + at
        truth = math.comb(count, place) * exact**place * (1 - exact) ** (count - place)
        assert abs(Fraction(float(law.mass[at])) / truth - 1) <= rounding(count, 2)
    # Nothing is cut off but what is dropped anyway.
    before = math.comb(count, max(law.start - 1, 0)) * exact ** max(law.start - 1, 0)
    assert law.start == 0 or before * (1 - exact) ** (count - law.start + 1) <= 2 * MIN_PROB
