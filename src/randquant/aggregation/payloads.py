"""Checks and sums that mechanisms for whole updates share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

BY_CHANCE = math.log(1e-9)
"""Equal payloads whose log probability is below this are taken for duplicates."""


def some(payloads: Sequence[bytes]) -> Sequence[bytes]:
    """Return the payloads, or raise ValueError if there is none."""
    if not payloads:
        raise ValueError("Expected at least one payload to aggregate, got none.")
    return payloads


def enough(clients: int, cohort: int) -> None:
    """Raise ValueError if a guarantee relies on more clients than are in a sum."""
    if clients < cohort:
        raise ValueError(
            f"Expected at least {cohort} payloads in a sum, got {clients}: with the noise of "
            "fewer clients the guarantee does not hold."
        )


def counted(payloads: Sequence[bytes], cohort: int, log_equal: float) -> Sequence[bytes]:
    """Return the payloads of a sum, after checking that enough different clients sent them.

    A duplicate adds no noise of its own, and its client would count twice. Duplicates are
    recognised by their bytes, and so only if two clients hardly ever send equal payloads.

    Args:
        payloads: of one sum.
        cohort: how many clients the guarantee relies on; 1 relies on nobody else.
        log_equal: upper bound of the log probability that two clients send equal payloads, over
            all updates.

    Raises:
        ValueError: there are fewer than `cohort`, or none; or one is a duplicate, although any two
            would be equal with a log probability below BY_CHANCE.
    """
    enough(len(some(payloads)), cohort)
    copies = len(payloads) - len(set(payloads))
    if cohort > 1 and copies and log_equal + math.log(math.comb(len(payloads), 2)) < BY_CHANCE:
        raise ValueError(
            f"Expected each client's payload once in a sum, got {copies} duplicates among "
            f"{len(payloads)}: they add no noise, and the guarantee does not hold."
        )
    return payloads


def finite(update: np.ndarray) -> np.ndarray:
    """Return the update, or raise a ValueError that names its first NaN or infinity."""
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
