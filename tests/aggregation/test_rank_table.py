"""The reversal of a sorted table is the worst pair: brute force over all orders of its weights."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from randquant.aggregation.rank.table import RankTable

RNG = np.random.default_rng(20)


def table_of(weights):
    levels = [(w, len(list(group))) for w, group in itertools.groupby(weights)]
    return RankTable(tuple(count for _, count in levels), tuple(w for w, _ in levels))


def random_tables(ranks, count):
    for number in range(count):
        high = (3, 30, 300)[number % 3]
        yield sorted((int(w) for w in RNG.integers(1, high, ranks)), reverse=True)


def hockey_sticks(first, second, ratios):
    """Exact numerators, (orders, ratios): ratios are pairs of whole numbers a/b for e^epsilon."""
    return np.stack(
        [np.maximum(b * first - a * second, 0).sum(axis=-1) for a, b in ratios], axis=-1
    )


def moments(first, second, orders):
    """Exact sums of p^order / q^(order - 1), times a common multiple of the second's powers."""
    common = math.lcm(*map(int, np.unique(second)))
    parts = []
    for order in orders:
        inverse = np.array([(common // int(w)) for w in second.ravel()], dtype=object)
        inverse = inverse.reshape(second.shape) ** (order - 1)
        parts.append((first.astype(object) ** order * inverse).sum(axis=-1))
    return parts


@pytest.mark.parametrize(
    ("ranks", "tables", "renyi"),
    [(2, 12, (2, 3, 8)), (4, 12, (2, 3, 8)), (6, 9, (2, 3, 8)), (8, 2, ()),
     pytest.param(8, 3, (2, 3, 8), marks=pytest.mark.slow)],
)  # fmt: skip
def test_no_order_of_the_weights_is_easier_to_tell_apart_than_the_reversal(ranks, tables, renyi):
    orders = np.array(list(itertools.permutations(range(ranks))))
    for weights in random_tables(ranks, tables):
        row = np.array(weights, dtype=np.int64)
        p, q = table_of(weights).reversal
        # Every epsilon at which a divergence changes its form, and others.
        ratios = {(a, b) for a in weights for b in weights} | {(1, 1), (7, 5), (1, 3)}
        ratios = sorted(ratios)[:40]
        # Both rows may be relabelled at once: one order is enough.
        worst = hockey_sticks(p, q, ratios)
        assert (hockey_sticks(row, row[orders], ratios) <= worst).all()
        common = math.lcm(*weights)
        for order in renyi:
            (found,) = moments(row, row[orders], [order])
            pairs = zip(p.tolist(), q.tolist(), strict=True)
            top = sum(Fraction(a) ** order * Fraction(common, b) ** (order - 1)
                      for a, b in _each(table_of(weights), pairs))  # fmt: skip
            assert max(found) <= top


def _each(table, pairs):
    """The reversal's rows rank by rank: quotients that were put together have equal ranks."""
    for a, b in pairs:
        count = next(k for k in range(1, 99) if a % k == b % k == 0
                     and a // k in table.weights and b // k in table.weights)  # fmt: skip
        yield from [(a // count, b // count)] * count


def test_the_search_finds_worse_orders_of_a_table_that_is_not_sorted():
    """A planted fault: the reversal of an unsorted table is not its worst pair."""
    row = np.array([7, 1, 1, 7])
    orders = np.array(list(itertools.permutations(range(4))))
    worst = hockey_sticks(row, row[::-1], [(1, 1), (3, 1)])
    assert (hockey_sticks(row, row[orders], [(1, 1), (3, 1)]) > worst).any()
    with pytest.raises(ValueError, match=r"Expected falling weights, .* sort the table"):
        RankTable((1, 2, 1), (7, 1, 7))


def test_no_mixture_is_easier_to_tell_from_a_uniform_index_than_the_table():
    orders = np.array(list(itertools.permutations(range(4))))
    ratios = [(1, 3), (2, 3), (1, 1), (3, 2), (2, 1), (5, 1)]
    for weights in random_tables(4, 9):
        table = table_of(weights)
        (there, absent), (_, again) = table.pairs("zero_out")
        assert (there.sum(), absent.sum()) == (again.sum(), there.sum())
        row = np.array(weights, dtype=np.int64)
        mixed = RNG.integers(0, 5, (60, len(orders)))
        shares = mixed.sum(axis=1, keepdims=True)
        laws = mixed @ row[orders]
        flat = np.full(4, table.total) * shares
        scale = shares[:, 0]
        for first, second, pair in (
            (4 * laws, flat, (there, absent)),
            (flat, 4 * laws, (absent, there)),
        ):
            worst = hockey_sticks(*pair, ratios)
            found = hockey_sticks(first, second, ratios)
            assert (found <= scale[:, None] * worst).all()


@pytest.mark.parametrize(
    ("counts", "weights", "sentence"),
    [
        ((1, 2), (3, 1), "Expected an even number of ranks"),
        ((1, 1), (1, 1), "Expected falling weights"),
        ((1, 1), (2,), "got 2 counts and 1 weights"),
        ((), (), "got 0 counts"),
        ((1, 1), (1, 0), "each of weights >= 1"),
        ((0, 2), (2, 1), "each of counts >= 1"),
        ((1, 1), (2**62, 1), "2\\*\\*62 or less"),
        ((2**31, 2**31), (2, 1), "at most 2\\*\\*30"),
    ],
)
def test_tables_that_are_none_are_refused(counts, weights, sentence):
    with pytest.raises(ValueError, match=sentence):
        RankTable(counts, weights)
