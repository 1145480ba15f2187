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
from randquant.secure_sums.secagg.terms import OFFER_BYTES, ProtocolError

# The public terms of one sum with a helper, of the same size for any number of clients.

FORMAT = "randquant helper terms, version 1"
# Beyond what one server can add up: bounds for numbers that a hostile party may send.
MAX_CLIENTS, MAX_COORDINATES = 2**24, 2**31
MAX_SESSION_BYTES = 64
# Terms with a hybrid key have about 3,000 characters: a much longer text is not parsed. Half of it
# would do too; twice of it would let a stranger's text take twice the memory.
MAX_TERMS_TEXT_LENGTH = 2**14
COMMITMENT_BYTES = 32
MAX_CODE = 2**16 - 1


@dataclass(frozen=True, slots=True)
class HelperTerms:
    """The public terms of one sum: a client's sealed seed opens under these terms and no others.

    Args:
        session: bytes that identify the run and the round; no other sum may use them.
        key: the helper's, as it announces it.
        cohort: most clients in the sum.
        least: fewest clients in the sum. The privacy guarantee relies on this number.
        dimension: coordinates of a vector.
        bits: the sum is taken modulo 2**bits, 1 to 32.
        offer: SHA-256 of the offer that clients answer, 32 bytes.
        largest: the largest code, where each client proves that its codes are at most that; 0 for
            sums without proofs.
        commitment: SHA-256 of the key that proofs are verified with, 32 bytes; b"" without proofs.
        noise_variance: parameter of the discrete Gaussian noise that the helper adds to each
            coordinate of the sum, in squared steps of the codes; 0 for none. With it the guarantee
            does not rely on `least`, which may be 1.

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
    noise_variance: float = 0.0

    def __post_init__(self) -> None:
        validate.kind("session", self.session, bytes)
        validate.whole("bytes of session", len(self.session), low=1, high=MAX_SESSION_BYTES)
        validate.kind("key", self.key, HelperKey)
        variance = validate.real("noise_variance", self.noise_variance, low=0)
        # The sum of one client's codes without noise is its codes.
        fewest = 1 if variance else 2
        cohort = validate.whole("cohort", self.cohort, low=fewest, high=MAX_CLIENTS)
        numbers = {
            "noise_variance": variance,
            "cohort": cohort,
            "least": validate.whole("least", self.least, low=fewest, high=cohort),
            "dimension": validate.whole("dimension", self.dimension, low=1, high=MAX_COORDINATES),
            "bits": validate.whole("bits", self.bits, low=1, high=32),
            "largest": validate.whole("largest", self.largest, low=0, high=MAX_CODE),
        }
        # Python's own: NumPy's have another text, and so another digest.
        for name, value in numbers.items():
            object.__setattr__(self, name, value)
        if self.largest and variance:
            raise ValueError(
                "Expected no noise of the helper in a sum of proven codes, got "
                f"noise_variance={variance} with largest={self.largest}: no such sum is derived."
            )
        validate.kind("offer", self.offer, bytes)
        validate.whole("bytes of offer", len(self.offer), low=OFFER_BYTES, high=OFFER_BYTES)
        validate.kind("commitment", self.commitment, bytes)
        size = COMMITMENT_BYTES if self.largest else 0
        validate.whole("bytes of commitment", len(self.commitment), low=size, high=size)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(b"randquant helper sum\0" + self.to_text().encode()).digest()

    def to_text(self) -> str:
        """Write the terms as JSON, the same text for equal terms."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if not self.noise_variance:  # the text of sums without it is that of version 0.1.0
            del fields["noise_variance"]
        values = {n: v.hex() if isinstance(v, bytes) else v for n, v in fields.items()}
        return json.dumps({"format": FORMAT, **values, "key": self.key.to_record()}, sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> HelperTerms:
        """Invert `to_text`.

        Raises:
            ProtocolError: the text, which may be a stranger's, is not that of terms.
        """
        try:
            if len(text) > MAX_TERMS_TEXT_LENGTH:
                raise ValueError("it is too long")
            record = json.loads(text)
            if (text_format := record.pop("format")) != FORMAT:
                raise ValueError(f"its format is {validate.shown(text_format)}")
            texts = ("session", "offer", "commitment")
            record |= {name: bytes.fromhex(record[name]) for name in texts}
            key = HelperKey.from_record(record.pop("key"))
            return cls(key=key, **record)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            kind = type(text).__name__
            size = f"{len(text)} characters" if isinstance(text, str) else f"a value of type {kind}"
            raise ProtocolError(
                f"Expected the terms of a sum with a helper, got {size} that cannot be read."
            ) from error


def context(terms_digest: bytes, client: int) -> bytes:
    # Of a client's seal and signature. A seal that is offered for another client or sum does not
    # open: a server cannot have one client counted as two, or an old seal opened once more.
    return b"randquant helper seed\0" + terms_digest + client.to_bytes(8, "big")


MAGIC = b"RQH1"
MAX_CLIENT_NUMBER = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SealedSeed:
    """A client's message to the helper, which the server passes on.

    Attributes:
        sealed: the seed of its mask.
        signature: by its identity, 64 bytes, or b"".
        bound: further context of the seal: nonce and public share of a proof, or b"".
        verifier: the server's verifier share of a proof, or b"".
    """

    sealed: bytes
    signature: bytes = b""
    bound: bytes = b""
    verifier: bytes = b""

    def is_signed(self, digest: bytes, client: int, directory: Mapping[int, bytes]) -> bool:
        """Return True if this client's identity in the directory signed it for these terms."""
        try:
            public = Ed25519PublicKey.from_public_bytes(directory[client])
            public.verify(self.signature, signed_bytes(digest, client, self.sealed))
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
        The message: the codes, `terms.bits` bits each, and at most 1,276 further bytes (188 with
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
    client = validate.whole("client", client, low=0, high=MAX_CLIENT_NUMBER)
    if terms.largest:
        raise ValueError(
            f"Expected terms of a sum without proofs, got largest={terms.largest}: use "
            "`proven_message`."
        )
    check_codes(terms, codes, (1 << terms.bits) - 1)
    # A server that put its own key into the terms could open the seed, and would have the codes.
    terms.key.check(helper)
    # A fresh seed in each call: two vectors under one mask would reveal their difference.
    digest, seed = terms.digest, os.urandom(SEED_BYTES)
    sealed = terms.key.seal(seed, context(digest, client))
    signature = b"" if identity is None else identity.sign(signed_bytes(digest, client, sealed))
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


def read_message(terms: HelperTerms, message: Any) -> tuple[SealedSeed, memoryview]:
    """Split a message into sealed seed and masked vector; ProtocolError for another length.

    The vector is not copied: it is a part of the message.
    """
    if not isinstance(message, wire.Payload):
        raise ProtocolError(f"Expected a message in bytes, got {type(message).__name__}.")
    # All lengths follow from the terms: the message itself says none that could be wrong.
    start = len(MAGIC) + terms.key.sealed_bytes
    unsigned_size = start + wire.masked(terms.dimension, terms.bits)
    if len(message) not in (unsigned_size, unsigned_size + SIGNATURE_BYTES):
        problem = "truncated" if len(message) < unsigned_size else "too long"
        raise ProtocolError(
            f"Expected a message of {unsigned_size} bytes, or {unsigned_size + SIGNATURE_BYTES} "
            f"with a signature, got {len(message)}: {problem}."
        )
    message = memoryview(message)
    if (magic := bytes(message[: len(MAGIC)])) != MAGIC:
        raise ProtocolError(f"Expected a message that starts with {MAGIC!r}, got {magic!r}.")
    end = start + len(message) - unsigned_size
    sealed = SealedSeed(bytes(message[len(MAGIC) : start]), bytes(message[start:end]))
    return sealed, message[end:]


def masked_format(bits: int, digest: bytes, client: int) -> wire.Format:
    # Terms and client are in the format's digest: a vector of another sum or client is refused.
    return wire.Format.from_facts(2**bits, "masked for a helper", digest.hex(), str(client))


def signed_bytes(digest: bytes, client: int, sealed: bytes) -> bytes:
    return b"randquant helper signature\0" + context(digest, client) + sealed
