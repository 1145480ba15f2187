"""The number of neighbours with which sums survive losses and colluders; a round's public seed.

Where not all other clients are neighbours, a sum needs three properties of the graph, as Bell et
al. 2020 state for theirs: enough neighbours of each client stay, few neighbours of each client
collude, and the graph of the other clients is connected. Their probabilities are computed here, in
whole numbers.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from dataclasses import dataclass
from fractions import Fraction

from randquant._internal import validate
from randquant.secure_sums.secagg.terms import (
    DEFAULT_THRESHOLD_SHARE,
    MAX_NEIGHBOURS,
    ProtocolError,
    share_of_neighbours,
)

ALL_STEPS, UPLOAD_STEPS = 5, 3
"""Numbers of all steps in which a client may be lost, and of those up to its upload."""

# Probabilities of one client are multiples of 1 / _PROBABILITY_UNITS, rounded so that a loss
# becomes more probable, by 1e-9 at most. Tails are then integers with 30 bits for each client;
# twice as many units would make them 3 % longer, and no number of neighbours smaller.
_PROBABILITY_UNITS = 2**30
# Only multiples of it are tried as numbers of neighbours: they are even, as `Terms` demands, and
# two thirds of them are whole. Twice as large steps would choose up to 6 neighbours too many.
_NEIGHBOURS_STEP = 6


@dataclass(frozen=True, slots=True)
class Graph:
    """A number of neighbours, and bounds of what can go wrong with it.

    Attributes:
        neighbours, threshold: for `Terms`.
        failure: upper bound of the probability that some mask cannot be removed.
        exposure: upper bound of the probability that colluders and an honest-but-curious server
            learn more than one sum.
        reason: why this number, in a sentence.
    """

    neighbours: int
    threshold: int
    failure: float
    exposure: float
    reason: str


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses and colluders that sums must withstand, neither of which depends on the graph.

    Args:
        step: probability that a client is lost in any one of the five steps, independently.
        colluders: clients that may collude with an honest-but-curious server. (Against a server
            that lies, all others must be neighbours.)
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
        """Return the graph with the fewest neighbours that suffice, of 6, 12, 18, … and all others.

        Args:
            clients: number of clients in the sum, 2 or more.

        Raises:
            ValueError: not even all others suffice.
        """
        clients = validate.whole("clients", clients, low=max(2, self.colluders + 1))
        others = clients - 1
        # Bisection, in steps: `high` suffices if any number does, `low` does not.
        low, high = 0, -(-min(others, MAX_NEIGHBOURS) // _NEIGHBOURS_STEP)
        while high - low > 1:
            middle = (low + high) // 2
            if self._holds(self._graph(clients, _NEIGHBOURS_STEP * middle)):
                high = middle
            else:
                low = middle
        # Checked once more: where even the most neighbours do not suffice, bisection ends there.
        graph = self._graph(clients, min(_NEIGHBOURS_STEP * high, others))
        if not self._holds(graph):
            raise ValueError(
                f"Expected losses that {clients} clients withstand, got {100 * self.step:.3g}% a "
                f"step and {self.colluders} colluders: even with {graph.neighbours} neighbours a "
                f"sum fails with probability {graph.failure:.2g}, and exposes clients with "
                f"{graph.exposure:.2g}; ask for less, or for more clients."
            )
        return graph

    def _holds(self, graph: Graph) -> bool:
        return graph.failure <= self.failure and graph.exposure <= self.exposure

    def _graph(self, clients: int, neighbours: int) -> Graph:
        threshold = share_of_neighbours(neighbours, DEFAULT_THRESHOLD_SHARE)
        # theory/shares.md, Proposition 3: a union bound over the clients. Where all others are
        # neighbours, threshold + 1 clients that stay suffice for every client at once.
        staying = _staying(self.step, ALL_STEPS)
        failure = _rounded_up(
            clients * _fewer(threshold, neighbours, staying)
            if neighbours < clients - 1
            else _fewer(threshold + 1, clients, staying)
        )
        # theory/shares.md, Proposition 4: both masks of one client removed, or the graph of honest
        # clients in several components, each of which has a sum of its own.
        exposure = _rounded_up(
            clients * _caught(clients - 1, self.colluders, neighbours, threshold)
            + _split(clients, self.colluders, neighbours, 1 - _staying(self.step, UPLOAD_STEPS))
        )
        reason = (
            f"{neighbours} of {clients - 1} others, {threshold} of them to the end: with losses of "
            f"{100 * self.step:.3g}% a step and {self.colluders} colluders a sum fails with "
            f"probability {failure:.2g} at most"
        )
        return Graph(neighbours, threshold, failure, exposure, reason)


def _staying(loss: float, steps: int) -> Fraction:
    # The probability that a client is not lost in some steps. Rounded down, which is the safe side:
    # both bounds grow with the probability of a loss.
    units = math.floor((1 - Fraction(loss)) ** steps * _PROBABILITY_UNITS)
    return Fraction(units, _PROBABILITY_UNITS)


def _fewer(threshold: int, count: int, staying: Fraction) -> Fraction:
    # The probability that fewer than `threshold` of `count` stay: a binomial tail, in integers.
    if staying == 1:
        return Fraction(0)
    stay, lost = int(staying * _PROBABILITY_UNITS), int((1 - staying) * _PROBABILITY_UNITS)
    tail, term = 0, lost**count
    for present in range(threshold):
        tail += term
        term = term * (count - present) * stay // ((present + 1) * lost)  # without remainder
    return Fraction(tail, _PROBABILITY_UNITS**count)


def _caught(others: int, colluders: int, neighbours: int, threshold: int) -> Fraction:
    # The probability that `threshold` neighbours of one client collude: a hypergeometric tail.
    choices = sum(
        math.comb(colluders, n) * math.comb(others - colluders, neighbours - n)
        for n in range(threshold, min(colluders, neighbours) + 1)
    )
    return Fraction(choices, math.comb(others, neighbours))


def _split(clients: int, colluders: int, neighbours: int, lost: Fraction) -> Fraction:
    """Bound the probability that the graph of honest clients has several components.

    It has only if the ring has two gaps, each of at least half as many consecutive clients as there
    are neighbours: each client of a gap is lost, or colludes.
    """
    if neighbours >= clients - 1:
        return Fraction(0)
    lost_units, total = int(lost * _PROBABILITY_UNITS), 0  # `lost` is a whole number of units
    for n in range(min(colluders, neighbours) + 1):
        placements = math.comb(neighbours, n) * math.comb(clients - neighbours, colluders - n)
        total += placements * lost_units ** (neighbours - n) * _PROBABILITY_UNITS**n
    probability = Fraction(total, _PROBABILITY_UNITS**neighbours * math.comb(clients, colluders))
    return math.comb(clients, 2) * probability  # a union bound over where the two gaps begin


def _rounded_up(probability: Fraction) -> float:
    if probability >= 1:
        return 1.0
    return math.nextafter(float(probability), 1.0) if probability else 0.0


# The public seed of a round, which server and clients draw together: neither chooses it.
#
# First the server commits to its part, then each client sends a part, then the server reveals its
# part, with a proof for each client that the client's part is in the seed: a path in a hash tree.
# The order matters: a server that saw the clients' parts before it committed could try parts until
# it likes the seed, and a client that saw the server's part could choose its own in the same way.
# No privacy guarantee depends on the seed; `docs/secure-aggregation.md` says who may bias it.

PART_BYTES, HASH_BYTES = 32, 32
STEP_BYTES = 1 + HASH_BYTES
"""Length of one step of a path: on which side the sibling node is, and its hash."""

MAX_PROOF_BYTES = PART_BYTES + 64 * STEP_BYTES
"""Length of the proof in a tree of 2**64 parts, as many as there are client numbers."""


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
        self._session, self._part = session, os.urandom(PART_BYTES)
        self._client_parts: dict[int, bytes] = {}

    @property
    def commitment(self) -> bytes:
        # Must be sent before any client sends its part.
        return _commitment(self._session, self._part)

    def add(self, client: int, part: bytes) -> None:
        """Take a client's part; ProtocolError if it is not `PART_BYTES` long."""
        if len(part) != PART_BYTES:
            raise ProtocolError(
                f"Expected a part of the round's seed in {PART_BYTES} bytes, got {len(part)}."
            )
        self._client_parts[client] = part

    def close(self) -> tuple[int, dict[int, bytes]]:
        """Return the seed, below 2**64, and each client's proof."""
        clients = sorted(self._client_parts)
        leaves = [_leaf(self._session, client, self._client_parts[client]) for client in clients]
        root, paths = _tree(leaves)
        proofs = {c: self._part + path for c, path in zip(clients, paths, strict=True)}
        return _seed(self._session, self._part, root), proofs


