"""A model, clients' data and a loss that a configuration names by the functions that make them.

`package.module:function`, or `FILE.py:function`: the model's function returns an nn.Module, the
data's the clients as `randquant.train` takes them, or (clients, test). They are called again when a
run is resumed, so they must return the same: random numbers of torch are drawn from the run's seed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from torch import Tensor, nn

from randquant.local_training.clients import client_set
from randquant.local_training.copies import seeded
from randquant.local_training.local import Local
from randquant.local_training.problem import Problem, problem_of
from randquant.training import models
from randquant.training.config import TrainConfig
from randquant.training.named import named_problem
from randquant.training.task import CROSS_ENTROPY, named_by_function


def is_named(config: TrainConfig) -> bool:
    """Return whether a configuration needs `problem_by_function`, not only built-in names."""
    task, local, usual = config.task, config.local, Local()
    names = ("parts", "frozen", "buffers", "public")
    changed = any(getattr(local, name) != getattr(usual, name) for name in names)
    of_task = named_by_function(task.dataset) or named_by_function(task.model)
    return changed or of_task or task.loss != CROSS_ENTROPY


def problem_by_function(config: TrainConfig) -> Problem:
    """Build the problem that a configuration names.

    Raises:
        ValueError, TypeError, ImportError: a function cannot be found, or what it returns cannot be
            trained; see `randquant.local_training.problem.problem_of`.
    """
    with seeded(config.seed or 0):
        loss = _loss(config.task.loss)
        public = function(config.local.public, "public")() if config.local.public else None
        if not named_by_function(config.task.dataset):
            own = named_by_function(config.task.model)
            return named_problem(config, _model(config, None) if own else None, loss, public)
        clients, test = _data(config.task.dataset)
        model = _model(config, clients)
    return problem_of(
        model,
        clients,
        loss=loss,
        test=test,
        parts=config.local.parts,
        frozen=config.local.frozen,
        buffers=config.local.buffers,
        public=public,
    )


def of_problem(config: TrainConfig, problem: Problem, population: int | None) -> TrainConfig:
    """Return the configuration with what follows from data of one's own: how many clients.

    Args:
        config: the configuration; its cohort is at most all clients.
        problem: what `problem_by_function` built from it.
        population: the number of clients, if it was given.

    Raises:
        ValueError: another number was given.
    """
    if not named_by_function(config.task.dataset):
        return config
    clients = len(problem.clients)
    found = config.changed(
        population=clients if population is None else population,
        cohort=min(config.cohort, clients),
        partition="own",
    )
    check_population(found, problem)
    return found


def check_population(config: TrainConfig, problem: Problem) -> None:
    """Raise a ValueError unless a configuration's population is the number of clients there are."""
    if config.task.population != len(problem.clients):
        raise ValueError(
            f"Expected population={len(problem.clients)}, which are the clients of "
            f"{config.task.dataset}, got population={config.task.population}."
        )


def function(name: str, what: str) -> Callable[..., Any]:
    """Return the function that `module:function` or `FILE.py:function` names.

    Args:
        name: modules and files are looked for in the working directory, too.
        what: the setting that names it, for messages.

    Raises:
        ValueError, ImportError: there is none.

    Example:
        >>> function("math:sqrt", "model")(4)
        2.0
    """
    place, _, called = name.rpartition(":")
    module = _of_file(Path(place), what) if place.endswith(".py") else _module(place, what)
    found = getattr(module, called, None)
    if not callable(found):
        known = [n for n, value in vars(module).items() if callable(value) and n[:1] != "_"]
        raise ValueError(
            f"Expected a function for {what}, got {name!r}: {place} has "
            f"{', '.join(known) or 'none'}."
        )
    return found


def _of_file(path: Path, what: str) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"Expected a file for {what}, found no {path}.")
    name = str(path.resolve())  # which no import takes: a file may be called as a package is
    loader = _FromSource(name, name)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up what their annotations name there
    loader.exec_module(module)
    return module


class _FromSource(SourceFileLoader):
    """The file as it stands: bytecode kept beside it is taken for its own by second and size."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _module(name: str, what: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(f"Expected a module for {what}, cannot import {name}: {error}.") from None
    finally:
        sys.path.pop(0)


def _data(name: str) -> tuple[Any, Any]:
    """The clients' data, and the test data or None."""
    made = function(name, "data")()
    return made if isinstance(made, tuple) and len(made) == 2 else (made, None)


def _model(config: TrainConfig, clients: Any) -> nn.Module:
    if not named_by_function(config.task.model):
        name, classes = _name_and_classes(config.task.model)
        return models.build(name, _shape(clients, name), classes, config.seed or 0)
    model = function(config.task.model, "model")()
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"Expected {config.task.model} to return a torch nn.Module, got a "
            f"{type(model).__name__}."
        )
    return model


def _name_and_classes(model: str) -> tuple[str, int]:
    """What a built-in model for data of one's own is called, and its number of classes."""
    name, _, classes = model.partition("-")
    if not classes.isdecimal() or int(classes) < 2:
        raise ValueError(
            f"Expected the number of classes in the name of a built-in model for data of your own, "
            f"got {model}: write {name}-10 for ten; the clients' labels are not looked at for it."
        )
    return name, int(classes)


def _shape(clients: Any, model: str) -> tuple[int, ...]:
    """The shape of an example, for a built-in model."""
    found = client_set(clients)
    table = found.table
    features = None if table is None else table.features
    if table is None or not isinstance(features, Tensor) or table.targets.is_floating_point():
        raise ValueError(
            f"Expected a model of your own with such data, got {model}: built-in models classify "
            "examples in memory; give --model FILE.py:function."
        )
    return tuple(features.shape[1:])


def _loss(name: str) -> Callable[..., Any]:
    if named_by_function(name):
        return function(name, "loss")
    found = getattr(nn.functional, name, None)
    if not callable(found):
        raise ValueError(
            f"Expected loss to be a function of torch.nn.functional, or module:function; "
            f"got {name!r}."
        )
    return found
