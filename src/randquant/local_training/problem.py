"""The model, the clients' data and the loss, with every check that is possible before a run.

A `BatchReader` gathers batches of a problem's examples on a device, for each step.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randquant._internal import validate
from randquant.local_training.data import (
    ClientSet,
    Columns,
    Examples,
    StoredExamples,
    as_examples,
    check_alike,
    check_finite,
    check_public,
    check_stored,
    client_set,
    error_context,
    is_in_memory,
    ready_type,
)
from randquant.local_training.dry_run import (
    DryRun,
    Loss,
    check_labels,
    is_binary,
    perform_dry_run,
    takes_classes,
    uniform_loss,
)
from randquant.local_training.local import BUFFER_CHOICES, Buffers
from randquant.local_training.models import (
    Features,
    called,
    copied,
    in_float32,
    is_batch_norm,
    map_tensors,
    parameters_and_buffers,
    seeded,
    tensors,
)

STATISTICS_BATCH_SIZE = 256
"""Most public examples in a batch. More would only need more memory; fewer would make the average
over batches of each batch's variance smaller than the variance of all examples."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A model, its clients' data and its loss; nothing in it changes.

    Attributes:
        model: a copy with the initial weights, on the CPU, in the type that training computes in.
        clients: all clients' data.
        loss: the mean loss over a batch.
        test: examples that the model is evaluated on; None for no evaluation.
        types: the original types of the parameters and buffers, see `in_float32`.
        parts: names of the parameters that are trained, sent and counted, in the model's order.
        buffers: how running statistics are treated.
        dry_run: properties that a dry run of the model and the loss has shown.
        statistics: public examples on which the server computes running statistics; None to
            leave them as they are.
        raw: from the model's outputs to predictions in units of the test targets; None if both are
            the same.
    """

    model: nn.Module
    clients: ClientSet
    loss: Loss
    test: Examples | None
    parts: tuple[str, ...]
    types: tuple[torch.dtype, ...]
    dry_run: DryRun
    buffers: Buffers = "refuse"
    statistics: Examples | None = None
    raw: Callable[[Any], Any] | None = None

    @property
    def dimension(self) -> int:
        return sum(map(math.prod, self.shapes))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the trained parameters, in the model's order."""
        parameters = dict(self.model.named_parameters())
        return [tuple(parameters[name].shape) for name in self.parts]

    @property
    def labels(self) -> int | None:
        # Only of cross_entropy is it known that it takes labels from 0 to classes - 1.
        return self.dry_run.classes if self.loss is nn.functional.cross_entropy else None

    @property
    def uniform_loss(self) -> float | None:
        return uniform_loss(self.loss, self.dry_run.classes or self.dry_run.outputs)

    @property
    def binary(self) -> bool:
        return is_binary(self.loss)

    def starting_at(self, weights: np.ndarray) -> Problem:
        """Return the problem with other initial weights (d,) float32 of the trained parameters."""
        # A copy: nothing in a problem changes, and others may hold this one.
        model, sizes = copied(self.model), [math.prod(shape) for shape in self.shapes]
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, part in zip(self.parts, torch.from_numpy(weights).split(sizes), strict=True):
                parameters[name].copy_(part.view_as(parameters[name]))
        return replace(self, model=model)

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of public facts: model, initial weights, parts, loss, names.

        No example enters it, nor a client's number of examples: with a hash of private data,
        a reader of the record could test guesses of the data.
        """
        digest = hashlib.sha256()
        facts = (
            self.parts,
            self.buffers,
            _loss_name(self.loss),
            self.clients.names,
            self.dry_run.classes,
        )
        digest.update(repr(facts).encode())
        # Layers and their options, which the state dict does not show.
        digest.update(without_addresses(self.model).encode())
        for name, tensor in self.model.state_dict().items():
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            # As bytes: weights that print alike may differ, and a run goes on from the same bits
            # only.
            digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()


def without_addresses(thing: object) -> str:
    """Return the repr of a thing without addresses in memory, which differ between processes.

    Example:
        >>> without_addresses(object())
        '<object object>'
    """
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(thing))


def make_problem(
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
    population: int | Sequence[Any] | None = None,
) -> Problem:
    """Check a model, its clients' data and a loss, and put them together.

    Args:
        model: any module that maps a batch of features to one tensor, or to an object with
            `logits`. It is copied; one of float64 or bfloat16 throughout is trained in float32.
        clients: a mapping or sequence of clients' data, see `as_examples` for their forms; or a
            function that returns a client's data, from its name or number.
        loss: from (output, targets) to the mean loss over a batch.
        test: examples to evaluate the model on, in the same forms.
        parts: patterns such as `head.*`: parameters whose names match one are trained, sent and
            counted; None for all. Those with requires_grad=False are left out, tied ones are
            counted once.
        frozen: patterns of parameters that are left out.
        buffers: how to treat layers that keep running statistics of clients' data, as BatchNorm
            does: `refuse` the model; or keep the statistics `frozen` as they are; or let the
            `server` compute them again on public examples, at the weights of each round. Clients
            then normalise with the statistics that they receive, and send none of their own.
        columns: names of the features' and the targets' column, where they have names.
        public: for `server`: two or more examples that no client holds, in the same forms; or
            their features alone, a tensor or array.
        population: for a function: the clients' names, or how many there are.

    Guarantees:
        Nothing but the parameters in `parts` is changed by training, or sent.
        No client's examples, nor their number, influence any bit that another client computes:
        how clients are computed follows from the model, the settings and the shape of an example,
        which all clients have in common. (Buffers are checked; a module must not keep data of one
        call for the next in any other way.)

    Raises:
        TypeError: an argument is of another kind.
        ValueError: nothing can be trained with these; an error in a client's data names the client.
    """
    with seeded(0):  # data sets may draw random numbers when they are read
        classes = takes_classes(loss)
        every_client = client_set(clients, columns, classes, population)
        if test is not None:
            test = as_test_examples(test, every_client, columns, classes)
        if public is not None:
            public = as_public_examples(public, every_client, columns)
    return checked_problem(
        model, every_client, loss, test, parts=parts, frozen=frozen, buffers=buffers, public=public
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
    """Check a problem whose data are converted already, see `make_problem`.

    Args:
        model, loss, parts, frozen, buffers: as for `make_problem`.
        clients: all clients' data.
        test: examples to evaluate on.
        public: public examples for `buffers="server"`.
    """
    if not isinstance(model, nn.Module):
        kind = f"a {type(model).__name__}"
        if isinstance(model, type):
            kind = f"the class {model.__name__}: give {model.__name__}(…)"
        raise TypeError(f"Expected model to be a torch nn.Module, got {kind}.")
    # A class is callable, but a call with outputs and targets would make an object of it.
    if isinstance(loss, type):
        name = loss.__name__
        raise TypeError(f"Expected loss to be a function, got the class {name}: give {name}().")
    if not callable(loss):
        raise TypeError(
            f"Expected loss to be a function, got {validate.shown(loss)}: give one of "
            "torch.nn.functional, such as cross_entropy, or your own."
        )
    validate.choice("buffers", buffers, BUFFER_CHOICES)
    # Public examples without this setting would be ignored silently.
    if (public is None) == (buffers == "server"):
        raise ValueError(
            "Expected public examples with buffers='server', and only then: the server computes "
            "running statistics on them."
        )
    names = select_parts(model, parts, frozen)
    types = tuple(tensor.dtype for tensor in parameters_and_buffers(model))
    # On the CPU: a device is the learner's choice, and the digest must not depend on it.
    trained, loss = in_float32(copied(model).cpu()), _as_function(loss)
    outcome = perform_dry_run(trained, names, clients, loss, buffers)
    # Tried now, so that public examples that the model does not take fail before the run.
    if public is not None:
        ServerStatistics(copied(trained), public, torch.device("cpu")).refresh()
    problem = Problem(trained, clients, loss, test, names, types, outcome, buffers, public)
    check_all_labels(problem)
    return problem


def select_parts(
    model: nn.Module, parts: Sequence[str] | None = None, frozen: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return the names of the parameters to train, in the model's order.

    Args:
        model: the model.
        parts, frozen: patterns as for `make_problem`. A pattern may match any name of a tied
            parameter.

    Raises:
        ValueError: a pattern matches nothing, nothing is left to train, or a parameter is not
            float32 where others are, or complex.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> select_parts(model, parts=("2.*",))
        ('2.weight', '2.bias')
    """
    aliases: dict[int, list[str]] = {}
    # A tied parameter has several names: it is trained once, and any of them selects it.
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
    if not aliases:
        raise ValueError(
            f"Expected a model with parameters, got a {type(model).__name__} with none: there is "
            "nothing to train."
        )
    every = [name for names in aliases.values() for name in names]
    wanted = validate.name_patterns("parts", parts, every, "parameters' names")
    unwanted = validate.name_patterns("frozen", frozen, every, "parameters' names")
    chosen = []
    for name, parameter in model.named_parameters():
        tied = aliases[id(parameter)]
        # What is frozen wins over what is selected: a parameter that matches both stays as it is.
        if not parameter.requires_grad or any(validate.matches(each, unwanted) for each in tied):
            continue
        if parts is not None and not any(validate.matches(each, wanted) for each in tied):
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
        # A model without any float32 parameter is converted as a whole; a few others among float32
        # would make one vector of two types.
        mixed = parameter.dtype != torch.float32 and in_float32(model) is model
        if mixed or parameter.is_complex():
            raise ValueError(
                f"Expected trained parameters in float32, as others of the model are, got {name} "
                f"in {parameter.dtype}: call model.float(), or leave it out by frozen."
            )
        chosen.append(name)
    if not chosen:
        raise ValueError(
            f"Expected a parameter to train, got 0 of {len(aliases)}: all have requires_grad=False "
            "or are left out by parts and frozen."
        )
    return tuple(chosen)


