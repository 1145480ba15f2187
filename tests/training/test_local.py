"""Weights by number of examples: what is sent, what it reveals, and what the mean is of."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import randquant as rq
from randquant.aggregation.baselines import ClippedSGD
from randquant.aggregation.clipping import clip_to_norm
from randquant.aggregation.coordinate import ChannelMechanism
from randquant.channels.keys import Key
from randquant.training.client import Learner
from randquant.training.cohort import collector
from randquant.training.problem import problem_of
from randquant.training.work import Weighting, Work

SIZES = (1, 2, 5, 3)
RNG = np.random.default_rng(3)
CLIENTS = [(RNG.normal(size=(n, 3)).astype(np.float32), RNG.integers(0, 2, n)) for n in SIZES]


def learner(local):
    torch.manual_seed(0)
    return Learner(problem_of(nn.Linear(3, 2), CLIENTS), local)


@pytest.mark.parametrize("local", [{}, {"epochs": 2, "learning_rate": 0.5}, {"example_norm": 0.2}])
@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_the_clipped_update_is_multiplied_and_not_the_other_way_round(local, norm):
    clip = 0.2
    plain = learner(Work(**local)).updates(range(4))[0]
    weighted = learner(Work(**local, weighting=Weighting(3, clip, norm))).updates(range(4))[0]
    for size, update, sent in zip(SIZES, plain, weighted, strict=True):
        expected = clip_to_norm(update, clip, norm) * (min(size, 3) / 3)
        assert np.abs(sent - expected).max() < 1e-7
        assert np.linalg.norm(sent, 2 if norm == "l2" else 1) <= clip
    lengths = np.linalg.norm(weighted, 2 if norm == "l2" else 1, axis=1)
    if "example_norm" not in local:
        assert np.linalg.norm(plain, axis=1).min() > clip  # all are clipped
        assert lengths == pytest.approx(clip * np.array([1, 2, 3, 3]) / 3, rel=1e-5)


def test_an_update_that_is_no_number_is_its_clients():
    broken = learner(Work(weighting=Weighting(3, 0.2)))
    broken.load(np.full(8, np.nan, np.float32))
    with pytest.raises(ValueError, match="Client 2: Expected finite values"):
        broken.updates([2])


def exact_mean(channel, inputs):
    """Mean of the decoded mean of these inputs, over all codes: by enumeration, in fractions."""
    rows = [
        [Fraction(float(p)).limit_denominator(2**62) for p in channel.probabilities[vertex]]
        for vertex in inputs
    ]
    values = [Fraction(float(value)) for value in channel.values]
    total = Fraction(0)
    for codes in itertools.product(range(len(values)), repeat=len(inputs)):
        chance = Fraction(1)
        for row, code in zip(rows, codes, strict=True):
            chance *= row[code]
        total += chance * sum(values[code] for code in codes) / len(codes)
    return total


def test_the_mean_is_that_of_the_weighted_clipped_updates():
    """Proposition 2 by exact enumeration: all cohorts of 2 of 4 clients, all codes of each."""
    most, sizes, signs = 3, (1, 2, 5, 3), (1, -1, 1, 1)
    weighting = Weighting(most, 1.0)
    # One coordinate, clipped to 1: what is sent is ±weight. Its vertices are all that occur.
    sent = [
        float(weighting.applied(np.array([9.0 * s]), n)[0])
        for s, n in zip(signs, sizes, strict=True)
    ]
    levels = np.array([-1, -2 / 3, 1 / 3, 1])
    weights = [[(2 - x), (2 + x)] for x in levels]
    rows = np.array([[round(2**20 * p / 4) for p in row] for row in weights])
    channel = rq.Channel(levels, np.array([-2.0, 2.0]), rows, 2**20)
    vertices = [int(np.abs(levels - value).argmin()) for value in sent]
    assert np.abs(levels[vertices] - sent).max() < 1e-6
    cohorts = list(itertools.combinations(vertices, 2))
    mean = sum(exact_mean(channel, cohort) for cohort in cohorts) / len(cohorts)

    counted = [Fraction(min(n, most)) for n in sizes]
    clipped = sum(n * s for n, s in zip(counted, signs, strict=True)) / sum(
        counted
    )  # the weighted mean
    average = sum(counted) / len(counted) / most  # s̄
    assert abs(mean - clipped * average) < Fraction(1, 2**18)
    unweighted = Fraction(sum(signs), 4)
    assert abs(mean - unweighted) > Fraction(1, 20)


def test_a_round_decodes_the_weighted_sum_over_the_number_of_clients():
    weighting = Weighting(3, 0.2)
    each = learner(Work()).updates([0, 2, 3])[0]
    expected = sum(
        clip_to_norm(update, 0.2) * min(n, 3) / 3
        for update, n in zip(each, (1, 5, 3), strict=True)
    )  # fmt: skip
    channel = rq.stochastic_rounding(clip=0.2, levels=2, margin=0.2)
    found = []
    with ThreadPoolExecutor(1) as pool:
        for mechanism in (ClippedSGD(1e30), ChannelMechanism(channel)):
            collect = collector(learner(Work(weighting=weighting)), mechanism, pool, 1)
            found.append(collect([0, 2, 3], Key.from_seed(0), 0))
    assert np.abs(found[0].mean - expected / 3).max() < 1e-6
    assert found[1].bytes_up == 3 * ChannelMechanism(channel).upload_bytes(8)


def test_one_example_moves_a_weighted_update_no_further_than_is_accounted():
    norm, number = 0.1, 1
    features = CLIENTS[2][0].copy()
    features[number] *= -100
    changed = [*CLIENTS[:2], (features, CLIENTS[2][1]), CLIENTS[3]]
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    for most in (2, 8):
        local = Work(example_norm=norm, weighting=Weighting(most, norm))
        pair = [
            Learner(problem_of(model, clients), local).updates([2])[0][0].astype(float)
            for clients in (CLIENTS, changed)
        ]
        apart = np.linalg.norm(pair[0] - pair[1])
        assert 0 < apart <= 2 * norm / 5 * min(5, most) / most + norm * 2.0**-20
