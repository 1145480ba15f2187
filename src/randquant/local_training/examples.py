"""Examples in the forms that users have: tensors, arrays or tables in memory, or a Dataset."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from randquant.local_training.models import (
    Features,
    described,
    map_tensors,
    seed_cpu,
    seeded,
    tensors,
)
from randquant.statistics.records import read_columns

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
