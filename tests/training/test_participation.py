"""Who takes part: within the cap, never late, uniformly where nothing forces the draw."""

import itertools
import math
from fractions import Fraction

import chance
import numpy as np
import pytest

from randquant.channels import Key
from randquant.training import (
    capped_cohorts,
    sample_capped,
    sample_cohort,
    sample_hidden,
    sample_poisson,
)


def fillable(left: tuple[int, ...], cohort: int, rounds: int) -> bool:
    """Whether rounds can be filled, by trying every cohort of every round."""
    if rounds == 0:
        return True
    open_places = [client for client, places in enumerate(left) if places > 0]
    return any(
        fillable(
            tuple(places - (client in drawn) for client, places in enumerate(left)),
            cohort,
            rounds - 1,
        )
        for drawn in itertools.combinations(open_places, cohort)
    )


@pytest.mark.parametrize("population", [1, 2, 3, 4])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_it_draws_exactly_where_the_rounds_can_be_filled(population, rounds):
    """From every state that a run could be in, also one that this sampler would not reach."""
    cap = 3
    for cohort in range(1, population + 1):
        for used in itertools.product(range(cap + 1), repeat=population):
            left = tuple(cap - calls for calls in used)
            draw = {
                "round": 4 - rounds,
                "rounds": 3,
                "max_participations": cap,
                "key": Key.from_seed(5),
            }
            if not fillable(left, cohort, rounds):
                with pytest.raises(ValueError, match="max_participations"):
                    sample_capped(np.array(used), cohort, **draw)
                continue
            drawn = sample_capped(np.array(used), cohort, **draw)
            after = tuple(places - (client in drawn) for client, places in enumerate(left))
            assert len(set(drawn)) == cohort
            assert min(after) >= 0
            assert fillable(after, cohort, rounds - 1)


def test_a_run_that_cannot_be_filled_fails_at_once():
    cohorts = capped_cohorts(10, 4, 5, max_participations=1, key=Key.from_seed(0))
    with pytest.raises(ValueError, match="places for 10 are missing"):
        next(cohorts)


KEY = Key.from_seed(9)


def sample_loosely_capped(population, cohort, round, key):
    calls, loose = np.zeros(population, dtype=np.int64), {"rounds": 1, "max_participations": 1}
    return sample_capped(calls, cohort, round=1, key=key.fold_in(round), **loose)


@pytest.mark.parametrize("draw", [sample_cohort, sample_hidden, sample_loosely_capped])
def test_every_cohort_of_a_fixed_size_is_equally_likely(draw):
    cohorts = list(itertools.combinations(range(6), 3))
    places = np.array([cohorts.index(tuple(draw(6, 3, round, KEY))) for round in range(4000)])
    assert chance.fits(places, np.full(20, 1 / 20))
    assert not chance.fits(places % 19, np.full(20, 1 / 20))
    assert draw(20, 5, 3, KEY) == draw(20, 5, 3, KEY)
    assert draw(20, 20, 3, KEY) == list(range(20))
    with pytest.raises(ValueError, match="cohort"):
        draw(20, 21, 0, KEY)


def test_poisson_cohorts_have_independent_members_at_their_rate():
    taken = np.zeros((6000, 5), dtype=bool)
    for round in range(len(taken)):
        taken[round, sample_poisson(5, 0.3, round, key=Key.from_seed(1))] = True
    assert chance.mean_is(taken.reshape(-1), 0.3, 1.0)
    assert not chance.mean_is(taken.reshape(-1), 0.33, 1.0)
    assert not np.array_equal(taken[0], taken[1]) or not np.array_equal(taken[1], taken[2])
    codes = taken @ (1 << np.arange(5))
    members = np.array([bin(code).count("1") for code in range(32)])
    assert chance.fits(codes, 0.3**members * 0.7 ** (5 - members))


@pytest.mark.parametrize("rate", [0.5, 0.3, 1e-3, 0.9999999, 2.0**-64])
def test_no_coin_falls_more_often_than_its_rate(rate, monkeypatch):
    """Chosen words at the rate's threshold: of 2**64 words, floor(rate * 2**64) take part."""
    limit = math.floor(Fraction(rate) * 2**64)
    chosen = [0, limit - 1, limit, min(limit + 1, 2**64 - 1), 2**64 - 1]
    words = np.array(chosen, dtype=np.uint64)
    monkeypatch.setattr(Key, "words", lambda self, count, start=0: words[:count])
    expected = [client for client, word in enumerate(chosen) if word < limit]
    assert sample_poisson(5, rate, round=1, key=Key.from_seed(0)) == expected
    assert 1 in expected


def test_everyone_takes_part_at_rate_one_and_hardly_anyone_near_zero():
    assert sample_poisson(4, 1.0, 1, key=Key.from_seed(0)) == [0, 1, 2, 3]
    assert sample_poisson(1000, 5e-324, 1, key=Key.from_seed(0)) == []


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"participations": np.zeros(4)}, TypeError),
        ({"participations": np.zeros((2, 2), dtype=int)}, TypeError),
        ({"cohort": 5}, ValueError),
        ({"cohort": 0}, ValueError),
        ({"round": 0}, ValueError),
        ({"round": 4}, ValueError),
        ({"max_participations": 0}, ValueError),
    ],
)
def test_wrong_arguments_are_named(changed, error):
    right = {
        "participations": np.zeros(4, dtype=int),
        "cohort": 2,
        "round": 1,
        "rounds": 3,
        "max_participations": 3,
        "key": Key.from_seed(0),
    }
    assert len(sample_capped(**right)) == 2
    with pytest.raises(error, match="Expected"):
        sample_capped(**{**right, **changed})
    for rate in (0, 1.5):
        with pytest.raises(ValueError, match="rate"):
            sample_poisson(4, rate, 1, Key.from_seed(0))


def test_who_has_taken_part_beyond_the_cap_takes_no_place_of_the_others():
    """A cap that was lowered while a run went on: what was too much is nobody else's loss."""
    draw = {"rounds": 2, "max_participations": 2, "key": Key.from_seed(0)}
    assert sample_capped(np.array([9, 0, 0]), 2, round=1, **draw) == [1, 2]
