"""All clients' data, checked before the run, or read and checked when their turn comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from randquant._internal import validate
from randquant.local_training.examples import (
    Columns,
    Examples,
    StoredExamples,
    as_examples,
    is_table,
    ready_type,
)
from randquant.local_training.models import Features, described, map_tensors, seeded, tensors

MADE_UP_BATCH_SIZE = 12
"""Made-up examples that show what a model does, such as drawing random numbers. With fewer, a small
dropout rate might change none of them; more would take more time."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientSet:
    """Every client's examples.

    Attributes:
        names: each client's name, or its number.
        sources: each client's examples: a tuple, or a `ReadClients`.
        example: one example of the first client, of which only the shapes and types are used.
        stored: whether all clients' examples are rows of tensors, in memory, mapped, or read.
    """

    names: Sequence[Any]
    sources: Sequence[Examples]
    example: StoredExamples
    stored: bool

    def __len__(self) -> int:
        return len(self.names)

    @property
    def known(self) -> bool:
        """True if all clients' data are at hand, and not read when their turn comes."""
        return isinstance(self.sources, tuple)

    @property
    def in_memory(self) -> bool:
        """True if all clients' examples are in memory, so that all were checked."""
        return self.known and all(map(is_in_memory, self.sources))

    @property
    def sizes(self) -> np.ndarray:
        """Each client's number of examples, (N,) int64.

        Raises:
            ValueError: clients are read when their turn comes.
        """
        if not self.known:
            raise ValueError(
                "Expected clients whose numbers of examples are known before the run, as unit "
                "'example' and standardize need, got clients that are read when their turn comes: "
                "give a mapping or a sequence of their data, or leave that out."
            )
        return np.array([len(each) for each in self.sources], dtype=np.int64)

    def take(self, client: int, places: np.ndarray) -> tuple[Features, Tensor]:
        """Return features and targets of a client's examples at some of its `places`."""
        with error_context(self.names[client]):
            return self.sources[client].take(places)

    def made_up(self, classes: int | None = None) -> StoredExamples:
        """Draw examples of the shapes and types that every client's must have.

        They decide how clients are computed, because one client's data must not change how
        another's are.

        Args:
            classes: number of labels; None where targets are not class numbers.
        """
        # A generator of its own: torch's global one belongs to the user.
        draw = torch.Generator().manual_seed(0)

        def like(tensor: Tensor, below: int) -> Tensor:
            shape = (MADE_UP_BATCH_SIZE, *tensor.shape[1:])
            if tensor.is_floating_point():
                return torch.rand(shape, generator=draw)
            return torch.randint(below, shape, generator=draw)

        features, targets = self.example.features, self.example.targets
        return StoredExamples(
            map_tensors(lambda x: like(x, 2), features), like(targets, classes or 2)
        )


@dataclass(frozen=True, slots=True, eq=False)
class ReadClients(Sequence[Examples]):
    """Clients whose data are read anew each time that they are asked for, and not kept.

    Attributes:
        names: what `read` is called with for each client.
        read: returns a client's data, in any form that `as_examples` takes. Random numbers that it
            draws are the same each time.
        columns, classes: as for `as_examples`.
        kind: what all clients' examples must be like; empty until the first client is read.
    """

    names: Sequence[Any]
    read: Callable[[Any], Any]
    columns: Columns | None
    classes: bool
    kind: str = ""

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, client: Any) -> Any:
        name = self.names[client]
        with error_context(name), seeded(client):
            source = as_examples(self.read(name), self.columns, self.classes)
            if is_in_memory(source):
                # A function may use one array again for the next client, whose data would then
                # take the place of this one's.
                source = StoredExamples(*source.take(np.arange(len(source))))
                check_finite(source.features, source.targets)
            _check_same(_kind(source), self.kind or _kind(source), self.names[0])
        return source


def _kind(source: Examples) -> str:
    # Rows of tensors are computed together: the first client's form decides for all.
    return _described(source) + " of a data set" * (not isinstance(source, StoredExamples))


def is_in_memory(examples: Examples | None) -> TypeGuard[StoredExamples]:
    """Return whether examples are in memory, and can be checked once and for all."""
    return isinstance(examples, StoredExamples) and not examples.mapped


