"""A run that is interrupted goes on to the same bits, whatever it draws, or not at all."""

import dataclasses
import functools
import os
from types import SimpleNamespace

import interrupted
import problems
import pytest
import stores
import torch
from around import Around
from by_name import train
from data_forms import Pairs
from torch import nn

from randquant.aggregation import ClippedSGD, LocalGaussian
from randquant.training import RunStore, load_parameters, run_store

LAST = 5
"""The round after which runs are interrupted: a checkpoint is behind them, or the round before."""

BASE = interrupted.SMALL.changed(population=20, cohort=8, rounds=8, checkpoint_every=2)
SETTINGS = interrupted.SETTINGS | {"right after a checkpoint": {"checkpoint_every": LAST}}


def told(metrics):
    """What is known of each round, without how long it took."""
    return [
        {name: value for name, value in dataclasses.asdict(each).items() if "seconds" not in name}
        for each in metrics
    ]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_an_interrupted_run_goes_on_to_the_same_bits(settings, tmp_path, monkeypatch):
    config = BASE.changed(**settings)
    with_key(monkeypatch)
    whole = interrupted.whole(tmp_path / "whole", config)
    interrupted.begin(tmp_path / "parts", config, LAST)
    parts = problems.train_run(tmp_path / "parts")
    assert told(parts.metrics) == told(whole.metrics)
    assert parts.summary.guarantee == whole.summary.guarantee
    assert parts.summary.stopped == whole.summary.stopped
    assert bool(whole.summary.stopped) == ("stop_at_epsilon" in settings)
    first, second = (load_parameters(tmp_path / name) for name in ("whole", "parts"))
    assert first.tobytes() == second.tobytes()
    means = [each.mean for each in whole.metrics if each.mean]  # a cohort of nobody has none
    assert len(set(means)) == len(means) > 1


def with_key(monkeypatch):
    """Runs without a seed begin with one secret key, so that two can be compared."""
    drawn = SimpleNamespace(urandom=functools.cache(os.urandom))
    monkeypatch.setattr(run_store, "os", drawn)


# Through the front door

CLIENTS = [
    (x, (x[:, 0] > 0).long())
    for x in torch.randn(20, 9, 6, generator=torch.Generator().manual_seed(0))
]
OWN = {
    "dropout and batches": {"batch": 4, "local_epochs": 2, "local_learning_rate": 0.5},
    "Adagrad": {"server_optimizer": functools.partial(torch.optim.Adagrad, lr=0.05)},
}
"""What stored runs do not have: a model that draws, and an optimiser that is a function."""


def model(dropout):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 2))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("settings", OWN.values(), ids=OWN)
def test_an_interrupted_run_of_ones_own_goes_on_to_the_same_bits(settings, tmp_path, monkeypatch):
    with_key(monkeypatch)
    build = functools.partial(model, 0.2 if "batch" in settings else 0.0)
    usual = {"mechanism": ClippedSGD(clip_norm=1.0), "rounds": 8, "cohort": 8, "seed": 2}
    options = {**usual, "checkpoint_every": 2, "progress": False, **settings}

    def run(name, on_round=None):
        return train(build(), CLIENTS, folder=tmp_path / name, on_round=on_round, **options)

    whole = run("whole")
    with pytest.raises(interrupted.Interrupted):
        run("parts", interrupted.stop_after(LAST))
    torch.manual_seed(9)
    seen = []
    parts = run("parts", seen.append)
    assert seen[0].round == LAST  # after the checkpoint; the round is the same as before
    assert told(parts.history) == told(whole.history)
    state = whole.model.state_dict()
    assert all(torch.equal(state[name], part) for name, part in parts.model.state_dict().items())
    again = run("parts", interrupted.stop_after(LAST))  # finished: nothing is trained
    assert told(again.history) == told(whole.history)


# What a run sends a second time is what it sent the first time

SHORT = {"rounds": 3, "progress": False, "checkpoint_every": 9, "batch": 2, "local_epochs": 2}


def on_disk(sign=1):
    """Clients' examples, read one by one; one client's last are others with another sign."""
    parts = [(x.clone(), y) for x, y in CLIENTS]
    parts[3][0][6:] *= sign
    return [Pairs(*part) for part in parts]


