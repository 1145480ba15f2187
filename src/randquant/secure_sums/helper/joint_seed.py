"""The public seed of a round, which server and helper draw together: neither chooses it.

The server commits to its part, and the helper signs the commitment. The seed is a hash of both, so
that a client can check it without asking anybody, in the one message that it gets. No privacy
guarantee depends on the seed (docs/theory/helper-sums.md, Proposition 6, says who may bias it).
"""

from __future__ import annotations

import hashlib
import os

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from randquant.secure_sums.helper.message import MAX_SESSION_BYTES
from randquant.secure_sums.helper.sealing import SIGNATURE_BYTES
from randquant.secure_sums.secagg.terms import ProtocolError

REQUEST_MAGIC = b"RQHS"
"""First bytes of a request for a signature; the commitment follows, then the session."""

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
        # The commitment hides the server's part from the helper, which could otherwise try
        # signatures until it likes the seed.
        return REQUEST_MAGIC + _commitment(self._session, self._part) + self._session

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
        return _seed(self._session, self._part, answer), self._part + answer


def signed(identity: Ed25519PrivateKey, request: bytes) -> bytes:
    """Answer a request as the helper: by a signature, which the server cannot predict.

    Ed25519 signatures are deterministic: the same request gets the same answer, so the helper needs
    no record of it.

    Raises:
        ProtocolError: the request is not one for a signature.
    """
    head = len(REQUEST_MAGIC) + PART_BYTES
    if not (request.startswith(REQUEST_MAGIC) and head < len(request) <= head + MAX_SESSION_BYTES):
        raise ProtocolError(
            f"Expected a request to sign a part of a seed in {head + 1} to "
            f"{head + MAX_SESSION_BYTES} bytes, got {len(request)} that start with "
            f"{request[:4]!r}."
        )
    return identity.sign(_signed_bytes(request[head:], request[len(REQUEST_MAGIC) : head]))


def proved(session: bytes, proof: bytes, helper: bytes) -> int:
    """Check a proof as a client, and return the round's seed, below 2**64.

    Args:
        session: bytes that identify the round.
        proof: the server's part and the helper's signature, as the server sends them.
        helper: the helper's public identity, 32 bytes of Ed25519.

    Raises:
        ProtocolError: this helper has not signed it for this session.
    """
    part, signature = proof[:PART_BYTES], proof[PART_BYTES:]
    try:
        if len(proof) != PROOF_BYTES:
            raise ValueError(f"it has {len(proof)} bytes")
        public = Ed25519PublicKey.from_public_bytes(helper)
        public.verify(signature, _signed_bytes(session, _commitment(session, part)))
    except (ValueError, InvalidSignature):
        raise ProtocolError(
            "Expected a seed of the coordinates that the server and this client's "
            f"helper have drawn together, got a proof of {len(proof)} bytes that this helper has "
            "not signed."
        ) from None
    return _seed(session, part, signature)


def _commitment(session: bytes, part: bytes) -> bytes:
    return _hash(b"commitment", part, session)


def _signed_bytes(session: bytes, commitment: bytes) -> bytes:
    return b"randquant helper draw\0" + commitment + session


def _seed(session: bytes, part: bytes, signature: bytes) -> int:
    return int.from_bytes(_hash(b"seed", part, signature + session)[:8], "big")


def _hash(purpose: bytes, part: bytes, rest: bytes) -> bytes:
    # No two lists of arguments give the same bytes: a purpose has no zero byte, a part always 32.
    return hashlib.sha256(b"randquant joint seed v1\0" + purpose + b"\0" + part + rest).digest()