def as_test_examples(
    test: Any, clients: ClientSet, columns: Columns | None = None, classes: bool = True
) -> Examples:
    """Convert test data, in any form of `as_examples`, and check them against clients' data."""
    with error_context("data", "Test "):
        return _finite(as_examples(test, columns, classes), clients)


def as_public_examples(public: Any, clients: ClientSet, columns: Columns | None) -> Examples:
    """Convert public examples, or their features alone, and check them against clients' data."""
    with error_context("examples", "Public "):
        # Labels are not needed; zeros take their place.
        if isinstance(public, Tensor | np.ndarray):
            public = (public, np.zeros(len(public), dtype=np.int64))
        examples = _finite(as_examples(public, columns, False), clients, targets=False)
        if len(examples) < 2:
            raise ValueError(
                f"Expected two examples at least, got {len(examples)}: one has no variance."
            )
        check_public(examples, clients)
    return examples


def _finite(examples: Examples, clients: ClientSet, *, targets: bool = True) -> Examples:
    # Another shape than the clients' would be a model of something else.
    check_alike(examples, clients, targets=targets)
    if is_in_memory(examples):
        check_stored(examples)
    return examples


def check_all_labels(problem: Problem) -> None:
    if problem.labels is None:
        return
    # Examples in memory only: others are checked when they are read.
    # Client by client, so that an error names the one with the wrong label.
    clients = problem.clients
    for name, source in zip(clients.names, clients.sources if clients.known else (), strict=False):
        with error_context(name):
            check_stored_labels(source, problem.labels)
    with error_context("data", "Test "):
        check_stored_labels(problem.test, problem.labels)


