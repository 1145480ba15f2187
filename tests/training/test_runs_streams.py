"""No random word of a run is read for two things: rounds, clients, purposes, parts."""

import itertools

import chance
import interrupted
import numpy as np
import pytest
import torch
from streams import recorded
from torch import nn

from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.local_training.problem import problem_of
from randquant.local_training.work import Work
from randquant.training.schedule import sample

BASE = interrupted.SMALL.changed(seed=None)
DRAWS = ("cohort", "capped cohort", "hidden cohort", "poisson cohort")
"""Who takes part is computed again where a run is planned and summed up: the same words again."""


@pytest.mark.seldom(1)
@pytest.mark.parametrize("settings", interrupted.SETTINGS.values(), ids=interrupted.SETTINGS)
def test_no_word_of_a_run_is_read_for_two_things(settings, tmp_path):
    rounds = 3 if settings.get("stop_at_epsilon") is None else 8
    sizes = {"population": 20, "cohort": 8, "rounds": rounds, "seed": None}
    with recorded() as reads:
        run = interrupted.whole(tmp_path / "run", BASE.changed(**sizes | settings))
    assert run.summary.rounds == rounds or run.summary.stopped
    assert len(reads.keys) > run.summary.rounds
    assert {labels[0] for labels in reads.again} <= {*DRAWS, "commitment", "binding"}, reads.again


SAMPLINGS = {
    "fixed": {"max_participations": None},
    "capped": {"max_participations": 30},
    "poisson": {"sampling": "poisson", "max_participations": None},
    "hidden": {"trust": "model", "max_participations": None},
}
ROOT = Key(bytes(range(32)))  # no key of a seed: what is read of it is secret


@pytest.mark.parametrize("changes", SAMPLINGS.values(), ids=SAMPLINGS)
def test_cohorts_of_a_run_are_drawn_apart(changes):
    """Half of the clients a round: a quarter twice in a row, a quarter beside a neighbour."""
    rounds, clients = 30, 2000
    sizes = {"population": clients, "cohort": clients // 2, "rounds": rounds}
    config, calls, taken = BASE.changed(**sizes | changes), np.zeros(clients, np.int64), []
    with recorded() as reads:
        for round in range(1, rounds + 1):
            cohort = sample(config, round, calls, ROOT)
            assert cohort == sorted(set(cohort))
            calls[cohort] += 1
            taken.append(np.isin(np.arange(clients), cohort))
    assert not reads.again
    assert len(reads.keys) >= rounds
    rows = np.array(taken)
    assert chance.mean_is(rows, 0.5, 1.0)
    assert chance.mean_is(rows[:-1:2] & rows[1::2], 0.25, 1.0)
    assert chance.mean_is(rows[:, ::2] & rows[:, 1::2], 0.25, 1.0)


# What a client draws its batches from

EXAMPLES, BATCH = 5, 2
SETS = {pair: at for at, pair in enumerate(itertools.combinations(range(EXAMPLES), BATCH))}


def batches(rounds, clients):
    """Which batch each client takes in each round: (rounds, clients) places in SETS.

    The gradient of the output's sum by the weights of one example is that example: a unit vector.
    """
    data = [(torch.eye(EXAMPLES), torch.zeros(EXAMPLES, 1))] * clients
    problem = problem_of(
        nn.Linear(EXAMPLES, 1, bias=False), data, loss=lambda output, targets: output.mean()
    )
    learner = Learner(problem, Work(batch=BATCH))
    found = []
    for round in range(rounds):
        updates, _ = learner.updates(range(clients), ROOT.fold_in(round))
        assert set(np.unique(updates)) == {0, 1 / BATCH}
        found.append([SETS[tuple(np.flatnonzero(update))] for update in updates])
    return np.array(found)


def test_batches_are_drawn_anew_by_every_client_in_every_round():
    found, same = batches(60, 26), 1 / len(SETS)
    assert chance.fits(found, np.full(len(SETS), same))
    assert chance.mean_is(found[:, ::2] == found[:, 1::2], same, 1.0)
    assert chance.mean_is(found[::2] == found[1::2], same, 1.0)
    assert chance.mean_is(found[::2, ::2] == found[1::2, 1::2], same, 1.0)  # nor shifted by one
