"""Lower ends of whole updates: against exact composition by fractions, and against the bounds."""

import math

import numpy as np
import pytest
from seldom import seldom
from whole import summed

import randquant as rq
from randquant.privacy.accounting.attacks import INSIDE, DrawnRound, attacked_epsilon, on_updates
from randquant.privacy.accounting.releases import ChannelRelease, VectorRelease
from randquant.privacy.accounting.rounds import SumRound

BIT = rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0)
RQM = rq.rqm(1.0, 1.0, 4, 0.42)
DELTA = 0.02


def law_of(channel, clients, others, place):
    return summed([channel.mix(place)[0], *[channel.mix(others)[0]] * (clients - 1)])


def exact_epsilon(first, second, times, delta):
    """Of so many independent copies of a pair, by all outcomes; within 1e-13."""
    p, q = (np.array([w / sum(law) for w in law]) for law in (first, second))
    one, other = p, q
    for _ in range(times - 1):
        one, other = np.outer(one, p).ravel(), np.outer(other, q).ravel()
    low, high = 0.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        above = np.maximum(one - math.exp(middle) * other, 0).sum()
        low, high = (middle, high) if above > delta else (low, middle)
    return low


@pytest.mark.seldom(1)
@pytest.mark.parametrize(
    ("channel", "clients", "neighboring"),
    [(BIT, 1, "zero_out"), (RQM, 3, "zero_out"), *seldom((BIT, 4, "replace_one"))],
)
def test_an_attack_is_composed_exactly(channel, clients, neighboring):
    """Whatever attack is taken, its epsilon is no more than the exact one, and hardly less."""
    reach, dimension = 1.2, 2
    release = VectorRelease(channel, reach, dimension, 1, "aggregate", neighboring, clients)
    best = 0.0
    for attack, times in release.attacks:
        first, second = (
            law_of(channel, clients, attack.seen.others, at) for at in attack.seen.place[:2]
        )
        exact = exact_epsilon(first, second, times, DELTA)
        found = attacked_epsilon([(attack, times)], DELTA, 3.0)
        other = exact_epsilon(second, first, times, DELTA)
        assert found <= max(exact, other) + 1e-12
        assert found >= 0.99 * min(exact, other)
        best = max(best, exact, other)
    assert 0.9 * best <= attacked_epsilon(release.attacks, DELTA, 3.0) <= best + 1e-12


def test_no_update_of_an_attack_is_clipped():
    release = VectorRelease(RQM, 3.3, 100, 2, "aggregate", cohort=9)
    for attack, times in release.attacks:
        here, there, _ = attack.seen.place
        assert times % 2 == 0
        assert here == -there <= RQM.clip
        assert np.float32(here) == here
        assert math.sqrt(times / 2) * here <= 3.3 * (1 - 2**-21)
    assert {times for _, times in release.attacks} == {20, 200}
    part = VectorRelease(RQM, 3.3, 100, 1, "aggregate", cohort=9, examples=3)
    assert all(math.sqrt(times) * attack.seen.place[0] <= 1.1 for attack, times in part.attacks)


def test_a_secure_sum_has_a_lower_end_close_to_its_bound():
    channel = rq.stochastic_rounding(1.0, 2, 9.0)
    whole, *parts = (
        VectorRelease(channel, 10.0, 900, rounds, "aggregate", cohort=200) for rounds in (20, 5, 15)
    )
    guarantee = rq.account([whole], 1e-5)
    assert guarantee.lower <= guarantee.epsilon <= 1.01 * guarantee.lower
    # Several releases of one attack add up.
    assert rq.account(parts, 1e-5).lower == pytest.approx(guarantee.lower, rel=1e-12)
    assert rq.account(parts, 1e-5, attacked=False).lower == 0


def test_coordinates_that_are_clipped_one_by_one():
    release = ChannelRelease(BIT, 10, 1, "aggregate", cohort=5)
    guarantee = rq.account([release], 1e-3)
    assert 0.8 * guarantee.epsilon < guarantee.lower < guarantee.epsilon


def test_sums_of_too_many_are_not_attacked():
    assert on_updates(BIT, 2**17 + 1, "replace_one", [(1, 1.0)]) == ()
    attack = DrawnRound(SumRound(BIT, 2, 1, (INSIDE, -INSIDE, 0.0), -1.0), 1.0)
    assert attacked_epsilon([(attack, 0)], 1e-5, 2.0) == 0
