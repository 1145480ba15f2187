"""Sums of codes that are sums of bits: against fractions, for any inputs between vertices."""

import math
from fractions import Fraction

import numpy as np
import pytest
from slow import slow
from whole import over_square, partly_even, perturbed, row, summed, worst

import randquant as rq
from randquant.privacy import SCALE, Bits

SMALL = rq.pbm(clip=1.0, theta=0.25, trials=2, inputs=5)


def of_bits(trials, *chances):
    """Codes that are sums of bits, of chances in eighths, from -1 to 1."""
    rows = [[math.comb(trials, k) * p**k * (8 - p) ** (trials - k) for k in range(trials + 1)]
            for p in chances]  # fmt: skip
    inputs = np.linspace(-1, 1, len(rows))
    return rq.Channel(inputs, np.arange(trials + 1.0), np.array(rows), 8**trials)


CHANNELS = {
    "small": (SMALL, 1.25),
    "mirrored": (
        rq.Channel(SMALL.inputs, SMALL.values, SMALL.weights[:, ::-1], SMALL.denominator),
        1.25,
    ),
    "off at the end": (perturbed(rq.pbm(1.0, 0.25, 3, 5), 2e-7, 0), 1.2),
    "off in the middle": (perturbed(rq.pbm(1.0, 0.25, 3, 5), 2e-7, 2), 1.2),
    "one bit, steep in the middle": (of_bits(1, 1, 2, 5, 6), 1.25),
}
"""With how far above the worst of some inputs a bound is."""


def places(channel):
    """Vertices, their neighbours and what is between them."""
    ends = {Fraction(float(u)) for u in channel.inputs}
    return sorted({*ends, *(Fraction(k, 16) for k in (-15, -13, -12, -7, -1, 1, 9, 15))})


@pytest.mark.slow(after=5)
@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize("order", [2.5, 8.0, *slow(1.1)])
def test_no_inputs_exceed_the_bound_and_it_is_near(name, order):
    channel, near = CHANNELS[name]
    found = rq.kappa_sum(channel, 3, order)
    exact = worst(channel, 3, order, places(channel))
    assert exact <= found.upper <= near * exact
    assert found.lower <= found.upper <= rq.kappa(channel, order).upper
    assert ("off" in name) == (Bits.from_channel(channel).error > 1e-7)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("trials", "clients", "order"),
    [(3, 40, 8.0), (15, 10, 1.1), (15, 10, 8.0),
     *slow((3, 400, 1.1), (15, 60, 2.0), (31, 10, 8.0))],
)  # fmt: skip
def test_sums_of_bits_are_bounded_within_three_percent(trials, clients, order):
    channel = rq.pbm(clip=1.0, theta=0.25, trials=trials)
    found = rq.kappa_sum(channel, clients, order)
    assert 0 < found.lower <= found.upper <= 1.031 * found.lower
    whole = rq.certify_sum(channel, clients, order).epsilon
    assert 0 < whole.lower <= whole.upper <= 1.03 * whole.lower


def test_rows_that_are_binomial_only_nearly_are_paid_for():
    """A bit's probability is 6e-7 of itself off at one vertex: its narrow cell is steeper."""
    channel = perturbed(rq.pbm(1.0, 0.25, 1, 200), 2e-7, 0)
    x, y = (Fraction(float(u)) for u in channel.inputs[:2])
    others = [int(w) for w in channel.weights[-1]]
    laws = [summed([row(channel, at), others]) for at in (x, y)]
    steeper = max(over_square(*pair, 2.0, x - y) for pair in (laws, laws[::-1]))
    assert steeper <= rq.kappa_sum(channel, 2, 2.0).upper


def test_bits_are_read_off_the_rows(tmp_path):
    for trials in (1, 3, 15):
        channel = rq.pbm(clip=2.0, theta=0.25, trials=trials)
        bits = Bits.from_channel(channel)
        assert bits.trials == trials
        chances = sorted(int(end[1]) * SCALE // int(end.sum()) for end in bits.ends)
        assert chances == [SCALE // 4, 3 * SCALE // 4]
        rq.save(rq.VectorMechanism(channel, clip_norm=1.0), tmp_path / "mechanism.json")
        again = Bits.from_channel(rq.load(tmp_path / "mechanism.json").channel)
        assert (again.trials, again.error, again.even) == (bits.trials, bits.error, bits.even)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("order", [1.1, 2.0, 8.0])
def test_codes_drawn_evenly_are_paid_for(order, monkeypatch):
    """A share of an eighth: no inputs exceed the bound."""
    channel = partly_even(monkeypatch)
    assert Bits.from_channel(channel).even == 1 / 8
    exact = worst(channel, 3, order, places(channel))
    assert exact <= rq.kappa_sum(channel, 3, order).upper <= 1.4 * exact


@pytest.mark.parametrize("channel", [
    rq.rqm(1.0, 1.0, 4, 0.5), rq.stochastic_rounding(1.0, 3), rq.pbm(1.0, 0.5, 3),
    perturbed(rq.pbm(1.0, 0.25, 3), 1e-3, 3),
])  # fmt: skip
def test_other_channels_have_no_bits(channel):
    assert Bits.from_channel(channel) is None


def test_a_rare_group_may_have_no_outcomes_that_count():
    """Between orders 2 and 3, where curvature is bent by the spread of what counts."""
    found = rq.kappa_sum(rq.pbm(1.0, 0.25, 19, 9), 4, 2.5)
    assert 0 < found.lower <= found.upper < 1.5 * found.lower
