import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import steepness
from strategies import channels, mechanism_channels, steep_channels

import randquant as rq
from randquant.channels import Channel
from randquant.privacy import BoxSearch, CellLines, log_curvature, squared_distance

ORDERS = st.sampled_from([1 + 1e-6, 1.01, 1.5, 2.0, 2.2, 2.9, 3.0, 8.0, 64.0, 300.0])


@settings(max_examples=100)
@given(st.integers(1, 2**62 - 1), st.integers(1, 2**62 - 1), st.integers(-60, 60), ORDERS)
def test_curvature_is_right_however_close_or_apart_the_rows_are(a, b, shift, order):
    near = min(max(a + (1 if shift >= 0 else -1) * 2 ** abs(shift), 1), 2**62 - 1)
    for first, second in ((a, b), (a, near), (near, a), (a, a)):
        # Two halves of a row that move against one another: the sum is twice one term.
        p, q = (np.array([[[w / 2**62] * 2] * 4]) for w in (first, second))
        found = log_curvature(np.ones((1, 4, 2)), p, q, order)[0, 0, 0]
        with mpmath.workdps(200):
            x, y, power = (mpmath.mpf(v) for v in (p[0, 0, 0], q[0, 0, 0], order))
            if x == y:
                exact = power / 2 / y
            else:
                exact = x**power * y ** (1 - power) - y - power * (x - y)
                exact /= (power - 1) * (x - y) ** 2
            exact = mpmath.log(2 * exact)
        assert exact <= found <= exact + 1e-12 * (1 + order + abs(exact))


@pytest.mark.parametrize("order", [1.5, 2.0, 2.5, 40.0])
def test_curvature_of_outcomes_whose_squares_float64_does_not_hold(order):
    """Rows and slopes of 1e-270: C is of degree -1, so the sum scales as they do."""
    p, q = np.array([[[0.3, 0.5]] * 4]), np.array([[[0.2, 0.6]] * 4])
    slope, tiny = np.array([[[0.1, 0.1]] * 4]), 2.0**-900
    found = log_curvature(slope, p, q, order)
    small = log_curvature(slope * tiny, p * tiny, q * tiny, order)
    assert np.allclose(small, found + math.log(tiny), rtol=1e-12, atol=0)


@pytest.mark.parametrize("margin", [0.1, 1.0, 9.0])
def test_two_levels_in_closed_form_up_to_order_two(margin):
    # P_x = (1 ± x/A)/2. At order 2, D = log(1 + h^2/(A^2 - x'^2)) <= h^2/(A^2 - clip^2).
    channel = rq.stochastic_rounding(1.0, 2, margin=margin)
    for order in (1 + 1e-6, 1.5, 2.0):
        found = rq.kappa(channel, order)
        exact = Fraction(order) / 2 / ((1 + Fraction(margin)) ** 2 - 1)
        assert found.lower <= exact * (1 + Fraction(1e-9))
        assert exact * (1 - Fraction(1e-9)) <= found.upper <= exact * (1 + Fraction(1e-9))


@settings(max_examples=40)
@given(steep_channels(), st.floats(-1, 1), st.floats(-1, 1), st.integers(0, 12))
def test_what_is_sent_obeys_it_with_the_rounded_distance(channel, first, second, closer):
    x = channel.clip * first
    other = float(np.clip(x + channel.clip * second / 10**closer, -channel.clip, channel.clip))
    bound = rq.kappa(channel, 4.0).upper * squared_distance(channel, abs(x - other), 1)
    assert rq.certify_pair(channel, x, other, 4.0).epsilon.lower <= bound


@settings(max_examples=60)
@given(mechanism_channels() | channels(), st.floats(-1, 1))
def test_the_encoder_moves_an_input_by_at_most_half_a_step(channel, share):
    x = channel.clip * share
    cell, _ = channel.locate(np.asarray(x))
    left, right = (Fraction(float(u)) for u in channel.inputs[cell : cell + 2])
    changes = np.diff(channel.weights, axis=0)[cell]
    code = int(np.abs(changes).argmax())
    if changes[code] == 0:
        return
    weights, total = channel.mix(x)
    part = Fraction(int(weights[code]), total) - Fraction(int(channel.weights[cell, code]),
                                                          channel.denominator)  # fmt: skip
    part /= Fraction(int(changes[code]), channel.denominator)
    moved = abs(left + part * (right - left) - Fraction(x))
    twice = Fraction(squared_distance(channel, 0.0, 1))
    assert (2 * moved) ** 2 <= twice


def test_squared_distance_grows_with_the_dimension():
    channel = rq.stochastic_rounding(1.0, 3)  # cells of width 1
    assert squared_distance(channel, 2.0, 1) == pytest.approx((2 + 2.0**-32) ** 2, rel=1e-14, abs=0)
    for size in (1, 100, 10**6):
        square = Fraction(size, 2**64)  # both vectors move by half a step in every coordinate
        for distance in (0, 3):
            found = Fraction(squared_distance(channel, float(distance), size))
            assert found >= distance**2 + square
        assert squared_distance(channel, 0.0, size) == pytest.approx(square, rel=1e-4, abs=0)


