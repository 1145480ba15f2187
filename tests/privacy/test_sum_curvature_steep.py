"""Sums of channels with codes that are hardly likely: both ends against fractions, no tolerance."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import oracle
import pytest
import whole
from hypothesis import given, settings
from hypothesis import strategies as st
from slow import slow

import randquant as rq
from randquant.privacy import Kappa, Powers, kappa, kappa_sum, rounding, sums

Row = list[int]


def steep(*rows: Row) -> rq.Channel:
    """A channel whose rows have these weights, out of 2**62: the largest is filled up."""
    weights = np.array(rows, dtype=object)
    for row in weights:
        row[row.argmax()] += 2**62 - int(row.sum())
    inputs = np.linspace(-1.0, 1.0, len(rows))
    values = np.linspace(-2.0, 2.0, weights.shape[1])
    return rq.Channel(inputs, values, weights.astype(np.int64), 2**62)


TRIALS = rq.pbm(clip=1.0, theta=0.25, trials=15)  # outermost codes: 3^15 times as likely or less
ENDS = steep([2**61, 2**35, 2**20], [2**18, 2**33, 2**61])
ONE_BIT = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)
MAX_NORMAL_DERIVATIVES = steep([2**60, 2**59, 2**30], [2**30, 2**59, 2**60])
HILL = steep([2**60, 2**59, 2**30], [2**58, 2**60, 2**58], [2**30, 2**59, 2**60])


@st.composite
def steep_channels(draw) -> rq.Channel:
    """Few vertices and codes; every code possible, some with a chance of 2**-50."""
    vertices, codes = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    power = st.integers(12, 59) | st.integers(50, 59)
    row = st.lists(power, min_size=codes, max_size=codes).map(lambda bits: [2**b for b in bits])
    return steep(*draw(st.lists(row, min_size=vertices, max_size=vertices)))


def steepness(channel: rq.Channel, x, y, others: list[Row], order: float):
    """D over squared distance; the Fisher information's share at x = y, in the steeper cell."""
    x, y = Fraction(x), Fraction(y)
    if x != y:
        p, q = (whole.row(channel, at) for at in (x, y))
        totals = sum(p), sum(q)
        p, q = [w * totals[1] for w in p], [w * totals[0] for w in q]
        return (
            oracle.renyi(whole.summed([p, *others]), whole.summed([q, *others]), order)
            / (x - y) ** 2
        )
    found = [mpmath.mpf(0)]
    row = whole.row(channel, x)
    law = whole.summed([row, *others])
    for cell in range(len(channel.inputs) - 1):
        ends = [Fraction(float(u)) for u in channel.inputs[cell : cell + 2]]
        if ends[0] <= x <= ends[1]:
            near, far = (whole.summed([whole.row(channel, end), *others]) for end in ends)
            scale = [Fraction(sum(law), sum(each)) for each in (near, far)]
            change = [b * scale[1] - a * scale[0] for a, b in zip(near, far, strict=True)]
            fisher = sum(d * d / w for d, w in zip(change, law, strict=True) if w)
            fisher /= (ends[1] - ends[0]) ** 2 * sum(law)
            found.append(mpmath.mpf(order) / 2 * fisher.numerator / fisher.denominator)
    return max(found)


def reached(channel: rq.Channel, found: Kappa, clients: int, order: float):
    """What the witness does attain, with the others at vertices in the best of ways."""
    rows = [[int(w) for w in row] for row in channel.weights]
    if len(rows) == 2:  # any arrangement
        ways = itertools.combinations_with_replacement(rows, clients - 1)
    else:
        ways = ([row] * (clients - 1) for row in rows)
    return max(steepness(channel, *found.witness, list(others), order) for others in ways)


CASES = [
    (TRIALS, 12, 2.0), (TRIALS, 3, 32.0), (TRIALS, 3, 1.05), (TRIALS, 2, 80.0),
    (ENDS, 3, 2.0), (ENDS, 2, 100.0), (ONE_BIT, 6, 3000.0), (ONE_BIT, 3, 2e4), (HILL, 5, 2.5),
]  # fmt: skip


@pytest.mark.parametrize(("channel", "clients", "order"), CASES)
@pytest.mark.slow
def test_a_lower_end_is_attained_though_the_bound_be_that_of_one_client(channel, clients, order):
    found = kappa_sum(channel, clients, order)
    best = reached(channel, found, clients, order)
    assert found.lower <= best < found.lower * (1 + 1e-3)
    assert best <= found.upper
    assert found.lower < kappa(channel, order).lower


