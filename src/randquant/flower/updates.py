"""Updates of a model's arrays as one vector, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord


@dataclass(frozen=True, slots=True)
class Layout:
    """Which arrays of a model are trained, in order, and what they look like.

    Attributes:
        trained: (name, shape, dtype) of arrays of floating-point numbers.
        left_out: names of arrays of integers or truth values, such as a batch norm's counter: no
            update of them is sent, and the server keeps its own.
    """

    trained: tuple[tuple[str, tuple[int, ...], np.dtype], ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Layout:
        """The layout of a model; ValueError if there is nothing in it to train."""
        trained, left_out = [], []
        for name, array in arrays.items():
            value = array.numpy()
            if value.dtype.kind in "iub":
                left_out.append(name)
            elif value.dtype.kind == "f":
                trained.append((name, value.shape, value.dtype))
            else:
                raise ValueError(
                    f"Expected arrays of real numbers, got {name!r} of dtype {value.dtype}."
                )
        if not sum(int(np.prod(shape)) for _, shape, _ in trained):
            raise ValueError("Expected an array of floating-point numbers to train, got none.")
        return cls(tuple(trained), tuple(left_out))

    @property
    def dimension(self) -> int:
        """Coordinates of an update."""
        return sum(int(np.prod(shape)) for _, shape, _ in self.trained)

    def update(self, old: ArrayRecord, new: ArrayRecord) -> np.ndarray:
        """New minus old, (dimension,) float32; it may overflow, or be NaN where an array is.

        Raises:
            ValueError: an array is missing, or of another shape.
        """
        parts = []
        for name, shape, dtype in self.trained:
            found = new[name].numpy() if name in new else None
            if found is None or found.shape != shape or found.dtype.kind != "f":
                what = "none" if found is None else f"shape {found.shape}, {found.dtype}"
                raise ValueError(f"Expected array {name!r} {shape} of {dtype}, got {what}.")
            with np.errstate(over="ignore", invalid="ignore"):
                wide = np.promote_types(np.promote_types(dtype, found.dtype), np.float32)
                difference = np.subtract(found, old[name].numpy(), dtype=wide)
                parts.append(difference.astype(np.float32).ravel())
        return np.concatenate(parts)

    def moved(self, old: ArrayRecord, update: np.ndarray) -> ArrayRecord:
        """Old plus an update (dimension,) float32; arrays keep their dtypes.

        Raises:
            ValueError: a number is then too large for its dtype.
        """
        arrays, start = dict(old.items()), 0
        for name, shape, dtype in self.trained:
            part = update[start : start + int(np.prod(shape))].reshape(shape)
            start += part.size
            wide = np.promote_types(dtype, np.float32)
            with np.errstate(over="ignore"):
                value = np.add(old[name].numpy(), part, dtype=wide).astype(dtype)
            if not np.isfinite(value).all():
                raise ValueError(
                    f"Expected finite numbers in array {name!r} after a step, got others: training "
                    "has diverged."
                )
            arrays[name] = Array(value)
        return ArrayRecord(arrays)

    def settled(self, old: ArrayRecord, new: ArrayRecord) -> None:
        """Give arrays their dtypes again, and put back those left out, where a strategy did not."""
        for name, _, dtype in self.trained:
            if (value := new[name].numpy()).dtype != dtype:
                new[name] = Array(value.astype(dtype))
        for name in self.left_out:
            new[name] = old[name]
