"""Small real problems of scikit-learn's data, for tests that train stored runs."""

import functools
import itertools

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

import randquant as rq
from randquant import training
from randquant.training import RunInputs, RunStore, TrainConfig, make_problem

CLASSES = {"digits": 10, "breast-cancer": 2}
TESTED = 5
"""One example in so many is test data."""


@functools.cache
def data_of(name):
    """Features and labels of training and test data."""
    if name == "digits":
        images, labels = load_digits(return_X_y=True)
        features = images.reshape(-1, 1, 8, 8) / 16
    else:
        samples, labels = load_breast_cancer(return_X_y=True)
        features = (samples - samples.mean(axis=0)) / samples.std(axis=0)
    tested = np.arange(len(labels)) % TESTED == 0
    x, y = features.astype(np.float32), labels.astype(np.int64)
    return x[~tested], y[~tested], x[tested], y[tested]


def places_of(labels, population, seed, skew=False):
    """Rows of each client: at random, or of few labels each."""
    order = np.random.default_rng(seed).permutation(len(labels))
    if skew:
        order = order[np.argsort(labels[order], kind="stable")]
    return np.array_split(order, population)


def cnn(channels, side, classes):
    """Two convolutions and a hidden layer."""
    padding = 0 if side >= 16 else 1
    left = ((side + 2 * padding - 2) // 2 + 2 * padding - 2) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=padding), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=padding), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * left * left, 56), nn.ReLU(), nn.Linear(56, classes),
    )  # fmt: skip


def model_of(name, shape, classes, seed):
    """A model from a seed; torch's random state stays as it was."""
    hidden = {"softmax": (), "mlp": (64,), "mlp32": (32,), "wide": (1024, 384)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "cnn":
            return cnn(shape[0], shape[1], classes)
        sizes = [int(np.prod(shape)), *hidden[name]]
        layers = [nn.Flatten()]
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


def problem(dataset, model, population, seed=0, skew=False):
    """A model and a data set that is split over clients."""
    x, y, *test = data_of(dataset)
    clients = [(x[rows], y[rows]) for rows in places_of(y, population, seed, skew)]
    made = model_of(model, x.shape[1:], CLASSES[dataset], seed)
    return make_problem(made, clients, test=tuple(test))


_NAMES = {}
"""Data set, model and seed of the problems of this process, by digest."""


def _inputs(names, population):
    dataset, model, seed = names
    inputs = RunInputs(problem(dataset, model, population, seed))
    _NAMES[inputs.problem.digest] = names
    return inputs


def config_of(dataset, model, mechanism, parameters=None, **settings):
    """The configuration of a run on such a problem.

    From seed 0, 300 rounds of 40 clients of 200 that send one gradient each, whose coordinates are
    clipped one by one, unless the settings say otherwise.
    """
    names = dataset, model, settings.get("seed") or 0
    plain = TrainConfig(
        _inputs(names, settings.get("population", 200)).task, mechanism, parameters or {},
        cohort=40, rounds=300, trust=None, seed=0, local=rq.Local(epochs=1, learning_rate=0.0),
        privacy=rq.Privacy(clip_norm=None),
    )  # fmt: skip
    return plain.changed(**settings)


def inputs_of(config):
    """What a run of `config_of` is trained with."""
    return _inputs(_NAMES[config.task.problem], config.task.population)


def create_run(folder, config, **options):
    """Make the folder of a run of `config_of`, whose population may have been changed."""
    inputs = inputs_of(config)
    config = config.changed(problem=inputs.problem.digest)
    training.create_run(folder, config, inputs, **options)


def train_run(folder, *args, **options):
    """Train the run of `config_of` in a folder."""
    inputs = inputs_of(RunStore(folder).config())
    return training.train_run(folder, inputs, *args, **options)
