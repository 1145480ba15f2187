"""The key that clients seal their seeds to: HPKE (RFC 9180), signed by the helper's identity."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from randquant._internal import validate
from randquant.secure_sums.secagg.terms import ProtocolError, check_identity

SEED_BYTES, SIGNATURE_BYTES, TAG_BYTES = 32, 64, 16
# A public key of X25519; a public key of ML-KEM-768, and the ciphertext that it makes (FIPS 203).
CURVE_BYTES, LATTICE_BYTES, LATTICE_SENT_BYTES = 32, 1184, 1088

# Names of suites, which are in the terms' text.
HYBRID = "MLKEM768_X25519"
CURVE = "X25519"

SUITES = {
    HYBRID: Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM),
    CURVE: Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM),
}
"""HPKE suites by name; the hybrid stays secure if either of its two parts does."""

SEALED_BYTES = {
    HYBRID: LATTICE_SENT_BYTES + CURVE_BYTES + SEED_BYTES + TAG_BYTES,
    CURVE: CURVE_BYTES + SEED_BYTES + TAG_BYTES,
}
"""Length of a sealed seed."""


@dataclass(frozen=True, slots=True)
class HelperKey:
    """A helper's public key, drawn when it starts and signed by its identity.

    Args:
        suite: `MLKEM768_X25519`, which is safe against quantum computers too, or `X25519`.
        public: the key, 1,216 or 32 bytes.
        signature: by the helper's Ed25519 identity, 64 bytes.

    Raises:
        TypeError, ValueError: an argument has another kind or length.
    """

    suite: str
    public: bytes
    signature: bytes

    def __post_init__(self) -> None:
        validate.choice("suite", self.suite, SUITES)
        public_size = CURVE_BYTES if self.suite == CURVE else LATTICE_BYTES + CURVE_BYTES
        for name, size in (("public", public_size), ("signature", SIGNATURE_BYTES)):
            validate.kind(name, getattr(self, name), bytes)
            validate.whole(f"bytes of {name}", len(getattr(self, name)), low=size, high=size)

    @property
    def fingerprint(self) -> bytes:
        return hashlib.sha256(_signed_bytes(self.suite, self.public)).digest()

    @property
    def sealed_bytes(self) -> int:
        return SEALED_BYTES[self.suite]

    def check(self, identity: bytes) -> None:
        # Raises ProtocolError unless the helper of this identity has signed the key: a server could
        # otherwise put its own key into the terms, and open the seeds.
        try:
            check_identity(identity)
            public = Ed25519PublicKey.from_public_bytes(identity)
            public.verify(self.signature, _signed_bytes(self.suite, self.public))
        except (TypeError, ValueError, InvalidSignature):
            known = identity.hex()[:16] if isinstance(identity, bytes) else validate.shown(identity)
            raise ProtocolError(
                f"Expected a key signed by the helper that this client knows, {known}..., got key "
                f"{self.fingerprint.hex()[:16]}..., which it has not signed."
            ) from None

    def seal(self, seed: bytes, context: bytes) -> bytes:
        # The context is authenticated: the seed opens for the same client and sum only.
        try:
            return SUITES[self.suite].encrypt(seed, _public(self.suite, self.public), context)
        except ValueError:
            raise ProtocolError(
                f"Expected a helper's public key, got an invalid one: {self.public[:8].hex()}...."
            ) from None

    def to_record(self) -> dict[str, str]:
        """Return the fields as JSON data."""
        public, signature = self.public.hex(), self.signature.hex()
        return {"suite": self.suite, "public": public, "signature": signature}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> HelperKey:
        # Anything that `to_record` does not write is a ProtocolError: records come from strangers.
        try:
            if record.keys() != {"suite", "public", "signature"}:
                raise ValueError(f"its fields are {validate.shown(list(record))}")
            public, signature = (bytes.fromhex(record[name]) for name in ("public", "signature"))
            return cls(record["suite"], public, signature)
        except (AttributeError, TypeError, ValueError) as error:
            raise ProtocolError(
                f"Expected a helper's key, got a record that is not one, {validate.shown(record)}."
            ) from error


class OpeningKey:
    """The private half of a helper's key, which opens sealed seeds.

    Args:
        suite: as in `HelperKey`.
        secret: the private key: 32 bytes of X25519, preceded by 64 of ML-KEM in the hybrid.
        identity: signs the public half.
    """

    def __init__(self, suite: str, secret: bytes, identity: Ed25519PrivateKey) -> None:
        # X25519 is last in the hybrid's secret and public key, and alone in the other suite's.
        curve = X25519PrivateKey.from_private_bytes(secret[-CURVE_BYTES:])
        public = curve.public_key().public_bytes_raw()
        self._private: X25519PrivateKey | MLKEM768X25519PrivateKey = curve
        if suite == HYBRID:
            lattice = MLKEM768PrivateKey.from_seed_bytes(secret[:-CURVE_BYTES])
            public = lattice.public_key().public_bytes_raw() + public
            self._private = MLKEM768X25519PrivateKey(lattice, curve)
        self.secret = secret
        self.key = HelperKey(suite, public, identity.sign(_signed_bytes(suite, public)))

    @classmethod
    def from_secret(cls, secret: bytes, identity: Ed25519PrivateKey) -> OpeningKey:
        # The two suites' secrets differ in length, so a journal need not say which one it has.
        return cls(CURVE if len(secret) == CURVE_BYTES else HYBRID, secret, identity)

    @classmethod
    def generate(cls, suite: str, identity: Ed25519PrivateKey) -> OpeningKey:
        """Draw a fresh key."""
        secret = X25519PrivateKey.generate().private_bytes_raw()
        if suite == HYBRID:
            secret = MLKEM768PrivateKey.generate().private_bytes_raw() + secret
        return cls(suite, secret, identity)

    def open(self, sealed: bytes, context: bytes) -> bytes | None:
        """Return the seed; None if it was sealed to another key or context, or has a wrong length.

        It does not raise: one invalid seal costs its client, and not the sum of the others.
        """
        try:
            seed = SUITES[self.key.suite].decrypt(sealed, self._private, context)
        except (InvalidTag, ValueError):
            return None
        return seed if len(seed) == SEED_BYTES else None


def _signed_bytes(suite: str, public: bytes) -> bytes:
    # With the suite's name: a key of one suite is never taken for one of the other.
    return b"randquant helper key\0" + suite.encode() + b"\0" + public


# Cached: where many clients are in one process, one key serves them all.
@functools.lru_cache(maxsize=8)
def _public(suite: str, public: bytes) -> X25519PublicKey | MLKEM768X25519PublicKey:
    curve = X25519PublicKey.from_public_bytes(public[-CURVE_BYTES:])
    if suite == CURVE:
        return curve
    lattice = MLKEM768PublicKey.from_public_bytes(public[:-CURVE_BYTES])
    return MLKEM768X25519PublicKey(lattice, curve)
