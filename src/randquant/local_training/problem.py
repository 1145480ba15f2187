"""What is trained and on whose data, with every check that this allows before a run begins."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randquant._internal import patterns, validate
from randquant.local_training.clients import (
    ClientSet,
    check_alike,
    check_finite,
    check_public,
    client_set,
    named,
)
from randquant.local_training.copies import copied, in_float32, seeded, stored
from randquant.local_training.examples import Columns, Examples, StoredExamples, examples_of
from randquant.local_training.local import BUFFERS, Buffers
from randquant.local_training.statistics import ServerStatistics
from randquant.local_training.trial import (
    Loss,
    Trial,
    check_labels,
    guess_of,
    is_binary,
    takes_classes,
    tried,
)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A model, its clients' data and its loss; nothing in it changes.

    Attributes:
        model: a copy with the initial weights, on the CPU, in which training computes.
        clients: all clients' data.
        loss: the mean loss over a batch.
        test: examples that the model is evaluated on; None for no evaluation.
        types: of the parameters and buffers as they were given, see `in_float32`.
        parts: names of the parameters that are trained, sent and counted, in the model's order.
        buffers: what is done about running statistics.
        trial: what a trial run of the model and the loss showed.
        statistics: public examples that the server computes these layers' statistics on; None to
            leave them as they are.
        raw: from what the model gives to what is compared with test targets; None if it is that.
    """

    model: nn.Module
    clients: ClientSet
    loss: Loss
    test: Examples | None
    parts: tuple[str, ...]
    types: tuple[torch.dtype, ...]
    trial: Trial
    buffers: Buffers = "refuse"
    statistics: Examples | None = None
    raw: Callable[[Any], Any] | None = None

    @property
    def dimension(self) -> int:
        """Coordinates of an update: the trained parameters' numbers."""
        return sum(map(math.prod, self.shapes))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the trained parameters, in the model's order."""
        parameters = dict(self.model.named_parameters())
        return [tuple(parameters[name].shape) for name in self.parts]

    @property
    def labels(self) -> int | None:
        """How many labels the loss takes, from 0; None if it takes others than class numbers."""
        return self.trial.classes if self.loss is nn.functional.cross_entropy else None

    @property
    def guess(self) -> float | None:
        """The loss of a classifier whose outputs are all equal; None for other tasks and losses."""
        return guess_of(self.loss, self.trial.classes or self.trial.outputs)

    @property
    def binary(self) -> bool:
        """Whether outputs are binary logits."""
        return is_binary(self.loss)

    def starting_at(self, weights: np.ndarray) -> Problem:
        """The same from other initial weights of what is trained, (d,) float32."""
        model, sizes = copied(self.model), [math.prod(shape) for shape in self.shapes]
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, part in zip(self.parts, torch.from_numpy(weights).split(sizes), strict=True):
                parameters[name].copy_(part.view_as(parameters[name]))
        return replace(self, model=model)

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of what is public: model, initial weights, parts, loss, names.

        No example enters it, nor how many a client has: whoever reads a record with a hash of
        private data can test guesses of the data.
        """
        found = hashlib.sha256()
        facts = (
            self.parts,
            self.buffers,
            _called(self.loss),
            self.clients.names,
            self.trial.classes,
        )
        found.update(repr(facts).encode())
        found.update(without_addresses(self.model).encode())
        for name, tensor in self.model.state_dict().items():
            found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
        return found.hexdigest()


def without_addresses(thing: object) -> str:
    """The repr of a thing without addresses in memory, which other processes have elsewhere.

    Example:
        >>> without_addresses(object())
        '<object object>'
    """
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(thing))


def problem_of(
    model: nn.Module,
    clients: Any,
    *,
    loss: Loss = nn.functional.cross_entropy,
    test: Any = None,
    parts: Sequence[str] | None = None,
    frozen: Sequence[str] | None = None,
    buffers: Buffers = "refuse",
    columns: Columns | None = None,
    public: Any = None,
) -> Problem:
    """Check a model, its clients' data and a loss, and put them together.

    Args:
        model: any module that maps a batch of features to one tensor, or to an object with
            `logits`. It is copied; one of float64 or bfloat16 throughout is trained in float32.
        clients: a mapping or sequence of clients' data, see `examples_of` for their forms.
        loss: from (output, targets) to the mean loss over a batch.
        test: examples to evaluate the model on, in the same forms.
        parts: patterns such as `head.*`: parameters whose names match one are trained, sent and
            counted; None for all. Those with requires_grad=False are left out, tied ones are
            counted once.
        frozen: patterns of parameters that are left out.
        buffers: what to do about layers that keep running statistics of clients' data, as BatchNorm
            does: `refuse` the model; or keep the statistics `frozen` as they are; or let the
            `server` compute them anew on public examples, at the weights of each round. Clients
            then normalise with what they are given, and no statistics of theirs go anywhere.
        columns: names of the features' and the targets' column, where they have names.
        public: for `server`: two or more examples that no client holds, in the same forms; or
            their features alone, a tensor or array.

    Guarantees:
        Nothing but the parameters in `parts` is changed by training, or sent.
        No client's examples, nor how many they are, have an influence on what another client
        computes, in any bit: whatever decides how clients are computed follows from the model, the
        settings and the shape of an example, which all have in common. (Buffers are checked; a
        module must not keep data of one call for the next in any other way.)

    Raises:
        TypeError: an argument is of another kind.
        ValueError: nothing can be trained with these; the client is named where it is one's data.
    """
    with seeded(0):  # data sets may draw random numbers when they are read
        classes = takes_classes(loss)
        everyone = client_set(clients, columns, classes)
        tested = None if test is None else evaluated_on(test, everyone, columns, classes)
        shown = None if public is None else public_examples_of(public, everyone, columns)
    return checked_problem(
        model, everyone, loss, tested, parts=parts, frozen=frozen, buffers=buffers, public=shown
    )


def checked_problem(
    model: nn.Module,
    clients: ClientSet,
    loss: Loss,
    test: Examples | None,
    *,
    parts: Sequence[str] | None = None,
    frozen: Sequence[str] | None = None,
    buffers: Buffers = "refuse",
    public: Examples | None = None,
) -> Problem:
    """Like `problem_of`, with data that are known already.

    Args:
        model, loss, parts, frozen, buffers: as for `problem_of`.
        clients: all clients' data.
        test: examples to evaluate on.
        public: public examples for `buffers="server"`.
    """
    if not isinstance(model, nn.Module):
        got = f"a {type(model).__name__}"
        if isinstance(model, type):
            got = f"the class {model.__name__}: give {model.__name__}(…)"
        raise TypeError(f"Expected model to be a torch nn.Module, got {got}.")
    if isinstance(loss, type):
        name = loss.__name__
        raise TypeError(f"Expected loss to be a function, got the class {name}: give {name}().")
    if not callable(loss):
        raise TypeError(
            f"Expected loss to be a function, got {validate.shown(loss)}: give one of "
            "torch.nn.functional, such as cross_entropy, or your own."
        )
    validate.choice("buffers", buffers, BUFFERS)
    if (public is None) == (buffers == "server"):
        raise ValueError(
            "Expected public examples with buffers='server', and only then: the server computes "
            "running statistics on them."
        )
    names = parts_of(model, parts, frozen)
    types = tuple(tensor.dtype for tensor in stored(model))
    own, loss = in_float32(copied(model).cpu()), _plain(loss)
    trial = tried(own, names, clients, loss, buffers)
    if public is not None:
        ServerStatistics(copied(own), public, torch.device("cpu")).refresh()
    problem = Problem(own, clients, loss, test, names, types, trial, buffers, public)
    _check_labels(problem)
    return problem


def parts_of(
    model: nn.Module, parts: Sequence[str] | None = None, frozen: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Names of the parameters to train, in the model's order.

    Args:
        model: the model.
        parts, frozen: patterns as for `problem_of`. A pattern may match any name of a tied
            parameter.

    Raises:
        ValueError: a pattern matches nothing, nothing is left to train, or a parameter is not
            float32 where others are, or complex.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> parts_of(model, parts=("2.*",))
        ('2.weight', '2.bias')
    """
    aliases: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
    if not aliases:
        raise ValueError(
            f"Expected a model with parameters, got a {type(model).__name__} with none: there is "
            "nothing to train."
        )
    every = [name for names in aliases.values() for name in names]
    wanted = patterns.checked("parts", parts, every, "parameters' names")
    unwanted = patterns.checked("frozen", frozen, every, "parameters' names")
    chosen = []
    for name, parameter in model.named_parameters():
        own = aliases[id(parameter)]
        if not parameter.requires_grad or any(patterns.matches(each, unwanted) for each in own):
            continue
        if parts is not None and not any(patterns.matches(each, wanted) for each in own):
            continue
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(
                f"Expected parameters with numbers, got the uninitialised {name}: run one batch "
                "through the model first."
            )
        if parameter.is_meta:
            raise ValueError(
                f"Expected parameters with numbers, got {name} on the meta device: build the model "
                "on the CPU."
            )
        alone = parameter.dtype != torch.float32 and in_float32(model) is model
        if alone or parameter.is_complex():
            raise ValueError(
                f"Expected trained parameters in float32, as others of the model are, got {name} "
                f"in {parameter.dtype}: call model.float(), or leave it out by frozen."
            )
        chosen.append(name)
    if not chosen:
        raise ValueError(
            "Expected a parameter to train, got none: all have requires_grad=False or are left "
            "out by parts and frozen."
        )
    return tuple(chosen)


