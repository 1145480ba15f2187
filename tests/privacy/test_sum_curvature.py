"""The curvature of sums against sums worked out in fractions, for any inputs of the others."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seldom import seldom
from whole import over_square, summed

import randquant as rq
from randquant.privacy.accounting.chain import LOST, ChainLaw, Powers, rounding, sums
from randquant.privacy.certificates.sums.sum_curvature import LARGEST_SUM, kappa_sum
from randquant.privacy.certificates.vector import kappa

ONE_BIT = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)
TWO_BITS = rq.rqm(clip=1.0, margin=3.0, levels=4, keep=0.4)
SKEWED = rq.Channel(
    np.array([-1.0, 1.0]), np.array([-2.0, 0.0, 2.0]), np.array([[5, 2, 1], [1, 3, 4]]), 8
)
BENT = rq.pbm(clip=1.0, theta=0.15, trials=2)
INNER = rq.rqm(clip=1.0, margin=1.0, levels=4, keep=0.5)  # vertices between the ends
GAPPED = rq.Channel(  # codes 2 and 4 are never sent, so sums of 3 come about in fewer ways
    np.array([-1.0, 1.0]), np.arange(6.0), np.array([[9, 4, 0, 2, 0, 1], [2, 3, 0, 4, 0, 7]]), 16
)
CHANNELS = {
    "1 bit": ONE_BIT, "2 bits": TWO_BITS, "skewed": SKEWED, "bent": BENT, "inner": INNER,
    "gapped": GAPPED,
}  # fmt: skip


def row(channel, x: float) -> list[int]:
    return channel.mix(x)[0].tolist()


def divergence(channel, x: float, other: float, inputs, order: float) -> float:
    """Of the sum's law for x from that for x', the others' inputs given; exact until the powers."""
    rest = [row(channel, y) for y in inputs]
    return over_square(*(summed([row(channel, at), *rest]) for at in (x, other)), order, 1)


def position(channel, x: float) -> float:
    """Where the encoder takes x to be: it rounds the position in a cell."""
    cell, place = channel.locate(np.asarray(x))
    left, right = channel.inputs[int(cell)], channel.inputs[int(cell) + 1]
    return left + round(float(place) * 2**32) / 2**32 * (right - left)


@pytest.mark.seldom(1)
@pytest.mark.parametrize("name", CHANNELS)
@settings(max_examples=6, deadline=None)
@given(st.data())
def test_no_others_make_the_divergence_larger(name, data):
    channel = CHANNELS[name]
    inputs = st.floats(-1, 1, width=32) | st.sampled_from([-1.0, 1.0, 0.0])
    others = data.draw(st.lists(inputs, min_size=1, max_size=4))
    x, other = data.draw(inputs), data.draw(inputs)
    order = data.draw(st.sampled_from([1.1, 1.7, 2.0, 2.5, 3.0, 6.0, 20.0]))
    found = kappa_sum(channel, len(others) + 1, order)
    square = (position(channel, x) - position(channel, other)) ** 2
    assert divergence(channel, x, other, others, order) <= found.upper * square * (1 + 1e-9) + 1e-18


@pytest.mark.parametrize("order", [1.1, 2.5, 8.0, *seldom(40.0)])
@pytest.mark.parametrize("name", ["1 bit", "2 bits", "skewed", "gapped"])
def test_the_lower_end_is_attained(name, order):
    channel, clients = CHANNELS[name], 4
    found = kappa_sum(channel, clients, order)
    x, other = found.witness
    if x == other:  # approached by close pairs
        x, other = x - math.copysign(1e-3, x), x
    arranged = itertools.combinations_with_replacement([-1.0, 1.0], clients - 1)
    best = max(divergence(channel, x, other, inputs, order) for inputs in arranged)
    ratio = best / (position(channel, x) - position(channel, other)) ** 2
    assert found.lower * (1 - 2e-3) <= ratio <= found.upper * (1 + 1e-9)
    if order <= 8 and name in (
        "1 bit",
        "2 bits",
    ):  # strong channels at high orders: bounded less closely
        assert found.upper <= found.lower * 1.02


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
    many, more = (kappa_sum(channel, clients, 2.0) for clients in (LARGEST_SUM, 10**6))
    assert more.upper == many.upper
    assert more.lower == 0 < many.lower
    gaussian = 2.0 / (2 * LARGEST_SUM * 31**2)
    assert gaussian <= many.lower <= many.upper <= 1.04 * gaussian


def test_what_jumps_stays_infinite():
    jumps = rq.stochastic_rounding(clip=1.0, levels=2)  # at x = 1 code 0 is impossible
    assert math.isinf(kappa_sum(jumps, 50, 2.0).upper)


@pytest.mark.seldom
@pytest.mark.parametrize("order", [1000.0, *seldom(3000.0, 1e5)])
def test_high_orders_fall_back_to_one_client(order):
    found = kappa_sum(ONE_BIT, 4, order)
    assert 0 <= found.lower <= found.upper <= kappa(ONE_BIT, order).upper
    assert (found.upper == kappa(ONE_BIT, order).upper) == (order == 1e5)


@pytest.mark.parametrize("clients", [1, 2, 7, 40, 257])
def test_laws_of_sums_are_within_their_error(clients):
    left, right = SKEWED.weights / 8
    exact = [Fraction(w, 8**clients) for w in summed([SKEWED.weights[0]] * clients)]
    for count, law in enumerate(sums(left, right, clients)):
        assert isinstance(law, ChainLaw)
        assert abs(law.mass.sum() - 1) < 1e-12
        if count == 0 and clients <= 40:
            relative = [abs(Fraction(m) / e - 1) for m, e in zip(law.mass, exact, strict=True)]
            assert max(relative) <= rounding(clients, 3)
    assert count == clients
    last = Powers(right).of(clients)
    assert np.allclose(law.mass, last.mass, rtol=rounding(clients, 3), atol=0)


@pytest.mark.parametrize("likely", [0.5, 77 / 256, 2.0**-9])
def test_laws_of_many_bits_are_exact_within_their_rounding(likely):
    count, exact = 5000, Fraction(likely)
    law = Powers(np.array([1 - likely, likely])).of(count)
    assert law.mass.min() >= LOST
    assert law.mass.sum() == pytest.approx(1.0, rel=0, abs=1e-11)
    for at in np.linspace(0, len(law.mass) - 1, 30).astype(int).tolist():
        place = law.start + at
        truth = math.comb(count, place) * exact**place * (1 - exact) ** (count - place)
        assert abs(Fraction(float(law.mass[at])) / truth - 1) <= rounding(count, 2)
    # Nothing is cut off but what is dropped anyway.
    before = math.comb(count, max(law.start - 1, 0)) * exact ** max(law.start - 1, 0)
    assert law.start == 0 or before * (1 - exact) ** (count - law.start + 1) <= 2 * LOST


def test_bad_arguments_get_one_sentence():
    with pytest.raises(ValueError, match="clients"):
        kappa_sum(ONE_BIT, 0, 2.0)
    with pytest.raises(ValueError, match="order"):
        kappa_sum(ONE_BIT, 3, 1.0)
    with pytest.raises(TypeError, match="channel"):
        kappa_sum("rqm", 3, 2.0)  # type: ignore[arg-type]
