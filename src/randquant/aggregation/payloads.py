"""Checks and sums that mechanisms for whole updates share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from randquant._internal import validate

MAX_LOG_COLLISION = -40 * math.log(2)
"""Equal payloads whose log probability is below this are taken for duplicates: of 2**40 calls of
`mean` with payloads of different clients, at most one is refused by chance."""


def as_payloads(payloads: Iterable[bytes]) -> list[bytes]:
    """Return the payloads as a list of bytes.

    Raises:
        ValueError: the list is empty.
        TypeError: it is not a list of payloads, or one of them is not bytes; the error names it.
    """
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise TypeError(
            f"Expected a list of payloads, got {type(payloads).__name__}: put it in []."
        )
    listed = validate.listed("payloads", payloads)
    if not listed:
        raise ValueError("Expected at least one payload to aggregate, got 0 payloads.")
    for index, payload in enumerate(listed):
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise TypeError(
                f"payload {index}: Expected bytes from encode, got {type(payload).__name__}."
            )
    return [bytes(payload) for payload in listed]


def for_each_payload(payloads: Sequence[bytes], use: Callable[[bytes], object]) -> None:
    """Call `use` with each payload, in order.

    Raises:
        ValueError: `use` raised one; the error names the payload by its index.
    """
    for index, payload in enumerate(payloads):
        try:
            use(payload)
        except ValueError as error:
            raise ValueError(f"payload {index}: {error}") from error


def check_cohort_size(clients: int, cohort: int) -> None:
    if clients < cohort:
        raise ValueError(
            f"Expected at least {cohort} payloads in a sum, got {clients}: with the noise of "
            "fewer clients the guarantee does not hold."
        )


def check_payloads(payloads: Sequence[bytes], cohort: int, log_equal: float) -> None:
    """Check that enough different clients sent the payloads of a sum.

    A duplicate adds no noise of its own, and its client would count twice. Duplicates are
    recognised by their bytes, and so only if two clients hardly ever send equal payloads: n
    payloads hold an equal pair by chance with a probability of at most n (n - 1) / 2 times that of
    one pair (`docs/theory/encoding.md`), which must be below 2**-40.

    Args:
        payloads: of one sum.
        cohort: how many clients the guarantee relies on; 1 relies on nobody else.
        log_equal: upper bound of the log probability that two clients send equal payloads, over
            all updates.

    Raises:
        ValueError: there are fewer than `cohort`; or one is a duplicate, although any two would be
            equal with a log probability below MAX_LOG_COLLISION.
    """
    check_cohort_size(len(payloads), cohort)
    copies = len(payloads) - len(set(payloads))
    if copies and log_equal + math.log(math.comb(len(payloads), 2)) < MAX_LOG_COLLISION:
        first: dict[bytes, int] = {}
        index = next(i for i, p in enumerate(payloads) if first.setdefault(p, i) != i)
        raise ValueError(
            f"Expected each client's payload once in a sum, got {copies} duplicates among "
            f"{len(payloads)}, payload {index} is payload {first[payloads[index]]} again: a "
            "duplicate counts its client twice and adds no noise of its own."
        )


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
    """Average payloads of 32-bit floats: (dimension,) float64."""
    total = np.zeros(dimension, dtype=np.float64)

    def use(payload: bytes) -> None:
        nonlocal total
        if len(payload) != 4 * dimension:
            raise ValueError(f"Expected a payload of {4 * dimension} bytes, got {len(payload)}.")
        total += finite(np.frombuffer(payload, dtype="<f4"))

    for_each_payload(payloads, use)
    return total / len(payloads)


def float_count(payload: bytes) -> int:
    """Count the 32-bit floats of a payload."""
    if len(payload) % 4 or not payload:
        raise ValueError(f"Expected a payload of 4 bytes a coordinate, got {len(payload)} bytes.")
    return len(payload) // 4
