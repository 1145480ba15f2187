"""Updates as users have them (arrays, tensors, state dicts) and as mechanisms take them: vectors.

The only place where mechanisms for whole updates convert; it imports no torch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from randquant._internal import validate
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
