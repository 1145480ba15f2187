import itertools
import math
from fractions import Fraction

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import channels, mechanism_channels

import randquant as rq
from randquant.channels import Channel


def information(channel, cell: int, part: Fraction):
    """Fisher information at a point of a cell, in fractions; infinite where a code vanishes."""
    left, right = (Fraction(float(u)) for u in channel.inputs[cell : cell + 2])
    total = Fraction(0)
    for a, b in zip(*channel.weights[cell : cell + 2].tolist(), strict=True):
        if a == b:
            continue
        if left == right:
            return math.inf
        probability = ((1 - part) * a + part * b) / channel.denominator
        slope = Fraction(b - a, channel.denominator) / (right - left)
        if probability == 0:
            return math.inf
        total += slope**2 / probability
    return total


@settings(max_examples=40)
@given(channels() | mechanism_channels(), st.fractions(0, 1, max_denominator=97))
def test_it_is_the_largest_of_all_cell_ends(channel, part):
    found = rq.fisher_information(channel)
    cells = range(len(channel.inputs) - 1)
    exact = max(information(channel, cell, Fraction(end)) for cell in cells for end in (0, 1))
    if math.isinf(exact):
        assert found.lower == math.inf
        return
    assert Fraction(found.lower) <= exact <= Fraction(found.upper)
    assert found.width <= 1e-13 * found.upper
    # and no point inside a cell has more
    assert max(information(channel, cell, part) for cell in cells) <= exact


@pytest.mark.parametrize("inputs", [[-1.0, 1.0], [-1.0, 0.0, 0.0, 1.0]])
def test_a_channel_that_ignores_its_input_carries_none(inputs):
    # The repeated input is no jump when its two rows are equal; a code of weight 0 stays there.
    weights = np.array([[3, 5, 0]] * len(inputs))
    channel = Channel(np.array(inputs), np.arange(3.0), weights, 8)
    found = rq.fisher_information(channel)
    assert (found.lower, found.upper) == (0.0, 0.0)


def steepest(channel) -> Fraction | float:
    """Largest |dP/dx|/P over cell ends and codes, times clip, in fractions."""
    worst = Fraction(0)
    for cell in range(len(channel.inputs) - 1):
        left, right = (Fraction(float(u)) for u in channel.inputs[cell : cell + 2])
        for a, b in zip(*channel.weights[cell : cell + 2].tolist(), strict=True):
            if a == b:
                continue
            if left == right or min(a, b) == 0:
                return math.inf
            worst = max(worst, abs(Fraction(b - a, min(a, b)) / (right - left)))
    return worst * Fraction(float(channel.clip))


@settings(max_examples=60)
@given(channels() | mechanism_channels(), st.fractions(0, 1), st.fractions(0, 1))
def test_l1_bounds_every_pair_of_inputs_and_is_attained(channel, first, second):
    found = rq.certify_metric(channel, "l1").epsilon
    exact = steepest(channel)
    if math.isinf(exact):
        assert found.lower == math.inf
        return
    assert Fraction(found.lower) <= exact <= Fraction(found.upper)
    assert found.width <= 1e-13 * found.upper
    x, other = (float(channel.clip * (2 * part - 1)) for part in (first, second))
    loss = rq.certify_pair(channel, x, other).epsilon.lower
    # The rounded dither moves either input by at most 2**-33 of a cell.
    distance = abs(x - other) / channel.clip + 2.0**-31
    assert loss <= found.upper * distance * (1 + 1e-12)


@pytest.mark.parametrize("side", [1, -1], ids=["steep at the right", "steep at the left"])
def test_a_falling_code_is_steepest_where_it_is_rare(side):
    """From 8/16 to 1/16 over a width of 4: its logarithm changes fastest at the rare end."""
    rows = np.array([[8, 8], [15, 1]])[::side]
    channel = Channel(np.array([-2.0, 2.0]), np.array([-1.0, 1.0]), rows, 16)
    l1, fisher = (rq.certify_metric(channel, geometry) for geometry in ("l1", "fisher"))
    rare = side * 2.0
    # In units of the clip, a width of 2.
    assert Fraction(l1.epsilon.lower) <= Fraction(7, 2) <= Fraction(l1.epsilon.upper)
    assert l1.epsilon.width <= 1e-13
    assert l1.witness == (rare, -rare)
    exact = 4 * information(channel, 0, Fraction(side > 0))
    assert exact == Fraction(7**2 * 16, 15 * 16 * 4)
    assert Fraction(fisher.epsilon.lower) <= exact <= Fraction(fisher.epsilon.upper)
    assert fisher.epsilon.width <= 1e-13 * float(exact)
    assert fisher.witness == (rare, rare)


@settings(max_examples=40)
@given(channels())
def test_l2_is_the_worst_of_all_pairs_of_vertices(channel):
    found = rq.certify_metric(channel, "l2").epsilon
    worst = 0.0
    for v, w in itertools.permutations(range(len(channel.inputs)), 2):
        row, other = (channel.weights[i].tolist() for i in (v, w))
        if row == other:
            continue
        loss = oracle.renyi(row, other, math.inf)
        distance = abs(channel.inputs[v] - channel.inputs[w]) / channel.clip
        worst = max(worst, float(loss) / distance**2 if distance and loss < math.inf else math.inf)
    if math.isinf(worst):
        assert found.lower == math.inf
    else:
        assert found.lower * (1 - 1e-12) <= worst <= found.upper * (1 + 1e-12)
