"""A client's one message: its masked vector, and the mask's seed, sealed for the helper.

bytes   field
4       "RQH1"
n       the sealed seed; n = 1,168, or 80 with X25519
0 or 64 the client's signature of the sealed seed, if it has an identity
rest    the masked vector, as a payload of `channels.wire`
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from randquant._internal import validate
from randquant.channels import wire
from randquant.secure_sums import masks
from randquant.secure_sums.helper.sealing import SEED_BYTES, SIGNATURE_BYTES, HelperKey
from randquant.secure_sums.secagg.terms import ProtocolError

# The public terms of one sum with a helper, of the same size for any number of clients.

FORMAT = "randquant helper terms, version 1"
MOST_CLIENTS, MOST_COORDINATES = 2**24, 2**31
LONGEST_SESSION, LONGEST_TEXT = 64, 2**14
OFFER_BYTES = COMMITMENT_BYTES = 32
LARGEST_CODE = 2**16 - 1


@dataclass(frozen=True, slots=True)
class HelperTerms:
    """The public terms of one sum: what a client seals belongs to these terms and no others.

    Args:
        session: bytes that identify the run and the round; no other sum may use them.
        key: the helper's, as it announces it.
        cohort: most clients in the sum.
        least: fewest clients in the sum. The privacy guarantee relies on so many.
        dimension: coordinates of a vector.
        bits: the sum is taken modulo 2**bits, 1 to 32.
        offer: SHA-256 of what clients are asked to send, 32 bytes.
        largest: the largest code, where each client proves that its codes are at most that; 0 for
            sums without proofs.
        commitment: SHA-256 of the key that proofs are verified with, 32 bytes; b"" without proofs.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Guarantees:
        The digest is that of all fields: terms that differ have other digests, unless SHA-256
        collides.
    """

    session: bytes
    key: HelperKey
    cohort: int
    least: int
    dimension: int
    bits: int
    offer: bytes = bytes(OFFER_BYTES)
    largest: int = 0
    commitment: bytes = b""

    def __post_init__(self) -> None:
        validate.kind("session", self.session, bytes)
        validate.whole("bytes of session", len(self.session), low=1, high=LONGEST_SESSION)
        validate.kind("key", self.key, HelperKey)
        cohort = validate.whole("cohort", self.cohort, low=2, high=MOST_CLIENTS)
        whole = {
            "cohort": cohort,
            "least": validate.whole("least", self.least, low=2, high=cohort),
            "dimension": validate.whole("dimension", self.dimension, low=1, high=MOST_COORDINATES),
            "bits": validate.whole("bits", self.bits, low=1, high=32),
            "largest": validate.whole("largest", self.largest, low=0, high=LARGEST_CODE),
        }
        for name, value in whole.items():  # plain ints, for the digest
            object.__setattr__(self, name, value)
        validate.kind("offer", self.offer, bytes)
        validate.whole("bytes of offer", len(self.offer), low=OFFER_BYTES, high=OFFER_BYTES)
        validate.kind("commitment", self.commitment, bytes)
        size = COMMITMENT_BYTES if self.largest else 0
        validate.whole("bytes of commitment", len(self.commitment), low=size, high=size)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the terms, 32 bytes."""
        return hashlib.sha256(b"randquant helper sum\0" + self.to_text().encode()).digest()

    def to_text(self) -> str:
        """The terms as JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        told = {n: v.hex() if isinstance(v, bytes) else v for n, v in fields.items()}
        return json.dumps({"format": FORMAT, **told, "key": self.key.to_record()}, sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> HelperTerms:
        """Undo `to_text`; ProtocolError if the text, which need not be trusted, is invalid."""
        try:
            if len(text) > LONGEST_TEXT:
                raise ValueError("it is too long")
            record = json.loads(text)
            if record.pop("format") != FORMAT:
                raise ValueError("its format is another")
            texts = ("session", "offer", "commitment")
            record |= {name: bytes.fromhex(record[name]) for name in texts}
            key = HelperKey.from_record(record.pop("key"))
            return cls(key=key, **record)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ProtocolError(
                "Expected the terms of a sum with a helper, got something else."
            ) from error


def context(terms_digest: bytes, client: int) -> bytes:
    """What a client's seal and signature are bound to: one client in one sum."""
    return b"randquant helper seed\0" + terms_digest + client.to_bytes(8, "big")


MAGIC = b"RQH1"
LARGEST_NUMBER = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SealedSeed:
    """What a client has for the helper.

    Attributes:
        sealed: the seed of its mask.
        signature: by its identity, 64 bytes, or b"".
        bound: what else the seal belongs to: nonce and public share of a proof, or b"".
        verifier: the server's verifier share of a proof, or b"".
    """

    sealed: bytes
    signature: bytes = b""
    bound: bytes = b""
    verifier: bytes = b""

    def is_signed(self, digest: bytes, client: int, directory: Mapping[int, bytes]) -> bool:
        """Whether this client's identity in the directory signed it for these terms."""
        try:
            public = Ed25519PublicKey.from_public_bytes(directory[client])
            public.verify(self.signature, signed(digest, client, self.sealed))
        except (KeyError, ValueError, InvalidSignature):
            return False
        return True


