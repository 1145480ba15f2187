"""The primitives of the protocol, each from a vetted library; nothing of our own."""

from __future__ import annotations

import os
from collections.abc import Mapping

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from randquant.secagg.terms import ProtocolError

SECRET_BYTES, NONCE_BYTES = 32, 12
_HALF = 16  # bytes that the library shares at a time


def agree(private: X25519PrivateKey, public: bytes, *context: bytes) -> bytes:
    """32 bytes that only the holders of the two keys know: X25519, then HKDF-SHA256."""
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("Expected another client's public key, got one of no use.") from None
    info = b"".join(len(part).to_bytes(8, "big") + part for part in context)
    return HKDF(SHA256(), SECRET_BYTES, salt=None, info=info).derive(shared)


def seal(key: bytes, message: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate, with AES-256-GCM."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, message, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Undo `seal`; ProtocolError where key, context or a bit is another."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
    except (InvalidTag, ValueError):
        raise ProtocolError("Expected a neighbour's sealed shares, got forged ones.") from None


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shamir's shares 1 to count of 32 bytes: `threshold` give it back, fewer say nothing."""
    halves = [
        Shamir.split(threshold, count, secret[at : at + _HALF], ssss=False) for at in (0, _HALF)
    ]
    return [first[1] + second[1] for first, second in zip(*halves, strict=True)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret of these shares, by their numbers: exactly `threshold` of them."""
    return b"".join(
        Shamir.combine(
            [(number, share[at : at + _HALF]) for number, share in shares.items()], ssss=False
        )
        for at in (0, _HALF)
    )
