"""Data sets, models and losses by name: built in, or `module:function` for one's own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from randquant.training import models
from randquant.training.clients import ClientSet, client_set, of_table
from randquant.training.config import TrainConfig
from randquant.training.data import datasets, features
from randquant.training.data.datasets import Dataset
from randquant.training.examples import Examples, StoredExamples
from randquant.training.generators import seeded
from randquant.training.problem import Buffers, Loss, Problem, checked_problem, evaluated_on


def named_problem(config: TrainConfig) -> Problem:
    """Build the problem that a configuration names.

    - `dataset`: a built-in one, split over `population` clients; or `module:function`, which is
      called without arguments and returns all clients' data, or a tuple (clients, test data).
    - `model`: a built-in one, or `module:function`, which returns a torch module. Its initial
      weights follow from the run's seed.
    - `loss`: a function of torch.nn.functional, or `module:function`, which is the loss.

    Modules are found in the working directory as well.

    Raises:
        ValueError, TypeError, FileNotFoundError, ImportError: a name is unknown, the data are not
            there, or nothing can be trained with these.
    """
    seed = config.seed or 0  # a run with a secret key has a public split and initial weights
    if _is_own(config.dataset):
        if not _is_own(config.model):
            raise ValueError(
                f"Expected model module:function with data of one's own, got {config.model!r}: "
                "built-in models are made for built-in data."
            )
        clients, test = _own_data(config)
        model, public = _own_model(config.model, seed), 0
    else:
        dataset = features.load(
            config.dataset, config.data_dir or None, config.features, config.fitted_on
        )
        rows = datasets.split(
            dataset,
            config.population,
            config.partition,
            concentration=config.concentration,
            seed=seed,
        )
        clients, test, public = *_tables(dataset, rows), dataset.public
        shape = dataset.train_features.shape[1:]
        if _is_own(config.model):
            model = _own_model(config.model, seed)
        else:
            model = models.build(config.model, shape, dataset.classes, seed)
    buffers: Any = config.buffers
    return checked_problem(
        model, clients, _loss(config.loss), test, parts=config.parts, frozen=config.frozen,
        buffers=buffers, public_examples=public,
    )  # fmt: skip


def of_dataset(
    model: nn.Module,
    dataset: Dataset,
    clients: Sequence[np.ndarray],
    *,
    loss: Loss = nn.functional.cross_entropy,
    buffers: Buffers = "refuse",
) -> Problem:
    """A problem on a built-in data set, which is not copied.

    Args:
        model: the model, with its initial weights.
        dataset: the data.
        clients: each client's training sample indices, at least one each.
        loss, buffers: as for `problem_of`.
    """
    table, test = _tables(dataset, clients)
    return checked_problem(
        model, table, loss, test, buffers=buffers, public_examples=dataset.public
    )


def own(name: str) -> Any:
    """What `module:function` names, with the working directory among the places to look in.

    Raises:
        ValueError: there is no such module, or nothing of that name in it.

    Example:
        >>> own("torch.nn:Identity")
        <class 'torch.nn.modules.linear.Identity'>
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    path, sys.path = sys.path, [here, *sys.path]
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"Expected a Python module {module_name!r} for {name!r}, found none from {here}: run "
            "the command in the folder that holds it, or install it."
        ) from error
    finally:
        sys.path = path
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise ValueError(
            f"Expected {attribute!r} in module {module_name}, found none: {name!r} is "
            "module:function."
        ) from error
    return found


def _is_own(name: str) -> bool:
    return ":" in name


def _own_data(config: TrainConfig) -> tuple[ClientSet, Examples | None]:
    with seeded(config.seed or 0):
        data = _called(config.dataset)
        given, test = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
        clients = client_set(given)
        tested = None if test is None else evaluated_on(test, clients)
    if len(clients) != config.population:
        raise ValueError(
            f"Expected population={len(clients)}, the number of clients that {config.dataset} "
            f"gives, got {config.population}."
        )
    return clients, tested


def _own_model(name: str, seed: int) -> nn.Module:
    with seeded(seed):
        model = _called(name)
    if not isinstance(model, nn.Module):
        raise TypeError(f"Expected {name} to return a torch nn.Module, got {model!r:.60}.")
    return model


def _called(name: str) -> Any:
    function = own(name)
    if not callable(function):
        raise TypeError(f"Expected {name} to be a function, got {function!r:.60}.")
    return function()


def _loss(name: str) -> Loss:
    if _is_own(name):
        return own(name)
    loss: Callable[..., Any] | None = getattr(nn.functional, name, None)
    if not callable(loss):
        raise ValueError(
            f"Expected a loss of torch.nn.functional, such as cross_entropy, or module:function, "
            f"got {name!r}."
        )
    return loss


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
