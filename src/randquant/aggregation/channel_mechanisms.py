"""Updates through one channel: each coordinate by itself, or whole updates of bounded norm.

A whole update is clipped in L2 and rotated first. Derivations: `docs/theory/vector.md`, for sums
`docs/theory/sums.md`, for the width of masked sums `docs/theory/narrow-sums.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from randquant._internal import validate
from randquant.aggregation.mechanism import MechanismDefaults, check_cohort_size, for_each_payload
from randquant.aggregation.rotation import ProjectedUpdates, subset_coding, subset_fields, unrotated
from randquant.channels import wire
from randquant.channels.channel import Channel, moments
from randquant.channels.encoding import encode_payload, encode_payloads
from randquant.channels.keys import Key
from randquant.privacy.accounting.release_protocol import Release
from randquant.privacy.accounting.releases import ChannelRelease, VectorRelease
from randquant.privacy.certificates.coordinate import certify, channel_record
from randquant.privacy.guarantee import Neighboring, Trust


@final
@dataclass(frozen=True, slots=True)
class ChannelMechanism(MechanismDefaults):
    """One channel applied to every coordinate; the server decodes the mean of the codes.

    Args:
        channel: the channel.
        trust: `local` (the server sees each client's codes) or `aggregate` (it sees only the sum
            of a cohort's codes, by secure aggregation).
        cohort: fewest clients in a sum (`aggregate` only); 1 relies on nobody else's randomness.

    Guarantees:
        With evenly spaced values the server uses the sum of the codes only; it is exact: n clients'
        codes stay below n · levels, far from the 2**63 where 64-bit totals would overflow. With
        uneven values a sum of codes does not decode to a mean, and each client's codes are decoded.
        `mean` is unbiased for the mean of the clipped updates when the channel is unbiased.
        Under `aggregate` trust the bound of `release` holds for any updates of the other clients,
        as long as at least `cohort` clients follow the protocol; `mean` refuses fewer payloads. It
        adds up the codes itself, as a simulation may.

    Raises:
        ValueError: trust is neither of the two, or `aggregate` with unevenly spaced values.
    """

    channel: Channel
    trust: Trust = "local"
    cohort: int = 1

    clip_norm = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        self.release(1, 1)  # checks the arguments
        if self.trust == "aggregate" and self.channel.lattice is None:
            raise ValueError(
                "Expected evenly spaced values under aggregate trust, got uneven ones, whose sum "
                "of codes does not decode to a mean: design even levels with "
                "design.optimal(..., lattice=True), or use local trust."
            )

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        return encode_payload(self.channel, vector, key, threads=1)  # clients may share a machine

    def encode_many(self, updates: np.ndarray, keys: Sequence[Key]) -> list[bytes]:
        return encode_payloads(self.channel, updates, keys)

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        # RQM paper, Algorithm 1, lines 9 and 10.
        return self.mean_of_codes(payloads, dimension, padding=0)

    def mean_of_codes(
        self,
        payloads: Sequence[bytes],
        size: int,
        padding: int,
        coding: wire.Coding | None = None,
        bits: int | None = None,
    ) -> np.ndarray:
        """Decode the mean of payloads of `size` codes, `padding` of them beyond the update.

        `coding` is what their headers state about the codes; the channel by default. Under
        `aggregate` trust it is decoded from the sum modulo 2**bits; by default `sum_bits`.
        """
        stated = coding or self.channel
        if self.channel.lattice is None:
            # Of uneven values no sum of codes can be decoded: each payload is, and then the values
            # are added.
            total = np.zeros(size, dtype=np.float64)

            def add_values(payload: bytes) -> None:
                nonlocal total
                total += self.channel.values[wire.unpack(stated, payload, size, padding)]

            for_each_payload(payloads, add_values)
            return (total / len(payloads)).astype(np.float32)
        totals = np.zeros(size, dtype=np.int64)
        for_each_payload(payloads, lambda payload: wire.add(stated, payload, totals, padding))
        return self.decode_sum(totals, len(payloads), bits or self.sum_bits(size, len(payloads)))

    def log_equal(self, dimension: int) -> float:
        return dimension * log_equal_codes(self.channel)

    def payload_bytes(self, dimension: int) -> int:
        return wire.coded(self.channel, dimension)

    def sum_bits(self, dimension: int, clients: int) -> int:
        return sum_bits(self.channel, clients, dimension)

    def decode(
        self, totals: np.ndarray, clients: int, dimension: int, bits: int | None = None
    ) -> np.ndarray:
        """Decode the mean update, (dimension,) float32, from a cohort's sum of codes.

        Raises:
            ValueError: there are too few clients, or the channel's values are not evenly spaced.
        """
        bits = self.sum_bits(dimension, clients) if bits is None else bits
        return self.decode_sum(totals, clients, bits)

    def decode_sum(self, totals: np.ndarray, clients: int, bits: int) -> np.ndarray:
        """Decode a sum of codes, under `aggregate` trust modulo 2**bits."""
        # Before anything is decoded: a sum of fewer clients has less noise than the guarantee
        # counts on.
        check_cohort_size(clients, self.cohort)
        if self.channel.lattice is None:
            raise ValueError("Expected evenly spaced values to decode a sum, got uneven ones.")
        first, step = self.channel.lattice
        if self.trust == "aggregate":
            totals = lifted(totals, bits, self.channel.levels, clients)
        return (first + step / clients * totals).astype(np.float32)

    def influence(self, dimension: int, clients: int) -> float:
        dimension = validate.whole("dimension", dimension, low=1)
        clients = validate.whole("clients", clients, low=1)
        # theory/helper-sums.md, Proposition 10: the range of the channel's values.
        reach = float(self.channel.values[-1] - self.channel.values[0])
        return reach * math.sqrt(dimension) / clients

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release:
        return ChannelRelease(self.channel, dimension, rounds, self.trust, neighboring, self.cohort)

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        return decoded_coordinate(self.channel, x)

    def audit_inputs(self, neighboring: Neighboring = "replace_one") -> tuple[float, float]:
        first, second = certify(self.channel, neighboring=neighboring).witness
        pair = _nearest_single(self.channel, first), _nearest_single(self.channel, second)
        # Under `zero_out` one of the two neighbours is the update of zeros itself.
        return (max(pair, key=abs), 0.0) if neighboring == "zero_out" else pair

    def certified(self, dimension: int) -> dict[str, Any]:
        update = unrotated("coordinates", self.channel.clip, dimension)
        return {"kind": "codes", "channel": self.channel, "update": update}

    def record(self) -> dict[str, Any]:
        return {
            "mechanism": "coordinates",
            "channel": channel_record(self.channel),
            "trust": self.trust,
            "cohort": self.cohort,
        }


def decoded_coordinate(channel: Channel, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of a decoded coordinate, given its value x before clipping.

    Args:
        channel: the channel.
        x: (k,) float64.

    Returns:
        (mean, variance), (k,) float64 each.
    """
    clipped, exact = np.clip(x, -channel.clip, channel.clip), moments(channel)
    return exact.bias_at(clipped) + clipped, exact.variance_at(clipped)


def _nearest_single(channel: Channel, x: float) -> float:
    # On the same side of a jump as the certificate's input, so that the audit attacks the row that
    # was certified. NumPy would compare x to a 32-bit float as 32-bit floats.
    single = np.float32(x)
    if x in channel.inputs:  # at a jump, its right limit
        above = float(single) < x
        return float(np.nextafter(single, np.float32(np.inf)) if above else single)
    below = float(single) > x
    return float(np.nextafter(single, np.float32(-np.inf)) if below else single)


@functools.lru_cache(maxsize=64)
def log_equal_codes(channel: Channel) -> float:
    """Bound the log of the largest probability that two independently drawn codes are equal.

    The largest sum of squared probabilities of a row (`docs/theory/encoding.md`), rounded up.

    Example:
        >>> import randquant as rq
        >>> coin = rq.stochastic_rounding(clip=0.001, levels=2, margin=1.0)
        >>> round(float(np.exp(log_equal_codes(coin))), 5)
        0.5
    """
    largest = float(np.square(channel.probabilities).sum(axis=1).max())
    # The 1e-12 pays for rounding; no probability is above 1.
    return min(math.log(largest) + 1e-12, 0.0)


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
        return sum_bits(self.channel, clients, projection.size, deviation)

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


# How narrow a masked sum may be: bits of its modulus, and the sum from its remainder. A wrong lift
# is an error of the mean, never of the guarantee.

MAX_WRAP_PROBABILITY = 1e-8
"""Largest probability that any coordinate of one round's sum wraps around: 1e-6 in a run of a
hundred rounds."""

TILTS = np.geomspace(1e-6, 300, 320)
"""Tilts of the Chernoff bound times the largest code: any are valid, so dense ones are enough."""


@functools.lru_cache(maxsize=256)
def sum_bits(channel: Channel, clients: int, size: int, deviation: float = math.inf) -> int:
    """Count the fewest bits of a sum that wraps with a probability of MAX_WRAP_PROBABILITY at most.

    Args:
        channel: what the codes are drawn from.
        clients: how many clients are in the sum, at most.
        size: coordinates of the sum.
        deviation: bound of the standard deviation of a client's input to a coordinate, over the
            signs of a rotation that updates do not depend on; infinite if nothing is known.

    Returns:
        Bits of the modulus, enough for a single code and never more than the exact sum needs.

    Guarantees:
        Fewer clients never need more bits.

    Example:
        >>> import randquant as rq
        >>> bit = rq.stochastic_rounding(clip=0.01, levels=2, margin=1.0)
        >>> sum_bits(bit, 1000, 2**17, deviation=0.003), wire.sum_bits(2, 1000)
        (8, 10)
    """
    exact = wire.sum_bits(channel.levels, clients)
    for bits in range(channel.bits, exact):
        if wrap_probability(channel, clients, size, bits, deviation) <= MAX_WRAP_PROBABILITY:
            return bits
    return exact


def wrap_probability(
    channel: Channel, clients: int, size: int, bits: int, deviation: float = math.inf
) -> float:
    """Bound the probability that a sum modulo 2**bits is lifted wrongly in some coordinate.

    Args:
        channel, clients, size, deviation: as in `sum_bits`.
        bits: of the modulus; fewer than the exact sum needs.

    Returns:
        An upper bound, at most 1.
    """
    size = validate.whole("size", size, low=1)
    tilts, slopes, heights = _tails(channel)
    # theory/narrow-sums.md, Propositions 2 and 3; the last term pays for rounding.
    with np.errstate(invalid="ignore", over="ignore"):
        moved = np.where(slopes == 0, 0.0, (clients * deviation * slopes) ** 2 / 2)
    exponents = clients * (heights + 1e-14) + moved - tilts * 2.0 ** (bits - 1)
    above, below = exponents.min(axis=(0, 2))
    # A union bound over both tails and all coordinates, which may depend on each other in any way.
    return min(size * (math.exp(min(above, 0.0)) + math.exp(min(below, 0.0))), 1.0)


def lifted(totals: np.ndarray, bits: int, levels: int, clients: int) -> np.ndarray:
    """Return the sums nearest the middle of all possible sums, from remainders modulo 2**bits.

    Args:
        totals: (d,) integers, of which only the remainders count.
        bits: of the
        levels: of the channel.
        clients: how many clients are in the sum.

    Returns:
        (d,) int64.

    Example:
        >>> lifted(np.array([500 % 256, 390 % 256]), 8, levels=2, clients=1000)
        array([500, 390])
    """
    # The mask takes remainders of negative numbers too, as integers are in two's complement.
    middle, half = (clients * (levels - 1) + 1) // 2, 1 << (bits - 1)
    return ((totals.astype(np.int64) - middle + half) & (2 * half - 1)) + (middle - half)


@functools.lru_cache(maxsize=64)
def _tails(channel: Channel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lines above log E exp(±t (code - middle)) as a function of x, for each tilt t > 0.

    Returns:
        (tilts, slopes, heights), shapes (1, 1, T), (3, 2, T) and (3, 2, T): for every input x of
        the channel the log is at most slope · x + height.
    """
    middle = (channel.levels - 1) / 2
    codes = np.arange(channel.levels) - middle
    tilts = TILTS / max(channel.levels - 1, 1)
    x, sides = channel.inputs[:, None], []
    for sign in (1, -1):
        moments = channel.probabilities @ np.exp(sign * np.outer(codes, tilts))
        logs = np.log(moments)
        inner = np.searchsorted(channel.inputs, 0.0, side="right")
        around = (max(inner - 1, 0), min(inner, len(channel.inputs) - 1))
        sloped = [np.zeros_like(tilts)]
        for left, right in ((0, -1), around):
            width = float(x[right, 0] - x[left, 0])
            sloped.append((logs[right] - logs[left]) / width if width else sloped[0])
        slopes = np.stack(sloped)
        sides.append(
            (slopes, np.stack([_line_height(x, moments, logs, slope) for slope in slopes]))
        )
    slopes, heights = (np.stack(each, axis=1) for each in zip(*sides, strict=True))
    return tilts[None, None], slopes, np.maximum(heights, 0.0)


def _line_height(
    x: np.ndarray, moments: np.ndarray, logs: np.ndarray, slope: np.ndarray
) -> np.ndarray:
    # The largest log(moment) - slope · x, (T,). The moment is linear between vertices, so that the
    # maximum is at a vertex or where the derivative is zero.
    heights = (logs - slope * x).max(axis=0)
    left, right, width = moments[:-1], moments[1:], np.diff(x, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rise = (right - left) / width  # of a cell; NaN or infinite at a jump, which has none
        top = rise / slope  # where the derivative is zero
        within = (np.minimum(left, right) < top) & (top < np.maximum(left, right))
        place = x[:-1] + (top - left) / rise
        inside = np.where(within, np.log(top) - slope * place, -np.inf)
    return np.maximum(heights, inside.max(axis=0, initial=-np.inf))
