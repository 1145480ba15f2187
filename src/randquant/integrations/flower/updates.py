"""Converts updates of a model's arrays to one vector, and back."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord

from randquant.integrations.flower import arrays

RUNNING = ("running_mean", "running_var")
"""How the names of running statistics end in a state dict of torch."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which arrays of a model are trained, in order, with shapes and dtypes.

    Attributes:
        trained: (name, shape, dtype) of floating-point arrays that are trained.
        counters: names of arrays of integers or booleans, such as a batch norm's counter.
        buffers: names of floating-point arrays that are not parameters: running statistics, and
            those that were named. No update of counters and buffers is sent, and the server keeps
            its own.
    """

    trained: tuple[tuple[str, tuple[int, ...], np.dtype], ...]
    counters: tuple[str, ...]
    buffers: tuple[str, ...]

    @classmethod
    def of(cls, model: ArrayRecord, buffers: Collection[str] = ()) -> Layout:
        """The layout of a model; running statistics are always buffers.

        Raises:
            ValueError: the model has nothing to train, an array is not of real numbers, or a named
                buffer is not one of its floating-point arrays.
        """
        trained, counters, kept = [], [], []
        for name, array in model.items():
            value = arrays.read(array)
            if value.dtype.kind != "f":
                counters.append(name)
            elif name in buffers or name.endswith(RUNNING):
                kept.append(name)
            else:
                trained.append((name, value.shape, value.dtype))
        if missing := sorted(set(buffers) - set(kept)):
            raise ValueError(
                f"Expected buffers among the model's arrays of floating-point numbers, got "
                f"{missing[0]!r}."
            )
        if not sum(math.prod(shape) for _, shape, _ in trained):
            raise ValueError("Expected an array of floating-point numbers to train, got none.")
        return cls(tuple(trained), tuple(counters), tuple(kept))

    @property
    def dimension(self) -> int:
        """Coordinates of an update."""
        return sum(math.prod(shape) for _, shape, _ in self.trained)

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the buffers that are running statistics."""
        return tuple(name for name in self.buffers if name.endswith(RUNNING))

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

    def settled(self, old: ArrayRecord, new: ArrayRecord) -> None:
        """Restore dtypes, and arrays that are not trained, if the strategy did not keep them."""
        for name, _, dtype in self.trained:
            if (value := arrays.read(new[name])).dtype != dtype:
                new[name] = Array(value.astype(dtype))
        for name in (*self.counters, *self.buffers):
            new[name] = old[name]
