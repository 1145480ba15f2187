"""Random channels: no bound of a sum, in either form, is below what all its arrangements attain."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from whole import over_square, row, summed

import randquant as rq
from randquant.privacy import ClientRows, by_distance
from randquant.privacy.certificates.sum_curvature import _with_mixture_error

ORDERS = (1.5, 2.0, 2.5, 3.0, 8.0, 64.0)
TURNED = rq.Channel(
    np.array([-1.0, -0.8125, 1.0]), np.linspace(-1.5, 1.5, 4),
    np.array([[74626, 261438, 6331, 706181], [360992, 42241, 347582, 297761],
              [370703, 64448, 474658, 138767]]), 2**20,
)  # fmt: skip
"""Its others hide least where some are at each of its three vertices."""


def drawn(rng: np.random.Generator) -> rq.Channel:
    """Two to four vertices, two to six codes, some of them hardly likely; some mirrored."""
    vertices, codes = int(rng.integers(2, 5)), int(rng.integers(2, 7))
    rows = np.exp(rng.uniform(-rng.choice([1.0, 4.0, 12.0]), 0.0, (vertices, codes)))
    inputs = np.linspace(-1.0, 1.0, vertices)
    if rng.random() < 0.3:
        rows += rows[::-1, ::-1]
    else:
        inputs[1:-1] = np.sort(rng.choice(np.arange(-15, 16), vertices - 2, replace=False)) / 16
    whole = np.maximum(np.round(rows / rows.sum(1, keepdims=True) * 2**20), 1).astype(np.int64)
    whole[np.arange(vertices), whole.argmax(1)] += 2**20 - whole.sum(1)
    return rq.Channel(inputs, np.arange(codes) - (codes - 1) / 2, whole, 2**20)


def places(channel: rq.Channel) -> list[Fraction]:
    """Vertices, inputs between them, and some that are close to vertices."""
    ends = [Fraction(float(u)) for u in channel.inputs]
    parts = [Fraction(1, 2**9), Fraction(1, 16), Fraction(1, 2), 1 - Fraction(1, 2**9)]
    between = [a + part * (b - a) for a, b in itertools.pairwise(ends) for part in parts]
    return sorted({*ends, *between})


def attained(channel: rq.Channel, clients: int, order: float) -> tuple[float, float]:
    """Over all arrangements of the others: divergence over squared distance; at vertices alone."""
    some, best, ends = places(channel), [(0.0, ()), (0.0, ())], channel.weights.tolist()
    rows = [row(channel, x) for x in some]
    at_vertex = np.isin(np.array(some, dtype=float), channel.inputs)
    square = (np.subtract.outer(np.array(some, float), np.array(some, float))) ** 2
    for others in itertools.combinations_with_replacement(ends, clients - 1):
        laws = [summed([each, *others]) for each in rows]
        logs = np.array([[math.log(w) - math.log(sum(law)) for w in law] for law in laws])
        powers = order * logs[:, None] + (1 - order) * logs[None]
        top = powers.max(2)
        found = (top + np.log(np.exp(powers - top[..., None]).sum(2))) / (order - 1)
        over = np.divide(found, square, out=np.zeros_like(found), where=square > 0)
        both = np.outer(at_vertex, at_vertex)
        for form, table in enumerate((over, np.where(both, found, 0.0))):
            i, j = np.unravel_index(int(table.argmax()), table.shape)
            if table[i, j] > best[form][0]:
                best[form] = float(table[i, j]), (laws[i], laws[j], some[i] - some[j])
    # Floats chose the pairs; their divergences are worked out in whole numbers.
    (_, close), (_, far) = best
    return over_square(*close[:2], order, close[2]), over_square(*far[:2], order, 1)


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("seed", range(120))
def test_no_arrangement_exceeds_the_bound(seed):
    """Of three channels one is bounded within 4 percent: so many seeds notice that much less."""
    rng = np.random.default_rng(seed)
    channel, clients, order = drawn(rng), int(rng.integers(2, 7)), float(rng.choice(ORDERS))
    over, whole = attained(channel, clients, order)
    found, certified = (f(channel, clients, order) for f in (rq.kappa_sum, rq.certify_sum))
    assert over <= found.upper
    assert whole <= certified.epsilon.upper <= whole * (1 + 1e-6)
    assert found.lower <= found.upper


@pytest.mark.parametrize("order", [2.0, 64.0])
def test_no_bound_exceeds_that_of_a_smaller_power_of_two(order):
    for few, many in [(4, 7), (16, 25)]:
        one, two = (rq.kappa_sum(TURNED, clients, order).upper for clients in (few, many))
        assert two <= one
        one, two = (rq.certify_sum(TURNED, clients, order).epsilon.upper for clients in (few, many))
        assert two <= one


def test_many_others_at_a_few_vertices_are_nearly_all_counted():
    """Kinds of blocks are 50 times above this channel's attack."""
    found = rq.kappa_sum(TURNED, 60, 64.0)
    assert found.lower <= found.upper <= 1.2 * found.lower


def test_laws_that_are_only_nearly_mixes_cost_what_their_error_may_add():
    client = ClientRows.from_channel(TURNED)
    assert _with_mixture_error(client, 1.0, 1e-12, 8.0) == pytest.approx(1.0, abs=1e-6)
    assert _with_mixture_error(client, 1.0, 1e-3, 8.0) == math.inf
    costs = [_with_mixture_error(client, 1.0, unlike, 8.0) - 1 for unlike in (1e-8, 1e-7, 1e-6)]
    assert 0 < costs[0] < costs[1] / 5 < costs[2] / 25
    assert _with_mixture_error(client, 0.0, 1e-6, 8.0) > 0


def test_attacks_find_pairs_at_every_distance():
    """Of 11 clients the worst inputs are a 16th of the way apart, of 20 they are far closer."""
    assert by_distance(rq.pbm(1.0, 0.25, 15), 10, 64.0)[0] > 50
    steep = np.array([[2**60, 2**59, 2**30], [2**30, 2**59, 2**60]])
    steep[[0, 1], [0, 2]] += 2**62 - steep.sum(1)
    lower, (x, y) = by_distance(
        rq.Channel(np.array([-1.0, 1.0]), np.arange(3.0), steep, 2**62), 19, 2.0
    )
    assert lower > 6e7
    assert 0 < abs(x - y) < 1e-4
