"""Whole updates of bounded norm through one channel: clip the norm, rotate, encode each coordinate.

Derivations: `docs/theory/vector.md`, for sums `docs/theory/sums.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from randquant._internal import validate
from randquant.aggregation import modulus
from randquant.aggregation.coordinate import ChannelMechanism, decoded_coordinate
from randquant.aggregation.defaults import MechanismDefaults, ProjectedUpdates
from randquant.aggregation.rotation import subset_coding, subset_fields
from randquant.channels import wire
from randquant.channels.channel import Channel
from randquant.channels.encoding import encode_payload
from randquant.channels.keys import Key
from randquant.privacy.accounting.release import Release
from randquant.privacy.accounting.releases import VectorRelease
from randquant.privacy.certificates.coordinate import channel_record
from randquant.privacy.guarantee import Neighboring, Trust


@final
@dataclass(frozen=True, slots=True)
class VectorMechanism(ProjectedUpdates, MechanismDefaults):
    """One channel on every coordinate of an update whose norm is clipped first.

    Args:
        channel: the channel; its `clip` is the clipping threshold of a coordinate after rotation.
        clip_norm: clipping threshold of a whole update's norm, within [1e-30, 1e30].
        trust: `local`, or `aggregate`: the server sees only the sum of a cohort's codes.
        cohort: n, fewest clients in a sum; under `aggregate` trust their randomness protects each
            of them. 1 relies on nobody else's.
        rotation_seed: public, the same for all clients and the server.
        coordinates: k, how many coordinates of a rotated update are sent (`l2` only): a public
            random subset, another one in each round. None for all of them.
        subset_seed: public seed of the round's subset, see `in_round`; None before the first round.

    Guarantees:
        The bound of `release` holds for what is sent. Under `aggregate` trust it holds against a
        server that sees the sum of the codes of at least `cohort` clients who follow the protocol,
        for any updates of the others; `mean` then refuses fewer payloads. It adds up the codes
        itself, as a simulation may; a deployment must use secure aggregation instead.
        If the channel is unbiased, `mean` is unbiased for the mean of the updates after clipping
        the norm, rotation and clipping to `channel.clip`. A coordinate of a rotated update is
        approximately normal with a standard deviation of at most clip_norm / sqrt(size): 6e-5 of
        the coordinates lie beyond 4 standard deviations.
        With `coordinates` the bound holds for every subset, also for one that an attacker chose:
        what is kept of an update is clipped again, to clip_norm · sqrt(k/D), D the coordinates of
        a rotated update. Over random subsets `mean` is then unbiased for updates that this leaves
        as they are, and payloads of different subsets are refused (`docs/theory/subsets.md`).

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
        >>> some = VectorMechanism(channel, clip_norm=1.0, coordinates=3)
        >>> some.in_round(seed=7).encode(update, root) == some.in_round(seed=8).encode(update, root)
        False
    """

    channel: Channel
    clip_norm: float
    trust: Trust = "local"
    cohort: int = 1
    rotation_seed: int = 0
    coordinates: int | None = None
    subset_seed: int | None = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        self._check_projection()
        VectorRelease(  # checks the rest
            self.channel, self.clip_norm, 1, 1, self.trust, cohort=self.cohort
        )
        ChannelMechanism(self.channel, self.trust, self.cohort)  # checks that sums decode

    @property
    def _coordinates(self) -> ChannelMechanism:
        return ChannelMechanism(self.channel, self.trust, self.cohort)

    @property
    def coding(self) -> wire.Coding:
        return subset_coding(self.channel, self.coordinates, self.subset_seed)

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        """Clip the norm, rotate, restrict, clip coordinates, draw codes, pack: the payload."""
        projection = self.projection(vector.size)
        coordinates = projection.forward(vector)
        # Clients may share a machine: one thread each.
        return encode_payload(
            self.channel, coordinates, key, threads=1, padding=coordinates.size - vector.size,
            coding=self.coding,
        )  # fmt: skip

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        """Decode the mean of the codes and rotate it back."""
        size, bits = self.size(dimension), self.sum_bits(dimension, len(payloads))
        padding = size - dimension
        mean = self._coordinates.mean_of_codes(payloads, size, padding, self.coding, bits)
        return self._back(mean, dimension)

    def log_equal(self, dimension: int) -> float:
        return self._coordinates.log_equal(self.size(dimension))

    def payload_bytes(self, dimension: int) -> int:
        return self._coordinates.payload_bytes(self.size(dimension))

    def sum_bits(self, dimension: int, clients: int) -> int:
        """Return the fewest bits within MAX_WRAP_PROBABILITY, if updates ignore the rotation."""
        projection = self.projection(dimension)
        # theory/narrow-sums.md, Proposition 3: of a coordinate before a subset is clipped again.
        deviation = self.clip_norm / math.sqrt(projection.rotated)
        return modulus.sum_bits(self.channel, clients, projection.size, deviation)

    def decode(
        self, totals: np.ndarray, clients: int, dimension: int, bits: int | None = None
    ) -> np.ndarray:
        """Decode as `ChannelMechanism.decode` does, then rotate back."""
        bits = self.sum_bits(dimension, clients) if bits is None else bits
        return self._back(self._coordinates.decode_sum(totals, clients, bits), dimension)

    def influence(self, dimension: int, clients: int) -> float:
        projection = self.projection(dimension)
        # A rotation keeps lengths, a subset is scaled up: theory/helper-sums.md, Proposition 10.
        scale = projection.rotated / projection.size
        return scale * self._coordinates.influence(projection.size, clients)

    def _back(self, mean: np.ndarray, dimension: int) -> np.ndarray:
        return self.projection(dimension).inverse(mean).astype(np.float32)

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> VectorRelease:
        """Return one vector in each round that the client takes part in, padding included."""
        projection = self.projection(dimension)
        # theory/subsets.md, Proposition 2: for every subset.
        return VectorRelease(
            self.channel, projection.norm_sent, projection.size, rounds, self.trust, neighboring,
            self.cohort, whole_norm=None if self.coordinates is None else self.clip_norm,
        )  # fmt: skip

    def example_release(
        self, dimension: int, rounds: int, neighboring: Neighboring, examples: int
    ) -> Release:
        return replace(self.release(dimension, rounds, neighboring), examples=examples)

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        return decoded_coordinate(self.channel, x)

    def certified(self, dimension: int) -> dict[str, Any]:
        update = self.projection(dimension).certified
        return {"kind": "codes", "channel": self.channel, "update": update}

    def record(self) -> dict[str, Any]:
        return {
            "mechanism": "vector",
            "channel": channel_record(self.channel),
            "clip_norm": self.clip_norm,
            "trust": self.trust,
            "cohort": self.cohort,
            "rotation_seed": self.rotation_seed,
            **subset_fields(self.coordinates, self.subset_seed),
        }
