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
CONFIRMATION_BYTES = 32  # of HMAC-SHA256


@dataclass(frozen=True, slots=True)
class Advert:
    """A client's public keys in one sum.

    Attributes:
        sealing: X25519 public key, 32 bytes.
        masking, seed: public keys of its masking key and of its self-mask's seed, points of 32
            bytes: its shares are checked against them.
        signature: of these keys, by its identity, 64 bytes, or b"".
    """

    sealing: bytes
    masking: bytes
    seed: bytes
    signature: bytes = b""

    def to_bytes(self) -> bytes:
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
        """Return the bytes that a client's identity signs."""
        # With the sum's digest, so that a signature is worth nothing in another sum: a server could
        # otherwise present a client's old keys, whose secrets it may have learnt.
        keys = self.sealing + self.masking + self.seed
        return b"randquant secure sum keys" + context(terms, client, client) + keys

    def check_signed(
        self, terms: Terms, client: int, directory: Mapping[int, bytes] | None
    ) -> None:
        """Raise ProtocolError unless the client's identity in the directory signed this advert."""
        # Without a directory nobody knows who should have signed: see `Client`.
        if directory is None:
            return
        try:
            public = Ed25519PublicKey.from_public_bytes(directory[client])
            public.verify(self.signature, self.signed(terms, client))
        except KeyError:
            raise ProtocolError(
                f"Expected keys signed by client {client}, which the directory does not have."
            ) from None
        except (ValueError, InvalidSignature):
            size = len(self.signature)
            raise ProtocolError(
                f"Expected keys signed by client {client}, got "
                f"{f'a signature of {size} bytes that is not its' if size else 'no signature'}."
            ) from None


def context(terms: Terms, first: int, second: int) -> bytes:
    """Return the context of a message or key: this sum, from the first client to the second.

    What was sealed, signed or hashed under one context is invalid under any other.
    """
    return terms.digest + _number(first) + _number(second)


def pair_context(terms: Terms, adverts: Mapping[int, Advert]) -> bytes:
    """Return the context of two clients' keys.

    The keys agree only if both clients have seen the same two adverts: a man in the middle, who
    shows each of them a key of its own, finds that nothing unseals.
    """
    first, second = sorted(adverts)
    return context(terms, first, second) + view_digest(terms, adverts)


def view_digest(terms: Terms, adverts: Mapping[int, Advert]) -> bytes:
    """Return the SHA-256 of a set of adverts, 32 bytes."""
    hasher = hashlib.sha256(b"adverts" + terms.digest)
    for client in sorted(adverts):
        # Each advert is hashed by itself: it has two lengths, with and without a signature.
        hasher.update(_number(client) + hashlib.sha256(adverts[client].to_bytes()).digest())
    return hasher.digest()


def survivors_digest(terms: Terms, survivors: Collection[int]) -> bytes:
    """Return the SHA-256 of a set of survivors, 32 bytes."""
    numbers = b"".join(map(_number, sorted(survivors)))
    return hashlib.sha256(b"survivors" + terms.digest + numbers).digest()


def confirmation(key: bytes, sender: int, digest: bytes) -> bytes:
    # Under the key of the two clients, so that the server cannot forge one; and with the sender's
    # number, so that the server cannot send a client's own confirmation back to it.
    return hmac.digest(key, b"confirm" + _number(sender) + digest, "sha256")


def masked_format(terms: Terms, client: int) -> Format:
    # Sum and client are in the format's digest: a vector of another sum or client does not unpack.
    return Format.of(2**terms.bits, "masked", terms.digest.hex(), str(client))


def accusation(clients: Collection[int]) -> bytes:
    # The end of a client's upload: the neighbours whose shares are invalid.
    return b"".join(map(_number, sorted(clients)))


def read_accusation(message: bytes) -> frozenset[int]:
    """Invert `accusation`; ProtocolError for anything else."""
    # Encoded again and compared: no number twice, none out of order, no bytes left.
    parts = [message[at : at + NUMBER_BYTES] for at in range(0, len(message), NUMBER_BYTES)]
    clients = frozenset(int.from_bytes(part, "big") for part in parts)
    if accusation(clients) != message:
        raise ProtocolError(
            "Expected numbers of clients in ascending order after a masked vector, got "
            f"{len(message)} bytes that are not: {message[:16].hex()}."
        )
    return clients


def exactly_bytes(message: object) -> bytes:
    """Return the message; ProtocolError if it is of another type."""
    if not isinstance(message, bytes):
        raise ProtocolError(f"Expected a message in bytes, got {type(message).__name__}.")
    return message


def check_inbox(inbox: object, others: Collection[int], *sizes: int) -> None:
    """Raise ProtocolError unless this is one message at most for each of these clients.

    Args:
        inbox: the messages that a client sent, by receiver.
        others: the clients that it may send one to.
        sizes: the lengths that a message may have, in bytes.
    """
    if not isinstance(inbox, Mapping):
        raise ProtocolError(
            f"Expected one message at most for each neighbour, got {type(inbox).__name__}."
        )
    if not inbox.keys() <= frozenset(others):  # compares lengths first: a huge inbox costs nothing
        raise ProtocolError(
            f"Expected one message at most for each of {len(others)} neighbours, got {len(inbox)}, "
            "not all of them for neighbours."
        )
    for message in inbox.values():
        if len(exactly_bytes(message)) not in sizes:
            raise ProtocolError(
                f"Expected messages of {' or '.join(map(str, sizes))} bytes, got {len(message)}."
            )


def _number(client: int) -> bytes:
    return client.to_bytes(NUMBER_BYTES, "big")