def proved(session: bytes, commitment: bytes, client: int, part: bytes, proof: bytes) -> int:
    """Check the server's proof as a client, and return the round's seed.

    Args:
        session: bytes that identify the round.
        commitment: the server's, which it sent before it knew this client's part.
        client: this client's number.
        part: this client's part, random bytes that nobody has seen before.
        proof: the server's part and this client's path, which the server revealed.

    Returns:
        The seed, below 2**64.

    Raises:
        ProtocolError: the server's part is not the one that it committed to, or the proof has an
            impossible length.
    """
    server_part, path = proof[:PART_BYTES], proof[PART_BYTES:]
    if len(proof) > MAX_PROOF_BYTES or len(server_part) < PART_BYTES or len(path) % STEP_BYTES:
        raise ProtocolError(
            f"Expected the proof of a round's seed in {PART_BYTES} bytes and {STEP_BYTES} for each "
            f"step, {MAX_PROOF_BYTES} at most, got {len(proof)}."
        )
    computed = _commitment(session, server_part)
    if not hmac.compare_digest(computed, commitment):
        raise ProtocolError(
            "Expected the part of the seed that the server committed to before it saw this "
            f"client's, by {commitment.hex()[:16]}..., got one of {computed.hex()[:16]}...."
        )
    # The root is computed and not received: a path without this client's part gives another seed.
    node = _leaf(session, client, part)
    for start in range(0, len(path), STEP_BYTES):
        is_left, sibling = path[start] == 1, path[start + 1 : start + STEP_BYTES]
        node = _node(node, sibling) if is_left else _node(sibling, node)
    return _seed(session, server_part, node)


