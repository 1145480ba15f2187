"""What travels between clients by way of the server, as bytes."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass

from randquant.secagg.terms import ProtocolError, Terms
from randquant.wire import Format

PART_BYTES, SIGNATURE_BYTES = 32, 64


@dataclass(frozen=True, slots=True)
class Advert:
    """What a client shows of itself in one sum.

    Attributes:
        sealing, masking: X25519 public keys, 32 bytes each.
        commitment: SHA-256 of the seed of its own mask, by which wrong shares are found.
        signature: its identity's, 64 bytes, or b"".
    """

    sealing: bytes
    masking: bytes
    commitment: bytes
    signature: bytes = b""

    def to_bytes(self) -> bytes:
        """96 bytes, or 160 with a signature."""
        return self.sealing + self.masking + self.commitment + self.signature

    @classmethod
    def from_bytes(cls, message: bytes) -> Advert:
        """Undo `to_bytes`; ProtocolError for anything else."""
        message = exactly_bytes(message)
        if len(message) not in (3 * PART_BYTES, 3 * PART_BYTES + SIGNATURE_BYTES):
            raise ProtocolError(f"Expected public keys in 96 or 160 bytes, got {len(message)}.")
        one, two, three = PART_BYTES, 2 * PART_BYTES, 3 * PART_BYTES
        return cls(message[:one], message[one:two], message[two:three], message[three:])

    def signed(self, terms: Terms, client: int) -> bytes:
        """What a client's identity signs."""
        keys = self.sealing + self.masking + self.commitment
        return b"randquant secure sum keys" + context(terms, client, client) + keys


def commitment(seed: bytes) -> bytes:
    """32 bytes that fit one seed, and say nothing about it."""
    return hashlib.sha256(b"randquant seed" + seed).digest()


def context(terms: Terms, first: int, second: int) -> bytes:
    """What a message or key is for: this sum, from the first client to the second."""
    return terms.digest + first.to_bytes(8, "big") + second.to_bytes(8, "big")


def survivors_digest(terms: Terms, survivors: Collection[int]) -> bytes:
    """32 bytes that differ for any two sets of survivors."""
    numbers = b"".join(client.to_bytes(8, "big") for client in sorted(survivors))
    return hashlib.sha256(b"survivors" + terms.digest + numbers).digest()


def confirmation(key: bytes, sender: int, digest: bytes) -> bytes:
    """A client's word for a set of survivors, to one neighbour: HMAC-SHA256 under their key."""
    return hmac.digest(key, b"confirm" + sender.to_bytes(8, "big") + digest, "sha256")


def masked_format(terms: Terms, client: int) -> Format:
    """Coding of one client's masked vector in this sum."""
    return Format.of(2**terms.bits, "masked", terms.digest.hex(), str(client))


def exactly_bytes(message: object) -> bytes:
    """The message; ProtocolError where it is of another kind."""
    if not isinstance(message, bytes):
        raise ProtocolError(f"Expected a message in bytes, got {type(message).__name__}.")
    return message
