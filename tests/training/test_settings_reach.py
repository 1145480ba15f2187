"""Every setting of `train` reaches what it is about: nothing is dropped on the way.

A run is prepared, not trained: what it would be trained with is compared with and without a change.
"""

import dataclasses
import inspect
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import randquant as rq
from randquant.aggregation import LocalGaussian
from randquant.channels import Key
from randquant.training import TrainingSetup, execution, federated, prepare, sample

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")

POPULATION, FEATURES = 6, 4
KEY = Key.from_seed(0)
DRAW = torch.Generator().manual_seed(0)
PAIRS = [(x, (x[:, 0] > 0).long()) for x in torch.randn(POPULATION, 5, FEATURES, generator=DRAW)]
PUBLIC = torch.randn(8, FEATURES, generator=DRAW)
NOISY = LocalGaussian(1.0, 4.0)


class Reached(NamedTuple):
    """Where a run is, what it is trained with, and what `train` showed."""

    home: Any
    prepared: TrainingSetup
    config: Any
    shown: list


class _Stop(Exception):
    pass


def reached(monkeypatch, *, norm=False, clients=PAIRS, **settings):
    """What a call of `train` would train with."""
    caught, shown = [], []

    def create(home, config, inputs, *, overwrite, key):
        caught.append((home, prepare(config, key, inputs), config))
        raise _Stop

    torch.manual_seed(0)
    layer = nn.Linear(FEATURES, 2)  # its steps are computed by formula, which takes no trial
    model = nn.Sequential(layer, nn.BatchNorm1d(2)) if norm else layer
    usual = {"mechanism": NOISY, "rounds": 4, "cohort": 3, "progress": False, "seed": 0}
    with monkeypatch.context() as patched:
        patched.setattr(execution, "create", create)
        waiting = federated.waiting
        patched.setattr(federated, "waiting", lambda on: shown.append(on) or waiting(False))
        with pytest.raises(_Stop):
            rq.train(model, clients, **{**usual, **settings})
    return Reached(*caught[0], shown)


def update(run):
    """What the first two clients compute."""
    return run.prepared.learner.updates([0, 1], KEY)[0].tolist()


def cohorts(run):
    """Who takes part in each round."""
    calls, found = np.zeros(POPULATION, np.int64), []
    for round in range(1, 5):
        found.append(sample(run.config, round, calls, run.prepared.schedule.key))
        calls[found[-1]] += 1
    return found


def steps(run):
    """Where two means of one take the server."""
    server, ones = run.prepared.server, np.ones(run.prepared.learner.dimension, np.float32)
    state, parameters = server.init(), np.zeros_like(ones)
    for _ in range(2):
        parameters, state = server.step(parameters, ones, state)
    return parameters.tolist()


def evaluated(run):
    return [round for round in range(1, 5) if run.config.server.evaluates(round, 4)]


def running(run):
    found = run.prepared.learner.trained_model()[1]
    return found.running_mean.tolist(), run.prepared.problem.buffers


COLUMNS = [{"a": x, "b": -x, "y": y, "z": 1 - y} for x, y in PAIRS]

L, S, P = rq.Local, rq.Server, rq.Privacy
FROZEN = L(buffers="frozen")
SGD = {"local": L(learning_rate=0.1)}