def _tree(leaves: list[bytes]) -> tuple[bytes, list[bytes]]:
    # The root of a hash tree, and each leaf's path to it; a node without a sibling moves up.
    level, paths = leaves or [b""], [b""] * len(leaves)
    leaves_below = [[leaf] for leaf in range(len(leaves))]  # by node of the level
    while len(level) > 1:
        pairs = range(0, len(level) - 1, 2)
        for left in pairs:
            for leaf in leaves_below[left]:
                paths[leaf] += b"\1" + level[left + 1]
            for leaf in leaves_below[left + 1]:
                paths[leaf] += b"\0" + level[left]
        odd = len(level) % 2
        level = [_node(level[left], level[left + 1]) for left in pairs] + level[-odd:] * odd
        leaves_below = [
            leaves_below[left] + leaves_below[left + 1] for left in pairs
        ] + leaves_below[-odd:] * odd
    return level[0], paths


def _leaf(session: bytes, client: int, part: bytes) -> bytes:
    return _hash(b"part", session, client.to_bytes(8, "big"), part)


def _node(left: bytes, right: bytes) -> bytes:
    # Another purpose than a leaf's: no inner node passes for a client's part.
    return _hash(b"node", left, right)


def _commitment(session: bytes, server_part: bytes) -> bytes:
    return _hash(b"commitment", session, server_part)


def _seed(session: bytes, server_part: bytes, root: bytes) -> int:
    return int.from_bytes(_hash(b"seed", session, server_part, root)[:8], "big")


def _hash(*fields: bytes) -> bytes:
    # Each field with its length, so that two lists of fields never give the same bytes.
    framed = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return hashlib.sha256(b"randquant draw v1\0" + framed).digest()
