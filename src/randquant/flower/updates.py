"""Updates of a model's arrays as one vector, and back."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord

from randquant.flower import arrays

RUNNING = ("running_mean", "running_var")
"""How the names of a normalisation's running statistics end in a state dict of torch."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which arrays of a model are trained, in order, and what they look like.

    Attributes:
        trained: (name, shape, dtype) of arrays of floating-point numbers.
        counters: names of arrays of integers or truth values, such as a batch norm's counter.
        buffers: names of arrays of floating-point numbers that are no parameters: running
            statistics, and those that were named. No update of counters and buffers is sent, and
            the server keeps its own.
    """

    trained: tuple[tuple[str, tuple[int, ...], np.dtype], ...]
    counters: tuple[str, ...]
    buffers: tuple[str, ...]

    @classmethod
    def of(cls, model: ArrayRecord, buffers: Collection[str] = ()) -> Layout:
        """The layout of a model; whatever else is named as a buffer, running statistics are.

        Raises:
            ValueError: there is nothing in it to train, an array is none of real numbers, or a
                buffer that was named is none of its arrays of floating-point numbers.
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
        """Buffers that are running statistics, by their names."""
        return tuple(name for name in self.buffers if name.endswith(RUNNING))

    def finite(self, model: ArrayRecord) -> bool:
        """Whether all numbers that an update is computed from are finite."""
        return all(np.isfinite(arrays.read(model[name])).all() for name, _, _ in self.trained)

    def update(self, old: ArrayRecord, new: ArrayRecord) -> np.ndarray:
        """New minus old, (dimension,) float32; it may overflow, or be NaN where an array is.

        Raises:
            ValueError: an array is missing, or of another shape.
        """
        parts = []
        for name, shape, dtype in self.trained:
            found = arrays.read(new[name]) if name in new else None
            if found is None or found.shape != shape or found.dtype.kind != "f":
                what = "none" if found is None else f"shape {found.shape}, {found.dtype}"
                raise ValueError(f"Expected array {name!r} {shape} of {dtype}, got {what}.")
            with np.errstate(over="ignore", invalid="ignore"):
                wide = np.promote_types(np.promote_types(dtype, found.dtype), np.float32)
                difference = np.subtract(found, arrays.read(old[name]), dtype=wide)
                parts.append(difference.astype(np.float32).ravel())
        return np.concatenate(parts)

    def moved(self, old: ArrayRecord, update: np.ndarray) -> ArrayRecord:
        """Old plus an update (dimension,) float32; arrays keep their dtypes.

        Raises:
            ValueError: a number is then too large for its dtype.
        """
        found, start = dict(old.items()), 0
        for name, shape, dtype in self.trained:
            part = update[start : start + math.prod(shape)].reshape(shape)
            start += part.size
            wide = np.promote_types(dtype, np.float32)
            with np.errstate(over="ignore"):
                value = np.add(arrays.read(old[name]), part, dtype=wide).astype(dtype)
            if not np.isfinite(value).all():
                raise ValueError(
                    f"Expected finite numbers in array {name!r} after a step, got others: training "
                    "has diverged."
                )
            found[name] = Array(value)
        return ArrayRecord(found)

    def settled(self, old: ArrayRecord, new: ArrayRecord) -> None:
        """Give arrays their dtypes again, and put back those left out, where a strategy did not."""
        for name, _, dtype in self.trained:
            if (value := arrays.read(new[name])).dtype != dtype:
                new[name] = Array(value.astype(dtype))
        for name in (*self.counters, *self.buffers):
            new[name] = old[name]
