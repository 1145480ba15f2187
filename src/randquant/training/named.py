"""The built-in data sets and models as a problem, by the names in a run's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from randquant.local_training.clients import ClientSet, of_table
from randquant.local_training.examples import StoredExamples
from randquant.local_training.problem import Loss, Problem, checked_problem, public_examples_of
from randquant.training import models
from randquant.training.config import TrainConfig
from randquant.training.data import datasets
from randquant.training.data.datasets import Dataset


def named_problem(
    config: TrainConfig,
    model: nn.Module | None = None,
    loss: Loss = nn.functional.cross_entropy,
    public: Any = None,
) -> Problem:
    """Load a run's data set, split it over clients, and build its model.

    Args:
        config: the run's configuration.
        model: a model of one's own with its initial weights; None for the configured one.
        loss: the loss.
        public: examples that no client holds, for running statistics.

    Raises:
        ValueError, FileNotFoundError, ImportError: a name is unknown, the data are not there, or
            nothing can be trained with these.
    """
    dataset = datasets.load(config.task.dataset, config.task.data_dir or None)
    seed = config.seed or 0  # a run with a secret key has a public split and initial weights
    rows = datasets.split(
        dataset,
        config.task.population,
        config.task.partition,
        concentration=config.task.concentration,
        seed=seed,
    )
    if model is None:
        shape = dataset.train_features.shape[1:]
        model = models.build(config.task.model, shape, dataset.classes, seed)
    clients, test = _tables(dataset, rows)
    shown = None if public is None else public_examples_of(public, clients, None)
    return checked_problem(
        model, clients, loss, test, parts=config.local.parts, frozen=config.local.frozen,
        buffers=config.local.buffers, public=shown,
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