REACH = {
    # of train
    "loss": ({}, {"loss": functional.nll_loss}, lambda run: run.prepared.problem.loss),
    "test": ({}, {"test": PAIRS[0]}, lambda run: run.prepared.learner.evaluate().loss),
    "epsilon": ({"epsilon": 9.0}, {"epsilon": 2.5}, lambda run: run.prepared.schedule.declared()),
    "trust": ({}, {"trust": "model"}, lambda run: run.prepared.schedule.ledger.hidden),
    "folder": ({"folder": "one"}, {"folder": "other"}, lambda run: run.home.name),
    "population": (
        {"clients": lambda number: PAIRS[number], "population": POPULATION}, {"population": 5},
        lambda run: run.config.task.population,
    ),
    "seed": ({}, {"seed": 1}, cohorts),
    "progress": ({}, {"progress": True}, lambda run: run.shown),
    # of Local
    "epochs": (SGD, {"local": L(learning_rate=0.1, epochs=2)}, update),
    "batch": (SGD, {"local": L(learning_rate=0.1, batch=2)}, update),
    "learning_rate of Local": (SGD, {"local": L(learning_rate=0.2)}, update),
    "buffers": (
        {"norm": True, "local": FROZEN},
        {"local": L(buffers="server", public=PUBLIC)}, running,
    ),
    "public": (
        {"norm": True, "local": L(buffers="server", public=PUBLIC)},
        {"local": L(buffers="server", public=PUBLIC + 1)}, running,
    ),
    "columns": (
        {"clients": COLUMNS, "local": L(columns=("a", "y"))},
        {"local": L(columns=("b", "z"))}, update,
    ),
    "threads": ({}, {"local": L(threads=1)}, lambda run: run.config.local.threads),
    "together": ({}, {"local": L(together=False)}, lambda run: run.prepared.learner.together),
    # of Server
    "optimizer": ({}, {"server": S("Adam")}, steps),
    "options": ({"server": S("SGD")}, {"server": S("SGD", options={"momentum": 0.9})}, steps),
    "learning_rate of Server": (
        {"server": S("SGD")}, {"server": S("SGD", learning_rate=0.5)}, steps,
    ),
    "evaluate_every": ({}, {"server": S(evaluate_every=2)}, evaluated),
    "checkpoint_every": (
        {}, {"server": S(checkpoint_every=2)}, lambda run: run.config.server.checkpoint_every,
    ),
    "baseline": ({}, {"server": S(baseline=True)}, lambda run: run.config.server.baseline),
    # of Privacy
    "bits": ({}, {"privacy": P(bits=3)}, lambda run: run.config.privacy.bits),
    "clip_norm": (
        {"mechanism": None, "epsilon": 50.0, "privacy": P(bits=1)},
        {"privacy": P(bits=1, clip_norm=2.0)}, lambda run: run.prepared.mechanism.clip_norm,
    ),
    "coordinates": (
        {"mechanism": None, "epsilon": 50.0, "privacy": P(bits=1)},
        {"privacy": P(bits=1, coordinates=8)},
        lambda run: run.prepared.mechanism.payload_bytes(16),
    ),
    "noise": (
        {"mechanism": None, "epsilon": 50.0}, {"privacy": P(noise="helper")},
        lambda run: run.prepared.mechanism.helper_noise,
    ),
    "max_participations": (
        {}, {"privacy": P(max_participations=4)},
        lambda run: run.config.privacy.max_participations,
    ),
    "weighted_by": (
        {"privacy": P(numbers=["num-examples:0:9"])},
        {"privacy": P(numbers=["num-examples:0:9"], weighted_by="num-examples")},
        lambda run: run.prepared.preparation.scalars,
    ),
}  # fmt: skip
"""By setting: a usual call, what is changed in it, and what must then be another."""

ACCOUNTED = {
    "delta", "rounds", "cohort", "mechanism", "parts", "frozen", "standardize", "unit",
    "neighboring", "sampling", "numbers", "spent",
}  # fmt: skip
"""Figures that they change are compared with exact ones in `test_train_product.py`."""

ELSEWHERE = {"on_round", "device"}
"""Called in `test_federated.py`; and there is one device where tests run."""


def test_every_setting_is_in_the_table():
    fronts = set(inspect.signature(rq.train).parameters) - {"model", "clients"}
    fronts -= {"local", "server", "privacy"}
    for value in (L, S, P):
        fronts |= {each.name for each in dataclasses.fields(value)}
    assert {name.partition(" ")[0] for name in REACH} | ACCOUNTED | ELSEWHERE == fronts


@pytest.mark.parametrize("name", REACH)
def test_a_setting_changes_what_it_is_about(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    usual, change, look = REACH[name]
    before, after = (reached(monkeypatch, **{**usual, **more}) for more in ({}, change))
    assert look(before) != look(after)


def test_a_device_that_is_not_there_is_asked_for(monkeypatch):
    with pytest.raises(ValueError, match="Expected a device that torch sees, got 'cuda:99'"):
        reached(monkeypatch, local=L(device="cuda:99"))
