"""Sums over the pairs that neighbours may have, against sums worked out in whole numbers.

Mechanisms, relations, units, numbers of clients and of bits together: the farthest pair of inputs
beside the worst others is looked for, and compared with what is claimed.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from slow import slow
from whole import over_square, row, summed

import randquant as rq
from randquant.privacy import CellLines, VectorRelease, kappa_sum
from randquant.privacy.certificates import sum_curvature

CHANNELS = {
    **{f"rqm of {bits} bits": rq.rqm(1.0, 1.0, 2**bits, 0.42) for bits in (1, 2, 3, 4)},
    **{f"pbm of {bits} bits": rq.pbm(1.0, 0.25, 2**bits - 1) for bits in (2, 3, 4)},
    "stochastic rounding": rq.stochastic_rounding(1.0, 2, 0.5),
    "zero beside a vertex": rq.Channel(
        np.array([-1.0, 2.0**-20, 1.0]), np.arange(2.0), np.array([[60, 4], [40, 24], [1, 63]]), 64
    ),
    "zero in a cell": rq.Channel(
        np.array([-1.0, 0.3, 1.0]), np.arange(3.0),
        np.array([[50, 13, 1], [20, 24, 20], [1, 13, 50]]), 64,
    ),
}  # fmt: skip
FEW = ("rqm of 2 bits", "pbm of 2 bits", "zero in a cell")
MAX_ARRANGEMENTS = 400
"""More others at vertices than this are drawn at random, all at one vertex among them."""


def arrangements(channel, others: int) -> list[list[int]]:
    """How many of the others are at each vertex, in every way or in some."""
    vertices = len(channel.weights)
    if math.comb(others + vertices - 1, others) <= MAX_ARRANGEMENTS:
        places = itertools.combinations_with_replacement(range(vertices), others)
        return [np.bincount(at, minlength=vertices).tolist() for at in map(list, places)]
    rng = np.random.default_rng(others)
    mixed = [rng.multinomial(others, rng.dirichlet(np.full(vertices, 0.3))) for _ in range(200)]
    return (others * np.eye(vertices, dtype=int)).tolist() + [counts.tolist() for counts in mixed]


def farthest(channel, clients: int, order: float, pairs) -> tuple[float, float]:
    """Return the largest divergence of a sum over these pairs of inputs, as they are encoded.

    The second is the largest over the squared distance, times the largest squared distance.
    """
    inputs = sorted({x for pair in pairs for x in pair})
    mixed = [channel.mix(x) for x in inputs]
    codes = np.array([[float(Fraction(int(w), total)) for w in law] for law, total in mixed])
    first, second = (np.searchsorted(inputs, side) for side in zip(*pairs, strict=True))
    found = np.zeros(len(pairs))
    for counts in arrangements(channel, clients - 1):
        law = np.ones(1)
        for each, count in zip(channel.weights / channel.denominator, counts, strict=True):
            for _ in range(count):
                law = np.convolve(law, each)
        logs = np.log([np.convolve(law, each) for each in codes])
        p, q = logs[first], logs[second]
        moments = np.exp(order * p + (1 - order) * q).sum(axis=1)
        found = np.maximum(found, np.log(moments) / (order - 1))
    square = np.square(np.diff(pairs)[:, 0])
    return float(found.max()), float((found / square).max() * square.max())


def neighbours(channel, clip_norm: float, relation: str, examples: int | None):
    """Pairs of a coordinate's inputs that neighbours may have, after clipping to [-1, 1]."""
    norm = min(clip_norm, 1.0)
    inside = channel.inputs[np.abs(channel.inputs) <= norm]
    places = np.unique([*np.linspace(-norm, norm, 25), *inside])
    if examples is None:
        ends = [0.0] if relation == "zero_out" else places
        pairs = {(x, y) for x in (*places, norm / 1000) for y in ends if x != y}
    else:
        reach = (1 if relation == "zero_out" else 2) * clip_norm / examples
        gaps = [sign * reach * part for sign in (1, -1) for part in (1, 0.5, 0.01)]
        pairs = {(x, x + gap) for x in places for gap in gaps if abs(x + gap) <= norm}
    return sorted(pairs | {pair[::-1] for pair in pairs})


@pytest.mark.parametrize(("name", "clients"), [
    *itertools.product(FEW, (2, 3)), *slow(*itertools.product(FEW, (1, 4, 6))),
    *slow(*((name, 4) for name in CHANNELS if name not in FEW)),
])  # fmt: skip
@pytest.mark.parametrize("examples", [None, 8])
@pytest.mark.parametrize("relation", ["replace_one", "zero_out"])
def test_no_sum_of_neighbours_exceeds_what_is_claimed(relation, examples, name, clients):
    channel, closest, trust = CHANNELS[name], 0.0, "local" if clients == 1 else "aggregate"
    for clip_norm, order in itertools.product((0.3, 1.0), (2.0, 8.0)):
        release = VectorRelease(channel, clip_norm, 1, 1, trust, relation, clients, examples)
        claimed = release.renyi(order)
        pairs = neighbours(channel, clip_norm, relation, examples)
        exact, steepest = farthest(channel, clients, order, pairs)
        assert exact <= claimed * (1 + 1e-9)
        closest = max(closest, steepest / claimed)
    assert closest > 0.95


