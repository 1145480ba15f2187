"""One coordinate of sums of bits: every arrangement of the bits, in fractions."""

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import oracle
import pytest
from whole import row, summed

import randquant as rq
from randquant.privacy.certificates.sums import bit_moments
from randquant.privacy.certificates.sums.bit_moments import by_bits
from randquant.privacy.certificates.sums.bits import Bits

SMALL = rq.pbm(clip=1.0, theta=0.25, trials=2, inputs=5)
LOPSIDED = rq.Channel(
    SMALL.inputs[:3] * 2 + 1, SMALL.values, SMALL.weights[:3], SMALL.denominator
)  # bits of probability 1/4 to 1/2
TURNED = rq.Channel(
    LOPSIDED.inputs, LOPSIDED.values, LOPSIDED.weights[:, ::-1], LOPSIDED.denominator
)
BITS = [[3, 1], [1, 3]]


def exact(others: int, order: float, ends=BITS) -> mpmath.mpf:
    """log M of the worst arrangement of bits: the client's two, and two of each other."""
    found = mpmath.mpf(0)
    for beside in itertools.combinations_with_replacement(ends, 2 * others):
        laws = [summed([*own, *beside]) for own in itertools.product(ends, repeat=2)]
        for p, q in itertools.permutations(laws, 2):
            found = max(found, oracle.renyi(p, q, order))
    return found * (mpmath.mpf(order) - 1)


def of_vertices(channel, others: int, order: float, neighboring: str) -> mpmath.mpf:
    rows = [[int(w) for w in each] for each in channel.weights]
    zero = row(channel, 0.0)
    pairs = list(itertools.permutations(rows, 2))
    if neighboring == "zero_out":
        pairs = [pair for each in rows for pair in ((each, zero), (zero, each))]
    found = mpmath.mpf(0)
    for beside in itertools.combinations_with_replacement(rows, others):
        for pair in pairs:
            p, q = (summed([each, *beside]) for each in pair)
            common = math.lcm(sum(p), sum(q))
            p, q = [w * (common // sum(p)) for w in p], [w * (common // sum(q)) for w in q]
            found = max(found, oracle.renyi(p, q, order))
    return found * (mpmath.mpf(order) - 1)


@pytest.mark.parametrize("order", [1.2, 2.0, 2.5, 9.0])
@pytest.mark.parametrize("others", [1, 3])
def test_every_arrangement_of_bits_is_tried(others, order):
    worst = exact(others, order)
    found = by_bits(SMALL, others, order, "replace_one", 1e3)
    assert worst <= found <= worst * (1 + mpmath.mpf(1e-9))


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
@pytest.mark.parametrize("channel", [SMALL, LOPSIDED, TURNED])
def test_no_vertices_exceed_the_bound(channel, neighboring):
    for order in (1.5, 4.0):
        worst = of_vertices(channel, 2, order, neighboring)
        found = by_bits(channel, 2, order, neighboring, 1e3)
        assert worst <= found <= 1.15 * worst


def test_bits_that_do_not_mirror_each_other_are_all_arranged():
    for order in (1.5, 4.0):
        worst = exact(2, order, [[6, 2], [4, 4]])
        found = by_bits(LOPSIDED, 2, order, "replace_one", 1e3)
        assert worst <= found <= worst * (1 + mpmath.mpf(1e-9))


def test_blocks_of_bits_count_fewer(monkeypatch):
    whole = by_bits(SMALL, 20, 2.0, "replace_one", 1e3)
    monkeypatch.setattr(bit_moments, "ARRANGEMENTS", 6)
    blocks = by_bits(SMALL, 20, 2.0, "replace_one", 1e3)
    assert whole < blocks < 1.3 * whole


@pytest.mark.parametrize("moved", [-(2**37), 2**37])
def test_rows_that_are_binomial_only_nearly_are_paid_for(moved):
    """The middle code of an end's row is off, its mean is not."""
    plain = rq.pbm(1.0, 0.25, 2, 2)
    weights = plain.weights.copy()
    weights[0] += np.array([1, -2, 1]) * moved
    channel = rq.Channel(plain.inputs, plain.values, weights, plain.denominator)
    for order in (1.5, 4.0):
        worst = of_vertices(channel, 1, order, "replace_one")
        assert worst <= by_bits(channel, 1, order, "replace_one", 1e3) < math.inf


@pytest.mark.parametrize("order", [1.5, 4.0])
def test_what_nearly_binomial_rows_cost_is_what_the_theory_says(monkeypatch, order):
    """Proposition 12: M is at most (1 - eta)^(1 - 2 order) times as large."""
    exactly = Bits.of(SMALL)
    assert exactly is not None
    found = []
    for error in (0.0, 1e-7):
        nearly = dataclasses.replace(exactly, error=error)
        monkeypatch.setattr(bit_moments.Bits, "of", lambda _, nearly=nearly: nearly)
        found.append(float(by_bits(SMALL, 3, order, "replace_one", 1e3)))
    eta = math.expm1(4 * math.log1p(1e-7))
    cost = -(2 * order - 1) * math.log1p(-eta)
    assert found[1] - found[0] == pytest.approx(cost, rel=1e-6, abs=0)


@pytest.mark.parametrize("order", [2.0, 8.0])
def test_forty_clients_of_sixteen_levels_are_exact(order):
    found = rq.certify_sum(rq.pbm(clip=1.0, theta=0.25, trials=15), 40, order)
    assert found.method == "bits"
    assert found.epsilon.lower <= found.epsilon.upper <= 1.0001 * found.epsilon.lower


def test_many_more_clients_still_hide_more():
    channel = rq.pbm(clip=1.0, theta=0.25, trials=3)
    bounds = [rq.certify_sum(channel, clients, 2.0).epsilon for clients in (100, 2000)]
    assert bounds[1].upper < bounds[0].upper / 19
    assert bounds[1].lower <= bounds[1].upper < 1.01 * bounds[1].lower


def test_other_channels_have_no_bits():
    assert by_bits(rq.rqm(1.0, 1.0, 4, 0.5), 3, 2.0, "replace_one", 1e3) == math.inf
