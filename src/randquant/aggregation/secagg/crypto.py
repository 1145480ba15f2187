"""The cryptographic primitives of the protocol, all from vetted libraries."""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from randquant.aggregation.secagg import group
from randquant.aggregation.secagg.terms import ProtocolError

KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16


def derive(secret: bytes, *context: bytes) -> bytes:
    """A key of 32 bytes for one purpose: HKDF-SHA256."""
    info = b"".join(len(part).to_bytes(8, "big") + part for part in context)
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def sealing_key(private: X25519PrivateKey, public: bytes, pair: bytes) -> bytes:
    """A key that only the holders of the two private keys know: X25519, then HKDF."""
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("Expected another client's public key, got an invalid one.") from None
    return derive(shared, b"seal", pair)


def masking_key(private: int, public: bytes, pair: bytes) -> bytes:
    """The same in the group whose scalars are shared; ProtocolError if `public` is not a point."""
    return derive(group.times(private, public), b"mask", pair)


def self_masking_key(seed: int, own: bytes) -> bytes:
    """The key of the self-mask, which hides a vector even if all its pairwise masks are known."""
    return derive(group.scalar_bytes(seed), b"self", own)


def seal(key: bytes, message: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate, with AES-256-GCM."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, message, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Invert `seal`; ProtocolError if the key, the context or any bit differs."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
    except (InvalidTag, ValueError):
        raise ProtocolError("Expected a neighbour's sealed shares, got forged ones.") from None