@contextmanager
def error_context(name: object, what: str = "Client ") -> Iterator[None]:
    """Name the client, or other data, in the errors that are raised within."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if str(error).startswith(f"{what}{name}: "):  # named already, by an inner context
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        # Of plain types, because a subclass may not take a single message.
        raise kind(f"{what}{name}: {error}") from error
    # Others keep their kind: code of the user's own may expect it.
    except Exception as error:
        error.add_note(f"{what}{name}.")
        raise


def client_set(
    clients: Any,
    columns: Columns | None = None,
    classes: bool = True,
    population: int | Sequence[Any] | None = None,
) -> ClientSet:
    """Check all clients' data.

    Args:
        clients: a mapping from names to each client's data, a sequence of clients' data, in any
            form that `as_examples` takes, or what `groupby` makes of one table; or a function that
            returns a client's data.
        columns: names of the features' and the targets' column, where they have names.
        classes: whether the targets of tables are numbers of classes.
        population: for a function: the clients' names, or how many there are, numbered from 0.

    Raises:
        TypeError: clients are one data set instead of several, or a client's data have another
            form; or there is a population without a function, or a function without one.
        ValueError: there is no client; or a client, who is named, has no data, data of other
            shapes or kinds than the first client's, not one target for each example, or NaN or
            infinity.
    """
    if _is_function(clients) != (population is not None):
        raise TypeError(
            "Expected population, the number or the names of clients, with a function that returns "
            "a client's data, and only then, got one without the other."
        )
    if population is not None:
        if isinstance(population, str) or not isinstance(population, Sequence):
            population = range(validate.whole("population", population, low=1, high=2**31))
        return _read_clients(ReadClients(population, clients, columns, classes))
    # groupby of pandas and polars yields pairs of a name and a table; polars' names are tuples.
    if type(clients).__name__ in ("DataFrameGroupBy", "GroupBy"):
        clients = {_unwrapped(name): table for name, table in clients}
    if isinstance(clients, Mapping) and not _has_columns(clients):
        names, data = [str(name) for name in clients], list(clients.values())
    else:
        _check_several(clients)
        data = list(clients)
        names = [str(number) for number in range(len(data))]
    _check_names(names)
    sources = []
    for name, each in zip(names, data, strict=True):
        with error_context(name):
            sources.append(as_examples(each, columns, classes))
    # All alike, because passes over several clients have one shape, and because the shape of the
    # first client's example decides how all are computed.
    _check_all_alike(names, sources)
    for name, source in zip(names, sources, strict=True):
        if is_in_memory(source):
            with error_context(name):
                check_stored(source)
    stored = all(isinstance(each, StoredExamples) for each in sources)
    return ClientSet(tuple(names), tuple(sources), _first_example(sources[0], names[0]), stored)


def _is_function(clients: Any) -> bool:
    return callable(clients) and not hasattr(type(clients), "__getitem__")


def _read_clients(sources: ReadClients) -> ClientSet:
    names = sources.names
    if not isinstance(names, range):
        names = tuple(map(str, names))
        _check_names(names)
    first = sources[0]
    example, stored = _first_example(first, names[0]), isinstance(first, StoredExamples)
    return ClientSet(names, replace(sources, kind=_kind(first)), example, stored)


def _first_example(source: Examples, name: object) -> StoredExamples:
    with error_context(name):
        return StoredExamples(*source.take(np.zeros(1, dtype=np.int64)))


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise ValueError("Expected at least one client, got 0.")
    # Names identify clients in errors and in a run's digest: 1 and "1" would be the same client.
    if len(set(names)) < len(names):
        [twice, *_] = [name for name, count in Counter(names).items() if count > 1]
        raise ValueError(
            f"Expected clients of different names, got {twice!r} more than once: rename one."
        )


def check_stored(examples: StoredExamples) -> None:
    check_finite(map_tensors(examples.own, examples.features), examples.own(examples.targets))


def check_finite(features: Features, targets: Tensor) -> None:
    for what, tensor in (*(("features", each) for each in tensors(features)), ("targets", targets)):
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        # NaN is both the least and the largest then. In the type that models take, in which a
        # float64 may be infinity; without a copy of all numbers.
        if not torch.stack(tensor.aminmax()).to(ready_type(tensor)).isfinite().all():
            # The place is shown, never the value: messages may be kept or sent.
            rows = tensor.to(ready_type(tensor)).reshape(len(tensor), -1)
            row = int((~rows.isfinite().all(dim=1)).nonzero()[0])
            raise ValueError(
                f"Expected finite {what}, got NaN or infinity in example {row}: repair it or "
                "leave it out."
            )


def check_public(public: Examples, clients: ClientSet) -> None:
    """Refuse public examples whose features a client has, as far as both are rows of tensors.

    Statistics of public examples are released without noise.
    """
    # By features alone: labels of public examples may be missing or made up.
    if not (isinstance(public, StoredExamples) and clients.known and clients.stored):
        return
    known = {row: number for number, row in enumerate(_row_bytes(public))}
    for name, source in zip(clients.names, clients.sources, strict=True):
        number = next((known[row] for row in _row_bytes(source) if row in known), None)
        if number is not None:
            raise ValueError(
                f"Expected public examples that no client holds, got example {number} of client "
                f"{name}'s: statistics of it would be released without protection; leave it out."
            )


def _row_bytes(examples: Examples) -> Iterator[bytes]:
    # Each row's bytes, by which a dict finds equal ones without comparing every pair.
    for place in range(len(examples)):
        features, _ = examples.take(np.array([place]))
        yield b"".join(tensor.numpy().tobytes() for tensor in tensors(features))


def _check_several(clients: Any) -> None:
    if is_table(clients):
        raise TypeError(
            f"Expected the data of several clients, got a {type(clients).__name__} with "
            f"{len(clients)} rows: give its groups, "
            'table.groupby("client"), or a list of tables.'
        )
    # A pair (features, targets) has a length, and would otherwise pass for two clients.
    pair = isinstance(clients, tuple) and len(clients) == 2 and _is_array(clients[1])
    if _is_array(clients) or pair or isinstance(clients, Dataset) or _has_columns(clients):
        kind = "a pair of arrays" if pair else f"a {type(clients).__name__}"
        raise TypeError(
            f"Expected the data of several clients, got {kind}, which is one data set: give a "
            "list or a mapping with one for each client."
        )
    if not isinstance(clients, Sequence) or isinstance(clients, str | bytes):
        raise TypeError(
            "Expected clients as a mapping from names to data or as a sequence, got "
            f"a {type(clients).__name__}: put each client's data in a list or a dict."
        )


def _unwrapped(name: Any) -> Any:
    return name[0] if isinstance(name, tuple) and len(name) == 1 else name


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _has_columns(value: Any) -> bool:
    return hasattr(value, "column_names")


def check_alike(examples: Examples, clients: ClientSet, *, targets: bool = True) -> None:
    """Refuse examples of another shape or dtype than the first client's."""
    kind, expected = (_described(each, targets) for each in (examples, clients.example))
    _check_same(kind, expected, clients.names[0])


def _check_all_alike(names: Sequence[str], sources: Sequence[Examples]) -> None:
    first = ""
    for name, source in zip(names, sources, strict=True):
        with error_context(name):
            kind = _described(source)
            first = first or kind
            _check_same(kind, first, names[0])


def _check_same(kind: str, first: str, name: object) -> None:
    if kind != first:
        raise ValueError(
            f"Expected examples like those of client {name}, {first}, got {kind}: give all data in "
            "one shape and dtype."
        )


def _described(source: Examples, with_targets: bool = True) -> str:
    # An example that is read shows its shape when it is read; one is enough.
    if isinstance(source, StoredExamples):
        pair = (source.features, source.targets)
    else:
        pair = source.take(np.zeros(1, dtype=np.int64))
    features, targets = (
        described(
            each,
            lambda tensor: (
                f"{tuple(tensor.shape[1:])} {str(ready_type(tensor)).removeprefix('torch.')}"
            ),
        )
        for each in pair
    )
    return f"features {features}" + (f" and targets {targets}" if with_targets else "")
