"""What the papers train, by names: softmax regression, three MLPs or a small CNN on a data set."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from randquant.training import Problem, RunInputs, create_run, make_problem
from randquant_papers.configuration import PaperConfig
from randquant_papers.data import datasets, sets


def softmax(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Softmax regression: one linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 64 units."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU(), nn.Linear(64, classes)
    )


def mlp32(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 32 units: 3562 parameters on 100 components (QMGeo paper, section VI)."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 32), nn.ReLU(), nn.Linear(32, classes)
    )


def wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Hidden layers of 1024 and 384 units: 1,201,290 parameters on 28x28 images of 10 classes."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 1024),
        nn.ReLU(),
        nn.Linear(1024, 384),
        nn.ReLU(),
        nn.Linear(384, classes),
    )


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two convolutions and one hidden layer: 50,226 parameters on 28x28 images of 10 classes.

    ReLU comes after pooling: the same function, on a quarter of the numbers.
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(f"Expected images (channels, height, width) for model cnn, got {shape}.")
    padding = 0 if min(shape[1:]) >= 16 else 1  # without it small images shrink to nothing
    side = [((n + 2 * padding - 2) // 2 + 2 * padding - 2) // 2 for n in shape[1:]]
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 3, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * math.prod(side), 56),
        nn.ReLU(),
        nn.Linear(56, classes),
    )


MODELS = {"softmax": softmax, "mlp": mlp, "mlp32": mlp32, "wide": wide, "cnn": cnn}
"""Architecture of every model, by the name that commands and records use."""


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Build a model with weights initialised from a seed; torch's global state stays as it was.

    Args:
        name: one of MODELS.
        shape: shape of one example.
        classes: how many classes.
        seed: simulation seed.
    """
    architecture = MODELS[datasets.choice("model", name, MODELS)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return architecture(shape, classes)


def problem(
    name: str,
    model: str,
    population: int,
    *,
    data_dir: str = "",
    partition: str = "iid",
    concentration: float = 0.3,
    seed: int = 0,
) -> Problem:
    """Load a data set, split it over clients, and build a model.

    Args:
        name: of the data set, one of `sets.NAMES`.
        model: one of MODELS.
        population: how many clients.
        data_dir: folder of the data files.
        partition, concentration: as for `datasets.split`.
        seed: of the split and of the initial weights.

    Raises:
        ValueError, FileNotFoundError: a name is unknown, the data are not there, or nothing can be
            trained with these.
    """
    data = sets.load(name, data_dir or None)
    places = datasets.split(data, population, partition, concentration=concentration, seed=seed)
    made = build(model, data.train_features.shape[1:], data.classes, seed)
    clients = [(data.train_features[rows], data.train_labels[rows]) for rows in places]
    return make_problem(made, clients, test=(data.test_features, data.test_labels))


def inputs_of(config: PaperConfig) -> RunInputs:
    """Load what a run's configuration names.

    Raises:
        ValueError, FileNotFoundError: as `problem`.
    """
    data = config.data
    return RunInputs(problem(
        data.dataset, data.model, config.task.population, data_dir=data.data_dir,
        partition=data.partition, concentration=data.concentration,
        seed=config.seed or 0,  # a run with a secret key has a public split and initial weights
    ))  # fmt: skip


def create(folder: Path, config: PaperConfig, **options: Any) -> RunInputs:
    """Make the folder of a new run, and return what it is trained with; see `create_run`."""
    inputs = inputs_of(config)
    create_run(folder, config.stored(inputs.task), inputs, **options)
    return inputs
