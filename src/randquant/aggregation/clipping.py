"""Clipping a whole update to a norm, exactly although it is rounded to float32."""

from __future__ import annotations

import math

import numpy as np

from randquant.aggregation.payloads import finite
from randquant.privacy.accounting.releases import Norm


def clip_to_norm(update: np.ndarray, clip_norm: float, norm: Norm = "l2") -> np.ndarray:
    """Scale an update down to a norm of at most clip_norm.

    Args:
        update: (d,) floats.
        clip_norm: threshold, within [1e-30, 1e30].
        norm: `l2` or `l1`.

    Returns:
        (d,) float32, norm at most clip_norm although rounded: an update whose norm exceeds
        (1 - 2**-22) · clip_norm - d · 2**-150 is scaled to that norm, which leaves room for it.

    Raises:
        ValueError: the update holds a NaN or an infinity, or has more than 2**30 coordinates.

    Example:
        >>> clip_to_norm(np.array([3.0, 4.0]), 1.0).round(3)
        array([0.6, 0.8], dtype=float32)
    """
    limit = _room(clip_norm, update.size)
    exact = finite(update).astype(np.float64)
    largest = float(np.abs(exact).max(initial=0.0))
    if largest == 0:
        return exact.astype(np.float32)
    exact /= largest  # squares of the very large and the very small would not be floats
    length = math.sqrt(float(exact @ exact)) if norm == "l2" else float(np.abs(exact).sum())
    return (exact * min(largest, limit / length)).astype(np.float32)


def _room(clip_norm: float, size: int) -> float:
    """What the norm of `size` coordinates may be before they are rounded to float32.

    Adding up d <= 2**30 positive terms in float64 loses at most d · 2**-53 <= 2**-23 of them. A
    coordinate moves by 2**-24 of itself when it becomes a float32, or by 2**-150 where that is a
    denormal: by d · 2**-150 <= 2**-120 in all, in L1 and the more so in L2. All else (the division,
    the scale, products) is within 16 units of 2**-53. In all (1 - 2**-22)(1 + 2**-23)(1 + 2**-24)
    and those units stay below 1.
    """
    if size > 2**30:
        raise ValueError(
            f"Expected at most 2**30 coordinates, got {size}: beyond, rounding may exceed the norm."
        )
    return clip_norm * (1 - 2.0**-22) - size * 2.0**-150
