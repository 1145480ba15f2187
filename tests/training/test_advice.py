"""What a run says about its steps: of raw targets, of updates that noise hides, else nothing."""

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
from randquant.cli import train as command
from randquant.local_training import make_problem
from randquant.rounds import ParameterFreeStep
from randquant.training import (
    RunRecord,
    Task,
    TrainConfig,
    about_constant,
    about_steps,
    best_constant,
)

PUBLIC_MEAN, PUBLIC_DEVIATION = 150.0, 75.0
NOISY = CentralGaussian(None, noise_multiplier=6.4, clip_norm=1.0)
"""About the noise of epsilon 8 in 50 rounds."""


def diabetes(mean, deviation):
    features, targets = load_diabetes(return_X_y=True)
    x = 20 * torch.tensor(features).float()
    y = (torch.tensor(targets).float()[:, None] - mean) / deviation
    clients, test = [(x[k:350:20], y[k:350:20]) for k in range(20)], (x[350:], y[350:])
    options = {"loss": functional.mse_loss, "rounds": 10, "seed": 0, "progress": False}
    quiet = dataclasses.replace(NOISY, noise_multiplier=1.0)
    torch.manual_seed(0)
    return train(nn.Linear(10, 1), clients, test=test, mechanism=quiet, **options)


def digits(mechanism=NOISY, **options):
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16).float(), torch.tensor(labels)
    clients = [(x[k:1500:200], y[k:1500:200]) for k in range(200)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    return train(model, clients, mechanism=mechanism, seed=0, progress=False, **options)


def test_raw_targets_of_a_regression_are_told(tmp_path):
    ways = "targets of a regression, to mean 0 .* .Local.standardize=randquant.Standardize"
    with pytest.warns(UserWarning, match=rf"led away from where the model began.*{ways}"):
        run = diabetes(0.0, 1.0)
    assert run.accuracy is None
    assert run.loss > 10_000
    page = rq.report(run, tmp_path / "page.html").read_text()
    assert html.escape(run.summary.advice) in page
    assert f"advice         {run.summary.advice}" in command.finished_lines(run.folder, RunRecord(
        run.config, run.history, run.summary))  # fmt: skip


def test_scaled_targets_of_a_regression_are_not():
    run = diabetes(PUBLIC_MEAN, PUBLIC_DEVIATION)
    assert run.summary.advice == ""
    assert run.loss < 2


def test_untuned_steps_that_noise_hides_are_told():
    loud = dataclasses.replace(NOISY, noise_multiplier=600.0)
    with pytest.warns(UserWarning, match="noise was longer .* in every round.*More clients"):
        digits(loud, rounds=20)


@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.slow), {"rounds": 10}], ids=str
)
def test_runs_that_learn_digits_are_told_nothing(options):
    assert digits(**options).summary.advice == ""


@pytest.mark.slow
def test_probabilities_that_are_too_sure_are_told():
    """Of people whose labels are other than those of the clients."""
    x = torch.randn(600, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    clients = [(x[k : k + 1], y[k : k + 1]) for k in range(300)]
    quiet = dataclasses.replace(NOISY, noise_multiplier=1.0)
    options = {"mechanism": quiet, "rounds": 30, "seed": 0, "progress": False}
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="surer than it is right"):
        train(nn.Linear(3, 2), clients, test=(x[300:], 1 - y[300:]), **options)


def test_steps_with_a_rate_tell_nothing():
    assert digits(rounds=10, local_learning_rate=1e-4).summary.advice == ""


SIZE, ROUNDS, CLIENTS = 400, 30, 100
SKELLAM = AdditiveMechanism("skellam", clip_norm=2.0, noise_multiplier=4.0, cohort=CLIENTS)


def simulated(means, mechanism=SKELLAM, **settings):
    """The advice on means (T, d) of clipped updates, with the mechanism's noise."""
    error = mechanism.expected_error(means.shape[1])
    noise = np.random.default_rng(0).normal(size=means.shape) * error.deviation(CLIENTS, 0.0)
    released = means + noise
    plain = TrainConfig(
        Task(CLIENTS), "", cohort=CLIENTS, rounds=len(means), trust=None, seed=0,
        local=rq.Local(epochs=1, learning_rate=0.0), privacy=rq.Privacy(clip_norm=None),
    )  # fmt: skip
    config = plain.changed(**settings)
    norm = mechanism.clip_norm
    step = ParameterFreeStep(
        [(means.shape[1],)], len(means), error.gain * norm, error.deviation(CLIENTS, 0.0) / norm
    )
    here, state = np.zeros(means.shape[1], np.float32), step.init()
    for mean in released:
        here, state = step.step(here, mean, state)
    lengths = list(np.linalg.norm(released, axis=1))
    return about_steps(config, mechanism, means.shape[1], lengths, state["agreement"])


def straight(length):
    return np.tile(length * np.eye(1, SIZE), (ROUNDS, 1))


ALONG = np.arange(ROUNDS)[:, None]
PLAIN = ClippedSGD(clip_norm=2.0)
LOUD = dataclasses.replace(SKELLAM, noise_multiplier=200.0)


@pytest.mark.parametrize(
    ("means", "mechanism", "told"),
    [
        (straight(2.0), SKELLAM, "led away"),
        (straight(1.8), SKELLAM, "led away"),
        (straight(0.9), SKELLAM, ""),
        (straight(0.01), SKELLAM, "noise was longer"),
        (straight(2.0) * (-1.0) ** ALONG, SKELLAM, ""),
        (straight(2.0) * (ALONG < 6), SKELLAM, ""),
        (straight(2.0), PLAIN, "led away"),
        (straight(1e-3), PLAIN, ""),
        (np.zeros((ROUNDS, SIZE)), LOUD, "noise was longer"),
        (np.zeros((ROUNDS, 50)), SKELLAM, ""),  # too few coordinates
    ],
)
def test_full_length_one_way_and_nothing_seen_are_told_apart_from_all_else(means, mechanism, told):
    assert told in simulated(means, mechanism)
    assert bool(told) == bool(simulated(means, mechanism))


@pytest.mark.parametrize(
    "settings",
    [{"sampling": "poisson"}, {"trust": "model"}, {"numbers": ("accuracy",)}],
)  # fmt: skip
def test_nothing_is_said_where_the_noise_of_the_means_is_not_known(settings):
    assert simulated(straight(2.0))
    assert simulated(straight(2.0), **settings) == ""


def test_a_classifier_that_the_shares_of_classes_beat_is_told():
    """Of 2.3 % positives: naming their share has a loss of 0.11 nats."""
    x, y = torch.zeros(1000, 2), (torch.arange(1000) < 23).long()
    problem = make_problem(nn.Linear(2, 2), [(x[:40], y[:40])], test=(x, y))
    shares = -0.023 * np.log(0.023) - 0.977 * np.log(0.977)
    assert best_constant(problem) == pytest.approx(shares)
    told = about_constant(10 * [0.5], best_constant(problem))
    assert "is 0.5, where the same output for all" in told
    assert "would have 0.109" in told
    assert about_constant(10 * [0.12], shares) == about_constant([0.5], shares) == ""
    binary = functional.binary_cross_entropy_with_logits
    one = make_problem(
        nn.Linear(2, 1), [(x, y[:, None].float())], test=(x, y[:, None].float()), loss=binary
    )
    assert best_constant(one) == pytest.approx(shares)
    square = make_problem(
        nn.Linear(2, 1),
        [(x, y[:, None].float())],
        test=(x, y[:, None].float()),
        loss=functional.mse_loss,
    )
    assert best_constant(square) == pytest.approx(0.023 * 0.977)
