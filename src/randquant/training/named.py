"""The built-in data sets and models as a problem, by the names in a run's configuration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from randquant._internal import validate
from randquant.local_training.clients import ClientSet, of_table
from randquant.local_training.examples import StoredExamples
from randquant.local_training.problem import Problem, checked_problem
from randquant.training import models
from randquant.training.config import TrainConfig
from randquant.training.data import datasets
from randquant.training.data.datasets import Dataset
from randquant.training.task import CROSS_ENTROPY


def named_problem(config: TrainConfig) -> Problem:
    """Load a run's data set, split it over clients, and build its model.

    Args:
        config: the run's configuration.

    Raises:
        ValueError, FileNotFoundError, ImportError: a name is unknown, the data are not there, or
            nothing can be trained with these.
    """
    task, local = config.task, config.local
    if task.loss != CROSS_ENTROPY or local.public is not None:
        raise ValueError(
            f"Expected {CROSS_ENTROPY} and no public examples with the data set {task.dataset}, "
            f"got loss={task.loss}, public={validate.shown(local.public)}: call randquant.train."
        )
    dataset = datasets.load(task.dataset, task.data_dir or None)
    seed = config.seed or 0  # a run with a secret key has a public split and initial weights
    rows = datasets.split(
        dataset, task.population, task.partition, concentration=task.concentration, seed=seed
    )
    shape = dataset.train_features.shape[1:]
    model = models.build(task.model, shape, dataset.classes, seed)
    clients, test = _tables(dataset, rows)
    return checked_problem(
        model, clients, nn.functional.cross_entropy, test,
        parts=local.parts, frozen=local.frozen, buffers=local.buffers,
    )  # fmt: skip


def of_dataset(model: nn.Module, dataset: Dataset, clients: Sequence[np.ndarray]) -> Problem:
    """A classification problem on a built-in data set, which is not copied.

    Args:
        model: the model, with its initial weights.
        dataset: the data.
        clients: each client's training sample indices, at least one each.
    """
    table, test = _tables(dataset, clients)
    return checked_problem(model, table, nn.functional.cross_entropy, test)


def _tables(dataset: Dataset, clients: Sequence[np.ndarray]) -> tuple[ClientSet, StoredExamples]:
    """All clients' data and the test data, which share the arrays' memory."""
    train, test = (
        StoredExamples(torch.from_numpy(x), torch.from_numpy(y))
        for x, y in (
            (dataset.train_features, dataset.train_labels),
            (dataset.test_features, dataset.test_labels),
        )
    )
    return of_table(train, clients), test
