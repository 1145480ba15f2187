"""Mechanisms for whole updates: what a client uploads, and what the server makes of the uploads.

Training and deployment see only `UpdateMechanism`. `ChannelMechanism` protects; `ClippedSGD` and
`CentralGaussian` are the baselines it is compared with, in the same loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from randquant import _validate, wire
from randquant.account import ChannelRelease, GaussianRelease, Release
from randquant.channel import Channel
from randquant.encode import encode_payload
from randquant.keys import Key
from randquant.mechanisms import MECHANISMS, build


class UpdateMechanism(Protocol):
    """How a cohort's updates become bytes and those bytes a mean."""

    def encode(self, update: np.ndarray, key: Key) -> bytes:
        """On a client: an update (d,) float32 to a payload, with a key of its own."""
        ...

    def mean(self, payloads: Sequence[bytes], dimension: int, key: Key) -> np.ndarray:
        """On the server: payloads to the mean of the clipped updates, (d,) float32, unbiased."""
        ...

    def release(self, dimension: int, rounds: int) -> Release | None:
        """The record that accounting needs; None where nothing is protected."""
        ...


@dataclass(frozen=True, slots=True)
class ChannelMechanism:
    """One channel applied to every coordinate; the server decodes the mean of the codes.

    Guarantees:
        With evenly spaced values the server uses the sum of the codes only; it is exact: n clients'
        codes stay below n · levels, far from the 2**63 where 64-bit totals would overflow. With
        uneven values a sum of codes means nothing, and each client's codes are decoded.
        `mean` is unbiased for the mean of the clipped updates when the channel is unbiased.
    """

    channel: Channel

    def encode(self, update: np.ndarray, key: Key) -> bytes:
        """Clip, draw codes, pack: the client's payload."""
        return encode_payload(self.channel, update, key, threads=1)  # clients may share a machine

    def mean(self, payloads: Sequence[bytes], dimension: int, key: Key) -> np.ndarray:
        """Sum the payloads' codes and decode (RQM paper, Algorithm 1, lines 9 and 10)."""
        if self.channel.lattice is None:
            total = np.zeros(dimension, dtype=np.float64)
            for payload in _some(payloads):
                total += self.channel.values[wire.unpack(self.channel, payload, dimension)]
            return (total / len(payloads)).astype(np.float32)
        first, step = self.channel.lattice
        totals = np.zeros(dimension, dtype=np.int64)
        for payload in _some(payloads):
            wire.add(self.channel, payload, totals)
        return (first + step / len(payloads) * totals).astype(np.float32)

    def release(self, dimension: int, rounds: int) -> Release:
        """Every coordinate of every round that the client takes part in."""
        return ChannelRelease(self.channel, dimension, rounds)


@dataclass(frozen=True, slots=True)
class ClippedSGD:
    """No privacy: clipped updates as 32-bit floats. The baseline that shows what privacy costs."""

    clip: float

    def __post_init__(self) -> None:
        _validate.real("clip", self.clip, above=0)

    def encode(self, update: np.ndarray, key: Key) -> bytes:
        """The clipped update, 4 bytes a coordinate."""
        bad = np.flatnonzero(~np.isfinite(update))
        if bad.size:
            raise ValueError(
                f"Expected finite values to send, got {update[bad[0]]} at index [{bad[0]}]: "
                "drop or repair this update."
            )
        limit = np.float32(self.clip)
        if float(limit) > self.clip:  # rounded up: what is sent must not exceed clip
            limit = np.nextafter(limit, np.float32(0))
        return np.clip(update, -limit, limit).astype("<f4").tobytes()

    def mean(self, payloads: Sequence[bytes], dimension: int, key: Key) -> np.ndarray:
        """The mean of the clipped updates."""
        return _mean(payloads, dimension).astype(np.float32)

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
        mean = _mean(payloads, dimension)
        deviation = self.noise_multiplier * 2 * self.clip * math.sqrt(dimension) / len(payloads)
        generator = np.random.Generator(np.random.Philox(key=key.fold_in("noise").words(2)))
        return (mean + deviation * generator.standard_normal(dimension)).astype(np.float32)

    def release(self, dimension: int, rounds: int) -> Release:
        """One Gaussian release a round."""
        return GaussianRelease(self.noise_multiplier, dimension, rounds)


BASELINES = {"clipped-sgd": ClippedSGD, "gaussian": CentralGaussian}
"""Mechanisms for whole updates that are no channel, by the name that commands and records use."""


def update_mechanism(name: str, parameters: Mapping[str, Any]) -> UpdateMechanism:
    """Build a mechanism for whole updates from its name and parameters.

    Raises:
        ValueError: the name is unknown, or a parameter is missing, unknown or out of bounds.
    """
    _validate.choice("mechanism", name, [*MECHANISMS, *BASELINES])
    if name in MECHANISMS:
        return ChannelMechanism(build(name, parameters))
    return _validate.call(name, BASELINES[name], parameters)


def _mean(payloads: Sequence[bytes], dimension: int) -> np.ndarray:
    """Mean of payloads of 32-bit floats, (dimension,) float64."""
    total = np.zeros(dimension, dtype=np.float64)
    for payload in _some(payloads):
        if len(payload) != 4 * dimension:
            raise ValueError(f"Expected a payload of {4 * dimension} bytes, got {len(payload)}.")
        total += np.frombuffer(payload, dtype="<f4")
    return total / len(payloads)


def _some(payloads: Sequence[bytes]) -> Sequence[bytes]:
    if not payloads:
        raise ValueError("Expected at least one payload to aggregate, got none.")
    return payloads
