"""Contract: a run that is interrupted goes on to the same bits, whatever it draws."""

import dataclasses
import functools

import interrupted
import pytest
import torch
from by_name import train
from torch import nn

from randquant.aggregation.baselines import ClippedSGD
from randquant.training.config import TrainConfig
from randquant.training.runs import execution

LAST = 5
"""The round after which runs are interrupted: a checkpoint is behind them, or the round before."""

BASE = TrainConfig.of(
    "breast-cancer", "softmax", "gaussian", {"clip_norm": 0.5, "noise_multiplier": 4.0},
    population=20, cohort=8, rounds=8, evaluate_every=3, checkpoint_every=2, threads=1,
)  # fmt: skip
BITS = {
    "mechanism": "stochastic-rounding",
    "parameters": {"clip": 0.05, "levels": 2, "margin": 0.5},
    "clip_norm": 0.5,
}
SETTINGS = {
    "as it is": {},
    "right after a checkpoint": {"checkpoint_every": LAST},
    "Adam": {"server_optimizer": "Adam", "learning_rate": 0.01},
    "momentum": {"server_options": {"momentum": 0.9}, "learning_rate": 0.3},
    "batches": {"local_epochs": 2, "batch": 5, "local_learning_rate": 0.1},
    "poisson": {"sampling": "poisson", "cohort": 2},
    "a cap": {"max_participations": 5},
    "a limit": {"stop_at_epsilon": 2.0},
    "hidden, poisson": {"trust": "model", "sampling": "poisson"},
    "some coordinates": {**BITS, "coordinates": 20},
    "numbers and weights": {
        "numbers": ("accuracy", "num-examples:0:40:0.1"),
        "weighted_by": "num-examples",
        "mechanism": "local-gaussian",
    },
    "secret key": {"seed": None},
}


def told(metrics):
    """What is known of each round, without how long it took."""
    return [
        {name: value for name, value in dataclasses.asdict(each).items() if "seconds" not in name}
        for each in metrics
    ]


@pytest.mark.seldom(1)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_an_interrupted_run_goes_on_to_the_same_bits(settings, tmp_path, monkeypatch):
    config = BASE.changed(**settings)
    with_key(monkeypatch)
    whole = interrupted.whole(tmp_path / "whole", config)
    interrupted.begin(tmp_path / "parts", config, LAST)
    parts = execution.execute(tmp_path / "parts")
    assert told(parts.metrics) == told(whole.metrics)
    assert parts.summary.guarantee == whole.summary.guarantee
    assert parts.summary.stopped == whole.summary.stopped
    assert bool(whole.summary.stopped) == ("stop_at_epsilon" in settings)
    first, second = (execution.load_parameters(tmp_path / name) for name in ("whole", "parts"))
    assert first.tobytes() == second.tobytes()
    means = [
        each.mean for each in whole.metrics if each.mean
    ]  # of a cohort of nobody there is none
    assert len(set(means)) == len(means) > 1


def with_key(monkeypatch):
    """Runs without a seed begin with one secret key, so that two can be compared."""
    from randquant.training.runs.secret import Secret

    monkeypatch.setattr(Secret, "fresh", functools.cache(Secret.fresh))


# Through the front door

CLIENTS = [
    (x, (x[:, 0] > 0).long())
    for x in torch.randn(20, 9, 6, generator=torch.Generator().manual_seed(0))
]
OWN = {
    "dropout and batches": {"batch": 4, "local_epochs": 2, "local_learning_rate": 0.5},
    "Adagrad": {"server_optimizer": functools.partial(torch.optim.Adagrad, lr=0.05)},
    "momentum": {"server_optimizer": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9)},
    "without a rate": {"local_epochs": 1},
}


def model(dropout):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 2))


class Interrupted(BaseException):
    """As a kill."""


def interrupt(metrics):
    if metrics.round == LAST:
        raise Interrupted


@pytest.mark.seldom(1)
@pytest.mark.parametrize("settings", OWN.values(), ids=OWN)
def test_an_interrupted_run_of_ones_own_goes_on_to_the_same_bits(settings, tmp_path):
    build = functools.partial(model, 0.2 if "batch" in settings else 0.0)
    usual = {"mechanism": ClippedSGD(clip_norm=1.0), "rounds": 8, "cohort": 8, "seed": 2}
    options = {**usual, "checkpoint_every": 2, "progress": False, **settings}
    whole = train(build(), CLIENTS, folder=tmp_path / "whole", **options)
    with pytest.raises(Interrupted):
        train(build(), CLIENTS, folder=tmp_path / "parts", on_round=interrupt, **options)
    torch.manual_seed(9)
    seen = []
    parts = train(build(), CLIENTS, folder=tmp_path / "parts", on_round=seen.append, **options)
    assert seen[0].round == LAST  # after the checkpoint; the round is the same as before
    assert told(parts.history) == told(whole.history)
    state = whole.model.state_dict()
    assert all(torch.equal(state[name], part) for name, part in parts.model.state_dict().items())
    again = train(build(), CLIENTS, folder=tmp_path / "parts", on_round=interrupt, **options)
    assert told(again.history) == told(whole.history)  # finished: nothing is trained
