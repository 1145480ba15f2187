"""A client's one message: its masked vector, and the mask's seed, sealed for the helper.

bytes   field
4       "RQH1"
n       the sealed seed; n = 1,168, or 80 with X25519
0 or 64 the client's signature of the sealed seed, if it has an identity
rest    the masked vector, as a payload of `channels.wire`

Server and helper draw a round's public seed together: neither chooses it. The server commits to its
part, and the helper signs the commitment. The seed is a hash of both, so that a client can check it
without asking anybody, in the one message that it gets. No privacy guarantee depends on the seed
(docs/theory/helper-sums.md, Proposition 6, says who may bias it).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
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
from randquant.channels import wire
from randquant.secure_sums.terms import (
    OFFER_BYTES,
    ProtocolError,
    add_masks,
    check_identity,
    mask_dtype,
)

# The key that clients seal their seeds to: HPKE (RFC 9180), signed by the helper's identity.

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


# The public terms of one sum with a helper, of the same size for any number of clients.

# The terms of a sum, and what a client sends in it.

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
        offer: SHA-256 of the offer that clients answer, 32 bytes. A server can neither sum a client
            with others that answer an offer of less noise, nor have the helper count a cheaper one.
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
        # Somebody whom the directory does not have counts as one who did not sign.
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
        >>> from randquant.secure_sums import OpeningKey
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
    total = codes.astype(mask_dtype(terms.bits))
    add_masks(total, [seed], +1)
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


# A round's public seed, which server and helper draw together.

JOINT_SEED_MAGIC = b"RQHS"
"""First bytes of a request for a signature; the commitment follows, then the session."""

JOINT_PART_BYTES = 32
JOINT_PROOF_BYTES = JOINT_PART_BYTES + SIGNATURE_BYTES


class JointSeed:
    """The server's side of drawing a seed.

    Args:
        session: bytes that identify the round; no other round may use them.

    Example:
        >>> helper, session = Ed25519PrivateKey.generate(), b"run 1, round 1"
        >>> server = JointSeed(session)
        >>> seed, proof = server.close(sign_commitment(helper, server.request))
        >>> check_joint_seed(session, proof, helper.public_key().public_bytes_raw()) == seed < 2**64
        True
    """

    def __init__(self, session: bytes) -> None:
        self._session, self._part = session, os.urandom(JOINT_PART_BYTES)

    @property
    def request(self) -> bytes:
        # The commitment hides the server's part from the helper, which could otherwise try
        # signatures until it likes the seed.
        return JOINT_SEED_MAGIC + _commitment(self._session, self._part) + self._session

    def close(self, answer: bytes) -> tuple[int, bytes]:
        """Return the seed, below 2**64, and its proof.

        Raises:
            ProtocolError: the answer does not have the length of a signature.
        """
        if len(answer) != SIGNATURE_BYTES:
            raise ProtocolError(
                f"Expected a helper's signature for a seed in {SIGNATURE_BYTES} bytes, got "
                f"{len(answer)}."
            )
        return _joint_seed(self._session, self._part, answer), self._part + answer


def sign_commitment(identity: Ed25519PrivateKey, request: bytes) -> bytes:
    """Answer a request as the helper: by a signature, which the server cannot predict.

    Ed25519 signatures are deterministic: the same request gets the same answer, so the helper needs
    no record of it.

    Raises:
        ProtocolError: the request is not one for a signature.
    """
    head = len(JOINT_SEED_MAGIC) + JOINT_PART_BYTES
    if not (
        request.startswith(JOINT_SEED_MAGIC) and head < len(request) <= head + MAX_SESSION_BYTES
    ):
        raise ProtocolError(
            f"Expected a request to sign a part of a seed in {head + 1} to "
            f"{head + MAX_SESSION_BYTES} bytes, got {len(request)} that start with "
            f"{request[:4]!r}."
        )
    return identity.sign(_commitment_bytes(request[head:], request[len(JOINT_SEED_MAGIC) : head]))


def check_joint_seed(session: bytes, proof: bytes, helper: bytes) -> int:
    """Check a proof as a client, and return the round's seed, below 2**64.

    Args:
        session: bytes that identify the round.
        proof: the server's part and the helper's signature, as the server sends them.
        helper: the helper's public identity, 32 bytes of Ed25519.

    Raises:
        ProtocolError: this helper has not signed it for this session.
    """
    part, signature = proof[:JOINT_PART_BYTES], proof[JOINT_PART_BYTES:]
    try:
        if len(proof) != JOINT_PROOF_BYTES:
            raise ValueError(f"it has {len(proof)} bytes")
        public = Ed25519PublicKey.from_public_bytes(helper)
        public.verify(signature, _commitment_bytes(session, _commitment(session, part)))
    except (ValueError, InvalidSignature):
        raise ProtocolError(
            "Expected a seed of the coordinates that the server and this client's "
            f"helper have drawn together, got a proof of {len(proof)} bytes that this helper has "
            "not signed."
        ) from None
    return _joint_seed(session, part, signature)


def _commitment(session: bytes, part: bytes) -> bytes:
    return _joint_hash(b"commitment", part, session)


def _commitment_bytes(session: bytes, commitment: bytes) -> bytes:
    return b"randquant helper draw\0" + commitment + session


def _joint_seed(session: bytes, part: bytes, signature: bytes) -> int:
    return int.from_bytes(_joint_hash(b"seed", part, signature + session)[:8], "big")


def _joint_hash(purpose: bytes, part: bytes, rest: bytes) -> bytes:
    # No two lists of arguments give the same bytes: a purpose has no zero byte, a part always 32.
    return hashlib.sha256(b"randquant joint seed v1\0" + purpose + b"\0" + part + rest).digest()
