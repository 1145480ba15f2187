"""Whole updates of bounded norm through one channel: clip the norm, rotate, encode each coordinate.

Derivations: `docs/theory/vector.md`, for sums `docs/theory/sums.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from randquant._internal import validate
from randquant.aggregation import modulus
from randquant.aggregation.clipping import clip_to_norm
from randquant.aggregation.coordinate import ChannelMechanism, decoded_coordinate
from randquant.aggregation.error import CoordinateError
from randquant.aggregation.mechanism import MechanismDefaults, error_of, no_error
from randquant.aggregation.rotation import Rotation
from randquant.channels.channel import Channel
from randquant.channels.encoding.codec import encode_payload
from randquant.channels.keys import Key
from randquant.channels.wire import upload
from randquant.privacy.accounting.release import Release
from randquant.privacy.accounting.releases import Norm, VectorRelease
from randquant.privacy.certificates.file import channel_record
from randquant.privacy.guarantee import Neighboring, Trust


@final
@dataclass(frozen=True, slots=True)
class VectorMechanism(MechanismDefaults):
    """One channel on every coordinate of an update whose norm is clipped first.

    Args:
        channel: the channel; its `clip` is the clipping threshold of a coordinate after rotation.
        clip_norm: clipping threshold of a whole update's norm, within [1e-30, 1e30].
        trust: `local`, or `aggregate`: the server sees only the sum of a cohort's codes.
        cohort: n, fewest clients in a sum; under `aggregate` trust their randomness protects each
            of them. 1 relies on nobody else's.
        norm: `l2`, or `l1`: updates are then not rotated, since a rotation changes the L1 norm.
        rotation_seed: public, the same for all clients and the server.

    Guarantees:
        The bound of `release` holds for what is sent. Under `aggregate` trust it holds against a
        server that sees the sum of the codes of at least `cohort` clients who follow the protocol,
        for any updates of the others; `mean` then refuses fewer payloads. It adds up the codes
        itself, as a simulation may; a deployment must use secure aggregation instead.
        If the channel is unbiased, `mean` is unbiased for the mean of the updates after clipping
        the norm, rotation and clipping to `channel.clip`. A coordinate of a rotated update is
        approximately normal with a standard deviation of at most clip_norm / sqrt(size): 6e-5 of
        the coordinates lie beyond 4 standard deviations.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind, or trust is
            `aggregate` and the channel's values are not evenly spaced.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=0.5, levels=2, margin=0.5)
        >>> mechanism = VectorMechanism(channel, clip_norm=1.0, trust="aggregate", cohort=2)
        >>> update, root = np.full(5, 0.1, dtype=np.float32), Key.from_seed(0)
        >>> payloads = [mechanism.encode(update, root.fold_in(client)) for client in range(2)]
        >>> mechanism.mean(payloads).shape, mechanism.release(5, 1).trust
        ((5,), 'aggregate')
    """

    channel: Channel
    clip_norm: float
    trust: Trust = "local"
    cohort: int = 1
    norm: Norm = "l2"
    rotation_seed: int = 0

    def __post_init__(self) -> None:
        validate.whole("rotation_seed", self.rotation_seed, low=0, high=2**64 - 1)
        validate.choice("norm", self.norm, ("l2", "l1"))
        self.release(1, 1)  # checks the rest
        self._coordinates  # noqa: B018

    @property
    def _coordinates(self) -> ChannelMechanism:
        return ChannelMechanism(self.channel, self.trust, self.cohort)

    def rotation(self, dimension: int) -> Rotation | None:
        """The rotation of updates of this dimension; None if they are not rotated."""
        return Rotation(dimension, self.rotation_seed) if self.norm == "l2" else None

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        """Clip the norm, rotate, clip coordinates, draw codes, pack: the client's payload."""
        clipped = clip_to_norm(vector, self.clip_norm, self.norm)
        rotation = self.rotation(vector.size)
        sent = clipped if rotation is None else rotation.forward(clipped)
        padding = sent.size - vector.size
        # Clients may share a machine: one thread each.
        return encode_payload(self.channel, sent, key, threads=1, padding=padding)

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        """Decode the mean of the codes and rotate it back."""
        size, bits = self.size(dimension), self.sum_bits(dimension, len(payloads))
        mean = self._coordinates.mean_of_codes(payloads, size, size - dimension, bits)
        return self._back(mean, dimension)

    def dimension_of(self, payload: bytes) -> int:
        """As its header states, padding not counted."""
        return self._coordinates.dimension_of(payload)

    def log_equal(self, dimension: int) -> float:
        """As often as all codes are equal."""
        return self._coordinates.log_equal(self.size(dimension))

    def payload_bytes(self, dimension: int) -> int:
        """Packed codes, those of the padding included."""
        return self._coordinates.payload_bytes(self.size(dimension))

    def upload_bytes(self, dimension: int, clients: int | None = None) -> int:
        """Packed codes; under `aggregate` trust a vector masked for a sum over `clients`."""
        if self.trust == "local":
            return self.payload_bytes(dimension)
        bits = self.sum_bits(dimension, self.cohort if clients is None else clients)
        return upload.masked(self.size(dimension), bits)

    def sum_bits(self, dimension: int, clients: int) -> int:
        """As few as `modulus.WRAP` allows for updates that do not depend on the rotation."""
        size, rotation = self.size(dimension), self.rotation(dimension)
        deviation = math.inf if rotation is None else self.clip_norm / math.sqrt(rotation.size)
        return modulus.sum_bits(self.channel, clients, size, deviation)

    def size(self, dimension: int) -> int:
        """How many codes an update of this dimension is sent as, padding included."""
        rotation = self.rotation(dimension)
        return dimension if rotation is None else rotation.size

    def decode(self, totals: np.ndarray, clients: int, dimension: int) -> np.ndarray:
        """As `ChannelMechanism.decode`, rotated back."""
        bits = self.sum_bits(dimension, clients)
        return self._back(self._coordinates.decode_sum(totals, clients, bits), dimension)

    def _back(self, mean: np.ndarray, dimension: int) -> np.ndarray:
        rotation = self.rotation(dimension)
        return mean if rotation is None else rotation.inverse(mean).astype(np.float32)

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release:
        """One vector in each round that the client takes part in, padding included."""
        return VectorRelease(
            self.channel, self.clip_norm, self.size(dimension), rounds, self.trust, neighboring,
            self.cohort, self.norm,
        )  # fmt: skip

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """The channel's mean and variance at the clipped coordinates after rotation."""
        return decoded_coordinate(self.channel, x)

    def expected_error(self, dimension: int) -> CoordinateError:
        """As `UpdateMechanism.expected_error`; unknown in L1, where updates are not rotated."""
        if self.norm != "l2":
            raise no_error(self)
        return error_of(self, dimension)

    def record(self) -> dict[str, Any]:
        """The channel with its certificate, and all other arguments."""
        return {
            "mechanism": "vector",
            "channel": channel_record(self.channel),
            "clip_norm": self.clip_norm,
            "trust": self.trust,
            "cohort": self.cohort,
            "norm": self.norm,
            "rotation_seed": self.rotation_seed,
        }
