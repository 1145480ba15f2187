"""The cryptographic primitives of the protocol, all from vetted libraries."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from randquant.secure_sums.secagg import group
from randquant.secure_sums.secagg.terms import ProtocolError

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


def masking_private(scalar: int) -> Callable[[bytes], bytes]:
    """A nonzero scalar of the group, as what multiplies points by it.

    Returns:
        From a point that `group.read_point` has accepted to the product's Montgomery coordinate.
    """
    # theory/shares.md, Proposition 6; clients choose their scalars, so its exceptions occur.
    multiple = 8 * (scalar * pow(8, -1, group.ORDER) % group.ORDER)
    clamped = multiple if multiple >= 2**254 else 8 * group.ORDER - multiple
    if clamped >= 2**255 or clamped < 2**254:
        return lambda point: _montgomery(group.times(scalar, point))
    private = X25519PrivateKey.from_private_bytes(group.scalar_bytes(clamped))
    return lambda point: private.exchange(_of_point(point))


def masking_key(private: Callable[[bytes], bytes], public: bytes, pair: bytes) -> bytes:
    """The same in the group whose scalars are shared.

    Args:
        private: of `masking_private`.
        public: a point that `group.read_point` has accepted.
        pair: context of the two clients.
    """
    return derive(private(public), b"mask", pair)


@functools.lru_cache(maxsize=4096)
def _of_point(public: bytes) -> X25519PublicKey:
    """A point of the group, as X25519 takes it."""
    return X25519PublicKey.from_public_bytes(_montgomery(public))


def _montgomery(point: bytes) -> bytes:
    """The Montgomery coordinate of a point of the group: RFC 7748, section 4.1."""
    y = int.from_bytes(point, "little") % 2**255
    u = (1 + y) * pow(1 - y, -1, group.FIELD) % group.FIELD
    return u.to_bytes(group.POINT_BYTES, "little")


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