def test_a_channel_that_ignores_its_input_has_none():
    weights = np.array([[3, 5, 0]] * 4)
    channel = Channel(np.array([-1.0, 0.0, 0.0, 1.0]), np.arange(3.0), weights, 8)
    found = rq.kappa(channel, 8.0)
    assert (found.lower, found.upper) == (0.0, 0.0)


def test_the_bound_holds_when_the_work_runs_out(monkeypatch):
    channel = rq.pbm(1.0, 0.25, 15)
    best = rq.kappa(channel, 64.0)
    monkeypatch.setattr("randquant.privacy.certificates.vector.MAX_WORK_PROBABILITIES", 1)
    early = rq.kappa(channel, 64.0)
    assert early.upper > best.upper * 1.01
    assert early.lower <= best.upper


# The bound of a single box of pairs: a search over many hides one that is too small.


STEPS = 16
"""Positions tried along each side of a box, but for its ends."""


def lines_of(inputs, ups, denominator) -> CellLines:
    """Two codes: `ups` are the weights of the first at the inputs."""
    weights = np.array([[up, denominator - up] for up in ups])
    return CellLines(np.array(inputs), weights, denominator)


def most_inside(lines: CellLines, order: float, cells, sides) -> Fraction:
    """The largest exact steepness of the pairs on a grid of a box."""
    inputs = [Fraction(float(end)) for end in lines.inputs]
    along = []
    for cell, side in zip(cells, sides, strict=True):
        begin, end = (Fraction(part) for part in side)
        parts = {begin + (end - begin) * step / STEPS for step in range(STEPS + 1)}
        along.append({inputs[cell] + part * (inputs[cell + 1] - inputs[cell]) for part in parts})
    pairs = [(x, other) for x in along[0] for other in along[1] if x != other]
    return max(steepness(lines, x, other, order) for x, other in pairs)


# A rare code that becomes likely: between the rare end and the rest of a cell the divergence is
# nearly proportional to distance.
RARE = lines_of([-1.0, -0.5, 1.0], [2, 3, 900], 1024)
EVEN = lines_of([-1.0, 1.0], [1, 15], 16)
STEP = lines_of([-1.0, -0.5, 0.5, 1.0], [4, 4, 12, 12], 16)


@pytest.mark.parametrize(
    ("lines", "order", "cells", "sides"),
    [
        pytest.param(RARE, 1.01, (1, 0), [(0, 1), (0, 0)], id="steepest between its corners"),
        pytest.param(RARE, 1.01, (0, 1), [(0, 2**-10), (0, 1)], id="the other way round"),
        pytest.param(EVEN, 2.1, (0, 0), [(0, 1), (0.5, 0.5)], id="not convex, a little above 2"),
        pytest.param(EVEN, 2.5, (0, 0), [(0.25, 0.75), (0.5, 0.5)], id="not convex, at 2.5"),
        pytest.param(EVEN, 2.5, (0, 0), [(0, 1), (7 / 16, 9 / 16)], id="one side inside the other"),
        pytest.param(EVEN, 8.0, (0, 0), [(0.25, 0.75), (0, 1)], id="pairs that meet at order 8"),
        pytest.param(STEP, 1.1, (0, 2), [(0, 1), (0, 1)], id="all change in the cell between"),
        pytest.param(STEP, 40.0, (2, 0), [(0, 0.5), (0.5, 1)], id="that cell at order 40"),
    ],
)
def test_no_pair_inside_a_box_exceeds_its_bound(lines, order, cells, sides):
    bound = BoxSearch(lines, order, 0.0)._bound(np.array([cells]), np.array([sides], dtype=float))
    assert most_inside(lines, order, cells, sides) <= bound[0] < np.inf


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("ups", [[4, 4, 12, 12], [1, 8, 8, 15], [15, 8, 8, 1], [2, 8, 2, 8]])
@pytest.mark.parametrize("order", [1.5, 2.5, 40.0])
def test_pairs_of_cells_settled_at_the_start_count(ups, order):
    """A generous tolerance settles all pairs of cells that do not touch from their corners."""
    lines = lines_of([-1.0, -0.9375, 0.9375, 1.0], ups, 16)
    search = BoxSearch(lines, order, 0.0, tolerance=1e6)
    kept = {tuple(cells) for cells in search._roots()[0].tolist()}
    assert kept == {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2)}
    for cells in ((0, 2), (2, 0)):
        assert most_inside(lines, order, cells, [(0, 1), (0, 1)]) <= search.dropped
    worst = max(most_inside(lines, order, cells, [(0, 1), (0, 1)]) for cells in kept)
    assert worst <= BoxSearch(lines, order, 0.0, tolerance=1e9).run()
