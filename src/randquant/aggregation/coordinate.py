"""One channel applied to every coordinate of an update."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from randquant._internal import validate
from randquant.aggregation import modulus
from randquant.aggregation.defaults import MechanismDefaults, check_cohort_size, for_each_payload
from randquant.aggregation.rotation import unrotated
from randquant.channels import wire
from randquant.channels.channel import Channel, moments
from randquant.channels.encoding import encode_payload, encode_payloads
from randquant.channels.keys import Key
from randquant.privacy.accounting.release import Release
from randquant.privacy.accounting.releases import ChannelRelease
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
        return modulus.sum_bits(self.channel, clients, dimension)

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
        check_cohort_size(clients, self.cohort)
        if self.channel.lattice is None:
            raise ValueError("Expected evenly spaced values to decode a sum, got uneven ones.")
        first, step = self.channel.lattice
        if self.trust == "aggregate":
            totals = modulus.lifted(totals, bits, self.channel.levels, clients)
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
    return min(math.log(largest) + 1e-12, 0.0)
