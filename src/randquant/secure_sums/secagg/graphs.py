"""How many neighbours a client needs for sums to survive losses and colluders.

Where clients have fewer neighbours than others, a sum needs three things of the graph, as Bell et
al. 2020 state for theirs: that enough neighbours of everybody stay, that few of anybody's collude,
and that the others hang together. Their probabilities are computed here, in whole numbers.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from dataclasses import dataclass
from fractions import Fraction

from randquant._internal import validate
from randquant.secure_sums.secagg.terms import MOST_NEIGHBOURS, TWO_THIRDS, ProtocolError, part_of

STEPS, UPLOAD = 5, 3
"""Steps in which a client may be lost, and those up to its upload."""

_GRID = 2**30  # probabilities of one client are rounded to multiples of 1 / _GRID, for the worse
_STEP = 6  # numbers of neighbours that are tried: even, and two thirds of them are whole


@dataclass(frozen=True, slots=True)
class Graph:
    """A number of neighbours, and what it withstands.

    Attributes:
        neighbours, threshold: for `Terms`.
        failure: upper bound of the probability that some mask cannot be removed.
        exposure: upper bound of the probability that colluders and an honest-but-curious server
            learn more than one sum.
        reason: why so many, in a sentence.
    """

    neighbours: int
    threshold: int
    failure: float
    exposure: float
    reason: str


@dataclass(frozen=True, slots=True)
class Losses:
    """What sums are to withstand: which clients are lost or collude does not depend on the graph.

    Args:
        step: probability that a client is lost in any one of the five steps, independently.
        colluders: clients that may collude with an honest-but-curious server. (Against one that
            lies, all others must be neighbours.)
        failure: largest probability that a sum is lost because some mask cannot be removed.
        exposure: largest probability that colluders learn more than one sum.

    Example:
        >>> Losses(step=0.01).graph(1000).reason
        '42 of 999 others, 28 of them to the end: with losses of 1% a step and 0 colluders a sum \
fails with probability 6.3e-07 at most'
    """

    step: float
    colluders: int = 0
    failure: float = 1e-6
    exposure: float = 2.0**-40

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.real("step", self.step, low=0, below=1)
        validate.whole("colluders", self.colluders, low=0)
        validate.real("failure", self.failure, above=0, high=1)
        validate.real("exposure", self.exposure, above=0, high=1)

    def graph(self, clients: int) -> Graph:
        """The fewest neighbours that do, of 6, 12, 18, … and all others.

        Args:
            clients: in the sum, 2 or more.

        Raises:
            ValueError: not even all others do.
        """
        clients = validate.whole("clients", clients, low=max(2, self.colluders + 1))
        others = clients - 1
        low, high = 0, -(-min(others, MOST_NEIGHBOURS) // _STEP)  # bisection: high does, if any
        while high - low > 1:
            middle = (low + high) // 2
            if self._holds(self._graph(clients, _STEP * middle)):
                high = middle
            else:
                low = middle
        found = self._graph(clients, min(_STEP * high, others))
        if not self._holds(found):
            raise ValueError(
                f"Expected losses that {clients} clients withstand, got {100 * self.step:.3g}% a "
                f"step and {self.colluders} colluders: even with {found.neighbours} neighbours a "
                f"sum fails with probability {found.failure:.2g}, and exposes clients with "
                f"{found.exposure:.2g}; ask for less, or for more clients."
            )
        return found

    def _holds(self, graph: Graph) -> bool:
        return graph.failure <= self.failure and graph.exposure <= self.exposure

    def _graph(self, clients: int, neighbours: int) -> Graph:
        threshold = part_of(neighbours, TWO_THIRDS)
        kept = _kept(self.step, STEPS)
        failure = _rounded(
            clients * _fewer(threshold, neighbours, kept)
            if neighbours < clients - 1
            else _fewer(threshold + 1, clients, kept)  # then all have what one has
        )
        exposure = _rounded(
            clients * _caught(clients - 1, self.colluders, neighbours, threshold)
            + _split(clients, self.colluders, neighbours, 1 - _kept(self.step, UPLOAD))
        )
        reason = (
            f"{neighbours} of {clients - 1} others, {threshold} of them to the end: with losses of "
            f"{100 * self.step:.3g}% a step and {self.colluders} colluders a sum fails with "
            f"probability {failure:.2g} at most"
        )
        return Graph(neighbours, threshold, failure, exposure, reason)


def _kept(loss: float, steps: int) -> Fraction:
    """The probability to be there after some steps, rounded down."""
    return Fraction(math.floor((1 - Fraction(loss)) ** steps * _GRID), _GRID)


def _fewer(threshold: int, count: int, kept: Fraction) -> Fraction:
    """The probability that fewer than `threshold` of `count` stay: a binomial tail."""
    if kept == 1:
        return Fraction(0)
    stay, lost = int(kept * _GRID), int((1 - kept) * _GRID)
    tail, term = 0, lost**count
    for staying in range(threshold):
        tail += term
        term = term * (count - staying) * stay // ((staying + 1) * lost)  # without remainder
    return Fraction(tail, _GRID**count)


def _caught(others: int, colluders: int, neighbours: int, threshold: int) -> Fraction:
    """The probability that `threshold` neighbours of one client collude: a hypergeometric tail."""
    ways = sum(
        math.comb(colluders, n) * math.comb(others - colluders, neighbours - n)
        for n in range(threshold, min(colluders, neighbours) + 1)
    )
    return Fraction(ways, math.comb(others, neighbours))


def _split(clients: int, colluders: int, neighbours: int, lost: Fraction) -> Fraction:
    """A bound of the probability that the ring falls apart.

    It does only if two gaps open, each of half as many clients in a row as there are neighbours:
    each client of the gap is lost, or colludes.
    """
    if neighbours >= clients - 1:
        return Fraction(0)
    gone, ways = int(lost * _GRID), 0  # lost is a multiple of 1 / _GRID
    for n in range(min(colluders, neighbours) + 1):
        placed = math.comb(neighbours, n) * math.comb(clients - neighbours, colluders - n)
        ways += placed * gone ** (neighbours - n) * _GRID**n
    chance = Fraction(ways, _GRID**neighbours * math.comb(clients, colluders))
    return math.comb(clients, 2) * chance


def _rounded(probability: Fraction) -> float:
    """As a float, not below."""
    if probability >= 1:
        return 1.0
    return math.nextafter(float(probability), 1.0) if probability else 0.0


# The public seed of a round, which server and clients draw together: neither chooses it.
#
# First the server commits to a part of its own, then every client sends a part, then the server
# reveals its own, with a proof for each client that the client's part is in the seed: a path in a
# hash tree. Privacy rests on no seed; who may bias one is in `docs/secure-aggregation.md`.

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
