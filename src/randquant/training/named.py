"""The built-in data sets and models as a problem, by the names in a run's configuration."""

from __future__ import annotations

import torch
from torch import nn

from randquant.training import models
from randquant.training.clients import of_table
from randquant.training.config import TrainConfig
from randquant.training.data import datasets, features
from randquant.training.data.datasets import Dataset
from randquant.training.examples import StoredExamples
from randquant.training.problem import Problem, parts_of


def named_problem(config: TrainConfig) -> Problem:
    """Load a run's data set, split it over clients, and build its model.

    Raises:
        ValueError, FileNotFoundError, ImportError: a name is unknown, or the data are not there.
    """
    dataset = features.load(
        config.dataset, config.data_dir or None, config.features, config.fitted_on
    )
    clients = datasets.split(
        dataset,
        config.population,
        config.partition,
        concentration=config.concentration,
        seed=config.seed,
    )
    shape = dataset.train_features.shape[1:]
    model = models.build(config.model, shape, dataset.classes, config.seed)
    return of_dataset(model, dataset, clients)


def of_dataset(model: nn.Module, dataset: Dataset, clients: list) -> Problem:
    """A classification problem on a built-in data set, which is not copied.

    Args:
        model: one of the built-in models, with its initial weights.
        dataset: the data.
        clients: each client's training sample indices, at least one each.
    """
    train = StoredExamples(
        torch.from_numpy(dataset.train_features), torch.from_numpy(dataset.train_labels)
    )
    test = StoredExamples(
        torch.from_numpy(dataset.test_features), torch.from_numpy(dataset.test_labels)
    )
    return Problem(
        model,
        of_table(train, clients),
        nn.functional.cross_entropy,
        test,
        parts_of(model),
        classes=dataset.classes,
        public=dataset.public,
    )
