"""The public terms of one sum with a helper, of the same size for any number of clients."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass

from randquant._internal import validate
from randquant.secure_sums.helper.sealing import HelperKey
from randquant.secure_sums.secagg.terms import ProtocolError

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
