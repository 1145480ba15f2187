"""Updates as users have them (arrays, tensors, state dicts) and as mechanisms take them: vectors.

The only place where mechanisms for whole updates convert; it imports no torch. From top to bottom:
running statistics and tied weights; `StateLayout`, of one state dict; `Layout`, of a model whose
trained part an engine's server and clients agree on.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from randquant._internal import validate
from randquant._internal.validate import Patterns
from randquant.channels.encoding import Widen, floats, vector

Update = Any
"""An update: an array, tensor or list (d,) of floats, or a mapping of names to arrays or tensors
of any shape, such as the difference of two state dicts."""

RUNNING_SUFFIXES = (
    "running_mean",
    "running_var",
    "num_batches_tracked",
    "moving_mean",
    "moving_variance",
)
"""How the names of running statistics end: in state dicts of torch, and in weights of Keras."""


def is_running(name: str) -> bool:
    """Tell by an array's name if it is a running statistic of a normalisation layer.

    Example:
        >>> is_running("1.running_var"), is_running("norm/moving_mean:0"), is_running("1.weight")
        (True, True, False)
    """
    return name.removesuffix(":0").endswith(RUNNING_SUFFIXES)


TIED = (
    "tied weights would be counted twice, and noise would part them. Send one of them, as "
    "dict(model.named_parameters()) has it, and load it with strict=False."
)


def check_tied(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse tied weights, one array under two names, and warn where they might be.

    Each name would be clipped, counted and noised by itself, and the two would part. Arrays in one
    memory are tied. Equal numbers in two places may be, once a model was copied or sent; or they
    only begin alike, as the layers of torch's TransformerEncoder do. Of constant arrays, such as
    biases of zeros, nothing is said.

    Raises:
        ValueError: two arrays of one shape and dtype are in one memory; the error names them.

    Example:
        >>> check_tied({"in.bias": np.zeros(3), "out.bias": np.zeros(3)})
    """
    alike: dict[Any, list[str]] = {}
    for name, array in arrays.items():
        others = alike.setdefault((array.shape, array.dtype), [])
        varied = bool(others) and array.size > 0 and array.min() != array.max()
        for other in others:
            known = arrays[other]
            what = f"{other!r} and {name!r} with the same numbers"
            if array.size and array.ctypes.data == known.ctypes.data:
                raise ValueError(f"Expected each array once, got {what}: {TIED}")
            # The first numbers before all: of most arrays of one shape they differ.
            if varied and array.flat[0] == known.flat[0] and np.array_equal(array, known):
                warnings.warn(f"Got {what}. If they are tied: {TIED}", stacklevel=3)
        others.append(name)


