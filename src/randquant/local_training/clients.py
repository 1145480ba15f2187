"""All clients' data, checked, and joined to one table where they are in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from randquant.local_training.examples import (
    Columns,
    Examples,
    StoredExamples,
    as_examples,
    is_table,
)
from randquant.local_training.models import Features, described, map_tensors, tensors

MADE_UP_BATCH_SIZE = 12
"""Made-up examples that show what a model does, such as drawing random numbers. With fewer, a small
dropout rate might change none of them; more would take more time."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientSet:
    """Every client's examples.

    Attributes:
        names: each client's name.
        places: where each client's examples are, (n,) int64: rows of `table`, or 0 to n - 1.
        table: the examples of all clients, if they are in memory.
        sources: each client's examples where they are not in memory; otherwise empty.
    """

    names: tuple[str, ...]
    places: tuple[np.ndarray, ...]
    table: StoredExamples | None
    sources: tuple[Examples, ...] = ()

    def __len__(self) -> int:
        return len(self.places)

    @property
    def sizes(self) -> np.ndarray:
        return np.array([len(places) for places in self.places], dtype=np.int64)

    def take(self, client: int, places: np.ndarray) -> tuple[Features, Tensor]:
        """Return features and targets of a client's examples at some of its `places`."""
        if self.table is not None:
            return self.table.take(places)
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

        # Of the first client's example only the shapes and types are used.
        features, targets = self.take(0, self.places[0][:1])
        return StoredExamples(
            map_tensors(lambda x: like(x, 2), features), like(targets, classes or 2)
        )


@contextmanager
def error_context(name: str, what: str = "Client ") -> Iterator[None]:
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


def clients_from_table(table: StoredExamples, places: Sequence[np.ndarray]) -> ClientSet:
    """Make clients whose examples are rows of one table, which is not copied.

    Args:
        table: all examples.
        places: each client's rows, (n,) int64; clients may share some.
    """
    rows = tuple(np.asarray(each, dtype=np.int64) for each in places)
    return ClientSet(tuple(map(str, range(len(rows)))), rows, table)


def client_set(clients: Any, columns: Columns | None = None, classes: bool = True) -> ClientSet:
    """Check all clients' data.

    Args:
        clients: a mapping from names to each client's data, a sequence of clients' data, in any
            form that `as_examples` takes, or what `groupby` makes of one table.
        columns: names of the features' and the targets' column, where they have names.
        classes: whether the targets of tables are numbers of classes.

    Raises:
        TypeError: clients are one data set instead of several, or a client's data have another
            form.
        ValueError: there is no client; or a client, who is named, has no data, data of other
            shapes or kinds than the first client's, not one target for each example, or NaN or
            infinity.
    """
    # groupby of pandas and polars yields pairs of a name and a table; polars' names are tuples.
    if type(clients).__name__ in ("DataFrameGroupBy", "GroupBy"):
        clients = {_unwrapped(name): table for name, table in clients}
    if isinstance(clients, Mapping) and not _has_columns(clients):
        names, data = [str(name) for name in clients], list(clients.values())
    else:
        _check_several(clients)
        data = list(clients)
        names = [str(number) for number in range(len(data))]
    if not data:
        raise ValueError("Expected at least one client, got 0.")
    # Names identify clients in errors and in a run's digest: 1 and "1" would be the same client.
    if len(set(names)) < len(names):
        [twice, *_] = [name for name, count in Counter(names).items() if count > 1]
        raise ValueError(
            f"Expected clients of different names, got {twice!r} more than once: rename one."
        )
    sources = []
    for name, each in zip(names, data, strict=True):
        with error_context(name):
            sources.append(as_examples(each, columns, classes))
    # All alike, because passes over several clients have one shape, and because the shape of the
    # first client's example decides how all are computed.
    _check_all_alike(names, sources)
    stored = [source for source in sources if isinstance(source, StoredExamples)]
    for name, source in zip(names, sources, strict=True):
        if isinstance(source, StoredExamples):
            with error_context(name):
                check_finite(source.features, source.targets)
    # One table, from which batches are gathered by index without a copy of each client's data.
    if len(stored) == len(sources):
        table = StoredExamples(
            map_tensors(lambda *parts: torch.cat(parts), *(each.features for each in stored)),
            torch.cat([each.targets for each in stored]),
        )
        ends = np.cumsum([len(each) for each in stored])
        places = np.split(np.arange(ends[-1], dtype=np.int64), ends[:-1])
        return ClientSet(tuple(names), tuple(places), table)
    places = tuple(np.arange(len(source), dtype=np.int64) for source in sources)
    return ClientSet(tuple(names), places, None, tuple(sources))


def check_finite(features: Features, targets: Tensor) -> None:
    for what, tensor in (*(("features", each) for each in tensors(features)), ("targets", targets)):
        if tensor.is_floating_point() and not tensor.isfinite().all():
            # The place is shown, never the value: messages may be kept or sent.
            row = int((~tensor.reshape(len(tensor), -1).isfinite().all(dim=1)).nonzero()[0])
            raise ValueError(
                f"Expected finite {what}, got NaN or infinity in example {row}: repair it or "
                "leave it out."
            )


def check_public(public: Examples, clients: ClientSet) -> None:
    """Refuse public examples whose features a client has, as far as both are in memory.

    Statistics of public examples are released without noise.
    """
    # By features alone: labels of public examples may be missing or made up.
    table = clients.table
    if not isinstance(public, StoredExamples) or table is None:
        return
    known = {row: number for number, row in enumerate(_row_bytes(public, np.arange(len(public))))}
    for name, places in zip(clients.names, clients.places, strict=True):
        number = next((known[row] for row in _row_bytes(table, places) if row in known), None)
        if number is not None:
            raise ValueError(
                f"Expected public examples that no client holds, got example {number} of client "
                f"{name}'s: statistics of it would be released without protection; leave it out."
            )


def _row_bytes(examples: StoredExamples, places: np.ndarray) -> Iterator[bytes]:
    # Each row's bytes, by which a dict finds equal ones without comparing every pair.
    arrays = [tensor.numpy() for tensor in tensors(examples.features)]
    return (b"".join(array[place].tobytes() for array in arrays) for place in places)


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
    first = clients.sources[0] if clients.table is None else clients.table
    kind, expected = (_described(each, targets) for each in (examples, first))
    _check_same(kind, expected, clients.names[0])


def _check_all_alike(names: Sequence[str], sources: Sequence[Examples]) -> None:
    first = ""
    for name, source in zip(names, sources, strict=True):
        with error_context(name):
            kind = _described(source)
            first = first or kind
            _check_same(kind, first, names[0])


def _check_same(kind: str, first: str, name: str) -> None:
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
            lambda tensor: f"{tuple(tensor.shape[1:])} {str(tensor.dtype).removeprefix('torch.')}",
        )
        for each in pair
    )
    return f"features {features}" + (f" and targets {targets}" if with_targets else "")