def masked_message(
    terms: HelperTerms,
    client: int,
    codes: np.ndarray,
    helper: bytes,
    identity: Ed25519PrivateKey | None = None,
) -> bytes:
    """Mask a client's codes, and seal the mask's seed for the helper: all that it sends in a sum.

    Args:
        terms: as the server sent them.
        client: this client's number, 0 to 2**64 - 1.
        codes: (d,) unsigned integers below 2**terms.bits.
        helper: the public identity of the helper that this client trusts not to collude with the
            server, 32 bytes of Ed25519, from its own settings and never from the server.
        identity: signs the sealed seed, if the deployment has identities.

    Returns:
        The message: the codes, `terms.bits` bits each, and at most 1,276 bytes beside (188 with
        X25519).

    Guarantees:
        The message is independent of the codes for everybody who does not have the helper's key.
        Each call draws a fresh seed. One client sends one message under the same terms.

    Raises:
        ProtocolError: the key in the terms is not that of this helper.
        ValueError, TypeError: the codes or the number are not as described.

    Example:
        >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        >>> from randquant.secure_sums.helper.sealing import OpeningKey
        >>> secret = Ed25519PrivateKey.generate()
        >>> pinned = secret.public_key().public_bytes_raw()
        >>> key = OpeningKey.generate("X25519", secret).key
        >>> terms = HelperTerms(b"run 7, round 1", key, 100, 40, dimension=1000, bits=7)
        >>> len(masked_message(terms, 3, np.ones(1000, dtype=np.uint8), pinned))
        999
    """
    validate.kind("terms", terms, HelperTerms)
    client = validate.whole("client", client, low=0, high=LARGEST_NUMBER)
    if terms.largest:
        raise ValueError("Expected terms of a sum without proofs: use `proven_message`.")
    check_codes(terms, codes, (1 << terms.bits) - 1)
    terms.key.check(helper)
    digest, seed = terms.digest, os.urandom(SEED_BYTES)
    sealed = terms.key.seal(seed, context(digest, client))
    signature = b"" if identity is None else identity.sign(signed(digest, client, sealed))
    total = codes.astype(masks.dtype(terms.bits))
    masks.add(total, seed, +1)
    total &= total.dtype.type((1 << terms.bits) - 1)
    packed = wire.pack(
        masked_format(terms.bits, digest, client),
        total.astype(np.uint8 if terms.bits <= 8 else np.uint32, copy=False),
    )
    return b"".join((MAGIC, sealed, signature, packed))


def check_codes(terms: HelperTerms, codes: np.ndarray, largest: int) -> None:
    """Raise TypeError or ValueError unless codes are (d,) unsigned integers up to `largest`."""
    validate.kind("codes", codes, np.ndarray)
    if codes.shape != (terms.dimension,) or codes.dtype.kind != "u":
        raise ValueError(
            f"Expected codes ({terms.dimension},) of unsigned integers, got shape {codes.shape}, "
            f"{codes.dtype}."
        )
    if int(codes.max()) > largest:
        raise ValueError(f"Expected codes of {largest} at most, got {int(codes.max())}.")


def read_message(terms: HelperTerms, message: Any) -> tuple[SealedSeed, bytes]:
    """A message's sealed seed and masked vector; ProtocolError if its length is another."""
    if not isinstance(message, bytes):
        raise ProtocolError(f"Expected a message in bytes, got {type(message).__name__}.")
    start = len(MAGIC) + terms.key.sealed_bytes
    plain = start + wire.masked(terms.dimension, terms.bits)
    if len(message) not in (plain, plain + SIGNATURE_BYTES):
        what = "truncated" if len(message) < plain else "too long"
        raise ProtocolError(
            f"Expected a message of {plain} bytes, or {plain + SIGNATURE_BYTES} with a signature, "
            f"got {len(message)}: {what}."
        )
    if not message.startswith(MAGIC):
        raise ProtocolError(f"Expected a message that starts with {MAGIC!r}, got another.")
    end = start + len(message) - plain
    sealed = SealedSeed(message[len(MAGIC) : start], message[start:end])
    return sealed, message[end:]


def masked_format(bits: int, digest: bytes, client: int) -> wire.Format:
    """Wire format of one client's masked vector in the sum with these terms."""
    return wire.Format.of(2**bits, "masked for a helper", digest.hex(), str(client))


def signed(digest: bytes, client: int, sealed: bytes) -> bytes:
    """What a client's identity signs."""
    return b"randquant helper signature\0" + context(digest, client) + sealed
