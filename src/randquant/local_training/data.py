"""Clients' data in the forms that users have: tensors, arrays or tables in memory, or a Dataset.

`Examples` are one client's, or those of a test. A `ClientSet` has all clients', checked before the
run, or read and checked when their turn comes.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from randquant._internal import validate
from randquant.local_training.models import (
    Features,
    described,
    map_tensors,
    seed_cpu,
    seeded,
    tensors,
)
from randquant.statistics.table import read_columns

TARGET_COLUMN_NAMES = ("label", "labels", "target", "targets", "y")
"""Column names that mean the targets."""

FEATURE_COLUMN_NAMES = ("image", "images", "img", "features", "feature", "inputs", "input", "x")
"""Column names that mean the features, if there are more than two columns."""

Columns = tuple[str | Sequence[str], str]
"""Name of the features' column, or names of several inputs of the model; name of the targets'."""

FORMS = (
    "a tuple (features, targets) of tensors or arrays, a torch Dataset of such pairs, or columns "
    "by name (several inputs of a model are one tuple or dict: ((a, b), targets)), or a table of "
    "pandas, polars or arrow"
)


GATHERED_TYPES = {
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
}  # fmt: skip
"""Types of tensors whose rows torch gathers on a CPU. Others are converted as a whole."""


class Examples(Protocol):
    """Features and targets of some examples, by place: float32 or int64 tensors on the CPU."""

    def __len__(self) -> int: ...

    def take(self, places: np.ndarray, seed: int = 0) -> tuple[Features, Tensor]:
        """Return features (k, *shape) and targets (k, …) of the examples at `places`, (k,) int64.

        Random numbers drawn while an example is read follow from the seed and its place alone.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class StoredExamples:
    """Rows of tensors, which are the user's own where possible: only rows are ever copied.

    Attributes:
        features: (n, *shape) real; or a tuple or dict of such.
        targets: (n, …) real.
        rows: (k,) int64, the rows that are the examples; None for all in order.
        mapped: whether any of them is in a file that is mapped into memory.
    """

    features: Features
    targets: Tensor
    rows: np.ndarray | None = None
    mapped: bool = False

    def __len__(self) -> int:
        return len(self.targets if self.rows is None else self.rows)

    def take(self, places: np.ndarray, seed: int = 0) -> tuple[Features, Tensor]:
        """See `Examples`."""
        # Without the seed: reading from memory draws nothing.
        features, targets = self.empty(len(places))
        self.copy_rows(places, [each.numpy() for each in (*tensors(features), targets)])
        return features, targets

    def own(self, tensor: Tensor) -> Tensor:
        """Return the rows of one of the tensors that are these examples."""
        return tensor if self.rows is None else tensor[torch.from_numpy(self.rows)]

    def empty(self, count: int) -> tuple[Features, Tensor]:
        """Return features and targets for `count` examples, of the types that models take."""

        # With the strides of any other tensor of this shape: those of a client's may not decide
        # how it is computed.
        def like(tensor: Tensor) -> Tensor:
            return tensor.new_empty((count, *tensor.shape[1:]), dtype=ready_type(tensor))

        return map_tensors(like, self.features), like(self.targets)

    def copy_rows(self, places: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
        """Copy the examples at `places` to arrays, one for each tensor, the targets' last."""
        index = places if self.rows is None else self.rows[places]
        for tensor, array in zip((*tensors(self.features), self.targets), arrays, strict=True):
            if tensor.dtype == ready_type(tensor) and tensor.is_contiguous():
                # Several times as fast as torch where there are few rows.
                tensor.numpy().take(index, 0, out=array, mode="clip")
            else:
                rows = tensor.index_select(0, torch.from_numpy(index))
                torch.from_numpy(array).copy_(rows)


@dataclass(frozen=True, slots=True, eq=False)
class ReadExamples:
    """Examples that are read when they are needed, one after the other.

    Attributes:
        source: `source[i]` gives (features, target), or a mapping with these columns.
        columns: names of the two columns; None where `source` gives pairs.
    """

    source: Any
    columns: Columns | None = None

    def __len__(self) -> int:
        return len(self.source)

    def take(self, places: np.ndarray, seed: int = 0) -> tuple[Features, Tensor]:
        """See `Examples`."""
        with seeded(seed):
            pairs = [self._pair(int(place), seed) for place in places]
        features, targets = zip(*pairs, strict=True)
        kinds = [[each.dtype for each in (*tensors(x), y)] for x, y in pairs]
        for kind in kinds:
            # torch.stack would convert all to a common type, which one example would decide.
            if len(kind) == len(kinds[0]) and kind != kinds[0]:
                raise ValueError(
                    f"Expected examples of one dtype, got {kinds[0]} and {kind}: convert them when "
                    "they are read."
                )
        # torch.stack refuses examples of different shapes; its message does not name the shapes.
        try:
            joined = map_tensors(lambda *parts: torch.stack(parts), *features)
            return joined, torch.stack(targets)
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            shapes = {described(each, lambda tensor: f"{tuple(tensor.shape)}") for each in features}
            raise ValueError(
                f"Expected examples of one shape, got {', '.join(sorted(shapes))}: resize or pad "
                "them."
            ) from error

    def _pair(self, place: int, seed: int) -> tuple[Features, Tensor]:
        # For each example: the numbers that one draws must not change the others.
        seed_cpu((seed + place) % 2**63)
        item = self.source[place]
        if self.columns is not None:
            item = _select_columns(item, self.columns)
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise TypeError(
                f"Expected examples (features, target), got {_kind(item)} as example {place}: "
                "give a Dataset of pairs, or name its two columns."
            )
        features, target = as_features(item[0]), _ready(_tensor(item[1], "targets"))
        return map_tensors(lambda x: converted(x).contiguous(), features), converted(target)


def as_examples(data: Any, columns: Columns | None = None, classes: bool = True) -> Examples:
    """Convert one client's data to tensors.

    Args:
        data: a tuple (features, targets) of tensors or arrays, n >= 1 rows each; a map-style torch
            Dataset of pairs; a table of pandas, polars or arrow, whose columns of features are
            joined to (n, columns) float32; or columns: a mapping of arrays, or a Hugging Face
            `Dataset`, such as a partition of flwr-datasets. A tuple or dict of tensors or arrays as
            features is several inputs: the model is called by `model(*features)` or
            `model(**features)`. A list is rows.
        columns: names of the features' and the targets' column, where they have names. By default
            the targets' name is in TARGET_COLUMN_NAMES, and the features' is the only other one, or
            in FEATURE_COLUMN_NAMES. Several names give a dict of features, except for a table.
        classes: convert the targets of a table to class numbers, int64, or else to float32. The
            type follows from the loss, not from the data: a single fraction in one client's rows
            makes a whole column of a table floats, and would change the type for all clients.

    Returns:
        Floating-point numbers as float32 and integers as int64, on the CPU. Tensors and arrays are
        not copied, and a memory-mapped file of NumPy is not read; a table is. Everything else is
        read when it is needed.

    Raises:
        TypeError: the data are in another form, or of another kind than numbers.
        ValueError: there are no examples, or features and targets differ in length; or features
            are uint8, as unscaled pixels are.
    """
    # A stream has no places, from which a client's batches could be drawn with its key.
    if isinstance(data, DataLoader | IterableDataset):
        raise TypeError(
            f"Expected a Dataset that is read by index, got {_kind(data)}: give the DataLoader's "
            "dataset, or gather a stream in tensors; batches are drawn here."
        )
    data, rows = _in_memory(data)
    if is_table(data):
        return _table_examples(read_columns(data, "the table"), columns, classes)
    if isinstance(data, Mapping):
        data = _select_columns(data, _choose_columns(list(data), columns))
    if isinstance(data, tuple):
        return _stored(data, rows)
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")) or _is_array(data):
        raise TypeError(f"Expected {FORMS}, got {_kind(data)}.")
    names = getattr(data, "column_names", None)
    # Before the first item is read, which an empty data set does not have.
    if not len(data):
        raise ValueError("Expected at least one example, got 0: leave it out.")
    if names is None and isinstance(data[0], Mapping):
        names = list(data[0])
    return ReadExamples(data, None if names is None else _choose_columns(list(names), columns))


def as_features(value: Any) -> Features:
    """Return features as tensors of real numbers on the CPU, or refuse."""
    if isinstance(value, Mapping):
        # Sorted: clients may have the same names in another order.
        value = {str(name): value[name] for name in sorted(value)}
    elif not isinstance(value, tuple) or not all(map(_is_array, value)):
        return _feature(value)
    if not value:
        raise ValueError(f"Expected features, got an empty {type(value).__name__}: give a tensor.")
    return map_tensors(_feature, value)


def is_table(value: Any) -> bool:
    """Return whether a value is a table of pandas, polars or arrow, in memory."""
    # Data sets, and mappings of columns, have other rules.
    other = isinstance(value, Dataset) or isinstance(getattr(value, "columns", None), Mapping)
    return hasattr(type(value), "__len__") and hasattr(value, "columns") and not other


def _table_examples(
    table: Mapping[str, np.ndarray], columns: Columns | None, classes: bool
) -> StoredExamples:
    names, target = _choose_columns(list(table), columns)
    features = [_numbers(table, name) for name in ([names] if isinstance(names, str) else names)]
    # All through float64: a single fraction makes a column float64, and the owner of that fraction
    # must not change how others' integers are rounded.
    side_by_side = np.stack([each.astype(np.float64) for each in features], axis=1)
    targets = _numbers(table, target).astype(np.float64)
    # A fraction would be cut to an integer silently.
    if classes and np.any(wrong := targets != np.floor(targets)):
        raise ValueError(
            f"Expected numbers of classes in column {target}, got {targets[wrong][0]}: number them "
            "from 0, or give another loss than cross_entropy."
        )
    numbers = torch.from_numpy(targets.astype(np.int64) if classes else targets)
    # In half the memory: these arrays are not the user's.
    return _stored((converted(torch.from_numpy(side_by_side)), converted(numbers)))


def _numbers(table: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    column = table[name]
    if column.dtype == object:  # a nullable column
        column = np.array([*column.tolist()])
    if column.dtype.kind not in "fiu":
        raise TypeError(
            f"Expected numbers in column {name}, got {column.dtype}: convert texts, dates and "
            "truth values to numbers, and fill or leave out what is missing."
        )
    return column


def _feature(value: Any) -> Tensor:
    tensor = _tensor(value, "features")
    # Unscaled pixels as float32 would train, badly and without an error.
    if tensor.dtype == torch.uint8:
        raise ValueError(
            "Expected features in float32, got uint8, the type of unscaled pixels: divide them by "
            "255 and convert them to float32."
        )
    return _ready(tensor)


def _in_memory(data: Any) -> tuple[Any, np.ndarray | None]:
    # The tensors of a TensorDataset, or of a Subset of one, which random_split returns, and rows.
    if isinstance(data, TensorDataset):
        return data.tensors, None
    if isinstance(data, Subset):
        whole, rows = _in_memory(data.dataset)
        if isinstance(whole, tuple):
            places = np.asarray(data.indices, dtype=np.int64)
            return whole, np.arange(len(whole[0]))[places] if rows is None else rows[places]
    return data, None


def _stored(data: tuple, rows: np.ndarray | None = None) -> StoredExamples:
    if len(data) != 2:
        raise TypeError(f"Expected {FORMS}, got a tuple of {len(data)}.")
    # Checked once here, so that no step checks shapes again.
    features, targets = as_features(data[0]), _ready(_tensor(data[1], "targets"))
    inputs = tensors(features)
    if not all(tensor.ndim for tensor in (*inputs, targets)):
        raise TypeError(f"Expected {FORMS}, got a tuple of numbers.")
    for each in inputs:
        if len(each) != len(targets):
            hint = "" if len(inputs) == 1 else (
                "; a tuple of tensors is several inputs of the model, so stack rows by torch.stack"
            )  # fmt: skip
            raise ValueError(
                f"Expected as many targets as features, got {len(targets)} targets for "
                f"{len(each)} features: give one target for each example{hint}."
            )
    mapped = any(map(_is_mapped, (*tensors(data[0]), data[1])))
    examples = StoredExamples(features, targets, rows, mapped)
    if not len(examples):
        raise ValueError("Expected at least one example, got 0: leave it out.")
    return examples


def _choose_columns(names: list[str], columns: Columns | None) -> Columns:
    listed = ", ".join(map(str, names))
    if columns is not None:
        wanted = [name for each in columns for name in ([each] if isinstance(each, str) else each)]
        missing = [str(name) for name in wanted if name not in names]
        if len(columns) != 2 or len(wanted) < 2 or missing:
            raise ValueError(
                f"Expected features and a target among the columns {listed}, got "
                f"{f'no {missing[0]}' if missing else columns}: give "
                'local=rq.Local(columns=(("age", "dose"), "sick")).'
            )
        return columns[0], columns[1]
    # Only where there is no doubt: two candidates for the targets are refused.
    targets = [name for name in names if name in TARGET_COLUMN_NAMES]
    others = [name for name in names if name not in targets]
    features = (
        others if len(others) == 1 else [name for name in others if name in FEATURE_COLUMN_NAMES]
    )
    if len(targets) != 1 or len(features) != 1:
        raise ValueError(
            f"Expected one column of features and one of targets, got columns {listed}: say "
            'which with local=rq.Local(columns=("image", "label")), or (("age", "dose"), "sick").'
        )
    return features[0], targets[0]


def _select_columns(item: Any, columns: Columns) -> tuple[Any, Any]:
    names, target = columns
    if isinstance(names, str):
        return item[names], item[target]
    return {name: item[name] for name in names}, item[target]


def _tensor(value: Any, what: str) -> Tensor:
    # By the module's name, because PIL may not be installed.
    if type(value).__module__.partition(".")[0] == "PIL":
        raise TypeError(
            "Expected features as numbers, got a PIL image: convert images when they are read, "
            "for example with torchvision's ToTensor() as the data set's transform."
        )
    if isinstance(value, Tensor):
        if value.is_meta:
            raise ValueError(
                f"Expected {what} that hold numbers, got a tensor on the meta device: give data."
            )
        if value.is_nested:
            raise TypeError(
                f"Expected {what} in rows of one shape, got a nested tensor: pad it by "
                "torch.nested.to_padded_tensor."
            )
        if value.layout != torch.strided:
            raise TypeError(f"Expected dense {what}, got {value.layout}: call .to_dense().")
        # The tensor itself where it can be used: another object for it takes memory too.
        return (value.detach() if value.requires_grad else value).cpu().resolve_neg()
    if hasattr(value, "toarray"):
        raise TypeError(f"Expected dense {what}, got {_kind(value)}: call .toarray().")
    if np.ma.is_masked(value):
        raise ValueError(
            f"Expected {what} without masked values, got {np.ma.count_masked(value)}: fill them, "
            "or leave those examples out."
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TypeError(
            f"Expected {what} in rows of equal length, got ragged ones: pad them; several inputs "
            "of a model are a tuple (a, b) of tensors or arrays, not a list."
        ) from error
    if array.dtype.kind not in "fiub":
        remedy = "convert them"
        if what == "targets":
            remedy = "number labels from 0 by one list for all clients"
        raise TypeError(
            f"Expected {what} as numbers, got {_kind(value)} of {array.dtype}: {remedy}."
        )
    # torch takes no foreign byte order and no negative strides.
    if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = array.astype(array.dtype.newbyteorder("="), copy=True)
    with warnings.catch_warnings():
        # Of memory that is read-only, as a mapped file is: nothing here writes to it.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)


def _ready(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise TypeError(
            f"Expected real numbers, got {tensor.dtype}: convert them to float32 or int64."
        )
    return tensor if tensor.dtype in GATHERED_TYPES else converted(tensor)


def ready_type(tensor: Tensor) -> torch.dtype:
    # Two types only, so that a client with float64 has the same features as one with float32.
    return torch.float32 if tensor.is_floating_point() else torch.int64


def converted(tensor: Tensor) -> Tensor:
    """Return a tensor in the type that a model takes it in."""
    return tensor.to(ready_type(tensor))


def _is_mapped(value: Any) -> bool:
    # Also a view that NumPy, and not the mapped array itself, has made.
    while isinstance(value, np.ndarray) and not isinstance(value, np.memmap):
        value = value.base
    return isinstance(value, np.memmap)


def _is_array(data: Any) -> bool:
    return isinstance(data, Tensor | np.ndarray)


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


# All clients' data, checked before the run, or read and checked when their turn comes.

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
            _check_same(_form(source), self.kind or _form(source), self.names[0])
        return source


def _form(source: Examples) -> str:
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
    return ClientSet(names, replace(sources, kind=_form(first)), example, stored)


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
