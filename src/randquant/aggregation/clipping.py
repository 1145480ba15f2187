"""Clipping to a norm: whole updates, and sums of vectors.

The bound also holds after rounding to float32. Scaling and shortening come before it, so that no
guarantee relies on them.
"""

from __future__ import annotations

import math

import numpy as np

ALONG_WEIGHTS_LOSS_SCALE, WHOLE_UPDATE_LOSS_SCALE = 2.0, 6.0
"""An update is shortened where a client's loss, as a share of that of a guess, is below 1/2 (along
the weights) and below 1/6 (as a whole, where no noise hides it). Twice as large a factor halves
these shares, so that fewer updates are shortened."""


def clip_to_norm(update: np.ndarray, clip_norm: float) -> np.ndarray:
    """Scale an update down to an L2 norm of at most clip_norm.

    Args:
        update: (d,) floats.
        clip_norm: threshold, within [1e-30, 1e30].

    Returns:
        (d,) float32 of norm at most clip_norm. To leave room for rounding, an update is scaled to
        (1 - 2**-22) · clip_norm - d · 2**-150 if its norm exceeds that.

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
    exact /= largest  # so that no square overflows or underflows
    length = math.sqrt(float(exact @ exact))
    return (exact * min(largest, limit / length)).astype(np.float32)


def scale_to_norm(update: np.ndarray, length: float) -> np.ndarray:
    """Scale an update, long or short, to an L2 norm, up to rounding; zeros stay zeros.

    Args:
        update: (d,) floats.
        length: of the result.

    Raises:
        ValueError: the update holds a NaN or an infinity.

    Example:
        >>> scale_to_norm(np.float32([3e-40, 4e-40]), 1.0).round(3)
        array([0.6, 0.8], dtype=float32)
    """
    exact = finite(update).astype(np.float64)  # no square of a float32 underflows in it
    norm = math.sqrt(float(exact @ exact))
    return (exact * (length / norm) if norm else exact).astype(np.float32)


def shorten(update: np.ndarray, weights: np.ndarray, share: float, noise: float) -> np.ndarray:
    """Shorten the update of a classifier that is right already, above all along the weights.

    With f the share and x the weights, an update u becomes

        (1 - (1 - min(1, 6 f)) / (1 + noise)) (u - (1 - min(1, 2 f)) <u, x> x / |x|^2)

    so that clients whose classes are wrong can hold up the growth of the weights.

    Args:
        update: (d,) float32.
        weights: (d,), which the update was computed at.
        share: the client's loss at these weights, as a share of the loss of a model that gives all
            classes the same probability; NaN or a negative number, which no cross entropy is,
            shortens nothing.
        noise: squared length of the noise in the mean update, for updates of length 1.

    Guarantees:
        No update becomes longer, up to rounding.

    References:
        `docs/theory/untuned.md`, Proposition 2.

    Example:
        >>> update, weights = np.float32([0.6, 0.8]), np.float32([1, 0])
        >>> shorten(update, weights, 0.25, 0.0), shorten(update, weights, 0.1, 0.0).round(3)
        (array([0.3, 0.8], dtype=float32), array([0.072, 0.48 ], dtype=float32))
    """
    share = float(min(1.0, share)) if share >= 0 else 1.0  # after min: an int may have no float
    along_weights = 1 - min(1.0, ALONG_WEIGHTS_LOSS_SCALE * share)
    whole_update = 1 - min(1.0, WHOLE_UPDATE_LOSS_SCALE * share)
    exact, model = update.astype(np.float64), weights.astype(np.float64)
    square = float(model @ model)
    projection = float(exact @ model) / square if square else 0.0
    shortened = exact - along_weights * projection * model
    return ((1 - whole_update / (1 + noise)) * shortened).astype(np.float32)


class ClippedSum:
    """The sum of many vectors, each scaled down to an L2 norm of at most clip_norm.

    Args:
        size: coordinates d of each vector, at most 2**30.
        clip_norm: threshold, within [1e-30, 1e30].

    Guarantees:
        For n <= 2**25 vectors the error of the sum has an L2 norm of at most 2**-22 · clip_norm
        (`docs/theory/vector.md`, Proposition 16).

    Example:
        >>> total = ClippedSum(2, clip_norm=1.0)
        >>> total.add(np.float32([3, 4]))
        >>> total.add(np.float32([0, 0.5]))
        >>> total.value().round(3)
        array([0.6, 1.3])
    """

    BLOCK = 32
    """Vectors that are added one after the other before their sum is added with its error. With
    twice as many the error doubles; half as many cost a fifth more time."""

    def __init__(self, size: int, clip_norm: float) -> None:
        self._limit = _room(clip_norm, size)
        # The whole sum is total + lost + block.
        self._total, self._lost, self._block = np.zeros(size), np.zeros(size), np.zeros(size)
        self._waiting = 0

    def add(self, row: np.ndarray) -> None:
        """Add a vector (d,) float32; ValueError if it holds a NaN or an infinity."""
        exact = row.astype(np.float64)  # so that no square overflows or underflows
        length = math.sqrt(float(exact @ exact))
        if not math.isfinite(length):
            finite(row)  # says which coordinate
        exact *= self._limit / max(self._limit, length)
        self._block += exact
        self._waiting += 1
        if self._waiting == self.BLOCK:
            self._close_block()

    def value(self) -> np.ndarray:
        """Return the sum, (d,) float64."""
        self._close_block()
        return self._total + self._lost

    def _close_block(self) -> None:
        # Knuth's exact sum: what rounding takes from total + block is kept in `lost`.
        total = self._total + self._block
        added = total - self._total
        self._lost += (self._total - (total - added)) + (self._block - added)
        self._total, self._waiting = total, 0
        self._block[:] = 0


def _room(clip_norm: float, size: int) -> float:
    """Return the largest norm from which rounding `size` coordinates to float32 keeps to clip_norm.

    Summing d <= 2**30 positive terms in float64 has a relative error of at most
    d · 2**-53 <= 2**-23. Rounding to float32 changes a coordinate by a factor of at most
    1 + 2**-24, or by 2**-150 if it is a denormal: by d · 2**-150 <= 2**-120 in all. Everything else
    (division, scale, products) is within 16 units of 2**-53. The product
    (1 - 2**-22)(1 + 2**-23)(1 + 2**-24) and those units stay below 1 - 2**-25. What is left covers
    a rotation of the whole update in float64, which is not clipped again: 30 steps of sums at most,
    a root and a division, each within 2**-53, make it longer by less than 2**-47 of its norm.
    """
    if size > 2**30:
        raise ValueError(
            f"Expected at most 2**30 coordinates, got {size}: beyond, rounding may exceed the norm."
        )
    return clip_norm * (1 - 2.0**-22) - size * 2.0**-150


def finite(update: np.ndarray) -> np.ndarray:
    """Return the update, or raise a ValueError that names its first NaN or infinity."""
    bad = np.flatnonzero(~np.isfinite(update))
    if bad.size:
        raise ValueError(
            f"Expected finite values to send, got {update[bad[0]]} at index [{bad[0]}]: "
            "drop or repair this update."
        )
    return update


# Bounded numbers that a client sends with its update: one vector, one release, one sum.
