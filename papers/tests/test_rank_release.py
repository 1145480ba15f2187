"""Accounts of rank mechanisms: beside exact enumeration, and tight."""

import math

import oracle
import pytest
import rank_attack  # noqa: F401 - adds the attack on ranks
from lower_ends import lower_end
from slow import slow

from randquant.privacy import account
from randquant_papers.rank import RankRelease, RankTable, graded, two_levels

TABLES = (RankTable((1, 3), (5, 1)), RankTable((1, 2, 5), (9, 4, 1)), RankTable((2, 2), (11, 10)))


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("rounds", "delta"), [(1, 1e-2), (2, 1e-3), (4, 0.1), *slow((4, 1e-4))])
def test_an_account_holds_and_is_tight_by_enumeration(table, neighboring, rounds, delta):
    release = RankRelease(table, rounds, neighboring)
    found, lower = account([release], delta), lower_end([release], delta)
    pairs = table.pairs(neighboring)
    exact = [
        max(oracle.composed_delta(p, q, rounds, epsilon) for p, q in pairs)
        for epsilon in (found.epsilon, lower)
    ]
    assert exact[0] <= delta <= exact[1] or (found.epsilon, lower) == (0, 0)
    assert lower >= found.epsilon - 0.01


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("neighboring", ["replace_one", *slow("zero_out")])
@pytest.mark.parametrize(
    ("table", "rounds"),
    [(two_levels(8192, 8.0), 1), (two_levels(8192, 1.6), 5), (two_levels(8192, 0.41), 20),
     (graded(8192, 0.83, 4.0), 20)],
)  # fmt: skip
def test_the_lower_end_is_within_a_hundredth_of_the_upper_end(table, rounds, neighboring):
    release = RankRelease(table, rounds, neighboring)
    found, lower = account([release], 1e-6), lower_end([release], 1e-6)
    assert 0.99 * found.epsilon <= lower <= found.epsilon
    assert found.epsilon <= 9


def test_pure_epsilon_is_the_log_of_the_largest_quotient():
    table = RankTable((1, 3), (5, 1))
    for neighboring, epsilon in (("replace_one", math.log(5)), ("zero_out", math.log(2.5))):
        release = RankRelease(table, 3, neighboring)
        found, lower = account([release], 0.0), lower_end([release], 0.0)
        assert lower <= 3 * epsilon <= found.epsilon
        assert found.epsilon - lower < 1e-12


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
@pytest.mark.parametrize("table", TABLES)
def test_no_divergence_of_either_way_is_above_the_bound(table, neighboring):
    """With zeros instead of an update, neither of the two ways is the larger one at all orders."""
    release = RankRelease(table, 1, neighboring)
    for order in (1.5, 2.0, 8.0, 60.0, math.inf):
        ways = [
            oracle.renyi([int(w) for w in p], [int(w) for w in q], order)
            for one, other in table.pairs(neighboring)
            for p, q in ((one, other), (other, one))
        ]
        assert release.renyi(order) == pytest.approx(float(max(ways)), rel=1e-12, abs=0)
