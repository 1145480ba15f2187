"""Whoever sees more knows more: epsilon rises with what is sent and falls with what hides it.

That it falls with delta: `test_releases_contract`.
"""

import dataclasses

import pytest

import randquant as rq
from randquant.mechanisms.noise.laws import Skellam
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.composition.rule import compose
from randquant.privacy.accounting.integer_noise import NoiseRelease
from randquant.privacy.accounting.releases import ChannelRelease, GaussianRelease, VectorRelease

BIT = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)
TWO = rq.rqm(clip=1.0, margin=3.0, levels=4, keep=0.42)
RQM = rq.rqm(clip=1.5, margin=1.5, levels=5, keep=0.42)
PBM = rq.pbm(clip=1.0, theta=0.1, trials=3, inputs=5)
REPLACED, ZEROED = "replace_one", "zero_out"


def summed(channel, cohort=20, clip_norm=1.0, dimension=16, rounds=2) -> VectorRelease:
    return VectorRelease(channel, clip_norm, dimension, rounds, "aggregate", cohort=cohort)


def noisy(deviation=1.0) -> GaussianRelease:
    return GaussianRelease(deviation, 16, 1, neighboring=ZEROED)


def slow(release):
    return pytest.param(release, marks=pytest.mark.slow)


RELEASES = {
    "coordinates": slow(ChannelRelease(RQM, 6, 1)),
    "coordinates in sums": slow(ChannelRelease(BIT, 6, 1, "aggregate", REPLACED, 3)),
    "updates": VectorRelease(BIT, 0.1, 50, 1, "local"),
    "sums": summed(BIT, rounds=1),
    "sums of few": slow(summed(BIT, cohort=3, clip_norm=4.0, rounds=1)),
    "sums of two bits": summed(TWO, rounds=1),
    "sums of bits": slow(summed(PBM, cohort=5, rounds=1)),
    "Gaussian": GaussianRelease(3.0, 16, 1),
    "Skellam": NoiseRelease(Skellam(50.0), 20, 400, 16, 1, REPLACED),
}


def costs(*releases) -> list[float]:
    return [account([release], 1e-5, attacked=False).epsilon for release in releases]


def rises(found: list[float]) -> bool:
    return found == sorted(found) and found[0] < found[-1]


@pytest.mark.seldom(1)
@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_more_rounds_cost_more(release):
    assert rises(costs(*(dataclasses.replace(release, rounds=rounds) for rounds in (1, 2))))


@pytest.mark.seldom
def test_more_clients_hide_more_and_longer_updates_less():
    assert rises(costs(*(summed(BIT, cohort=clients) for clients in (20, 3))))
    assert rises(costs(*(summed(BIT, clip_norm=norm) for norm in (0.1, 1.0))))
    assert rises(costs(*(summed(BIT, dimension=size) for size in (1, 1000))))


@pytest.mark.slow
def test_whoever_takes_part_more_rarely_is_better_hidden():
    assert rises(costs(*(rq.Sampled(noisy(), 0.05, rounds) for rounds in (2, 20))))
    assert rises(costs(*(rq.Sampled(noisy(), rate, 20) for rate in (0.05, 0.1))))
    assert rises(costs(*(rq.Sampled(noisy(wide), 0.1, 20) for wide in (2.0, 1.0))))


def test_the_lower_end_of_few_releases_of_a_strong_channel_rises():
    """With 10 releases the largest loss alone, all that the best tilt leaves, is too unlikely."""
    eight, ten = (compose(RQM, releases, 1e-5).epsilon.lower for releases in (8, 10))
    assert eight < ten


@pytest.mark.slow
def test_many_trials_cost_less_in_one_round_than_in_two():
    """31 trials, of which each adds little: 667 and 7.16 when their bits were not seen."""
    channel = rq.pbm(clip=1.0, theta=0.25, trials=31)
    one, two = costs(*(summed(channel, cohort=48, rounds=rounds) for rounds in (1, 2)))
    assert one < 5.0 < two


def test_a_planted_fall_is_noticed():
    assert not rises([1.0, 2.0, 1.9])
    assert not rises([2.0, 2.0])
