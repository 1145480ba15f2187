"""What all parties of a secure sum agree on: its terms, a seed that they draw, and masks.

The terms are public: identities, neighbours, a threshold. Where not all other clients are
neighbours, a sum needs three properties of the graph, as Bell et al. 2020 state for theirs: enough
neighbours of each client stay, few neighbours of each client collude, and the graph of the other
clients is connected. Their probabilities are computed here, in whole numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import hmac
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from randquant._internal import validate
from randquant.channels.keys import Key

DEFAULT_NEIGHBOURS = 10
"""Default number of a client's neighbours, three of which may be lost at the default threshold of
seven. With twice as many, six may be lost, and a client has twice the work and bytes. `Losses`
chooses the number for a rate of failed sums."""

MAX_CLIENTS, MAX_NEIGHBOURS = 2**16, 2**12
"""Largest numbers in a sum: beyond these a hostile server's terms would cost a client minutes of
work before it sees the first key."""

OFFER_BYTES = 32

DEFAULT_THRESHOLD_SHARE = 2 / 3
"""Default threshold as a share of a client's neighbours; only the client itself may lower it. At
this share fewer than a third of them may collude with a malicious server, and a third may drop
out."""


class ProtocolError(ValueError):
    """A party stops, because a message violates the protocol or too few clients are left."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The public terms of one secure sum.

    All keys are derived from their digest, so that parties with different terms share no key.

    Args:
        session: bytes that identify the run and the round; no other sum may use them.
        clients: their numbers, 0 to 2**64 - 1, without duplicates.
        dimension: coordinates of a vector.
        bits: the sum is taken modulo 2**bits, 1 to 32.
        least: fewest clients whose vectors may be in a sum that is unmasked. The privacy guarantee
            of a sum relies on this number: a client reveals nothing if fewer are left.
        neighbours: how many other clients each client shares masks with; even, or all others. All
            others protect against a malicious server; fewer are faster, and protect against an
            honest-but-curious one.
        threshold: how many of a client's neighbours must answer to remove its mask. By default
            two thirds of them, rounded up.
        offer: SHA-256 of the offer that clients answer, 32 bytes. A client's guarantee counts on
            the noise of the others, so it shares no mask with clients that answer another offer.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> terms = Terms(b"run 1, round 1", tuple(range(40)), 1000, bits=10, least=30)
        >>> terms.neighbours, terms.threshold, terms.client_neighbours(0)[:3]
        (10, 7, (9, 12, 14))
    """

    session: bytes
    clients: tuple[int, ...]
    dimension: int
    bits: int
    least: int
    neighbours: int = DEFAULT_NEIGHBOURS
    threshold: int = 0
    offer: bytes = bytes(OFFER_BYTES)

    def __post_init__(self) -> None:
        validate.kind("session", self.session, bytes)
        validate.kind("offer", self.offer, bytes)
        validate.whole("bytes of offer", len(self.offer), low=OFFER_BYTES, high=OFFER_BYTES)
        validate.kind("clients", self.clients, tuple)
        clients = tuple(validate.whole("client", c, low=0, high=2**64 - 1) for c in self.clients)
        count = len(clients)
        if len(set(clients)) < count or not 2 <= count <= MAX_CLIENTS:
            raise ValueError(
                f"Expected two clients or more, {MAX_CLIENTS} at most, none twice, got "
                f"{clients[:9]}{'...' if count > 9 else ''}."
            )
        dimension = validate.whole("dimension", self.dimension, low=1, high=2**40)
        bits = validate.whole("bits", self.bits, low=1, high=32)
        least = validate.whole("least", self.least, low=2, high=count)
        degree = min(validate.whole("neighbours", self.neighbours, low=1), count - 1)
        validate.whole("neighbours", degree, low=1, high=MAX_NEIGHBOURS)
        if degree < count - 1 and degree % 2:
            raise ValueError(f"Expected an even number of neighbours, got {degree}.")
        # More than half, so that no two disjoint groups of neighbours can each remove a mask. If
        # not all others are neighbours that is too few: a malicious server needs no colluder. If
        # all are, it needs one, and clients still demand two thirds unless told to accept less.
        two_thirds = share_of_neighbours(degree, DEFAULT_THRESHOLD_SHARE)
        low = degree // 2 + 1 if degree == count - 1 else two_thirds
        threshold = self.threshold or two_thirds
        threshold = validate.whole("threshold", threshold, low=low, high=degree)
        # Plain ints: the digest hashes their repr, which NumPy's integers would change.
        checked = (clients, dimension, bits, least, degree, threshold)
        for field, value in zip(dataclasses.fields(self)[1:-1], checked, strict=True):
            object.__setattr__(self, field.name, value)

    @property
    def most_accusers(self) -> int:
        """Most neighbours that may accuse a client of invalid shares before it is excluded.

        If at most this many clients are malicious, no honest client is excluded, and every client
        that stays has `threshold` honest neighbours with valid shares.
        """
        return (self.neighbours + 1 - self.threshold) // 2

    @property
    def digest(self) -> bytes:
        return _digest(self)

    def client_neighbours(self, client: int) -> tuple[int, ...]:
        # In ascending order: those with which this client shares masks.
        return _neighbours(self, client)

    def share_holders(self, client: int) -> tuple[int, ...]:
        # The client's neighbours and itself: the share at place k is for the k-th of them.
        return _holders(self, client)

    def share_place(self, dealer: int, holder: int) -> int:
        """Return the place, 1 or more, at which a dealer evaluates its polynomials for a holder."""
        ring, positions = _ring(self)
        if self.neighbours == len(ring) - 1:
            return positions[holder] + 1
        return (positions[holder] - positions[dealer] + self.neighbours // 2) % len(ring) + 1

    def __hash__(self) -> int:
        # Fast, since each step looks up cached values by it; terms of one session rarely differ.
        return hash((self.session, len(self.clients)))


def share_of_neighbours(neighbours: int, share: float) -> int:
    # Rounded up, of the fraction that is meant: as floats, 0.07 * 100 is above 7 and would give 8.
    return math.ceil(Fraction(share).limit_denominator(10**6) * neighbours)


@functools.lru_cache(maxsize=16)
def _digest(terms: Terms) -> bytes:
    # theory/shares.md, Proposition 7: of the offer too.
    *fields, offer = dataclasses.astuple(terms)
    named = b"randquant secure sum v4\0" + offer + repr(tuple(fields)).encode()
    return hashlib.sha256(named).digest()


@functools.lru_cache(maxsize=16)
def _ring(terms: Terms) -> tuple[tuple[int, ...], dict[int, int]]:
    # All clients in a pseudorandom order, and each one's position. The order follows from the
    # digest, so that nobody sends the graph, and all parties compute the same one.
    ring = tuple(
        sorted(
            terms.clients,
            key=lambda c: (hmac.digest(terms.digest, c.to_bytes(8, "big"), "sha256"), c),
        )
    )
    return ring, {client: position for position, client in enumerate(ring)}


@functools.lru_cache(maxsize=2048)
def _neighbours(terms: Terms, client: int) -> tuple[int, ...]:
    return tuple(sorted(set(_holders(terms, client)) - {client}))


@functools.lru_cache(maxsize=2048)
def _holders(terms: Terms, client: int) -> tuple[int, ...]:
    # All clients, or a client and the nearest ones on either side, in the order of the ring.
    ring, positions = _ring(terms)
    if terms.neighbours == len(ring) - 1:
        return ring
    reach, position = terms.neighbours // 2, positions[client]
    return tuple(ring[(position + step) % len(ring)] for step in range(-reach, reach + 1))


IDENTITY_BYTES = 32
MAX_CLIENT_NUMBER = 2**64 - 1

_FIELD_ORDER = 2**255 - 19
# The y coordinate of a point of order 8.
_ORDER_8_Y = int.from_bytes(
    bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little"
)
_SMALL_ORDER_Y = {
    0, 1, _FIELD_ORDER - 1, _FIELD_ORDER, _FIELD_ORDER + 1, _ORDER_8_Y, _FIELD_ORDER - _ORDER_8_Y,
}  # fmt: skip
"""The y of all points whose order divides 8, in every encoding. Under such a key one signature is
valid for an eighth of all messages or more, so that anybody can sign."""


def check_identity(public: bytes) -> None:
    """Raise ValueError unless bytes may be the public half of somebody's key.

    Example:
        >>> check_identity(bytes(32))
        Traceback (most recent call last):
        ValueError: Expected an Ed25519 identity, got 0000...0000, for which anybody can sign.
    """
    if not isinstance(public, bytes) or len(public) != IDENTITY_BYTES:
        size = f"{len(public)} bytes" if isinstance(public, bytes) else validate.shown(public)
        raise ValueError(f"Expected an identity in {IDENTITY_BYTES} bytes of Ed25519, got {size}.")
    # Without the top bit, which is the sign of x.
    if int.from_bytes(public, "little") % 2**255 in _SMALL_ORDER_Y:
        shown = f"{public.hex()[:4]}...{public.hex()[-4:]}"
        raise ValueError(f"Expected an Ed25519 identity, got {shown}, for which anybody can sign.")


def check_directory(directory: Mapping[int, bytes]) -> None:
    """Raise ValueError unless each client, by its number, has an identity of its own."""
    owners: dict[bytes, int] = {}
    for client, public in directory.items():
        validate.whole("a client's number", client, low=0, high=MAX_CLIENT_NUMBER)
        check_identity(public)
        # One client under two numbers would be two of the clients that a guarantee counts on.
        if (other := owners.setdefault(public, client)) != client:
            raise ValueError(
                f"Expected each client's own identity in the directory, got one of both {other} "
                f"and {client}: one client would count as two."
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
        >>> check_draw(b"run 1, round 1", draw.commitment, 7, part, proofs[7]) == seed < 2**64
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


def check_draw(session: bytes, commitment: bytes, client: int, part: bytes, proof: bytes) -> int:
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


# Masks: streams of AES-256 in counter mode, added modulo a power of two.

# Coordinates that are masked at a time. Their masks, 64 to 256 kB, stay in the processor's cache;
# with many more they would be read from memory, with many fewer NumPy's calls take most time.
_PART_COORDINATES = 2**16
# Coordinates in two blocks of the cipher, of the narrowest type: threads start at multiples of it.
# A thread that started within a block could not enter the stream there.
_BLOCK_COORDINATES = 32
# Coordinates of all masks together from which several threads add them. They take 1 ms on one core;
# of half as many, starting the threads would take a tenth.
_MIN_SHARED_COORDINATES = 2**21
# Coordinates of a thread. Of half as many, to enter a stream would take as long as to draw it; with
# twice as many, vectors of 100,000 would be left to one core.
_MIN_THREAD_COORDINATES = 2**15


def mask_dtype(bits: int) -> np.dtype:
    """Return the narrowest unsigned integers that wrap around at a multiple of 2**bits.

    Sums modulo the type's range are then right modulo 2**bits, without a reduction at each step.
    """
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)


def add_masks(
    totals: np.ndarray,
    secrets: Iterable[bytes],
    sign: int,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Add the masks of secrets to totals (d,), or subtract them, modulo the range of their type.

    A large vector is divided among all cores: no mask is ever in memory as a whole.

    Args:
        totals: changed in place.
        secrets: of each mask, 32 bytes; each is used for one mask.
        sign: +1 or -1.
        check: called before each mask, also by several threads at once; what it raises ends the
            work.
    """
    # Not above: it brings the compiler, which small sums do not need.
    from randquant.channels.encoding import cores, map_over

    secrets = list(secrets)
    threads = 1
    if totals.size * len(secrets) >= _MIN_SHARED_COORDINATES:
        threads = max(1, min(cores(), totals.size // _MIN_THREAD_COORDINATES))
    # Whole blocks of the cipher, so that each thread can enter the streams at its first coordinate.
    size = -(-totals.size // (threads * _BLOCK_COORDINATES)) * _BLOCK_COORDINATES

    def add_range(start: int) -> None:
        _add_range(totals[start : start + size], start, secrets, sign, check)

    map_over(add_range, range(0, totals.size, size), threads)


def _add_range(
    totals: np.ndarray, first: int, secrets: list[bytes], sign: int, check: Callable[[], None]
) -> None:
    words = np.empty(_PART_COORDINATES * totals.itemsize // 8, dtype=np.uint64)
    apply = np.add if sign > 0 else np.subtract
    for secret in secrets:
        check()
        # Each secret is used for one mask only, so every stream may start at the same place.
        fill = Key(secret).stream(first * totals.itemsize // words.itemsize)
        for start in range(0, totals.size, _PART_COORDINATES):
            part = totals[start : start + _PART_COORDINATES]
            fill(words[: -(-part.nbytes // words.itemsize)])
            # Little-endian, as the stream's bytes: the same mask on every machine.
            mask = words.astype("<u8", copy=False).view(totals.dtype.newbyteorder("<"))
            apply(part, mask[: part.size], out=part)