def evaluated_on(
    test: Any, clients: ClientSet, columns: Columns | None = None, classes: bool = True
) -> Examples:
    """Test data in any form that clients' data may have, checked against theirs."""
    with named("data", "Test "):
        return _finite(examples_of(test, columns, classes), clients)


def public_examples_of(public: Any, clients: ClientSet, columns: Columns | None) -> Examples:
    """Examples that no client holds, in the same forms; their features are enough."""
    with named("examples", "Public "):
        if isinstance(public, Tensor | np.ndarray):
            public = (public, np.zeros(len(public), dtype=np.int64))
        examples = _finite(examples_of(public, columns, False), clients, targets=False)
        if len(examples) < 2:
            raise ValueError(
                f"Expected two examples at least, got {len(examples)}: one has no variance."
            )
        check_public(examples, clients)
    return examples


def _finite(examples: Examples, clients: ClientSet, *, targets: bool = True) -> Examples:
    check_alike(examples, clients, targets=targets)
    if isinstance(examples, StoredExamples):
        check_finite(examples.features, examples.targets)
    return examples


def _check_labels(problem: Problem) -> None:
    """Labels of all examples in memory; others are checked when they are read."""
    if problem.labels is None:
        return
    table = problem.clients.table
    if table is not None:
        for name, places in zip(problem.clients.names, problem.clients.places, strict=True):
            with named(name):
                check_labels(table.targets[places], problem.labels)
    if isinstance(problem.test, StoredExamples):
        with named("data", "Test "):
            check_labels(problem.test.targets, problem.labels)


def _plain(loss: Loss) -> Loss:
    """The function itself for a module that computes cross_entropy, mse_loss or binary logits'."""
    module: Any = loss
    if type(loss) is nn.MSELoss and module.reduction == "mean":
        return nn.functional.mse_loss
    if type(loss) is nn.BCEWithLogitsLoss:
        options = (module.reduction, module.weight, module.pos_weight)
        return (
            nn.functional.binary_cross_entropy_with_logits
            if options == ("mean", None, None)
            else loss
        )
    if type(loss) is not nn.CrossEntropyLoss or module.weight is not None:
        return loss
    options = (module.reduction, module.ignore_index, module.label_smoothing)
    return nn.functional.cross_entropy if options == ("mean", -100, 0.0) else loss


def _called(loss: Loss) -> str:
    """A name of the loss that is the same in every process."""
    if isinstance(loss, nn.Module):
        return repr(loss)
    return f"{getattr(loss, '__module__', '')}.{getattr(loss, '__qualname__', type(loss).__name__)}"
