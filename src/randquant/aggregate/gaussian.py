"""The baselines that upload floats: without privacy, and with a trusted server's Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from randquant import _validate
from randquant.account import GaussianRelease, Release
from randquant.aggregate.payloads import finite, mean_of_floats
from randquant.keys import Key


@dataclass(frozen=True, slots=True)
class ClippedSGD:
    """No privacy: clipped updates as 32-bit floats. The baseline that shows what privacy costs."""

    clip: float

    def __post_init__(self) -> None:
        _validate.real("clip", self.clip, above=0)

    def encode(self, update: np.ndarray, key: Key) -> bytes:
        """The clipped update, 4 bytes a coordinate."""
        limit = np.float32(self.clip)
        if float(limit) > self.clip:  # rounded up: what is sent must not exceed clip
            limit = np.nextafter(limit, np.float32(0))
        return np.clip(finite(update), -limit, limit).astype("<f4").tobytes()

    def mean(self, payloads: Sequence[bytes], dimension: int, key: Key) -> np.ndarray:
        """The mean of the clipped updates."""
        return mean_of_floats(payloads, dimension).astype(np.float32)

    def release(self, dimension: int, rounds: int) -> None:
        """Nothing is promised."""


@dataclass(frozen=True, slots=True)
class CentralGaussian:
    """A trusted server adds Gaussian noise to the exact sum of clipped updates.

    Args:
        clip: per-coordinate clipping threshold.
        noise_multiplier: standard deviation of the noise on the sum, over the L2 distance
            2 · clip · sqrt(dimension) between sums that differ in one client.

    The noise is sampled in floating point: fit for comparison, not for deployment.
    """

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        _validate.real("clip", self.clip, above=0)
        _validate.real("noise_multiplier", self.noise_multiplier, low=1e-100, high=1e100)

    def encode(self, update: np.ndarray, key: Key) -> bytes:
        """The clipped update, 4 bytes a coordinate: the server is trusted with it."""
        return ClippedSGD(self.clip).encode(update, key)

    def mean(self, payloads: Sequence[bytes], dimension: int, key: Key) -> np.ndarray:
        """The mean of the clipped updates plus noise drawn with the server's key."""
        mean = mean_of_floats(payloads, dimension)
        deviation = self.noise_multiplier * 2 * self.clip * math.sqrt(dimension) / len(payloads)
        generator = np.random.Generator(np.random.Philox(key=key.fold_in("noise").words(2)))
        return (mean + deviation * generator.standard_normal(dimension)).astype(np.float32)

    def release(self, dimension: int, rounds: int) -> Release:
        """One Gaussian release a round."""
        return GaussianRelease(self.noise_multiplier, dimension, rounds)
