"""Which arrays of a model are trained; converts their updates to one vector, and back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from randquant._internal import patterns
from randquant._internal.patterns import Patterns
from randquant.aggregation.layout import check_tied, is_running

Buffers = Literal["refuse", "frozen", "server"]
BUFFERS: tuple[Buffers, ...] = ("refuse", "frozen", "server")
"""What is done about running statistics: the model has none, clients leave them as they are, or the
server has its own."""

Arrays = Mapping[str, np.ndarray]
"""A model, or an update of one: its arrays by name."""

WAY_OUT = (
    "use GroupNorm or LayerNorm instead of BatchNorm, or set buffers='frozen' if the train "
    "function leaves the statistics as they are (a batch norm in eval mode), or buffers='server' "
    "if the server has statistics of its own"
)


class UnknownPart(ValueError):
    """A part to train is no array of the model, or not one that can be trained."""


def parts_of(model: Arrays, parts: Patterns = None, frozen: Patterns = None) -> tuple[str, ...]:
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
        name for name, array in model.items() if array.dtype.kind == "f" and not is_running(name)
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
    def of(cls, model: Arrays, parts: Collection[str] | None = None) -> Layout:
        """The layout of a model of which the arrays with these names are trained; None for all.

        Raises:
            ValueError: the model has nothing to train, an array is not of real numbers, or one of
                the names is not that of an array which can be trained.
        """
        names = parts_of(model) if parts is None else tuple(n for n in model if n in parts)
        strangers = sorted(set(parts or ()) - set(names))
        for name in [*strangers, *names]:
            if name in strangers or model[name].dtype.kind != "f" or is_running(name):
                raise UnknownPart(
                    "Expected parts among the model's arrays of floating-point numbers other than "
                    f"running statistics, got {name!r}."
                )
        trained = tuple((name, model[name].shape, model[name].dtype) for name in names)
        if not sum(math.prod(shape) for _, shape, _ in trained):
            raise ValueError(
                "Expected an array of floating-point numbers to train, got 0 coordinates."
            )
        kept = tuple(name for name in model if name not in names)
        running = tuple(n for n in kept if is_running(n) and model[n].dtype.kind == "f")
        return cls(trained, kept, running)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the arrays that are trained."""
        return tuple(name for name, _, _ in self.trained)

    @property
    def dimension(self) -> int:
        """Coordinates of an update."""
        return sum(math.prod(shape) for _, shape, _ in self.trained)

    def check_tied(self, model: Arrays) -> None:
        """Name the trained arrays of a run's first model that may be tied: `check_tied`."""
        check_tied({name: model[name] for name in self.parts})

    def finite(self, model: Arrays) -> bool:
        """Whether all trained arrays are finite."""
        return all(np.isfinite(model[name]).all() for name, _, _ in self.trained)

    def update(self, old: Arrays | None, new: Arrays) -> np.ndarray:
        """New minus old, (dimension,) float32; it may overflow, or be NaN if an array has NaN.

        Args:
            old: None if the new arrays are the update itself.
            new: the trained arrays, among others.

        Raises:
            ValueError: an array is missing, or has another shape.
        """
        parts = []
        for name, shape, dtype in self.trained:
            trained = new.get(name)
            if trained is None or trained.shape != shape or trained.dtype.kind != "f":
                what = "none" if trained is None else f"shape {trained.shape}, {trained.dtype}"
                raise ValueError(f"Expected array {name!r} {shape} of {dtype}, got {what}.")
            with np.errstate(over="ignore", invalid="ignore"):
                if old is not None:
                    wide = np.promote_types(np.promote_types(dtype, trained.dtype), np.float32)
                    trained = np.subtract(trained, old[name], dtype=wide)
                parts.append(trained.astype(np.float32).ravel())
        return np.concatenate(parts)

    def moved(self, old: Arrays, update: np.ndarray) -> dict[str, np.ndarray]:
        """The trained arrays plus an update (dimension,) float32, in their dtypes.

        Raises:
            ValueError: a result is too large for its dtype.
        """
        moved, start = {}, 0
        for name, shape, dtype in self.trained:
            part = update[start : start + math.prod(shape)].reshape(shape)
            start += part.size
            wide = np.promote_types(dtype, np.float32)
            with np.errstate(over="ignore"):
                # NumPy makes a number of the sum of two arrays ().
                moved[name] = np.asarray(np.add(old[name], part, dtype=wide), dtype=dtype)
            if not np.isfinite(moved[name]).all():
                raise ValueError(
                    f"Expected finite numbers in array {name!r} after a step, got NaN or infinity: "
                    "training has diverged."
                )
        return moved

    def check_running(self, buffers: Buffers) -> None:
        """Refuse a model with running statistics, unless `buffers` says what becomes of them."""
        if self.running and buffers == "refuse":
            first, *others = self.running
            more = f" and {len(others)} more" if others else ""
            raise ValueError(
                f"Expected a model without running statistics, got {first}{more}, which are no "
                f"parameters, and which clipping and noise would destroy: {WAY_OUT}."
            )

    def check_frozen(self, old: Arrays, new: Arrays) -> None:
        """Check that training has left the running statistics as they were.

        Raises:
            ValueError: it has changed one, or its reply lacks it.
        """
        for name in self.running:
            same = name in new and np.array_equal(old[name], new[name])
            if not same:
                raise ValueError(
                    f"Expected training that leaves running statistics as they are, got another "
                    f"{name}: put the batch norm into eval mode in the train function, or let the "
                    "server offer buffers='server'."
                )

    def settled(
        self, old: Arrays, new: Arrays, statistics: Arrays | None = None
    ) -> dict[str, np.ndarray]:
        """What a server's step must not change, as it was: dtypes, and arrays that are not trained.

        Args:
            old: the model before the step.
            new: after it.
            statistics: has the running statistics to take over; None keeps the old ones.

        Returns:
            The arrays to replace.

        Raises:
            ValueError: the statistics lack one, or have another shape of it, or NaN.
        """
        kept = {name: old[name] for name in self.kept}
        for name in self.running if statistics is not None else ():
            value, before = (statistics or {}).get(name), old[name]
            if value is None or value.shape != before.shape or not np.isfinite(value).all():
                shape = "none" if value is None else f"shape {value.shape}, or not finite"
                raise ValueError(
                    f"Expected finite statistics {name!r} of shape {before.shape}, got {shape}."
                )
            kept[name] = value.astype(before.dtype)
        for name, _, dtype in self.trained:
            if new[name].dtype != dtype:
                kept[name] = new[name].astype(dtype)
        return kept
