"""What a run sends a second time, after it was stopped, is what it sent the first time."""

import numpy as np
import pytest
import torch
from by_name import train
from torch import nn
from torch.utils.data import Dataset

from randquant.aggregation.baselines import LocalGaussian
from randquant.aggregation.defaults import MechanismDefaults
from randquant.aggregation.payloads import mean_of_floats
from randquant.training.runs import checkpoint, execution
from randquant.training.runs import folder as run_folder
from randquant.training.runs.log import RunLog

CLIENTS, EXAMPLES, FEATURES = 10, 20, 6
SHORT = {
    "epsilon": None,
    "rounds": 3,
    "progress": False,
    "checkpoint_every": 9,
    "batch": 2,
    "local_epochs": 2,
}


class StoppedError(Exception):
    pass


def stop_after(number):
    def on_round(metrics):
        if metrics.round == number:
            raise StoppedError

    return on_round


def features(client):
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(EXAMPLES, FEATURES, generator=generator)
    return x, (x[:, 0] > 0).long()


class OnDisk(Dataset):
    """A client's examples, read one by one; those in `changed` have become others."""

    def __init__(self, client, changed=()):
        self._pairs, self._changed = features(client), changed

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, place):
        sign = -1 if place in self._changed else 1
        return sign * self._pairs[0][place], self._pairs[1][place]


def on_disk(changed=()):
    return [OnDisk(client, changed if client == 3 else ()) for client in range(CLIENTS)]


def scaled(factor):
    """A loss of the same name and value whatever the factor is, which its gradient has."""

    def loss(output, targets):
        value = nn.functional.cross_entropy(output, targets)
        return value.detach() + factor * (value - value.detach())

    return loss


class Scaled(nn.Module):
    """A model that says nothing about the factor of its gradient."""

    def __init__(self, factor):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(FEATURES, 2)
        self._factor = factor

    def forward(self, x):
        output = self.layer(x)
        return output.detach() + self._factor * (output - output.detach())


def after(home, begun, continued):
    """Begin a run, stop it after one round, and call it again with something else."""
    with pytest.raises(StoppedError):
        train(**{**SHORT, **begun}, folder=home, on_round=stop_after(1))
    seen = []
    train(**{**SHORT, **begun, **continued}, folder=home, on_round=seen.append)
    return seen


def plain(**own):
    return {"model": Scaled(1.0), "clients": on_disk(), "mechanism": LocalGaussian(1.0, 2.0), **own}


@pytest.mark.seldom(1)
@pytest.mark.parametrize(
    ("begun", "continued"),
    [
        ({}, {"clients": on_disk(changed=(9, 10, 11))}),
        ({"loss": scaled(1.0)}, {"loss": scaled(-3.0)}),
        ({}, {"model": Scaled(-3.0)}),
    ],
    ids=["an example on disk", "a loss of the same name and value", "a model of the same repr"],
)
def test_a_round_with_another_update_is_not_sent_a_second_time(begun, continued, tmp_path):
    with pytest.raises(ValueError, match=r"^Expected round 1 to give what it gave .*second rel"):
        after(tmp_path / "run", plain(**begun), continued)


def test_the_same_round_is(tmp_path):
    assert [m.round for m in after(tmp_path / "run", plain(), {})] == [1, 2, 3]


class Own(MechanismDefaults):
    """A mechanism from outside the package, which has no record."""

    trust, cohort, clip_norm, channel = "local", 1, 1.0, None

    def __init__(self, multiplier):
        self._noise = LocalGaussian(1.0, multiplier)

    def encode_vector(self, vector, key):
        return self._noise.encode_vector(vector, key)

    def mean_vector(self, payloads, dimension, key):
        return mean_of_floats(payloads, dimension).astype(np.float32)

    def upload_bytes(self, dimension, clients=None):
        return 4 * dimension

    def release(self, dimension, rounds, neighboring="replace_one"):
        return self._noise.release(dimension, rounds, neighboring)


def test_what_was_sent_with_little_noise_is_not_stated_at_the_cost_of_much(tmp_path):
    home = tmp_path / "run"
    with pytest.raises(ValueError, match=r"^Expected the mechanism that the run in .* began with"):
        after(home, plain(mechanism=Own(1.0)), {"mechanism": Own(30.0)})
    stated = run_folder.read_sent(home, run_folder.read_config(home))
    assert stated.epsilon is not None
    assert stated.epsilon > 4
    assert after(tmp_path / "same", plain(mechanism=Own(1.0)), {"mechanism": Own(1.0)})


@pytest.mark.seldom(1)
@pytest.mark.parametrize(
    "place", [(run_folder, "write_sent"), (RunLog, "append"), (checkpoint, "save")]
)
@pytest.mark.parametrize("last", [False, True])
def test_a_run_that_is_killed_before_a_write_goes_on(place, last, tmp_path, monkeypatch):
    """Whichever write of a round was the first that is missing, and also in the last round."""
    options = {**SHORT, **plain(), "rounds": 2, "checkpoint_every": 1, "seed": 1, "threads": 1}
    whole = train(folder=tmp_path / "whole", **options)
    real, calls = getattr(*place), []

    def killed(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 1 + last + (place[1] == "write_sent"):  # the first of them begins a run
            raise StoppedError
        return real(*arguments, **named)

    folder = tmp_path / "again"
    with monkeypatch.context() as patch:
        patch.setattr(*place, killed)
        with pytest.raises(StoppedError):
            train(folder=folder, **options)
    again = train(folder=folder, **options)
    assert [m.mean for m in again.record.metrics] == [m.mean for m in whole.record.metrics]
    first, second = (execution.load_parameters(tmp_path / name) for name in ("whole", "again"))
    assert np.array_equal(first, second)
