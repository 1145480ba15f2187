"""The messages between clients, which the server relays, as bytes."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from randquant.channels.wire import Format
from randquant.secure_sums.secagg.crypto import NONCE_BYTES, SCALAR_BYTES, TAG_BYTES
from randquant.secure_sums.secagg.terms import ProtocolError, Terms

PART_BYTES, SIGNATURE_BYTES, NUMBER_BYTES = 32, 64, 8
SEALED_BYTES = NONCE_BYTES + 2 * SCALAR_BYTES + TAG_BYTES
"""Length of the two shares sealed for a neighbour."""
CONFIRMATION_BYTES = 32


@dataclass(frozen=True, slots=True)
class Advert:
    """A client's public keys in one sum.

    Attributes:
        sealing: X25519 public key, 32 bytes.
        masking, seed: public keys of its masking key and of its self-mask's seed, points of 32
            bytes: its shares are checked against them.
        signature: made with its identity, 64 bytes, or b"".
    """

    sealing: bytes
    masking: bytes
    seed: bytes
    signature: bytes = b""

    def to_bytes(self) -> bytes:
        """96 bytes, or 160 with a signature."""
        return self.sealing + self.masking + self.seed + self.signature

    @classmethod
    def from_bytes(cls, message: bytes) -> Advert:
        """Invert `to_bytes`; ProtocolError for anything else."""
        message = exactly_bytes(message)
        if len(message) not in (3 * PART_BYTES, 3 * PART_BYTES + SIGNATURE_BYTES):
            raise ProtocolError(f"Expected public keys in 96 or 160 bytes, got {len(message)}.")
        one, two, three = PART_BYTES, 2 * PART_BYTES, 3 * PART_BYTES
        return cls(message[:one], message[one:two], message[two:three], message[three:])

    def signed(self, terms: Terms, client: int) -> bytes:
        """The bytes that a client's identity signs."""
        keys = self.sealing + self.masking + self.seed
        return b"randquant secure sum keys" + context(terms, client, client) + keys

    def check_signed(
        self, terms: Terms, client: int, directory: Mapping[int, bytes] | None
    ) -> None:
        """Raise ProtocolError unless the client's identity in the directory signed this advert."""
        if directory is None:
            return
        try:
            public = Ed25519PublicKey.from_public_bytes(directory[client])
            public.verify(self.signature, self.signed(terms, client))
        except (KeyError, ValueError, InvalidSignature):
            raise ProtocolError(f"Expected keys signed by client {client}, got others.") from None


def context(terms: Terms, first: int, second: int) -> bytes:
    """Domain separation of a message or key: this sum, from the first client to the second."""
    return terms.digest + _number(first) + _number(second)


def pair_context(terms: Terms, adverts: Mapping[int, Advert]) -> bytes:
    """Context of two clients' keys: they agree only if both have seen the same two adverts."""
    first, second = sorted(adverts)
    return context(terms, first, second) + view_digest(terms, adverts)


def view_digest(terms: Terms, adverts: Mapping[int, Advert]) -> bytes:
    """SHA-256 of a set of adverts, 32 bytes."""
    seen = hashlib.sha256(b"adverts" + terms.digest)
    for client in sorted(adverts):
        seen.update(_number(client) + hashlib.sha256(adverts[client].to_bytes()).digest())
    return seen.digest()


def survivors_digest(terms: Terms, survivors: Collection[int]) -> bytes:
    """SHA-256 of a set of survivors, 32 bytes."""
    numbers = b"".join(map(_number, sorted(survivors)))
    return hashlib.sha256(b"survivors" + terms.digest + numbers).digest()


def confirmation(key: bytes, sender: int, digest: bytes) -> bytes:
    """A client's confirmation of the survivors to one neighbour: HMAC-SHA256 under their key."""
    return hmac.digest(key, b"confirm" + _number(sender) + digest, "sha256")


def masked_format(terms: Terms, client: int) -> Format:
    """Wire format of one client's masked vector in this sum."""
    return Format.of(2**terms.bits, "masked", terms.digest.hex(), str(client))


def accusation(clients: Collection[int]) -> bytes:
    """The numbers of clients with invalid shares, as appended to a masked vector."""
    return b"".join(map(_number, sorted(clients)))


def read_accusation(message: bytes) -> frozenset[int]:
    """Invert `accusation`; ProtocolError for anything else."""
    parts = [message[at : at + NUMBER_BYTES] for at in range(0, len(message), NUMBER_BYTES)]
    clients = frozenset(int.from_bytes(part, "big") for part in parts)
    if accusation(clients) != message:
        raise ProtocolError("Expected numbers of clients after a masked vector, got others.")
    return clients


def exactly_bytes(message: object) -> bytes:
    """The message; ProtocolError if it is of another type."""
    if not isinstance(message, bytes):
        raise ProtocolError(f"Expected a message in bytes, got {type(message).__name__}.")
    return message


def check_inbox(inbox: object, others: Collection[int], *sizes: int) -> None:
    """Raise ProtocolError unless this is one message at most for each of these clients.

    Args:
        inbox: what a client sent.
        others: to whom it may send something.
        sizes: the lengths that a message may have.
    """
    if not isinstance(inbox, Mapping) or not inbox.keys() <= frozenset(others):  # compares lengths
        raise ProtocolError("Expected one message at most for each neighbour, got something else.")
    for message in inbox.values():
        if len(exactly_bytes(message)) not in sizes:
            raise ProtocolError(
                f"Expected messages of {' or '.join(map(str, sizes))} bytes, got {len(message)}."
            )


def _number(client: int) -> bytes:
    return client.to_bytes(NUMBER_BYTES, "big")
