"""Bounded numbers that a client sends beside its update: one vector, one release, one sum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from randquant._internal import validate
from randquant.aggregation.clipping import clip_to_norm
from randquant.aggregation.payloads import finite

SHARE = 0.2
"""Of the norm, for each number: one of them costs the update 2 % more noise."""

RATE = 0.2
"""Step of the threshold's logarithm (Andrew et al. 2021, section 3)."""


@dataclass(frozen=True, slots=True)
class Alongside:
    """Joins a client's update and a few numbers in [-1, 1] to one vector of bounded norm.

    Args:
        clip_norm: L2 threshold of the mechanism that the vector is sent through.
        numbers: how many numbers.
        share: of each number in the norm; numbers · share² < 1.

    Guarantees:
        A joined vector has norm clip_norm at most, whatever the update, the numbers and the
        threshold: the mechanism's guarantee in `dimension + numbers` coordinates holds as it stands
        (`docs/theory/alongside.md`, Proposition 1).

    Example:
        >>> beside = Alongside(clip_norm=1.0)
        >>> vector = beside.joined(np.array([30.0, 40.0]), [1.0], threshold=5.0)
        >>> update, numbers = beside.parted(vector, threshold=5.0)
        >>> update.round(3), numbers.round(3)
        (array([3., 4.], dtype=float32), array([1.]))
    """

    clip_norm: float
    numbers: int = 1
    share: float = SHARE

    def __post_init__(self) -> None:
        validate.real("clip_norm", self.clip_norm, above=0)
        validate.whole("numbers", self.numbers, low=1)
        validate.real("share", self.share, above=0, below=1 / math.sqrt(self.numbers))

    def joined(
        self, update: np.ndarray, numbers: np.ndarray | list[float], threshold: float
    ) -> np.ndarray:
        """On a client: the vector to encode, (d + numbers,) float32.

        Args:
            update: (d,) floats; clipped to norm `threshold` here.
            numbers: (numbers,) floats; clipped to [-1, 1] here.
            threshold: of this round, public.

        Raises:
            ValueError: the update holds a NaN or an infinity, or the threshold is not within
                1e-30 and 1e30.
        """
        validate.real("threshold", threshold, low=1e-30, high=1e30)
        clipped = clip_to_norm(update, threshold)
        beside = np.clip(finite(np.asarray(numbers, dtype=np.float64)), -1.0, 1.0)
        # theory/alongside.md, Proposition 1. The mechanism clips again, so rounding costs nothing.
        scaled = clipped * np.float64(self._left * self.clip_norm / threshold)
        return np.concatenate([scaled, self.share * self.clip_norm * beside]).astype(np.float32)

    def parted(self, mean: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
        """On the server: the mean of the clipped updates, and of the numbers.

        Args:
            mean: (d + numbers,) float32, decoded.
            threshold: of this round.

        Returns:
            (d,) float32 and (numbers,) float64. The latter are estimates, and may exceed 1.
        """
        update, beside = mean[: -self.numbers], mean[-self.numbers :]
        scale = np.float64(threshold / (self._left * self.clip_norm))
        numbers = beside.astype(np.float64) / (self.share * self.clip_norm)
        return (update * scale).astype(np.float32), numbers

    @property
    def _left(self) -> float:
        """What is left of a norm of 1 for the update."""
        return math.sqrt(1 - self.numbers * self.share**2)


@dataclass(frozen=True, slots=True)
class QuantileClip:
    """A clipping threshold that follows a quantile of the clients' norms.

    A client sends beside its update whether its norm is below the threshold, +1 or -1; the server
    moves the threshold by what the decoded mean says.

    Args:
        clip_norm: L2 threshold of the mechanism that updates are sent through.
        quantile: the share of clients whose updates are not clipped.
        rate: step of the threshold's logarithm in a round.

    Guarantees:
        The next threshold is computed from what was released: it costs no privacy.
        In a round the threshold changes by a factor of exp(rate) at most, and stays within 1e-12
        and 1e12.

    References:
        Andrew, Thakkar, McMahan and Ramaswamy 2021, Algorithm 1.

    Example:
        >>> clip = QuantileClip(clip_norm=1.0, quantile=0.5)
        >>> vectors = clip.joined(np.array([[3.0, 4.0], [30.0, 40.0]]), threshold=10.0)
        >>> vectors.round(2)
        array([[ 0.29,  0.39,  0.2 ],
               [ 0.59,  0.78, -0.2 ]], dtype=float32)
        >>> mean, threshold = clip.parted(vectors.mean(axis=0), threshold=10.0)
        >>> mean.round(2), round(threshold, 3)
        (array([4.5, 6. ], dtype=float32), 10.0)
    """

    clip_norm: float
    quantile: float = 0.5
    rate: float = RATE

    def __post_init__(self) -> None:
        validate.real("quantile", self.quantile, above=0, below=1)
        validate.real("rate", self.rate, above=0, high=1)
        self._beside  # noqa: B018 - checks clip_norm

    def joined(self, updates: np.ndarray, threshold: float) -> np.ndarray:
        """On clients: from updates (n, d) to what is encoded, (n, d + 1) float32."""
        norms = [float(np.linalg.norm(update)) for update in np.asarray(updates, dtype=np.float64)]
        signs = [1.0 if norm <= threshold else -1.0 for norm in norms]
        rows = [
            self._beside.joined(update, [sign], threshold)
            for update, sign in zip(updates, signs, strict=True)
        ]
        return np.stack(rows) if rows else np.empty((0, updates.shape[1] + 1), np.float32)

    def parted(self, mean: np.ndarray, threshold: float) -> tuple[np.ndarray, float]:
        """On the server: the mean of the clipped updates, and the threshold of the next round.

        Args:
            mean: (d + 1,) float32, decoded.
            threshold: of this round.
        """
        update, (sign,) = self._beside.parted(mean, threshold)
        return update, self.moved(threshold, float(sign))

    def moved(self, threshold: float, mean: float) -> float:
        """The next threshold, from the mean of the signs; beyond [-1, 1] it is the nearer end."""
        below = (min(max(mean, -1.0), 1.0) + 1) / 2
        # theory/alongside.md, Proposition 3.
        moved = threshold * math.exp(-self.rate * (below - self.quantile))
        return min(max(moved, 1e-12), 1e12)  # far from where clipping is not defined

    @property
    def _beside(self) -> Alongside:
        return Alongside(self.clip_norm)
