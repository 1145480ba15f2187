"""The reversal of a sorted table is the worst pair: brute force over all orders of its weights."""

import itertools

import numpy as np
import pytest

from randquant_papers.rank import MAX_SORTED_COORDINATES, RankTable, place_of

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


@pytest.mark.parametrize(("ranks", "tables"), [(2, 12), (4, 12), (6, 9), (8, 2)])
def test_no_order_of_the_weights_is_easier_to_tell_apart_than_the_reversal(ranks, tables):
    """At every epsilon: so in every Rényi order too, which is a mix of them."""
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
        ((1, 2, 1), (7, 1, 7), "Expected falling weights, .* sort the table"),
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


DRAWN, LENGTH = np.random.default_rng(4), MAX_SORTED_COORDINATES + 100


def vectors():
    yield DRAWN.normal(size=LENGTH)
    yield DRAWN.integers(-3, 4, LENGTH).astype(np.float64)  # many ties, and zeros
    yield np.full(LENGTH, -2.5)
    yield DRAWN.normal(size=LENGTH).astype(np.float32)
    yield np.ldexp(1.0, DRAWN.integers(-1074, 1023, LENGTH)) * DRAWN.choice([-1.0, 1.0], LENGTH)


@pytest.mark.parametrize(
    "vector", list(vectors()), ids=["normal", "ties", "equal", "short", "wide"]
)
def test_places_are_those_of_a_stable_sort(vector):
    expected = np.argsort(-np.abs(vector), kind="stable")
    for size in (7, MAX_SORTED_COORDINATES, LENGTH):
        part = vector[:size]
        order = expected[expected < size]
        for place in {0, 1, 5, size // 3, size // 2, size - 2, size - 1}:
            assert place_of(part, place) == order[place]
