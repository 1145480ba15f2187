"""The public seed of a round, which server and clients draw together: neither chooses it.

First the server commits to a part of its own, then every client sends a part, then the server
reveals its own, with a proof for each client that the client's part is in the seed: a path in a
hash tree. Privacy rests on no seed; who may bias one is in `docs/secure-aggregation.md`.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from randquant.secure_sums.secagg.terms import ProtocolError

PART_BYTES, HASH_BYTES = 32, 32
STEP_BYTES = 1 + HASH_BYTES
"""Length of one step of a path: on which side the other half of the tree is, and its hash."""

LONGEST_PROOF = PART_BYTES + 64 * STEP_BYTES
"""Most bytes of a proof: of a tree of 2**64 parts."""


class Draw:
    """The server's side: commit, add the clients' parts, reveal.

    Args:
        session: bytes that identify the round; no other round may use them.

    Example:
        >>> draw, part = Draw(b"run 1, round 1"), os.urandom(PART_BYTES)
        >>> draw.add(7, part)
        >>> seed, proofs = draw.close()
        >>> proved(b"run 1, round 1", draw.commitment, 7, part, proofs[7]) == seed < 2**64
        True
    """

    def __init__(self, session: bytes) -> None:
        self._session, self._own = session, os.urandom(PART_BYTES)
        self._parts: dict[int, bytes] = {}

    @property
    def commitment(self) -> bytes:
        """32 bytes, to be sent before any client sends its part."""
        return _committed(self._session, self._own)

    def add(self, client: int, part: bytes) -> None:
        """Take a client's part; ProtocolError if it is not `PART_BYTES` long."""
        if len(part) != PART_BYTES:
            raise ProtocolError(
                f"Expected a part of the round's seed in {PART_BYTES} bytes, got {len(part)}."
            )
        self._parts[client] = part

    def close(self) -> tuple[int, dict[int, bytes]]:
        """The seed, below 2**64, and each client's proof."""
        clients = sorted(self._parts)
        leaves = [_leaf(self._session, client, self._parts[client]) for client in clients]
        root, paths = _tree(leaves)
        proofs = {c: self._own + path for c, path in zip(clients, paths, strict=True)}
        return _seed(self._session, self._own, root), proofs


def proved(session: bytes, commitment: bytes, client: int, part: bytes, proof: bytes) -> int:
    """A client's check, and the round's seed.

    Args:
        session: of the round.
        commitment: what the server sent before it knew this client's part.
        client: this client's number.
        part: this client's part, random bytes that nobody has seen before.
        proof: what the server revealed.

    Returns:
        The seed, below 2**64.

    Raises:
        ProtocolError: the server's part is not the one that it committed to, or the proof is none.
    """
    own, path = proof[:PART_BYTES], proof[PART_BYTES:]
    if len(proof) > LONGEST_PROOF or len(own) < PART_BYTES or len(path) % STEP_BYTES:
        raise ProtocolError("Expected the proof of a round's seed, got something else.")
    if not hmac.compare_digest(_committed(session, own), commitment):
        raise ProtocolError(
            "Expected the part of the seed that the server committed to before it saw this "
            "client's, got another."
        )
    node = _leaf(session, client, part)
    for start in range(0, len(path), STEP_BYTES):
        after, other = path[start] == 1, path[start + 1 : start + STEP_BYTES]
        node = _node(node, other) if after else _node(other, node)
    return _seed(session, own, node)


def _tree(leaves: list[bytes]) -> tuple[bytes, list[bytes]]:
    """The root of a hash tree, and each leaf's path to it; a node without a partner moves up."""
    level, paths = leaves or [b""], [b""] * len(leaves)
    below = [[place] for place in range(len(leaves))]
    while len(level) > 1:
        pairs = range(0, len(level) - 1, 2)
        for left in pairs:
            for place in below[left]:
                paths[place] += b"\1" + level[left + 1]
            for place in below[left + 1]:
                paths[place] += b"\0" + level[left]
        odd = len(level) % 2
        level = [_node(level[left], level[left + 1]) for left in pairs] + level[-odd:] * odd
        below = [below[left] + below[left + 1] for left in pairs] + below[-odd:] * odd
    return level[0], paths


def _leaf(session: bytes, client: int, part: bytes) -> bytes:
    return _hash(b"part", session, client.to_bytes(8, "big"), part)


def _node(left: bytes, right: bytes) -> bytes:
    return _hash(b"node", left, right)


def _committed(session: bytes, own: bytes) -> bytes:
    return _hash(b"commitment", session, own)


def _seed(session: bytes, own: bytes, root: bytes) -> int:
    return int.from_bytes(_hash(b"seed", session, own, root)[:8], "big")


def _hash(*fields: bytes) -> bytes:
    """SHA-256 of fields of any lengths, none of which can pass for two."""
    framed = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return hashlib.sha256(b"randquant draw v1\0" + framed).digest()