def check_stored_labels(examples: Examples | None, labels: int | None) -> None:
    if is_in_memory(examples):
        check_labels(examples.own(examples.targets), labels)


def _as_function(loss: Loss) -> Loss:
    # A module with default options becomes the function that it calls, because what is known of a
    # loss, such as that it averages over examples, is known of functions.
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


def _loss_name(loss: Loss) -> str:
    # The same in every process, unlike the repr of a function, which has an address.
    if isinstance(loss, nn.Module):
        return repr(loss)
    return f"{getattr(loss, '__module__', '')}.{getattr(loss, '__qualname__', type(loss).__name__)}"


class ServerStatistics:
    """Computes a model's running statistics at its present weights.

    Statistics of a client's own activations would leave it without protection. The server's depend
    only on the released weights and on public examples, so they cost no privacy; clients use them.

    Args:
        model: a replica that shares parameters and buffers with the models whose statistics are to
            be set; its layers' modes are changed.
        examples: public ones, at least two.
        device: where the model is.

    Guarantees:
        The statistics are a function of the weights and the public examples; nothing of an earlier
        round remains in them.
    """

    def __init__(self, model: nn.Module, examples: Examples, device: torch.device) -> None:
        self._model, self._examples, self._device = model.eval(), examples, device
        self._layers: list[Any] = [each for each in model.modules() if is_batch_norm(each)]
        for layer in self._layers:
            # In training mode it updates its statistics; the rest of the model is as in a test.
            layer.train()
            # None means plain averages over batches, which the order of examples does not weigh.
            layer.momentum = None

    def refresh(self) -> None:
        """Set the statistics to averages over batches of public examples of nearly equal sizes."""
        # From zero: statistics of earlier weights say nothing about these.
        for layer in self._layers:
            layer.reset_running_stats()
        count = len(self._examples)
        with torch.no_grad():
            for places in np.array_split(np.arange(count), -(-count // STATISTICS_BATCH_SIZE)):
                features, _ = self._examples.take(places)
                called(self._model, map_tensors(lambda each: each.to(self._device), features))


# Batches of a problem's examples on a device, gathered for each step.

EVALUATION_BATCH_SIZE = 100
"""Examples that are evaluated in one pass. With more, the outputs of a layer leave the processor's
cache before the next layer reads them: a convolution then takes more than twice as long."""


MAX_TABLE_BYTES = 2**28
"""Most bytes of clients' examples that are copied to one table on a CPU, from which rows of several
clients are gathered by one call: client by client, small models take up to half as long again. With
twice as much, a run of such data would need that much more memory."""


class BatchReader:
    """Gathers batches of examples on a device, for all threads.

    Args:
        problem: the clients' data and the test data.
        device: where batches are needed.
        layout: torch's memory format of the features.
    """

    def __init__(self, problem: Problem, device: torch.device, layout: torch.memory_format) -> None:
        self._problem, self.device, self._layout = problem, device, layout
        # On a GPU all clients' examples are copied to it once, and so they are on a CPU where that
        # takes little memory; else they are used as they are.
        on_gpu, clients = device.type != "cpu", problem.clients
        joined = clients.in_memory and (on_gpu or _table_bytes(clients) <= MAX_TABLE_BYTES)
        self._table = _JoinedTable(clients.sources, device) if joined else None
        self._threads = threading.local()
        # A Dataset, or a function of the user's, may read from a file at the file's own position,
        # which threads would share.
        self._reading = threading.Lock()

    def open(self, clients: Sequence[int]) -> None:
        """Read clients whose turn it is, and forget those that this thread has read before."""
        if self._problem.clients.known:
            return
        # A thread holds one group's data at a time: clients behind a function may be more than fit
        # in memory.
        self._threads.opened = {}
        for client in clients:
            with self._reading:
                source = self._problem.clients.sources[client]
            with error_context(self._problem.clients.names[client]):
                check_stored_labels(source, self._problem.labels)
            self._threads.opened[client] = source

    def source(self, client: int) -> Examples:
        """Return a client's examples; those of clients that are not open are read alone."""
        if self._problem.clients.known:
            return self._problem.clients.sources[client]
        if client not in getattr(self._threads, "opened", {}):
            self.open([client])
        return self._threads.opened[client]

    def client_rows(
        self, client: int, places: np.ndarray, seed: int = 0
    ) -> tuple[Features, Tensor]:
        """Return features and targets of a client's examples, valid until this thread's next call.

        Args:
            client: number of the client.
            places: of the examples.
            seed: of the random numbers that reading them may draw.

        Raises:
            ValueError: an example that is read from a Dataset has NaN, infinity or a label out of
                range.
        """
        source = self.source(client)
        if isinstance(source, StoredExamples):
            features, targets = self.rows([client], places[None])
            return map_tensors(lambda each: each[0], features), targets[0]
        with self._reading, error_context(self._problem.clients.names[client]):
            return self._read(source, places, seed)

    def rows(self, clients: Sequence[int], places: np.ndarray) -> tuple[Any, Tensor]:
        """Return clients' features and targets (n, k, …) at `places` (n, k), valid as above.

        Examples of these clients are rows of tensors.
        """
        if self._table is None:
            features, targets = self._gathered(clients, places)
        else:
            out = self._buffers(places.size) if self.device.type == "cpu" else None
            features, targets = self._table.rows(clients, places, out)

        def shaped(each: Tensor) -> Tensor:
            moved = each.to(self.device).contiguous(memory_format=self._layout)
            return moved.unflatten(0, places.shape)

        return map_tensors(shaped, features), targets.to(self.device).unflatten(0, places.shape)

    def _gathered(self, clients: Sequence[int], places: np.ndarray) -> tuple[Any, Tensor]:
        sources: list[Any] = [self.source(client) for client in clients]
        features, targets = self._buffers(places.size)
        slots = [each.unflatten(0, places.shape) for each in (*tensors(features), targets)]
        arrays = [each.numpy() for each in slots]
        for number, source in enumerate(sources):
            source.copy_rows(places[number], [array[number] for array in arrays])
            if source.mapped:
                *inputs, own_targets = (each[number] for each in slots)
                with error_context(self._problem.clients.names[clients[number]]):
                    self._check(tuple(inputs), own_targets)
        return features, targets

    def _buffers(self, count: int) -> tuple[Features, Tensor]:
        # One for each thread: new memory would cost page faults.
        own: Any = getattr(self._threads, "buffers", (None, ()))
        if count > len(own[1]):
            # Evaluation calls this in inference mode, and training cannot use such tensors.
            with torch.inference_mode(False):
                own = self._threads.buffers = self._problem.clients.example.empty(count)
        return map_tensors(lambda each: each[:count], own[0]), own[1][:count]

    def batches(self, client: int | None = None) -> Iterator[tuple[Features, Tensor]]:
        """Yield features and targets of the test examples, or of all of a client's."""
        if client is not None:
            for places in _evaluation_batches(len(self.source(client))):
                yield self.client_rows(client, places)
        elif (test := self._problem.test) is not None:
            for places in _evaluation_batches(len(test)):
                with error_context("data", "Test "):
                    yield self._read(test, places)

    def _read(
        self, examples: Examples, places: np.ndarray, seed: int = 0
    ) -> tuple[Features, Tensor]:
        features, targets = examples.take(places, seed)
        if not is_in_memory(examples):
            self._check(features, targets)
        layout = {"device": self.device, "memory_format": self._layout}
        return map_tensors(lambda each: each.to(**layout), features), targets.to(self.device)

    def _check(self, features: Features, targets: Tensor) -> None:
        # Examples in memory were checked once, before the run or when their client was read.
        check_finite(features, targets)
        check_labels(targets, self._problem.labels)


def _table_bytes(clients: ClientSet) -> int:
    features, targets = clients.example.empty(1)
    return int(clients.sizes.sum()) * sum(each.nbytes for each in (*tensors(features), targets))


class _JoinedTable:
    """The examples of clients in memory in one table on a device, which gathers rows at once."""

    def __init__(self, sources: Sequence[Any], device: torch.device) -> None:
        self.device, ends = device, np.cumsum([len(each) for each in sources])
        self._starts = ends - [len(each) for each in sources]

        def joined(*parts: Tensor) -> Tensor:
            kind = {"dtype": ready_type(parts[0]), "device": device}
            table = torch.empty((ends[-1], *parts[0].shape[1:]), **kind)
            # Part by part, so that neither side holds them twice.
            for start, end, source, part in zip(self._starts, ends, sources, parts, strict=True):
                table[start:end] = source.own(part)
            return table

        self._features = map_tensors(joined, *(each.features for each in sources))
        self._targets = joined(*(each.targets for each in sources))

    def rows(
        self, clients: Sequence[int], places: np.ndarray, out: tuple[Features, Tensor] | None
    ) -> tuple[Features, Tensor]:
        """Return features and targets of clients' examples at `places` (n, k), in one row each.

        Args:
            clients: of which these are.
            places: of the examples of each.
            out: tensors to write to; None for new ones.
        """
        # A client's rows follow each other in the table, from its start on.
        index = places + self._starts[np.array(clients)][:, None]
        where = torch.from_numpy(index.reshape(-1)).to(self.device)
        if out is None:
            features = map_tensors(lambda each: each.index_select(0, where), self._features)
            return features, self._targets.index_select(0, where)

        def select(table: Tensor, buffer: Tensor) -> Tensor:
            # Three times as fast as indexing.
            return torch.index_select(table, 0, where, out=buffer)

        return map_tensors(select, self._features, out[0]), select(self._targets, out[1])


def _evaluation_batches(count: int) -> list[np.ndarray]:
    return np.split(np.arange(count), range(EVALUATION_BATCH_SIZE, count, EVALUATION_BATCH_SIZE))
