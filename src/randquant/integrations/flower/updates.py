"""Which arrays of a model are trained; converts their updates to one vector, and back."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
from flwr.app import Array, ArrayRecord

from randquant._internal import patterns, validate
from randquant._internal.patterns import Patterns
from randquant.aggregation.layout import is_running
from randquant.integrations.flower import arrays

Buffers = Literal["refuse", "frozen", "server"]
BUFFERS: tuple[Buffers, ...] = ("refuse", "frozen", "server")
"""What is done about running statistics: see `QuantizedStrategy`."""

WAY_OUT = (
    "use GroupNorm or LayerNorm instead of BatchNorm, or set buffers='frozen' if the train "
    "function leaves the statistics as they are (a batch norm in eval mode), or buffers='server' "
    "if the server has statistics of its own"
)


def checked_buffers(buffers: Buffers, statistics: bool) -> Buffers:
    """What is done about running statistics, if the server may have its own only where it says."""
    validate.choice("buffers", buffers, BUFFERS)
    if statistics and buffers != "server":
        raise ValueError(f"Expected buffers='server' with statistics, got buffers={buffers!r}.")
    return buffers


class UnknownPart(ValueError):
    """A part to train is no array of the model, or not one that can be trained."""


def parts_of(
    model: ArrayRecord, parts: Patterns = None, frozen: Patterns = None
) -> tuple[str, ...]:
    """Names of the arrays to train, in the model's order.

    Args:
        model: the model's arrays.
        parts: patterns such as `head.*`: arrays whose names match one are trained, sent and
            counted; None for all of floating-point numbers. Running statistics never are.
        frozen: patterns of arrays that are left out.

    Raises:
        ValueError: a pattern matches no such array, or none is left.
    """
    names = [
        name
        for name, array in model.items()
        if arrays.read(array).dtype.kind == "f" and not is_running(name)
    ]
    kind = "names of the model's arrays that can be trained"
    wanted = patterns.checked("parts", parts, names, kind)
    unwanted = patterns.checked("frozen", frozen, names, kind)
    chosen = tuple(
        name
        for name in names
        if (parts is None or patterns.matches(name, wanted))
        and not patterns.matches(name, unwanted)
    )
    if not chosen:
        raise ValueError(
            "Expected an array of floating-point numbers to train, got none: all are left out by "
            "parts and frozen, or the model has none."
        )
    return chosen


@dataclass(frozen=True, slots=True)
class Layout:
    """Which arrays of a model are trained, in order, with shapes and dtypes.

    Attributes:
        trained: (name, shape, dtype) of floating-point arrays that are trained.
        kept: names of all other arrays: counters and other integers, running statistics, and what
            is frozen. No update of them is sent, and the server keeps its own.
        running: names of those that are running statistics.
    """

    trained: tuple[tuple[str, tuple[int, ...], np.dtype], ...]
    kept: tuple[str, ...]
    running: tuple[str, ...]

    @classmethod
    def of(cls, model: ArrayRecord, parts: Collection[str] | None = None) -> Layout:
        """The layout of a model of which the arrays with these names are trained; None for all.

        Raises:
            ValueError: the model has nothing to train, an array is not of real numbers, or one of
                the names is not that of an array which can be trained.
        """
        values = {name: arrays.read(array) for name, array in model.items()}
        names = parts_of(model) if parts is None else tuple(n for n in model if n in parts)
        strangers = sorted(set(parts or ()) - set(names))
        for name in [*strangers, *names]:
            if name in strangers or values[name].dtype.kind != "f" or is_running(name):
                raise UnknownPart(
                    "Expected parts among the model's arrays of floating-point numbers other than "
                    f"running statistics, got {name!r}."
                )
        trained = tuple((name, values[name].shape, values[name].dtype) for name in names)
        if not sum(math.prod(shape) for _, shape, _ in trained):
            raise ValueError("Expected an array of floating-point numbers to train, got none.")
        kept = tuple(name for name in values if name not in names)
        running = tuple(n for n in kept if is_running(n) and values[n].dtype.kind == "f")
        return cls(trained, kept, running)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the arrays that are trained."""
        return tuple(name for name, _, _ in self.trained)

    @property
    def dimension(self) -> int:
        """Coordinates of an update."""
        return sum(math.prod(shape) for _, shape, _ in self.trained)

    def finite(self, model: ArrayRecord) -> bool:
        """Whether all trained arrays are finite."""
        return all(np.isfinite(arrays.read(model[name])).all() for name, _, _ in self.trained)

    def update(self, old: ArrayRecord, new: ArrayRecord) -> np.ndarray:
        """New minus old, (dimension,) float32; it may overflow, or be NaN if an array has NaN.

        Raises:
            ValueError: an array is missing, or has another shape.
        """
        parts = []
        for name, shape, dtype in self.trained:
            trained = arrays.read(new[name]) if name in new else None
            if trained is None or trained.shape != shape or trained.dtype.kind != "f":
                what = "none" if trained is None else f"shape {trained.shape}, {trained.dtype}"
                raise ValueError(f"Expected array {name!r} {shape} of {dtype}, got {what}.")
            with np.errstate(over="ignore", invalid="ignore"):
                wide = np.promote_types(np.promote_types(dtype, trained.dtype), np.float32)
                difference = np.subtract(trained, arrays.read(old[name]), dtype=wide)
                parts.append(difference.astype(np.float32).ravel())
        return np.concatenate(parts)

    def moved(self, old: ArrayRecord, update: np.ndarray) -> ArrayRecord:
        """Old plus an update (dimension,) float32; arrays keep their dtypes.

        Raises:
            ValueError: a result is too large for its dtype.
        """
        moved, start = dict(old.items()), 0
        for name, shape, dtype in self.trained:
            part = update[start : start + math.prod(shape)].reshape(shape)
            start += part.size
            wide = np.promote_types(dtype, np.float32)
            with np.errstate(over="ignore"):
                value = np.add(arrays.read(old[name]), part, dtype=wide).astype(dtype)
            if not np.isfinite(value).all():
                raise ValueError(
                    f"Expected finite numbers in array {name!r} after a step, got NaN or infinity: "
                    "training has diverged."
                )
            moved[name] = Array(value)
        return ArrayRecord(moved)

    def check_running(self, buffers: Buffers) -> None:
        """Refuse a model with running statistics, unless `buffers` says what becomes of them."""
        if self.running and buffers == "refuse":
            first, *others = self.running
            more = f" and {len(others)} more" if others else ""
            raise ValueError(
                f"Expected a model without running statistics, got {first}{more}, which are no "
                f"parameters, and which clipping and noise would destroy: {WAY_OUT}."
            )

    def check_frozen(self, old: ArrayRecord, new: ArrayRecord) -> None:
        """Check that training has left the running statistics as they were.

        Raises:
            ValueError: it has changed one, or its reply lacks it.
        """
        for name in self.running:
            same = name in new and np.array_equal(arrays.read(old[name]), arrays.read(new[name]))
            if not same:
                raise ValueError(
                    f"Expected training that leaves running statistics as they are, got another "
                    f"{name}: put the batch norm into eval mode in the train function, or let the "
                    "server offer buffers='server'."
                )

    def take_running(self, model: ArrayRecord, other: ArrayRecord) -> None:
        """Replace the running statistics of a model by another's.

        Raises:
            ValueError: the other model lacks one, or has another shape of it, or NaN.
        """
        for name in self.running:
            value = arrays.read(other[name]) if name in other else None
            old = arrays.read(model[name])
            if value is None or value.shape != old.shape or not np.isfinite(value).all():
                raise ValueError(f"Expected finite statistics {name!r} {old.shape}, got others.")
            model[name] = Array(value.astype(old.dtype))

    def settled(self, old: ArrayRecord, new: ArrayRecord) -> None:
        """Restore dtypes, and arrays that are not trained, if the strategy did not keep them."""
        for name, _, dtype in self.trained:
            if (value := arrays.read(new[name])).dtype != dtype:
                new[name] = Array(value.astype(dtype))
        for name in self.kept:
            new[name] = old[name]
