"""What can be encoded: floats of 16, 32 and 64 bits, from NumPy or torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Widen = Callable[[np.ndarray], np.ndarray]
"""Turns a part of an input into float32 or float64 of this machine, without changing a number."""


def floats(x: Any) -> tuple[np.ndarray, Widen]:
    """An input as an array and what makes numbers of its parts; nothing large is copied.

    Args:
        x: float16, float32, float64 or bfloat16 (that of torch, or of ml_dtypes), any shape.

    Raises:
        TypeError: x is something else.
    """
    torch = sys.modules.get("torch")  # whoever has a tensor has imported it
    if torch is not None and isinstance(x, torch.Tensor):
        try:
            x = x.detach().cpu().resolve_neg()  # a view may say that its numbers are to be negated
            if x.dtype == torch.bfloat16:
                return x.contiguous().view(torch.int16).numpy().view(np.uint16), _from_bfloat16
            x = x.numpy()
        except (RuntimeError, TypeError):  # sparse, nested, without memory, or of odd numbers
            raise TypeError(
                "Expected a dense tensor of dtype float16, float32, float64 or bfloat16, got "
                f"{x.dtype}, {x.layout}."
            ) from None
    try:
        x = np.asarray(x)
    except ValueError:
        raise TypeError(
            "Expected x to be one array of floats, got lists of uneven lengths."
        ) from None
    if x.dtype.name == "bfloat16":
        return np.ascontiguousarray(x).view(np.uint16), _from_bfloat16
    if x.dtype.kind != "f" or x.dtype.itemsize > 8:
        raise TypeError(
            f"Expected x of dtype float16, float32, float64 or bfloat16, got {x.dtype}."
        )
    return x, _as_is if x.dtype.itemsize >= 4 and x.dtype.isnative else _widened


def vector(x: Any) -> np.ndarray:
    """One client's update as NumPy's float32 or float64, its numbers as they were.

    Args:
        x: (d,), as `floats` takes it; a list of floats too.

    Raises:
        TypeError: x is something else.
        ValueError: it is no vector.
    """
    array, widen = floats(x)
    return widen(one_vector(array))


def one_vector(array: np.ndarray) -> np.ndarray:
    """The array; ValueError unless it is a vector."""
    if array.ndim != 1:
        raise ValueError(
            f"Expected an update (d,), got shape {array.shape}: flatten it, and encode one "
            "client's update at a time."
        )
    return array


def not_finite(value: float, *index: int) -> ValueError:
    """The error that names the first number of an input that is none."""
    where = ", ".join(map(str, index))
    return ValueError(
        f"Expected finite values to encode, got {value} at index [{where}]: "
        "drop or repair this update."
    )


def _as_is(part: np.ndarray) -> np.ndarray:
    return part


def _widened(part: np.ndarray) -> np.ndarray:
    return part.astype(np.float32 if part.dtype.itemsize < 8 else np.float64)


def _from_bfloat16(part: np.ndarray) -> np.ndarray:
    """A bfloat16 is the upper half of a float32."""
    return (part.astype(np.uint32) << np.uint32(16)).view(np.float32)
