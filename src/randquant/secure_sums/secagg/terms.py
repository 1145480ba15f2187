"""The public terms of one secure sum, on which all parties agree, and their public identities."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from randquant._internal import validate

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