@pytest.mark.parametrize("clients", [3, *slow(2, 4)])
@settings(max_examples=3)
@given(steep_channels(), st.sampled_from([1.2, 2.0, 2.5, 4.0, 12.0]), st.data())
def test_no_pair_of_a_steep_channel_exceeds_the_bound(clients, channel, order, data):
    rows = [[int(w) for w in row] for row in channel.weights]
    count = clients - 1
    others = data.draw(st.lists(st.sampled_from(rows), min_size=count, max_size=count))
    places = st.sampled_from([float(u) for u in channel.inputs]) | st.floats(-1, 1, width=32)
    found = [kappa_sum(channel, clients, order)]
    for each in found:
        assert each.lower <= reached(channel, each, clients, order)
    for _ in range(8):
        x, y = data.draw(places), data.draw(places)
        exact = steepness(channel, x, y, others, order)
        assert all(exact <= each.upper for each in found)


@pytest.mark.parametrize(("left", "right", "clients"), [
    ([1 - 2.0**-50, 2.0**-50], [2.0**-45, 1 - 2.0**-45], 21),
    *(([5 / 8, 2 / 8, 1 / 8], [1 / 8, 3 / 8, 4 / 8], clients) for clients in (1, 2, 7, 40)),
])  # fmt: skip
def test_laws_are_precise_far_out(left, right, clients):
    """Every probability from 1e-275 on, in fractions; rows are taken as they are in float64."""
    left, right = np.array(left), np.array(right)
    exact_rows = [[int(Fraction(float(w)) * 2**60) for w in r] for r in (left, right)]
    error = rounding(clients, len(left))
    tiny = 0
    for count, law in enumerate(sums(left, right, clients)):
        assert abs(law.mass.sum() - 1) < 1e-12
        exact = whole.summed([exact_rows[0]] * (clients - count) + [exact_rows[1]] * count)
        for z, weight in enumerate(exact):
            true = Fraction(weight, 2 ** (60 * clients))
            if true >= Fraction(1, 10**275):
                tiny += true < Fraction(1, 10**240)
                assert abs(Fraction(float(law.mass[z - law.start])) / true - 1) <= error
    assert count == clients
    assert tiny > 5 or clients != 21
    assert np.allclose(law.mass, Powers(right).law(clients).mass, rtol=error, atol=0)
    assert Powers(left).law(30).start == 0


def lacking(*rows: Row) -> rq.Channel:
    """A channel of rows of eighths, on even inputs."""
    inputs, levels = np.linspace(-1.0, 1.0, len(rows)), len(rows[0])
    return rq.Channel(inputs, np.linspace(-2.0, 2.0, levels), np.array(rows), 8)


def test_what_is_infinite_for_one_client_need_not_be_for_a_sum():
    """Code 2 is impossible at the left, but sums of the codes beside it are all possible."""
    channel = lacking([2, 2, 0, 2, 2], [2, 1, 2, 1, 2])
    assert math.isinf(kappa(channel, 2.0).lower)
    found = kappa_sum(channel, 3, 2.0)
    assert (found.lower, found.upper) == (0.0, math.inf)


@pytest.mark.parametrize("rows", [
    ([0, 4, 4], [1, 3, 4]), ([4, 4, 0], [4, 3, 1]), ([1, 3, 4], [0, 4, 4]), ([4, 3, 1], [4, 4, 0]),
])  # fmt: skip
def test_an_outermost_code_that_vanishes_makes_sums_infinite_too(rows):
    found = kappa_sum(lacking(*rows), 4, 2.0)
    assert found.lower == math.inf
    x, y = found.witness
    channel = lacking(*rows)
    assert any(
        oracle.renyi(
            whole.summed([whole.row(channel, Fraction(x)), *[row] * 3]),
            whole.summed([whole.row(channel, Fraction(y)), *[row] * 3]),
            2.0,
        )
        == mpmath.inf
        for row in ([int(w) for w in row] for row in channel.weights)
    )


def test_a_jump_makes_sums_infinite_too():
    inputs, weights = np.array([-1.0, 0.0, 0.0, 1.0]), np.array([[5, 3], [5, 3], [3, 5], [3, 5]])
    found = kappa_sum(rq.Channel(inputs, np.array([-2.0, 2.0]), weights, 8), 4, 2.0)
    assert (found.lower, found.upper, found.witness) == (math.inf, math.inf, (0.0, 0.0))
