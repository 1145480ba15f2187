"""Sums over pairs of neighbours, of random channels whose cells are uneven around 0.

The search's own bound is compared with whole numbers: what `kappa_sum` reports is the least of
several bounds, and one of the others would hide a search that misses a pair.
"""

from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any, cast

import numpy as np
import pytest
from whole import over_square, row, summed

import randquant as rq
from randquant.channels.channel import DITHER_STEPS
from randquant.privacy.certificates.sum_curvature import _upper

VERTEX = {"none": None, "at 0": 0.0, "beside 0": 2.0**-20, "at a step's fraction": -1 / 3 * 2.0**-9}


def random_channel(rng, vertex: float | None):
    """Codes and cells of any width; a few of 2**12 draws decide the least likely codes."""
    inner = rng.uniform(0.1, 0.9, 2) * [-1, 1] if vertex is None else [vertex, 0.6]
    inputs = np.sort(np.clip([-1.0, *inner, 1.0], -1, 1)) * rng.choice([1.0, 0.35])
    shares = rng.dirichlet(np.full(3, 0.7), 4)
    weights = 1 + np.floor(shares * (2**12 - 3)).astype(int)
    weights[:, 1] += 2**12 - weights.sum(axis=1)
    return rq.Channel(inputs, np.arange(3.0), weights, 2**12)


def encoded_zero(channel) -> Fraction:
    """Where the encoder puts 0: a whole number of steps in its cell."""
    cell, position = channel.locate(np.array(0.0))
    left, right = (Fraction(float(x)) for x in channel.inputs[cell : cell + 2])
    return left + Fraction(int(position * DITHER_STEPS + 0.5), DITHER_STEPS) * (right - left)


@pytest.mark.parametrize("order", [2.5, 9.0])
@pytest.mark.parametrize("vertex", VERTEX)
def test_no_search_misses_the_farthest_pair_with_zeros_or_within_reach(vertex, order):
    rng, closest = np.random.default_rng([list(VERTEX).index(vertex), int(order)]), 0.0
    for _ in range(2):
        channel = random_channel(rng, VERTEX[vertex])
        ends = [Fraction(float(x)) for x in channel.inputs]
        reach = float(channel.clip * rng.choice([0.02, 0.4, 1.1]))
        near = [sign * Fraction(reach) / part for part in (1, 3, 2**8, 2**20) for sign in (1, -1)]
        zero = [encoded_zero(channel)]
        for relation, starts in (("zero_out", zero), ("replace_one", ends)):
            pairs = {(x, y) for x in starts for y in [*ends, *(x + gap for gap in near)]}
            pairs = [p for p in pairs if 0 < abs(p[0] - p[1]) <= reach and abs(p[1]) <= ends[-1]]
            exact = 0.0
            for rest in combinations_with_replacement(channel.weights.tolist(), 2):
                for x, y in [*pairs, *(pair[::-1] for pair in pairs)]:
                    p, q = (summed([row(channel, at), *rest]) for at in (x, y))
                    exact = max(exact, over_square(p, q, order, x - y))
            upper = _upper(channel, 2, order, 0.9 * exact, cast(Any, relation), reach)
            assert exact <= upper * (1 + 1e-12)
            if relation == "zero_out":  # elsewhere steep channels are bounded loosely
                closest = max(closest, exact / upper)
    assert closest > 0.6
