"""No random word of a run is read for two things: rounds, clients, purposes, parts."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import chance
import interrupted
import numpy as np
import pytest
import torch
from streams import recorded
from torch import nn

import randquant as rq
from randquant.aggregation import ChannelMechanism, LocalGaussian
from randquant.channels import Key
from randquant.local_training import (
    Learner,
    Standardize,
    Work,
    ask_statistics,
    make_problem,
    plan_query,
)
from randquant.privacy import HiddenCohorts
from randquant.training import OptimizerStep, distributed_sgd, sample

BASE = interrupted.SMALL.changed(seed=None)
DRAWS = ("cohort", "capped cohort", "hidden cohort", "poisson cohort")
"""Who takes part is computed again where a run is planned and summed up: the same words again."""


@pytest.mark.slow(after=1)
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
    problem = make_problem(
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


# What each client's noise follows from

SAME = 8
"""Clients that have the same examples, so that only noise tells their payloads apart."""

SENDERS = {
    "codes": (ChannelMechanism(rq.stochastic_rounding(1.0, 2, margin=1.0)), None),
    "noise": (LocalGaussian(1.0, 2.0), None),
    "hidden": (LocalGaussian(1.0, 2.0), HiddenCohorts("poisson", SAME, 3, 9)),
}


def sent(name, key, monkeypatch):
    """What each of them sends in rounds 1 and 2, where nobody's step moves the model."""
    mechanism, hidden = SENDERS[name]
    data = [(torch.ones(2, 128), torch.zeros(2, 1))] * SAME
    model = nn.Linear(128, 1, bias=False)
    problem = make_problem(model, data, loss=lambda output, targets: output.mean())
    server = OptimizerStep(lambda p: torch.optim.SGD(p, lr=0.0), problem.shapes)
    payloads = []

    def mean(self, received, *rest):
        payloads.append(list(received))
        return decode(self, received, *rest)

    decode = type(mechanism).mean
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as pool:
        patched.setattr(type(mechanism), "mean", mean)
        algorithm = distributed_sgd(
            Learner(problem), mechanism, population=SAME, server=server, pool=pool, workers=1,
            hidden=hidden,
        )  # fmt: skip
        state = algorithm.init()
        for _ in range(2):
            # Who is absent sends an encoding of zeros where cohorts are hidden.
            cohort = range(SAME) if hidden is None else range(3)
            state, _ = algorithm.apply(state, cohort, key)
    return payloads


@pytest.mark.parametrize("name", SENDERS)
def test_noise_is_each_clients_own_and_follows_from_the_secret_key_alone(name, monkeypatch):
    """128 coordinates of at least half a bit: by chance two are equal with less than 2^-64."""
    runs = [sent(name, ROOT.fold_in(number), monkeypatch) for number in range(2)]
    every = [payload for rounds in runs for payloads in rounds for payload in payloads]
    assert len(every) == len(set(every)) == 4 * SAME
    assert sent(name, ROOT.fold_in(0), monkeypatch) == runs[0]


def test_two_runs_without_a_seed_share_nothing_that_is_drawn():
    """All that the server and others know is the same: settings, names, data, the model."""
    x = torch.randn(6, 2, 64, generator=torch.Generator().manual_seed(0))
    clients = [(part, (part[:, 0] > 0).long()) for part in x]
    model = nn.Linear(64, 2)
    means = [
        metrics.mean
        for _ in range(2)
        for metrics in rq.train(
            model, clients, mechanism=LocalGaussian(1.0, 2.0), rounds=3, cohort=3, progress=False
        ).history
    ]
    assert len(set(means)) == len(means) == 6


def test_each_client_draws_its_own_record_to_standardise_by():
    """Each has a 0 and a 1: a draw that they shared would have a mean of 0 or 1."""
    clients, rows = 400, np.array([[0.0], [1.0]])
    wanted = Standardize(0.0, 1.0, share=0.9)
    asked = plan_query(wanted, (1, 0), np.full(clients, 2), (30.0, 1e-5), "aggregate", "client")
    first, second = (
        ask_statistics(asked, [rows] * clients, ROOT.fold_in(number)) for number in range(2)
    )
    assert first != second
    # Hoeffding's bound for 400 draws of 0 or 1; noise of so much epsilon is far below it.
    slack = np.sqrt(np.log(2 / 1e-7) / (2 * clients)) + 0.02
    assert all(abs(each.means[0] - 0.5) < slack for each in (first, second))
