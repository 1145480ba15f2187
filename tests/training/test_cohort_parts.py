"""Loops over examples, clients and absent clients, at sizes beyond one part of each."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from around import Around
from torch import nn

from randquant.aggregation.baselines import ClippedSGD, LocalGaussian
from randquant.aggregation.clipping import clip_to_norm
from randquant.channels.keys import Key
from randquant.privacy.accounting.cohorts import HiddenCohorts
from randquant.training.client import LIGHT_GROUP, Learner
from randquant.training.cohort import ZEROS_AT_ONCE, collector
from randquant.training.problem import problem_of
from randquant.training.work import Work

FEATURES = 6
DRAW = np.random.default_rng(4)


def client_of(examples):
    """Later examples are longer: a part that is left out or counts too much is noticed."""
    x = DRAW.normal(1, 1, (examples, FEATURES)) * np.linspace(0.2, 2, examples)[:, None]
    return x.astype(np.float32), np.zeros((examples, 1), np.float32)


def learner_of(clients, local=None, model=None, **options):
    """The gradient of the mean output by the weights is the mean of the examples: the oracle."""
    loss = options.pop("loss", lambda output, targets: output.mean())
    problem = problem_of(model or nn.Linear(FEATURES, 1, bias=False), clients, loss=loss, **options)
    return Learner(problem, local or Work())


SIZES = [1 + client * 7 % 11 for client in range(2 * LIGHT_GROUP + 3)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_round_has_each_client_once_whatever_its_place(workers):
    clients = [client_of(size) for size in SIZES]
    learner = learner_of(clients, Work())
    means = np.array([x.mean(axis=0) for x, _ in clients])
    order = np.random.default_rng(0).permutation(len(clients)).tolist()
    assert sorted(c for group in learner.groups(order, workers) for c in group) == sorted(order)
    assert np.abs(learner.updates(order)[0] - means[order]).max() < 1e-5
    cohort = order[: 2 * LIGHT_GROUP]
    with ThreadPoolExecutor(workers) as pool:
        collect = collector(learner, ClippedSGD(None, 1.0), pool, workers)
        found = collect(cohort, Key.from_seed(0), 0)
    expected = np.mean([clip_to_norm(means[client], 1.0) for client in cohort], axis=0)
    assert np.abs(found.mean - expected).max() < 1e-6
    assert found.bytes_up == len(cohort) * 4 * FEATURES
    assert len(found.losses) == len(cohort)


@pytest.mark.parametrize("taking", [0, 1, 5])
def test_every_absent_client_sends_zeros_of_its_own(taking):
    population, sent = 2 * ZEROS_AT_ONCE + 3 + taking, []
    noise = LocalGaussian(1.0, 1.0)

    def mean(payloads, dimension, key):
        sent.extend(payloads)
        return noise.mean_vector(payloads, dimension, key)

    learner = learner_of([client_of(2)] * population)
    hidden = HiddenCohorts("poisson", population, 2, 4)
    with ThreadPoolExecutor(1) as pool:
        collect = collector(learner, Around(noise, mean=mean), pool, 1, hidden)
        found = collect(list(range(3, 3 + taking)), Key.from_seed(1), 0)
    assert len(sent) == len(set(sent)) == population
    assert found.bytes_up == population * 4 * FEATURES
