"""What a run says about its threshold: of raw targets, of far too short updates, else nothing."""

import dataclasses
import html

import numpy as np
import pytest
import torch
from by_name import train
from sklearn.datasets import load_diabetes, load_digits
from torch import nn
from torch.nn import functional

import randquant as rq
from randquant.aggregation import AdditiveMechanism, CentralGaussian, ClippedSGD
from randquant.cli import progress
from randquant.training.config import TrainConfig
from randquant.training.records import RunRecord
from randquant.training.runs.advice import about_threshold

PUBLIC_MEAN, PUBLIC_DEVIATION = 150.0, 75.0
SGD = {"local_learning_rate": 0.1, "server_optimizer": "SGD"}
NOISY = CentralGaussian(None, noise_multiplier=3.2, clip_norm=1.0)
"""About the noise of epsilon 8 in 50 rounds."""


def diabetes(mean, deviation, **plain):
    features, targets = load_diabetes(return_X_y=True)
    x = 20 * torch.tensor(features).float()
    y = (torch.tensor(targets).float()[:, None] - mean) / deviation
    clients, test = [(x[k:350:20], y[k:350:20]) for k in range(20)], (x[350:], y[350:])
    options = {"loss": functional.mse_loss, "rounds": 10, "seed": 0, "progress": False}
    quiet = dataclasses.replace(NOISY, noise_multiplier=0.5)
    torch.manual_seed(0)
    return train(nn.Linear(10, 1), clients, test=test, mechanism=quiet, **options, **plain)


def digits(mechanism=NOISY, **options):
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16).float(), torch.tensor(labels)
    clients = [(x[k:1500:200], y[k:1500:200]) for k in range(200)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    return train(model, clients, mechanism=mechanism, seed=0, progress=False, **options)


def test_raw_targets_of_a_regression_are_told(tmp_path):
    ways = "targets of a regression to mean 0 and deviation 1, by public figures"
    with pytest.warns(UserWarning, match=rf"add up to \d+% of .* clip_norm=1 allows.*{ways}"):
        run = diabetes(0.0, 1.0, **SGD)
    assert run.accuracy is None
    assert run.loss > 10_000
    page = rq.report(run, tmp_path / "page.html").read_text()
    assert html.escape(run.summary.advice) in page
    assert f"advice         {run.summary.advice}" in progress.table(run.folder, RunRecord(
        run.config, run.history, run.summary))  # fmt: skip


def test_untuned_steps_tell_raw_targets_too():
    ways = "targets of a regression to mean 0 and deviation 1, by public figures"
    with pytest.warns(UserWarning, match=rf"led away from where the model began.*{ways}"):
        assert diabetes(0.0, 1.0).loss > 10_000


@pytest.mark.parametrize("settings", [SGD, {}])
def test_scaled_targets_of_a_regression_are_not(settings):
    run = diabetes(PUBLIC_MEAN, PUBLIC_DEVIATION, **settings)
    assert run.summary.advice == ""
    assert run.loss < 2


def test_untuned_steps_that_noise_hides_are_told():
    loud = dataclasses.replace(NOISY, noise_multiplier=300.0)
    with pytest.warns(UserWarning, match="noise was longer .* in every round.*More clients"):
        digits(loud, rounds=20)


@pytest.mark.parametrize(
    "options",
    [
        {**SGD, "clip_norm": 20.0, "rounds": 20},
        pytest.param({"local_learning_rate": 1e-4}, marks=pytest.mark.slow),
    ],
)
def test_updates_far_below_the_threshold_are_told(options):
    mechanism = dataclasses.replace(NOISY, clip_norm=options.pop("clip_norm", 1.0))
    with pytest.warns(UserWarning, match=r"shorter than \d+% of clip_norm=.*Lower clip_norm or"):
        digits(mechanism, **options)


@pytest.mark.parametrize(
    "options",
    [
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ({"local_learning_rate": 0.5}, SGD, {})
        ),
        {"rounds": 10},
    ],
)
def test_runs_that_learn_digits_are_told_nothing(options):
    assert digits(**options).summary.advice == ""


SIZE, ROUNDS, CLIENTS = 400, 30, 100
SKELLAM = AdditiveMechanism("skellam", clip_norm=2.0, noise_multiplier=2.0, cohort=CLIENTS)


def simulated(means, mechanism=SKELLAM, rate=0.5, **settings):
    """The advice on means (T, d) of clipped updates, with the mechanism's noise."""
    error = mechanism.expected_error(means.shape[1])
    noise = np.random.default_rng(0).normal(size=means.shape) * error.deviation(CLIENTS, 0.0)
    released = means + noise
    options = {"learning_rate": rate, "norm": "l2", "rounds": len(means), **settings}
    options.setdefault("local_learning_rate", 0.1)
    config = TrainConfig.of("own", "own", "", population=CLIENTS, cohort=CLIENTS, **options)
    moved = (rate * released.sum(axis=0)).astype(np.float32)
    return about_threshold(config, mechanism, moved, list(np.linalg.norm(released, axis=1)))


def straight(length):
    return np.tile(length * np.eye(1, SIZE), (ROUNDS, 1))


@pytest.mark.parametrize(
    ("means", "told"),
    [
        (straight(2.0), "add up to 100%"),
        (straight(1.8), "add up to 90%"),
        (straight(1.2), "add up to 60%"),
        (straight(0.9), ""),
        (straight(0.6), ""),
        (straight(0.01), "shorter than"),
        (straight(2.0) * (-1.0) ** np.arange(ROUNDS)[:, None], ""),
        (straight(2.0) * (np.arange(ROUNDS)[:, None] < 6), ""),
        (straight(2.0) * (np.arange(ROUNDS)[:, None] < 2), ""),
    ],
)
def test_full_length_one_way_and_nothing_seen_are_told_apart_from_all_else(means, told):
    assert told in simulated(means)
    assert bool(told) == bool(simulated(means))


@pytest.mark.parametrize(
    "settings",
    [{"server_optimizer": "Adam"}, {"server_options": {"momentum": 0.9}}, {"sampling": "poisson"},
     {"trust": "model"}, {"numbers": ("accuracy",)}, {"clip_quantile": 0.5}, {"norm": "l1"}],
)  # fmt: skip
def test_nothing_is_said_where_the_noise_of_the_means_is_not_known(settings):
    assert simulated(straight(2.0))
    assert simulated(straight(2.0), **settings) == ""


def test_without_noise_full_length_is_told_and_short_updates_are_not():
    plain = ClippedSGD(clip_norm=2.0)
    assert "100%" in simulated(straight(2.0), plain)
    assert simulated(straight(1e-3), plain) == ""


def test_too_few_coordinates_for_short_updates():
    means = np.zeros((ROUNDS, 50))
    assert simulated(means) == ""


def test_noise_alone_says_nothing_of_full_length():
    """Noise of 40 times the threshold."""
    loud = AdditiveMechanism("skellam", clip_norm=2.0, noise_multiplier=100.0, cohort=CLIENTS)
    assert simulated(np.zeros((ROUNDS, SIZE)), loud) == ""