def after(home, mechanism, continued=None, sign=1):
    """Begin a run, stop it after one round, and call it again, with something else."""
    begun = {**SHORT, "mechanism": mechanism, "folder": home}
    with pytest.raises(interrupted.Interrupted):
        train(model(0.0), on_disk(), on_round=interrupted.stop_after(1), **begun)
    seen = []
    begun["mechanism"] = continued or mechanism
    train(model(0.0), on_disk(sign), on_round=seen.append, **begun)
    return [metrics.round for metrics in seen]


def test_a_round_with_another_update_is_not_sent_a_second_time(tmp_path):
    with pytest.raises(ValueError, match=r"^Expected round 1 to give what it gave .*second rel"):
        after(tmp_path / "run", LocalGaussian(1.0, 4.0), sign=-1)


def own(multiplier):
    """A mechanism from outside the package, which has no record."""
    return Around(LocalGaussian(1.0, multiplier))


def test_what_was_sent_with_little_noise_is_not_stated_at_the_cost_of_much(tmp_path):
    home = tmp_path / "run"
    with pytest.raises(ValueError, match=r"^Expected the mechanism that the run in .* began with"):
        after(home, own(2.0), own(60.0))
    stated = stores.read_sent(home)
    assert stated.epsilon is not None
    assert stated.epsilon > 4
    assert after(tmp_path / "same", own(1.0), own(1.0)) == [1, 2, 3]


# A server's step without a rate depends on the rounds of the run: on those that were declared

UNTUNED = BASE.changed(local_learning_rate="auto", checkpoint_every=4, evaluate_every=1)


def means_and_model(folder, run):
    return [each.mean for each in run.metrics], load_parameters(folder).tobytes()


def test_a_run_that_an_epsilon_ends_takes_the_steps_of_one_of_that_many_rounds(tmp_path):
    limit = interrupted.whole(tmp_path / "long", UNTUNED).metrics[4].epsilon
    stopping = UNTUNED.changed(stop_at_epsilon=limit)
    stopped = interrupted.whole(tmp_path / "stopped", stopping)
    rounds = stopped.summary.rounds
    assert 5 <= rounds < UNTUNED.rounds
    declared = interrupted.whole(tmp_path / "declared", UNTUNED.changed(rounds=rounds))
    ends = [means_and_model(tmp_path / "stopped", stopped)]
    assert ends == [means_and_model(tmp_path / "declared", declared)]
    means = [each.mean for each in RunStore(tmp_path / "long").read().metrics]
    assert ends[0][0] != means[:rounds]


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_a_shortened_run_repeats_its_rounds_with_the_same_steps(sampling, tmp_path):
    """Rounds 5 and 6 are after the last checkpoint, and one of them is the last one now."""
    config = UNTUNED.changed(sampling=sampling)
    whole = interrupted.whole(tmp_path / "whole", config)
    folder = interrupted.begin(tmp_path / "parts", config, 6)
    parts = problems.train_run(folder, changes={"rounds": 6})
    assert [each.mean for each in parts.metrics] == [each.mean for each in whole.metrics[:6]]
    assert parts.summary.stopped.startswith("before round 7 of 8")


def test_a_run_without_privacy_is_shortened_and_made_longer(tmp_path):
    config = UNTUNED.changed(mechanism="clipped-sgd", parameters={"clip_norm": 0.5})
    whole = interrupted.whole(tmp_path / "whole", config)

    def stop_after_6(_, metrics):
        if metrics.round == 6:
            raise interrupted.Interrupted

    problems.create_run(folder := tmp_path / "parts", config)
    with pytest.raises(interrupted.Interrupted):
        problems.train_run(folder, stop_after_6)
    short = problems.train_run(folder, changes={"rounds": 6})
    assert [each.mean for each in short.metrics] == [each.mean for each in whole.metrics[:6]]
    longer = problems.train_run(folder, changes={"rounds": 12})
    assert [each.mean for each in longer.metrics[:6]] == [each.mean for each in short.metrics]
    assert longer.metrics[-1].mean != longer.metrics[-2].mean
