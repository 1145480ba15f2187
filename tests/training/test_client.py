"""What a client computes beyond one gradient, what the server does with it, and what it costs."""

import dataclasses
import math

import interrupted
import numpy as np
import pytest
import torch
from torch import nn

from randquant.aggregation.clipping import clip_to_norm
from randquant.channels.keys import Key
from randquant.reports.run import report_run
from randquant.training import client as learner_module
from randquant.training import models
from randquant.training.client import Learner
from randquant.training.config import TrainConfig, check_config
from randquant.training.data import datasets
from randquant.training.named import of_dataset
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


def by_torch(digits, samples, model, rate, epochs):
    """Work SGD over all samples at once, with torch's own optimiser: the oracle."""
    module = models.build(model, (1, 8, 8), 10, 3)
    start = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    for _ in range(epochs):
        optimizer.zero_grad()
        logits = module(torch.from_numpy(digits.train_features[samples]))
        labels = torch.from_numpy(digits.train_labels[samples])
        nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
    return (start - nn.utils.parameters_to_vector(module.parameters()).detach()).numpy()


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("model", NETWORKS)
def test_local_epochs_are_those_of_torch(digits, split, model, together, monkeypatch):
    monkeypatch.setattr(learner_module, "SMALL", 32_000 if together else 0)
    learner = learner_of(digits, split, model, Work(epochs=3, learning_rate=0.2))
    updates, losses = learner.updates([0, 2, 6])
    for client, update in zip([0, 2, 6], updates, strict=True):
        expected = by_torch(digits, split[client], model, 0.2, 3)
        assert np.abs(update - expected).max() < 2e-6
    one = learner_of(digits, split, model, Work()).updates([0, 2, 6])[1]
    assert np.allclose(losses, one, rtol=1e-6, atol=0)  # of the first step, at the global weights


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


def test_a_batch_is_drawn_from_the_client_alone_and_without_repeats(digits, split):
    learner = learner_of(digits, split, "softmax", Work(batch=5))
    seen = set()
    for number in range(200):
        (batch,) = learner._alone.steps(1, KEY.fold_in(number))
        assert len(set(batch.tolist())) == 5
        seen |= set(batch.tolist())
    assert seen == set(split[1].tolist())
    assert learner.examples == 5
    assert learner_of(digits, split, "softmax", Work()).examples == min(map(len, split))


@pytest.mark.parametrize("model", NETWORKS)
def test_examples_are_clipped_one_by_one(digits, split, model):
    norm = 1.0
    learner = learner_of(digits, split, model, Work(example_norm=norm))
    updates, losses = learner.updates([0, 4])
    for client, update, loss in zip([0, 4], updates, losses, strict=True):
        rows, each = [], []
        for sample in split[client]:
            module = models.build(model, (1, 8, 8), 10, 3)
            logits = module(torch.from_numpy(digits.train_features[[sample]]))
            found = nn.functional.cross_entropy(logits, torch.tensor([digits.train_labels[sample]]))
            found.backward()
            rows.append(torch.cat([p.grad.reshape(-1) for p in module.parameters()]).numpy())
            each.append(float(found.detach()))
        lengths = np.linalg.norm(rows, axis=1)
        assert lengths.max() > norm  # something is clipped
        expected = np.mean([clip_to_norm(row, norm) for row in rows], axis=0)
        assert np.abs(update - expected).max() < 1e-6
        assert np.linalg.norm(update.astype(float)) <= norm
        assert math.isclose(loss, np.mean(each), rel_tol=1e-5)


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
RUNS = {
    "adam": {"server_optimizer": "Adam", "learning_rate": 0.01},
    "momentum": {"server_options": {"momentum": 0.9}, "learning_rate": 0.3},
    "local": {"local_epochs": 2, "batch": 8, "local_learning_rate": 0.1},
    "poisson": {"sampling": "poisson", "cohort": 2},
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_a_run_goes_on_to_the_same_bits(name, tmp_path):
    config = BASE.changed(**RUNS[name])
    whole = interrupted.whole(tmp_path / "whole", config)
    interrupted.begin(tmp_path / "parts", config, 4)
    runs.execute(tmp_path / "parts")
    first, other = (runs.load_parameters(tmp_path / part) for part in ("whole", "parts"))
    assert np.array_equal(first, other)
    assert whole.summary.accuracy > 0.12
    assert whole.summary.bits_per_coordinate == pytest.approx(4, abs=0.5)


def test_a_poisson_cohort_may_be_empty(tmp_path):
    config = BASE.changed(sampling="poisson", cohort=1, rounds=12, seed=2)
    runs.create(tmp_path / "run", config, overwrite=False)
    run = runs.execute(tmp_path / "run")
    empty = [m for m in run.metrics if m.train_loss is None]
    assert empty
    assert all(m.bytes_up == 0 for m in empty)
    assert len(run.metrics) == 12
    assert run.summary.participations < 12
    assert report_run(tmp_path / "run").exists()


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