@pytest.mark.parametrize("order", [2.0, *slow(1.5, 2.5, 9.0, 32.0)])
@pytest.mark.parametrize("pairs", [("zero_out", None), ("zero_out", 0.2), ("replace_one", 0.2)])
@pytest.mark.parametrize("name", ["rqm of 2 bits", "zero beside a vertex", "zero in a cell"])
def test_pairs_in_whole_numbers_are_within_the_interval(name, pairs, order):
    """Close and distant pairs, beside two others in every way; no logarithm until the end."""
    channel, (relation, reach) = CHANNELS[name], pairs
    found = kappa_sum(channel, 3, order, relation, reach)
    limit, exact = Fraction(reach or 1), 0.0
    vertices = [Fraction(float(x)) for x in channel.inputs]
    starts = [Fraction(0)] if relation == "zero_out" else vertices
    ends = [x + sign * limit / part for x in starts for sign in (1, -1) for part in (1, 2, 99)]
    around = [
        (x, y) for x in starts for y in (*ends, *vertices)
        if x != y and abs(y) <= 1 and abs(x - y) <= limit
    ]  # fmt: skip
    others = [[int(w) for w in each] for each in channel.weights]
    for rest in itertools.combinations_with_replacement(others, 2):
        for x, y in around:
            p, q = (summed([row(channel, at), *rest]) for at in (x, y))
            exact = max(exact, over_square(p, q, order, x - y), over_square(q, p, order, x - y))
    assert exact <= found.upper * (1 + 1e-12)
    assert found.lower <= found.upper
    if order == 2 or relation == "zero_out":  # steep channels are bounded loosely elsewhere
        assert found.upper <= 1.05 * max(exact, found.lower)
    x, other = map(Fraction, found.witness)
    assert relation == "replace_one" or 0 in (x, other)
    assert abs(x - other) <= limit


@pytest.mark.parametrize("name", FEW)
def test_fewer_pairs_never_cost_more(name):
    channel, slack = CHANNELS[name], 1 + 2.0**-5  # of searches on grids, which stop within 2^-6
    for clients, order in itertools.product((1, 3), (1.5, 8.0)):
        whole = kappa_sum(channel, clients, order).upper
        zeros = kappa_sum(channel, clients, order, "zero_out").upper
        near = [kappa_sum(channel, clients, order, "zero_out", at).upper for at in (0.5, 0.01)]
        assert zeros <= whole * (1 + (clients == 1) * 2.0**-12)
        assert near[1] <= near[0] * slack <= zeros * slack**2
    sums = [kappa_sum(channel, n, 8.0, "zero_out").upper for n in (1, 2, 3, 4, 8)]
    assert all(more <= fewer * slack for fewer, more in itertools.pairwise(sums))


def test_zeros_and_single_examples_are_worth_a_lot_in_small_sums():
    """Three clients of two bits: what a bound over all pairs would lose."""
    channel = CHANNELS["pbm of 2 bits"]
    whole = kappa_sum(channel, 3, 8.0)
    assert kappa_sum(channel, 3, 8.0, "zero_out").upper < 0.65 * whole.lower
    assert kappa_sum(channel, 3, 8.0, farthest=0.1).upper < 0.85 * whole.lower


def test_where_an_attack_is_as_strong_on_fewer_pairs_they_are_not_searched(monkeypatch):
    channel = rq.stochastic_rounding(1.0, 2, 2.125)
    whole = kappa_sum(channel, 40, 2.0)
    monkeypatch.setattr(sum_curvature, "_upper", None)
    assert kappa_sum(channel, 40, 2.0, "zero_out").upper == whole.upper


@pytest.mark.parametrize("name", CHANNELS)
def test_every_pair_with_zero_is_in_a_box_however_fine_the_grid(name):
    """0, what the encoder makes of it, and all other inputs; no box has neither."""
    channel = CHANNELS[name]
    lines = CellLines.from_channel(channel)
    cell, low, high = lines.around_zero()
    grid = sum_curvature.PairGrid.whole(lines.inputs, 2.0, (cell, low, high), 0.4)
    for _ in range(3):
        parts = grid.parts
        begin = parts.cells + parts.positions[:-1]
        end = begin + parts.sides
        assert (begin[0], end[-1]) == (0, len(lines.inputs) - 1)
        assert (begin[1:] == end[:-1]).all()
        with_zero = (begin >= cell + low) & (end <= cell + high)
        assert with_zero.sum() == 1
        assert not grid.boxes[~with_zero][:, ~with_zero].any()
        places = parts.places[:-1] + (lines.inputs[0] + lines.inputs[-1]) / 2
        near = (places < 0.4) & (places + parts.widths > -0.4)
        assert grid.boxes[near][:, with_zero].all()
        assert grid.boxes[with_zero][:, near].all()
        grid = grid.finer(grid.boxes)
