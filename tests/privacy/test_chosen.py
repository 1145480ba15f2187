"""Rounds whose release is chosen by what was released before."""

import itertools
import math

import numpy as np
import pytest
from every_release import repeated

import randquant as rq
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.chosen import ChosenRelease
from randquant.privacy.accounting.releases import ChannelRelease, GaussianRelease, VectorRelease
from randquant.privacy.accounting.sampled import Sampled

QUIET = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)
LOUD = rq.rqm(clip=1.0, margin=0.5, levels=3, keep=0.3)
CHANNELS = (QUIET, LOUD)
DELTA = 1e-5


def of(channel, rounds=1):
    return ChannelRelease(channel, 1, rounds)


def joint(rule, x):
    """Law of two rounds' outcomes: `rule` is the first channel, and the second for each outcome."""
    first, then = CHANNELS[rule[0]], rule[1]
    row = first.probabilities[0 if x < 0 else -1]
    return np.concatenate(
        [p * CHANNELS[then[code]].probabilities[0 if x < 0 else -1] for code, p in enumerate(row)]
    )


def rules():
    """Every way to choose the second channel by the first one's code."""
    for first in range(2):
        codes = CHANNELS[first].levels
        yield from ((first, then) for then in itertools.product(range(2), repeat=codes))


def divergence(p, q, order):
    return math.log(np.sum(p**order * q ** (1 - order))) / (order - 1)


def largest(order):
    pairs = [(joint(rule, x), joint(rule, -x)) for rule in rules() for x in (1.0, -1.0)]
    return max(divergence(p, q, order) for p, q in pairs)


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_no_rule_exceeds_the_costliest_choice_in_every_round(order):
    """By brute force over all rules of two rounds; counting the average would be too little."""
    exact = largest(order)
    each = [of(channel).renyi(order) for channel in CHANNELS]
    bound = ChosenRelease((of(QUIET), of(LOUD)), 2).renyi(order)
    assert exact <= bound <= exact * (1 + 1e-9)
    assert sum(each) < exact * 0.95


def test_its_epsilon_covers_every_mixture_of_its_choices():
    """One-bit sums, which are compared with Gaussian noise, of more and of fewer coordinates."""
    wide = rq.stochastic_rounding(clip=0.0625, levels=2, margin=0.1)
    parts = [
        VectorRelease(channel, norm, size, 1, "aggregate", cohort=50, whole_norm=1.0)
        for channel, norm, size in ((wide, 0.25, 16), (QUIET, 1.0, 256))
    ]
    one, two = parts
    whole = account([ChosenRelease(tuple(parts), 6)], DELTA, quick=True).epsilon
    mixtures = [
        account([repeated(one, times), repeated(two, 6 - times)], DELTA, quick=True).epsilon
        for times in (0, 3, 6)
    ]
    assert max(mixtures) <= whole < max(mixtures) * 1.05
    assert mixtures[0] != mixtures[-1]


def test_gaussian_choices_cost_what_the_one_with_least_noise_costs():
    loud, quiet = (GaussianRelease(noise, 5, 1) for noise in (2.0, 9.0))
    chosen = ChosenRelease((quiet, loud), 10)
    stated = account([repeated(loud, 10)], DELTA).epsilon
    assert account([chosen], DELTA).epsilon == pytest.approx(stated, rel=1e-12)
    assert repeated(chosen, 3) == ChosenRelease((quiet, loud), 30)
    assert chosen.of_one_example(100).renyi(2.0) < chosen.renyi(2.0) / 1000
    assert ChosenRelease((of(QUIET), of(LOUD)), 4).steps is None
    assert ChosenRelease((of(QUIET),), 0).renyi(2.0) == 0.0


def test_a_choice_of_another_kind_is_not_forgotten():
    """What is known of Gaussian noise says nothing of codes that may be chosen instead."""
    gaussian, codes = GaussianRelease(9.0, 1, 1, "local"), of(LOUD)
    whole = VectorRelease(LOUD, 1.0, 4, 1)
    for kinds in itertools.permutations((gaussian, codes, whole), 2):
        chosen = account([ChosenRelease(kinds, 5)], DELTA, quick=True).epsilon
        for each in kinds:
            alone = account([repeated(each, 5)], DELTA, quick=True).epsilon
            # Of codes alone the composed loss is known, which is no more than Renyi's bound.
            assert chosen >= alone


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ((), "Expected choices under one trust"),
        ((of(QUIET), GaussianRelease(2.0, 1, 1)), "Expected choices under one trust"),
        ((of(QUIET), of(QUIET, 2)), "Expected rounds of a choice"),
        ((Sampled(GaussianRelease(2.0, 5, 1), 0.1, rounds=1),), "Expected choices that hide"),
    ],
)
def test_choices_that_do_not_go_together_are_refused(choices, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        ChosenRelease(choices, 3)