def as_vector(update: Update) -> np.ndarray:
    """Convert an update exactly to a vector, (d,) float32 or float64.

    Args:
        update: (d,) float16, float32, float64 or bfloat16, of NumPy or torch on any device, or a
            list of floats; or a mapping of names to such arrays of any shape, which `StateLayout`
            flattens in the mapping's order: it must be the same for all clients.

    Raises:
        TypeError: it is none of these: integers, complex numbers, sparse tensors.
        ValueError: it is not a vector, or a mapping without any floats.

    Example:
        >>> as_vector({"weight": np.ones((2, 2)), "steps": np.array(7)})
        array([1., 1., 1., 1.])
    """
    if isinstance(update, Mapping):
        return StateLayout.from_state(update).flatten(update)
    return vector(update)


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The arrays of a state dict that an update consists of, with their places in the vector.

    Left out are arrays of integers (counters), and running statistics of normalisation layers, by
    their names (`is_running`): they are no gradients, and clipping and noise would spoil them.

    Attributes:
        names: of the arrays that are sent, in the order of the state dict.
        shapes: of each of them.
        left_out: names of the arrays that are not sent.

    Guarantees:
        unflatten(flatten(state)) has the same numbers under the same names in the same shapes.

    Example:
        >>> state = {"weight": np.ones((2, 3)), "bn.running_mean": np.zeros(3), "steps": 7}
        >>> layout = StateLayout.from_state(state)
        >>> layout.names, layout.left_out, layout.dimension
        (('weight',), ('bn.running_mean', 'steps'), 6)
        >>> layout.unflatten(layout.flatten(state))["weight"].shape
        (2, 3)
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    left_out: tuple[str, ...] = ()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> StateLayout:
        """Return the layout of a state dict, or of a difference of two.

        Args:
            state: arrays or tensors by name, for example `model.state_dict()`.

        Raises:
            TypeError: state is no mapping, or holds something other than arrays of numbers.
            ValueError: it holds no array of floats, or one under two names (`check_tied`).
        """
        _check_names(state)
        arrays = {name: _named_floats(name, x)[0] for name, x in state.items() if _is_sent(name, x)}
        check_tied(arrays)
        shapes = {name: array.shape for name, array in arrays.items()}
        if not shapes:
            raise ValueError(
                f"Expected at least one array of floats in a state dict, got {len(state)} entries "
                "without any: give the parameters' differences by name."
            )
        rest = tuple(name for name in state if name not in shapes)
        return cls(tuple(shapes), tuple(shapes.values()), rest)

    @property
    def dimension(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def flatten(self, state: Mapping[str, Any]) -> np.ndarray:
        """Concatenate a state dict's arrays, in this layout's order.

        Returns:
            (dimension,) float32, or float64 if one of the arrays is.

        Raises:
            ValueError: a name is missing or unknown, a shape differs, or a number is not finite;
                the error names it.
            TypeError: an entry is no dense array of floats.
        """
        _check_names(state)
        names = {name for name, x in state.items() if _is_sent(name, x)}
        # In both directions: an array too many would stay unsent without a word, and a missing one
        # would shift all that follow.
        for name in names.symmetric_difference(self.names):
            difference = f"{name!r} too" if name in names else f"no {name!r}"
            raise ValueError(
                f"Expected a state dict with the arrays of its layout, got {difference}: make the "
                "layout from the same model."
            )
        parts = [
            _flat_array(name, state[name], shape)
            for name, shape in zip(self.names, self.shapes, strict=True)
        ]
        return np.concatenate(parts)

    def unflatten(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Cut a vector, such as a decoded mean, into the arrays of a state dict.

        Args:
            vector: (dimension,) floats.

        Returns:
            Arrays by name, of the vector's dtype: views of it. What was left out is missing.

        Raises:
            ValueError: it is not a vector of this dimension.
        """
        flat = np.asarray(vector)
        if flat.shape != (self.dimension,):
            raise ValueError(
                f"Expected a vector ({self.dimension},) to unflatten, got shape {flat.shape}: "
                "is it of another model?"
            )
        arrays, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            count = math.prod(shape)
            arrays[name] = flat[start : start + count].reshape(shape)
            start += count
        return arrays


def update_dimension(model: Any) -> int:
    """Count the coordinates of an update of a model.

    Args:
        model: the number itself; or a state dict (what `StateLayout` leaves out is not counted);
            or an object with `parameters()`, such as a torch module: those that are trained.

    Raises:
        TypeError: model is none of these.
        ValueError: it has no parameters that are trained.

    Example:
        >>> update_dimension({"weight": np.ones((3, 4)), "steps": np.array(1)})
        12
    """
    if isinstance(model, Mapping):
        return StateLayout.from_state(model).dimension
    parameters: Any = getattr(model, "parameters", None)
    if parameters is None:
        return validate.whole("dimension", model, low=1, why="it is a number of parameters")
    count = sum(int(p.numel()) for p in parameters() if p.requires_grad)
    if count == 0:
        raise ValueError(
            f"Expected a model with parameters to train, got a {type(model).__name__} without any: "
            "set requires_grad."
        )
    return count


def _check_names(state: Any) -> None:
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        got = type(state).__name__
        if isinstance(state, Mapping):
            got = f"one with the name {next(n for n in state if not isinstance(n, str))!r}"
        raise TypeError(
            f"Expected a mapping of names to arrays, got {got}: give model.state_dict()."
        )


def _is_sent(name: str, x: Any) -> bool:
    # Floats, except running statistics.
    # By the type's name: torch has types of its own, and may not be installed here.
    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    kind = str(dtype).removeprefix("torch.")
    return not kind.startswith(("int", "uint", "bool")) and not is_running(name)


def _flat_array(name: str, x: Any, shape: tuple[int, ...]) -> np.ndarray:
    array, widen = _named_floats(name, x)
    if array.shape != shape:
        raise ValueError(f"Expected {name!r} of shape {shape}, got {array.shape}.")
    part = widen(array)
    bad = np.argwhere(~np.isfinite(part))
    if len(bad):
        at = tuple(bad[0])
        where = ", ".join(str(i) for i in at)
        raise ValueError(
            f"Expected finite values to encode, got {part[at]} in {name!r} at index [{where}]: "
            "drop or repair this update."
        )
    return part.reshape(-1)


def _named_floats(name: str, x: Any) -> tuple[np.ndarray, Widen]:
    try:
        return floats(x)
    except TypeError as error:
        raise TypeError(f"In {name!r}: {error}") from None


# What an engine trains of a model.

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
    # Patterns are matched against these alone: one that names a counter or a running statistic only
    # is refused, and does not select nothing in silence.
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
