"""The trained arrays of a model: converts their updates to one vector, and back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from randquant._internal import validate
from randquant._internal.validate import Patterns
from randquant.aggregation.layout import check_tied, is_running

Buffers = Literal["refuse", "frozen", "server"]
BUFFER_MODES: tuple[Buffers, ...] = ("refuse", "frozen", "server")
"""Treatments of running statistics: the model has none (`refuse`), clients leave them unchanged, or
the server has its own."""

Arrays = Mapping[str, np.ndarray]
"""A model or its update: arrays by name."""

WAY_OUT = (
    "use GroupNorm or LayerNorm instead of BatchNorm, or set buffers='frozen' if the train "
    "function leaves the statistics as they are (a batch norm in eval mode), or buffers='server' "
    "if the server has statistics of its own"
)


class UnknownPart(ValueError):
    """A part to train is not an array of the model, or not one that can be trained."""


def trained_names(
    model: Arrays, parts: Patterns = None, frozen: Patterns = None
) -> tuple[str, ...]:
    """Return the names of the arrays to train, in the model's order.

    Args:
        model: the model's arrays.
        parts: patterns such as `head.*`: arrays whose names match one are trained, sent and
            counted; None for all of floating-point numbers. Running statistics never are.
        frozen: patterns of arrays that are left out.

    Raises:
        ValueError: a pattern matches no such array, or no array is left.
    """
    names = [
        name for name, array in model.items() if array.dtype.kind == "f" and not is_running(name)
    ]
    kind = "names of the model's arrays that can be trained"
    wanted = validate.name_patterns("parts", parts, names, kind)
    unwanted = validate.name_patterns("frozen", frozen, names, kind)
    chosen = tuple(
        name
        for name in names
        if (parts is None or validate.matches(name, wanted))
        and not validate.matches(name, unwanted)
    )
    if not chosen:
        raise ValueError(
            f"Expected an array of floating-point numbers to train, got {len(model)} arrays, of "
            f"which {len(names)} can be trained, and parts and frozen leave all of them out."
        )
    return chosen


@dataclass(frozen=True, slots=True)
class Layout:
    """The trained arrays of a model, in order, with shapes and dtypes.

    Attributes:
        trained: (name, shape, dtype) of each trained array, of floating-point numbers.
        kept: names of all other arrays: counters and other integers, running statistics, frozen
            arrays. Clients send no update of them, and the server keeps its own.
        running: names of running statistics among `kept`.
    """

    trained: tuple[tuple[str, tuple[int, ...], np.dtype], ...]
    kept: tuple[str, ...]
    running: tuple[str, ...]

    @classmethod
    def from_model(cls, model: Arrays, parts: Collection[str] | None = None) -> Layout:
        """Return the layout of a model.

        Args:
            model: the model.
            parts: names of the arrays that are trained; None for all that can be.

        Raises:
            UnknownPart: a name is not that of an array that can be trained.
            ValueError: the model has nothing to train, or an array is not of real numbers.
        """
        # In the model's order and not that of `parts`: both sides must build the same vector.
        names = trained_names(model) if parts is None else tuple(n for n in model if n in parts)
        unknown = sorted(set(parts or ()) - set(names))
        for name in [*unknown, *names]:
            if name in unknown or model[name].dtype.kind != "f" or is_running(name):
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
        return tuple(name for name, _, _ in self.trained)

    @property
    def dimension(self) -> int:
        return sum(math.prod(shape) for _, shape, _ in self.trained)

    def check_tied(self, model: Arrays) -> None:
        # Only of a run's first model: arrays that were sent are copies, which share no memory.
        check_tied({name: model[name] for name in self.parts})

    def finite(self, model: Arrays) -> bool:
        return all(np.isfinite(model[name]).all() for name, _, _ in self.trained)

    def update(self, old: Arrays | None, new: Arrays) -> np.ndarray:
        """Return new minus old, (dimension,) float32, which may have infinities and NaN.

        Args:
            old: the model before training; None if `new` is the update itself.
            new: has the trained arrays, among others.

        Raises:
            ValueError: an array is missing, or has another shape.
        """
        parts = []
        for name, shape, dtype in self.trained:
            trained = new.get(name)
            if trained is None or trained.shape != shape or trained.dtype.kind != "f":
                what = "none" if trained is None else f"shape {trained.shape}, {trained.dtype}"
                raise ValueError(f"Expected array {name!r} {shape} of {dtype}, got {what}.")
            # Without warnings: zeros are sent in place of an update that is not finite (`Member`).
            with np.errstate(over="ignore", invalid="ignore"):
                if old is not None:
                    # Half precision is subtracted as float32: the difference loses no bits.
                    wide = np.promote_types(np.promote_types(dtype, trained.dtype), np.float32)
                    trained = np.subtract(trained, old[name], dtype=wide)
                parts.append(trained.astype(np.float32).ravel())
        return np.concatenate(parts)

    def moved(self, old: Arrays, update: np.ndarray) -> dict[str, np.ndarray]:
        """Return the trained arrays plus an update (dimension,) float32, in their dtypes.

        Raises:
            ValueError: a result is too large for its dtype.
        """
        moved, start = {}, 0
        for name, shape, dtype in self.trained:
            part = update[start : start + math.prod(shape)].reshape(shape)
            start += part.size
            wide = np.promote_types(dtype, np.float32)
            with np.errstate(over="ignore"):
                # NumPy returns a scalar for the sum of two arrays of shape ().
                moved[name] = np.asarray(np.add(old[name], part, dtype=wide), dtype=dtype)
            if not np.isfinite(moved[name]).all():
                raise ValueError(
                    f"Expected finite numbers in array {name!r} after a step, got NaN or infinity: "
                    "training has diverged."
                )
        return moved

    def check_running(self, buffers: Buffers) -> None:
        if self.running and buffers == "refuse":
            first, *others = self.running
            more = f" and {len(others)} more" if others else ""
            raise ValueError(
                f"Expected a model without running statistics, got {first}{more}, which are not "
                f"parameters, and which clipping and noise would destroy: {WAY_OUT}."
            )

    def check_frozen(self, old: Arrays, new: Arrays) -> None:
        # No update of statistics is sent: the server would step from another model.
        for name in self.running:
            same = name in new and np.array_equal(old[name], new[name])
            if not same:
                change = "a changed" if name in new else "no"
                raise ValueError(
                    f"Expected training that leaves running statistics as they are, got {change} "
                    f"{name}: put the batch norm into eval mode in the train function, or let the "
                    "server offer buffers='server'."
                )

    def settled(
        self, old: Arrays, new: Arrays, statistics: Arrays | None = None
    ) -> dict[str, np.ndarray]:
        """Return the arrays that undo a server's changes of what is not trained, and of dtypes.

        Args:
            old: the model before the step.
            new: the model after it.
            statistics: running statistics to take over; None keeps the old ones.

        Returns:
            The arrays to replace in `new`.

        Raises:
            ValueError: a running statistic is missing, not finite, or of another shape.
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


def check_precision(parts: Sequence[str], update: Mapping[str, Any]) -> None:
    """Refuse an update of clipped gradients that was rounded to fewer than 32 bits.

    Args:
        parts: names of the arrays that are sent.
        update: arrays or tensors by name, as training returned them.
    """
    # docs/theory/vector.md, Proposition 16, has room for rounding to float32. Rounding to 16 bits
    # may move an update by more than one example does.
    for name in parts:
        dtype = getattr(update.get(name), "dtype", None)
        if dtype is not None and dtype.itemsize < 4:
            raise ValueError(
                f"Expected an update of clipped gradients in float32 or float64, got {name!r} in "
                f"{dtype}, whose rounding may move it by more than one example: compute it, and "
                "send it, in float32."
            )
