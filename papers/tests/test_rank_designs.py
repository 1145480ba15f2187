"""Tables of ranks: what they achieve, beside slow integrals and a linear programme."""

import math

import numpy as np
import oracle
import pytest
from scipy.optimize import linprog

from randquant_papers.rank import gain, graded, top_sum, two_levels


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 12])
def test_sums_of_order_statistics_are_those_of_their_densities(size):
    for count in {1, (size + 1) // 2, size}:
        exact = float(oracle.top_sum(size, count))
        assert top_sum(size, count) == pytest.approx(exact, rel=1e-10)
        assert top_sum(size, 2 * size - count) == top_sum(size, count)
    assert top_sum(size, 2 * size) == 0


def programme(size, epsilon, delta):
    """The largest gain of a sorted (epsilon, delta)-private table, by linear programming."""
    ranks = 2 * size
    sums = [top_sum(size, count) for count in range(ranks + 1)]
    scores = np.diff(sums)
    # Variables: weights, then slacks.
    excess = np.hstack([np.eye(ranks) - math.exp(epsilon) * np.eye(ranks)[::-1], -np.eye(ranks)])
    falling = np.hstack([np.eye(ranks)[1:] - np.eye(ranks)[:-1], np.zeros((ranks - 1, ranks))])
    spent = np.concatenate([np.zeros(ranks), np.ones(ranks)])
    found = linprog(
        -np.concatenate([scores, np.zeros(ranks)]),
        A_ub=np.vstack([excess, falling, spent]),
        b_ub=np.concatenate([np.zeros(2 * ranks - 1), [delta]]),
        A_eq=[np.concatenate([np.ones(ranks), np.zeros(ranks)])],
        b_eq=[1.0],
    )
    return -found.fun


@pytest.mark.parametrize("size", [1, 2, 5, 16])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 1e-3), (5.0, 1e-2), (8.0, 1e-6)])
def test_no_table_exceeds_the_dual_bound_which_two_levels_reach_without_delta(size, epsilon, delta):
    (cut, _), best = two_levels(size, epsilon).counts, programme(size, epsilon, delta)
    ideal = math.expm1(epsilon) * top_sum(size, cut) / (cut * math.expm1(epsilon) + 2 * size)
    bound = ideal + delta * (top_sum(size, 1) - ideal)
    assert best <= bound * (1 + 1e-7)
    reached = gain(two_levels(size, epsilon))
    assert reached <= best * (1 + 1e-7)
    if delta == 0:
        assert reached == pytest.approx(best, rel=1e-7)
    assert bound <= reached * (1 + 1e-7) + delta


def test_under_zero_out_no_table_is_better():
    """Weights between e^-epsilon and e^epsilon times uniform: the best ranks take the most."""
    size, epsilon = 4096, 3.0
    table = two_levels(size, 2 * epsilon, "zero_out")
    uniform = table.total / (2 * size)
    assert table.weights[0] / uniform <= math.exp(epsilon)
    assert table.weights[1] / uniform >= math.exp(-epsilon) * (1 - 1e-2)
    share = 1 / (math.exp(epsilon) + 1)
    cut = math.floor(2 * size * share)
    slope = math.exp(epsilon) - math.exp(-epsilon)
    bound = slope * top_sum(size, cut + 1) / (2 * size)
    assert 0.99 * bound <= gain(table) <= bound


@pytest.mark.parametrize("size", [1, 2, 5, 100, 8192])
@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 8.0, 30.0])
@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
def test_weights_are_at_most_e_to_epsilon_apart_and_fine(size, epsilon, neighboring):
    for table in (two_levels(size, epsilon, neighboring), graded(size, epsilon, 4.0, neighboring)):
        assert table.size == size
        assert math.log(table.weights[0] / table.weights[-1]) <= epsilon + 1e-15
        assert 2**32 <= table.total <= 2**62
        assert gain(table) > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [((0, 1.0), "size >= 1"), ((2**30, 1.0), "<= 536870912"),
     ((8, 31.0), "<= 30"), ((8, math.nan), "epsilon")],
)  # fmt: skip
def test_tables_that_cannot_be_built_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        two_levels(*arguments)
    with pytest.raises(ValueError, match="order > 1"):
        graded(8, 1.0, 1.0)
