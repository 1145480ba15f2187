"""Mechanisms for whole updates: what a client uploads, and what the server makes of the uploads.

Training and deployment see only `UpdateMechanism`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from randquant.aggregate.additive import AdditiveMechanism
from randquant.aggregate.channel import ChannelMechanism
from randquant.aggregate.gaussian import (
    CentralGaussian,
    ClippedSGD,
    LocalGaussian,
    SignSGD,
)
from randquant.aggregate.registry import all_mechanisms, update_mechanism
from randquant.aggregate.vector import VectorMechanism
from randquant.encode import encode_payloads
from randquant.keys import Key
from randquant.privacy import Neighboring, Trust
from randquant.releases import Release


class UpdateMechanism(Protocol):
    """How a cohort's updates become bytes and those bytes a mean."""

    @property
    def trust(self) -> Trust | None:
        """Against whom it protects; None where nothing is protected."""
        ...

    def encode(self, update: np.ndarray, key: Key) -> bytes:
        """On a client: an update (d,) float32 to a payload, with a key of its own."""
        ...

    def mean(self, payloads: Sequence[bytes], dimension: int, key: Key) -> np.ndarray:
        """On the server: payloads to an estimate of the clipped updates' mean, (d,) float32."""
        ...

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release | None:
        """The record that accounting needs; None where nothing is protected."""
        ...

    def upload_bytes(self, dimension: int, clients: int | None = None) -> int:
        """Bytes that a client sends for one update, header and padding included.

        Under `aggregate` trust that is a vector masked for a sum over `clients`, or over the cohort
        that the guarantee counts on; what a secure sum sends besides is not included.
        """
        ...


def encode_each(
    mechanism: UpdateMechanism, updates: np.ndarray, keys: Sequence[Key]
) -> list[bytes]:
    """What clients that are simulated side by side send: the payload of each row of updates (n, d).

    Guarantees:
        Payload i is mechanism.encode(updates[i], keys[i]).
    """
    if type(mechanism) is ChannelMechanism:  # one that is derived may encode in its own way
        return encode_payloads(mechanism.channel, updates, keys)
    return [mechanism.encode(update, key) for update, key in zip(updates, keys, strict=True)]


__all__ = [
    "AdditiveMechanism",
    "CentralGaussian",
    "ChannelMechanism",
    "ClippedSGD",
    "LocalGaussian",
    "SignSGD",
    "UpdateMechanism",
    "VectorMechanism",
    "all_mechanisms",
    "encode_each",
    "update_mechanism",
]
