"""Accepted inputs: floats of 16, 32 and 64 bits, from NumPy or torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Widen = Callable[[np.ndarray], np.ndarray]
"""Converts a part of an input exactly to this machine's float32 or float64."""


def floats(x: Any) -> tuple[np.ndarray, Widen]:
    """An input as an array, with the function that widens its parts; nothing large is copied.

    Args:
        x: float16, float32, float64 or bfloat16 (of torch or ml_dtypes), any shape.

    Raises:
        TypeError: x is something else.
    """
    torch = sys.modules.get("torch")  # if x is a tensor, torch has been imported
    if torch is not None and isinstance(x, torch.Tensor):
        try:
            x = x.detach().cpu().resolve_neg()  # a view may be lazily negated
            if x.dtype == torch.bfloat16:
                return x.contiguous().view(torch.int16).numpy().view(np.uint16), _from_bfloat16
            x = x.numpy()
        except (RuntimeError, TypeError):  # sparse, nested, without storage, or another dtype
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
            f"Expected floats of dtype float16, float32, float64 or bfloat16, got {x.dtype}: "
            "convert them."
        )
    return x, _as_is if x.dtype.itemsize >= 4 and x.dtype.isnative else _widened


def vector(x: Any) -> np.ndarray:
    """One client's update, converted exactly to NumPy's float32 or float64.

    Args:
        x: (d,), as in `floats`; also a list of floats.

    Raises:
        TypeError: x is something else.
        ValueError: x is not a vector.
    """
    array, widen = floats(x)
    return widen(one_vector(array))


def as_codes(codes: Any) -> np.ndarray:
    """Codes as an array; TypeError for lists of uneven lengths."""
    try:
        return np.asarray(codes)
    except ValueError:
        raise TypeError("Expected one array of codes, got lists of uneven lengths.") from None


def one_vector(array: np.ndarray) -> np.ndarray:
    """The array; ValueError unless it is a vector."""
    if array.ndim != 1:
        raise ValueError(
            f"Expected an update (d,), got shape {array.shape}: flatten it, or give a "
            "mechanism a state dict, and encode one client's update at a time."
        )
    return array


def not_finite(value: float, *index: int) -> ValueError:
    """The error that names the first NaN or infinity of an input."""
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
