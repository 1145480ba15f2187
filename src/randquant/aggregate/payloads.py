"""Checks and sums that mechanisms for whole updates share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def some(payloads: Sequence[bytes]) -> Sequence[bytes]:
    """Return the payloads, or raise ValueError when there is none."""
    if not payloads:
        raise ValueError("Expected at least one payload to aggregate, got none.")
    return payloads


def enough(clients: int, cohort: int) -> None:
    """Raise ValueError when a guarantee counts on more clients than are in a sum."""
    if clients < cohort:
        raise ValueError(
            f"Expected at least {cohort} payloads in a sum, got {clients}: with the noise of "
            "fewer clients the guarantee does not hold."
        )


def finite(update: np.ndarray) -> np.ndarray:
    """Return the update, or raise ValueError that names its first NaN or infinity."""
    bad = np.flatnonzero(~np.isfinite(update))
    if bad.size:
        raise ValueError(
            f"Expected finite values to send, got {update[bad[0]]} at index [{bad[0]}]: "
            "drop or repair this update."
        )
    return update


def mean_of_floats(payloads: Sequence[bytes], dimension: int) -> np.ndarray:
    """Mean of payloads of 32-bit floats, (dimension,) float64."""
    total = np.zeros(dimension, dtype=np.float64)
    for payload in some(payloads):
        if len(payload) != 4 * dimension:
            raise ValueError(f"Expected a payload of {4 * dimension} bytes, got {len(payload)}.")
        total += np.frombuffer(payload, dtype="<f4")
    return total / len(payloads)
