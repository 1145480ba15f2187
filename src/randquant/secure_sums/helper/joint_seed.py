"""The public seed of a round, which server and helper draw together: neither chooses it.

The server commits to a part of its own, and the helper signs the commitment. The seed is a hash of
both, so that a client checks it alone, in the one message that it gets. Privacy rests on no seed
(docs/theory/helper-sums.md, Proposition 6, says who may bias it).
"""

from __future__ import annotations

import hashlib
import os

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from randquant.secure_sums.helper.message import LONGEST_SESSION
from randquant.secure_sums.helper.sealing import SIGNATURE_BYTES
from randquant.secure_sums.secagg.terms import ProtocolError

ASKED = b"RQHS"
"""A request for a signature begins so; the commitment follows, and the session."""

PART_BYTES = 32
PROOF_BYTES = PART_BYTES + SIGNATURE_BYTES


class JointSeed:
    """The server's side of drawing a seed.

    Args:
        session: bytes that identify the round; no other round may use them.

    Example:
        >>> helper, session = Ed25519PrivateKey.generate(), b"run 1, round 1"
        >>> server = JointSeed(session)
        >>> seed, proof = server.close(signed(helper, server.request))
        >>> proved(session, proof, helper.public_key().public_bytes_raw()) == seed < 2**64
        True
    """

    def __init__(self, session: bytes) -> None:
        self._session, self._part = session, os.urandom(PART_BYTES)

    @property
    def request(self) -> bytes:
        """What the helper is asked to sign: it does not show the server's part."""
        return ASKED + _committed(self._session, self._part) + self._session

    def close(self, answer: bytes) -> tuple[int, bytes]:
        """The seed, below 2**64, and its proof; ProtocolError if the answer is no signature."""
        if len(answer) != SIGNATURE_BYTES:
            raise ProtocolError("Expected a helper's signature for a seed, got something else.")
        return _seed(self._session, self._part, answer), self._part + answer


def signed(identity: Ed25519PrivateKey, request: bytes) -> bytes:
    """The helper's answer: its signature, which nobody else can foretell; it keeps nothing.

    Raises:
        ProtocolError: it is no request for one.
    """
    fixed = len(ASKED) + PART_BYTES
    if not (request.startswith(ASKED) and fixed < len(request) <= fixed + LONGEST_SESSION):
        raise ProtocolError("Expected a request to sign a part of a seed, got something else.")
    return identity.sign(_signed(request[fixed:], request[len(ASKED) : fixed]))


def proved(session: bytes, proof: bytes, helper: bytes) -> int:
    """A client's check, and the round's seed, below 2**64.

    Args:
        session: of the round.
        proof: as the server sends it.
        helper: the helper's public identity, 32 bytes of Ed25519.

    Raises:
        ProtocolError: this helper has not signed it for this session.
    """
    part, signature = proof[:PART_BYTES], proof[PART_BYTES:]
    try:
        if len(proof) != PROOF_BYTES:
            raise ValueError("it has another length")
        public = Ed25519PublicKey.from_public_bytes(helper)
        public.verify(signature, _signed(session, _committed(session, part)))
    except (ValueError, InvalidSignature):
        raise ProtocolError(
            "Expected a seed of the coordinates or rotations that the server and this client's "
            "helper have drawn together, got none."
        ) from None
    return _seed(session, part, signature)


def _committed(session: bytes, part: bytes) -> bytes:
    return _hash(b"commitment", part, session)


def _signed(session: bytes, commitment: bytes) -> bytes:
    return b"randquant helper draw\0" + commitment + session


def _seed(session: bytes, part: bytes, signature: bytes) -> int:
    return int.from_bytes(_hash(b"seed", part, signature + session)[:8], "big")


def _hash(purpose: bytes, part: bytes, rest: bytes) -> bytes:
    """SHA-256; a purpose has no zero byte, and a part always 32."""
    return hashlib.sha256(b"randquant joint seed v1\0" + purpose + b"\0" + part + rest).digest()
