"""What a client computes beyond one gradient, what the server does with it, and what it costs."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from randquant.channels.keys import Key
from randquant.reports.run import report_run
from randquant.training import models
from randquant.training.client import Learner
from randquant.training.config import TrainConfig, check_config
from randquant.training.data import datasets
from randquant.training.named import of_dataset
from randquant.training.problem import problem_of
from randquant.training.runs import execution as runs
from randquant.training.work import Work

KEY = Key.from_seed(1)
NETWORKS = ("softmax", "mlp", "cnn")


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits")


@pytest.fixture(scope="module")
def split(digits):
    owners = np.arange(60) % 7
    owners[:9] = 0  # clients of different sizes
    return [np.flatnonzero(owners == client) for client in range(7)]


def learner_of(digits, split, model, local):
    return Learner(of_dataset(models.build(model, (1, 8, 8), 10, 3), digits, split), local)


@pytest.mark.parametrize("model", NETWORKS)
def test_batches_cover_each_epoch_once_and_follow_from_the_key(digits, split, model):
    local = Work(batch=4, epochs=2, learning_rate=1e-3)
    learner = learner_of(digits, split, model, local)
    steps = learner._alone.steps(0, KEY)
    size = len(split[0])
    assert [len(step) for step in steps] == ([4] * (size // 4) + [size % 4] * (size % 4 > 0)) * 2
    half = len(steps) // 2
    assert sorted(np.concatenate(steps[:half])) == sorted(np.concatenate(steps[half:]))
    assert sorted(np.concatenate(steps[:half])) == sorted(split[0])
    assert not np.array_equal(np.concatenate(steps[:half]), np.concatenate(steps[half:]))
    first, again = (learner.updates([0, 3], KEY)[0] for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, learner.updates([0, 3], KEY.fold_in(2))[0])
    # A client's update does not depend on who else is in its group.
    assert np.abs(learner.updates([3], KEY)[0][0] - first[1]).max() < 1e-7


def test_one_example_moves_the_update_no_further_than_is_accounted(digits, split):
    """The worst there is: an example whose gradient is long and points the other way."""
    norm, changed = 0.1, dataclasses.replace(digits, train_features=digits.train_features.copy())
    changed.train_features[split[0][3]] *= -50
    pair = [learner_of(d, split, "softmax", Work(example_norm=norm)) for d in (digits, changed)]
    first, other = (learner.updates([0])[0][0].astype(float) for learner in pair)
    apart = np.linalg.norm(first - other)
    limit = 2 * norm * (1 / len(split[0]) + 2.0**-20)
    assert 0.5 * limit < apart <= limit


BASE = TrainConfig.of(
    "digits", "softmax", "rqm", {"clip": 0.05, "margin": 0.05, "levels": 16, "keep": 0.42},
    population=30, cohort=6, rounds=6, checkpoint_every=2, evaluate_every=3, threads=1,
)  # fmt: skip


def test_a_run_that_hides_one_example(tmp_path):
    config = BASE.changed(
        mechanism="local-gaussian",
        parameters={"clip_norm": 0.5, "noise_multiplier": 3.0},
        unit="example",
        rounds=2,
        evaluate_every=2,
    )
    found = {}
    for unit in ("example", "client"):
        folder = tmp_path / unit
        runs.create(folder, config.changed(unit=unit), overwrite=False)
        found[unit] = runs.execute(folder).summary.guarantee.epsilon
    assert found["example"] < found["client"] / 20  # clients hold 47 examples
    page = report_run(tmp_path / "example").read_text()
    assert "one example of one client" in page


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"local_epochs": 2}, "Expected local_learning_rate"),
        ({"batch": 0}, "batch"),
        ({"local_learning_rate": -1.0}, "learning_rate >= 0"),
        ({"server_options": {"lr": 0.1}}, "the step size is learning_rate"),
        ({"unit": "person"}, "client, example"),
        ({"unit": "example", "local_learning_rate": 0.1}, "after a local step"),
        ({"sampling": "poisson", "trust": "aggregate"}, "sampling fixed"),
        ({"sampling": "poisson", "max_participations": 3}, "has no cap"),
    ],
)
def test_settings_that_make_no_sense(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_config(BASE.changed(**settings))


def test_an_example_needs_a_norm(tmp_path):
    with pytest.raises(ValueError, match="Expected a clip_norm with unit example"):
        runs.create(
            tmp_path / "x", BASE.changed(unit="example"),
            overwrite=False,
        )  # fmt: skip


@pytest.mark.parametrize("outputs", [None, 2])
@pytest.mark.parametrize("model", [lambda: nn.Linear(3, 2), lambda: plain_of(3, 2)])
def test_no_client_is_padded_with_what_overflows_for_another(model, outputs):
    """Infinity times a weight of zero is no number: a client's records are nobody else's."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 3)).astype(np.float32), made(rng, n, outputs)) for n in (4, 1, 3)]
    torch.manual_seed(0)
    loss = functional.cross_entropy if outputs is None else functional.mse_loss
    own = model()
    first = own if isinstance(own, nn.Linear) else own[0]
    nn.init.zeros_(first.weight)  # the trial run sees nothing wrong
    wild = [(np.full_like(data[0][0], 3e38), data[0][1]), *data[1:]]
    work = Work(epochs=2, learning_rate="auto", batch=2)
    found = [
        Learner(problem_of(own, each, loss=loss), work).updates([0, 1, 2], KEY)[0]
        for each in (data, wild)
    ]
    assert np.array_equal(found[0][1:], found[1][1:])


def plain_of(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs))


def made(rng, count, outputs):
    if outputs is None:
        return rng.integers(0, 2, count)
    return rng.normal(size=(count, outputs)).astype(np.float32)


class Growing(nn.Linear):
    def forward(self, x):
        return super().forward(x).exp()


def test_a_client_without_samples_left_is_not_moved_by_what_overflows():
    rng, work = np.random.default_rng(0), Work(batch=2, learning_rate=1.0)
    data = [(rng.normal(size=(n, 3)).astype(np.float32), made(rng, n, 1)) for n in (5, 1)]
    model, far = Growing(3, 1), (data[1][0] * 0 + 1, data[1][1] * 0 + 1e9)
    learner = Learner(problem_of(model, [data[0], far], loss=functional.mse_loss), work)
    assert learner._together is not None
    assert np.isfinite(learner.updates([0, 1], KEY)[0]).all()


class Mixing(nn.Linear):
    """What it keeps for its gradient are tensors that are at no one place in memory."""

    def forward(self, x):
        return torch.sparse.mm(torch.eye(2).to_sparse(), super().forward(x).T).T


def test_a_model_may_keep_sparse_tensors():
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 3)).astype(np.float32), made(rng, n, None)) for n in (4, 2)]
    learner = Learner(problem_of(Mixing(3, 2), data))
    assert np.isfinite(learner.updates([0, 1])[0]).all()
