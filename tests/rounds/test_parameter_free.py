"""The server's step without a rate: its rule, its state, and what it depends on."""

import math

import numpy as np
import pytest
from by_name import train
from sklearn.datasets import load_digits
from torch import nn, tensor

from randquant.aggregation import ClippedSGD
from randquant.rounds import ParameterFreeStep, usual_length
from randquant.training import from_tensors, to_tensors

SHAPES = [(3, 4), (3,)]
STEP = ParameterFreeStep(SHAPES, rounds=8, scale=2.0, deviation=0.1)


def by_definition(start, means, shapes, rounds, scale, deviation):
    """The rule, as the theory page writes it."""
    d = len(start)
    length = math.sqrt(sum(math.prod(s) for s in shapes) / (3 * 4))
    size, x = 4.0 * length / math.sqrt(rounds * (1 + d * deviation**2)), start.astype(float)
    for k, mean in enumerate(means):
        move, away = -mean / scale, x - start
        if k:
            h = move @ away / np.linalg.norm(away)
            size *= math.exp(min(0.2, 6 / rounds) * h / math.sqrt(0.09 + h**2 + deviation**2))
        x = x + size * min(1, 2 * (1 - k / rounds)) * move
    return x


def run(step, start, means):
    state, x = step.init(), start
    for mean in means:
        arrays, text = to_tensors(state)  # as in a checkpoint
        before, held = x.copy(), {name: array.copy() for name, array in arrays.items()}
        new = step.step(x, mean, from_tensors(arrays, text))
        assert np.array_equal(new[0], step.step(x, mean, state)[0])
        assert np.array_equal(x, before)  # what was passed stays as it was
        now, same = to_tensors(state)
        assert same == text
        assert all(np.array_equal(now[name], array) for name, array in held.items())
        x, state = new
    return x, state


@pytest.fixture
def means():
    return np.random.default_rng(0).normal(0.3, 1.0, (8, 15)).astype(np.float32)


def test_the_step_is_the_rule(means):
    start = np.linspace(-1, 1, 15, dtype=np.float32)
    found, state = run(STEP, start, means)
    assert found == pytest.approx(by_definition(start, means, SHAPES, 8, 2.0, 0.1), rel=1e-5)
    assert state["round"] == 8


def test_noise_that_is_not_known_is_taken_from_the_means(means):
    unknown = ParameterFreeStep(SHAPES, rounds=8, scale=2.0)
    first = np.linalg.norm(run(unknown, np.zeros(15, np.float32), means[:1])[0])
    share = np.linalg.norm(means[0] / 2)
    length = usual_length(SHAPES)
    assert first == pytest.approx(4 * length * share / math.sqrt(8 * (1 + share**2)), rel=1e-5)


def test_means_of_zero_move_nothing():
    start = np.ones(15, np.float32)
    assert np.array_equal(run(STEP, start, np.zeros((8, 15), np.float32))[0], start)


def digits(norm=1.0, **settings):
    images, labels = load_digits(return_X_y=True)
    x, y = tensor(images / 16).float(), tensor(labels)
    clients = [(x[k:1400:100], y[k:1400:100]) for k in range(100)]
    model = nn.Linear(64, 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    exact = ClippedSGD(clip_norm=norm)
    options = {"rounds": 12, "seed": 0, "progress": False, "test": (x[1400:], y[1400:])}
    return train(model, clients, mechanism=exact, **options, **settings)


def test_digits_are_learnt_without_any_rate_whatever_the_threshold():
    accuracy = digits().accuracy or 0.0
    assert accuracy > 0.87
    assert digits(norm=0.01).accuracy == pytest.approx(accuracy, abs=0.01)


def test_rates_are_still_possible():
    run = digits(local_learning_rate=0.5, server_optimizer="SGD")
    local, server = run.record.config.local, run.record.config.server
    assert (local.learning_rate, server.optimizer, server.learning_rate) == (0.5, "SGD", 1.0)
