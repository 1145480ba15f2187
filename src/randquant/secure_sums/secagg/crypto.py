"""What clients send each other through the server, and primitives: keys, seals, shares."""

from __future__ import annotations

import decimal
import functools
import hashlib
import hmac
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from randquant._internal.imports import needed
from randquant.channels.wire import Format
from randquant.secure_sums.terms import ProtocolError, Terms

with needed("secure aggregation", "secagg"):
    from nacl import bindings


# The group of the protocol: the prime-order subgroup of edwards25519, by libsodium.

ORDER = 2**252 + 27742317777372353535851937790883648493
"""Order of the group, a prime; scalars are taken modulo it."""
FIELD = 2**255 - 19
"""Order of the field of the points' coordinates, a prime."""
SCALAR_BYTES = POINT_BYTES = 32
IDENTITY = bytes([1, *bytes(31)])


def random_scalar() -> int:
    # From 1 to ORDER - 1. Drawn from 512 random bits, it is uniform up to 2**-258.
    return int.from_bytes(os.urandom(64), "little") % (ORDER - 1) + 1


def scalar_bytes(scalar: int) -> bytes:
    return scalar.to_bytes(SCALAR_BYTES, "little")


def read_scalar(message: bytes) -> int:
    """Invert `scalar_bytes`; ProtocolError unless 1 to ORDER - 1: encodings are unique."""
    scalar = int.from_bytes(message, "little")
    if len(message) != SCALAR_BYTES or not 0 < scalar < ORDER:
        # Not the number itself, which may be a secret share.
        raise ProtocolError(
            f"Expected a number modulo the group's order in {SCALAR_BYTES} bytes, got "
            f"{len(message)} bytes of a number that is "
            f"{'zero' if not scalar else 'too large' if scalar >= ORDER else 'below it'}."
        )
    return scalar


def read_point(message: bytes) -> bytes:
    """Return the point; ProtocolError unless in the prime-order group and not its identity."""
    if len(message) != POINT_BYTES or not bindings.crypto_core_ed25519_is_valid_point(message):
        raise ProtocolError(
            f"Expected a public key in {POINT_BYTES} bytes, got {len(message)} bytes that encode "
            f"none: {message[:8].hex()}...."
        )
    return message


def base(scalar: int) -> bytes:
    # A multiple of the base point. The scalar must not be zero, which libsodium refuses.
    return bindings.crypto_scalarmult_ed25519_base_noclamp(scalar_bytes(scalar))


def times(scalar: int, point: bytes) -> bytes:
    """Multiply a point; ProtocolError if the scalar is 0 or `read_point` refuses the point.

    The library itself refuses points of small order, and those outside the prime-order group.
    """
    try:
        return bindings.crypto_scalarmult_ed25519_noclamp(scalar_bytes(scalar), point)
    except (RuntimeError, TypeError):
        raise ProtocolError(
            f"Expected a point of the group and a scalar that is not zero, got {point[:8].hex()}..."
            "."
        ) from None


def total(points: Iterable[bytes]) -> bytes:
    """Add up points returned by `base` or `times`."""
    result = IDENTITY
    for point in points:
        result = bindings.crypto_core_ed25519_add(result, point)
    return result


# The cryptographic primitives of the protocol, all from vetted libraries.

KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16


def derive(secret: bytes, *context: bytes) -> bytes:
    """Derive a key of 32 bytes for one purpose, by HKDF-SHA256."""
    # Each part with its length, so that no two contexts give the same bytes.
    info = b"".join(len(part).to_bytes(8, "big") + part for part in context)
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def sealing_key(private: X25519PrivateKey, public: bytes, pair: bytes) -> bytes:
    """Derive a key that only the holders of the two private keys know: X25519, then HKDF."""
    try:
        # The library refuses a shared secret of zeros: a public key of small order would make one,
        # which everybody could compute.
        shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError(
            f"Expected another client's public key, got an invalid one: {public[:8].hex()}...."
        ) from None
    return derive(shared, b"seal", pair)


def masking_private(scalar: int) -> Callable[[bytes], bytes]:
    """Return a function that multiplies points of the group by a nonzero scalar.

    Returns:
        From a point that `read_point` has accepted to the product's Montgomery coordinate.
    """
    # theory/shares.md, Proposition 6. No random scalar is one of its exceptions, but a hostile
    # client may choose one: these are multiplied in Edwards form, which is slower.
    multiple = 8 * (scalar * pow(8, -1, ORDER) % ORDER)
    clamped = multiple if multiple >= 2**254 else 8 * ORDER - multiple
    if clamped >= 2**255 or clamped < 2**254:
        return lambda point: _montgomery(times(scalar, point))
    private = X25519PrivateKey.from_private_bytes(scalar_bytes(clamped))
    return lambda point: private.exchange(_x25519_key(point))


def masking_key(multiply: Callable[[bytes], bytes], public: bytes, pair: bytes) -> bytes:
    """Derive the secret of a pairwise mask, in the group whose scalars are shared.

    Args:
        multiply: from `masking_private`.
        public: a point that `read_point` has accepted.
        pair: context of the two clients.
    """
    return derive(multiply(public), b"mask", pair)


@functools.lru_cache(maxsize=4096)
def _x25519_key(point: bytes) -> X25519PublicKey:
    return X25519PublicKey.from_public_bytes(_montgomery(point))


def _montgomery(point: bytes) -> bytes:
    # The birational map of RFC 7748, section 4.1. The top bit of a point is the sign of its x
    # coordinate, which the Montgomery coordinate does not have.
    y = int.from_bytes(point, "little") % 2**255
    u = (1 + y) * pow(1 - y, -1, FIELD) % FIELD
    return u.to_bytes(POINT_BYTES, "little")


def self_masking_key(seed: int, context: bytes) -> bytes:
    return derive(scalar_bytes(seed), b"self", context)


def seal(key: bytes, message: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate, with AES-256-GCM."""
    # A random nonce cannot repeat by chance: each key seals two messages, one in each direction.
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, message, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    # The context is authenticated too: what was sealed for another client or sum does not open.
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
    except (InvalidTag, ValueError):
        raise ProtocolError("Expected a neighbour's sealed shares, got forged ones.") from None


# Shamir sharing at consecutive places, with shares that can be checked once they are shown.
#
# A dealer draws a polynomial p of degree threshold - 1 with p(0) its secret; the share at place x
# is p(x). Any `threshold` shares give the secret; fewer reveal nothing about it.
#
# For each share it publishes a hash of the share and of g(x), where g is a second polynomial of
# that degree, and, for a challenge that these hashes determine, the values h = g + challenge * p at
# all places (Atapoor, Baghery, Cozzo and Pedersen 2023). Everyone checks that h has low degree;
# a holder, who sees p(x), checks h(x). docs/theory/shares.md, Propositions 1 and 2, say what this
# proves and hides.

COMMITMENT_BYTES = 16
"""Length of the hash of a share. Two shares with one hash take 2**64 hashes to find, another share
for a given one 2**128: theory/shares.md, Proposition 1. With half as many bytes a dealer could find
a second share; twice as many would only cost bytes."""

# Decimal digits of a sum of 2**20 products below ORDER**2, more than there are places: with fewer,
# sums would run into each other.
_PRODUCT_DIGITS = 160


def split(secret: int, threshold: int, places: int) -> list[int]:
    """Return the shares at places 1, 2, …; any `threshold` of them give the secret.

    The first ones are drawn: any threshold - 1 shares of a random polynomial are uniform.
    """
    drawn = [random_scalar() for _ in range(threshold - 1)]
    return _continued([secret, *drawn], places)[1:]


def combine(shares: Mapping[int, int], places: Set[int]) -> int:
    """Compute the secret from at least `threshold` shares of one polynomial.

    Args:
        shares: by place.
        places: these places, 0 and a few more. Their weights are computed once for all calls with
            the same places; the time of a call grows with the number of places without a share.
    """
    weights = _weights(frozenset(places))
    # A factor x - y at each place x takes the missing place y out of the linear relation.
    missing = places - shares.keys() - {0}
    weight_at_zero = weights[0] * math.prod(-y for y in missing)
    weighted = sum(
        weights[x] * math.prod([x - y for y in missing]) * share for x, share in shares.items()
    )
    return -weighted * pow(weight_at_zero, -1, ORDER) % ORDER


def random_word(places: int, threshold: int) -> list[int]:
    """Draw coefficients at places 0, 1, …, with which `low_degree` checks a dealer's values.

    Args:
        places, threshold: as in `split`. Dealers must not know the coefficients beforehand.
    """
    # A random polynomial of degree places - threshold, times the weights of all places.
    values = _continued([random_scalar() for _ in range(places - threshold + 1)], places)
    return [w * v % ORDER for w, v in zip(_factors(places + 1), values, strict=True)]


def low_degree(values: Sequence[int], word: Sequence[int]) -> bool:
    """Return True if these are values of one polynomial of degree threshold - 1.

    The test is a random word of the dual code (Cascudo and David 2017, section 4): other values
    pass with probability 1/ORDER.

    Args:
        values: at places 0, 1, ….
        word: from `random_word`.
    """
    return sum(map(mul, word, values)) % ORDER == 0


def commitment(context: bytes, share: int, blind: int) -> bytes:
    """Hash a share and the value that blinds it, for one dealer, holder and secret.

    Without the blinding value, a guess of the share could be tested against the hash.
    """
    parts = context + scalar_bytes(share) + scalar_bytes(blind)
    return hashlib.sha256(b"share" + parts).digest()[:COMMITMENT_BYTES]


def fits(committed: bytes, context: bytes, share: int, challenge: int, value: int) -> bool:
    # The blinding value is not sent: it follows from h(x) = g(x) + challenge * p(x).
    return commitment(context, share, (value - challenge * share) % ORDER) == committed


def _continued(values: Sequence[int], last: int) -> list[int]:
    """Return the values at 0, 1, …, last of the polynomial of least degree through `values`.

    Lagrange: p(x) = x! / (x - t)! * sum over j < t of factor(j) p(j) / (x - j), a convolution.
    """
    count = len(values)
    scaled = [f * v % ORDER for f, v in zip(_factors(count), values, strict=True)]
    sums = _convolved(scaled, _inverses(last)) if last >= count else []
    factorials, inverted = _factorials(last), _inverse_factorials(last)
    return list(values) + [
        factorials[x] * inverted[x - count] % ORDER * sums[x] % ORDER
        for x in range(count, last + 1)
    ]


def _convolved(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the sums of products whose places add up to 0, 1, …: one product of long numbers.

    The decimal module multiplies in quasi-linear time: 4 times as fast as term by term at 1,000.
    """
    # Inexact results raise: a rounded product would be wrong shares.
    exact = decimal.Context(decimal.MAX_PREC, traps=[decimal.Inexact, decimal.Overflow])
    exact.Emax, exact.Emin = decimal.MAX_EMAX, decimal.MIN_EMIN
    size = _PRODUCT_DIGITS
    numbers = [
        exact.create_decimal("".join([f"{term:0{size}d}" for term in terms]))
        for terms in (first, second)
    ]
    count = len(first) + len(second) - 1
    digits = format(exact.multiply(*numbers), "f").zfill(size * count)
    return [int(digits[start : start + size]) for start in range(0, size * count, size)]


@functools.lru_cache(maxsize=16)
def _weights(places: frozenset[int]) -> Mapping[int, int]:
    """Return weights w with sum of w(x) p(x) = 0 for every polynomial p of degree len(places) - 2.

    They are 1 / product of (x - y) over the other places y; removing a place y multiplies each by
    x - y. So the weights of all places up to the last one give those of a set with gaps.
    """
    factors = _factors(max(places) + 1)
    gaps = [y for y in range(len(factors)) if y not in places]
    return {x: factors[x] * math.prod([x - y for y in gaps]) % ORDER for x in places}


@functools.lru_cache(maxsize=16)
def _factors(count: int) -> Sequence[int]:
    # 1 / product of (x - y) over the other y of 0, …, count - 1, for each such x: by factorials,
    # since an inverse of its own for each x would take most of the time.
    inverted = _inverse_factorials(count - 1)
    return [
        (-1) ** (count - 1 - x) * inverted[x] * inverted[count - 1 - x] % ORDER
        for x in range(count)
    ]


@functools.lru_cache(maxsize=16)
def _factorials(last: int) -> Sequence[int]:
    return list(accumulate(range(1, last + 1), lambda f, x: f * x % ORDER, initial=1))


@functools.lru_cache(maxsize=16)
def _inverse_factorials(last: int) -> Sequence[int]:
    start = pow(_factorials(last)[last], -1, ORDER)
    return list(accumulate(range(last, 0, -1), lambda f, x: f * x % ORDER, initial=start))[::-1]


@functools.lru_cache(maxsize=16)
def _inverses(last: int) -> Sequence[int]:
    # 0, then 1 / x for x = 1, …, last.
    factorials, inverted = _factorials(last), _inverse_factorials(last)
    return [0, *(factorials[x - 1] * inverted[x] % ORDER for x in range(1, last + 1))]


# The messages between clients, which the server relays, as bytes.

PART_BYTES, SIGNATURE_BYTES, NUMBER_BYTES = 32, 64, 8
SEALED_BYTES = NONCE_BYTES + 2 * SCALAR_BYTES + TAG_BYTES
"""Length of the two shares sealed for a neighbour."""
CONFIRMATION_BYTES = 32  # of HMAC-SHA256


@dataclass(frozen=True, slots=True)
class Advert:
    """A client's public keys in one sum.

    Attributes:
        sealing: X25519 public key, 32 bytes.
        masking, seed: public keys of its masking key and of its self-mask's seed, points of 32
            bytes: its shares are checked against them.
        signature: of these keys, by its identity, 64 bytes, or b"".
    """

    sealing: bytes
    masking: bytes
    seed: bytes
    signature: bytes = b""

    def to_bytes(self) -> bytes:
        return self.sealing + self.masking + self.seed + self.signature

    @classmethod
    def from_bytes(cls, message: bytes) -> Advert:
        """Invert `to_bytes`; ProtocolError for anything else."""
        message = exactly_bytes(message)
        if len(message) not in (3 * PART_BYTES, 3 * PART_BYTES + SIGNATURE_BYTES):
            raise ProtocolError(f"Expected public keys in 96 or 160 bytes, got {len(message)}.")
        one, two, three = PART_BYTES, 2 * PART_BYTES, 3 * PART_BYTES
        return cls(message[:one], message[one:two], message[two:three], message[three:])

    def signed(self, terms: Terms, client: int) -> bytes:
        """Return the bytes that a client's identity signs."""
        # With the sum's digest, so that a signature is worth nothing in another sum: a server could
        # otherwise present a client's old keys, whose secrets it may have learnt.
        keys = self.sealing + self.masking + self.seed
        return b"randquant secure sum keys" + context(terms, client, client) + keys

    def check_signed(
        self, terms: Terms, client: int, directory: Mapping[int, bytes] | None
    ) -> None:
        """Raise ProtocolError unless the client's identity in the directory signed this advert."""
        # Without a directory nobody knows who should have signed: see `Client`.
        if directory is None:
            return
        try:
            public = Ed25519PublicKey.from_public_bytes(directory[client])
            public.verify(self.signature, self.signed(terms, client))
        except KeyError:
            raise ProtocolError(
                f"Expected keys signed by client {client}, which the directory does not have."
            ) from None
        except (ValueError, InvalidSignature):
            size = len(self.signature)
            raise ProtocolError(
                f"Expected keys signed by client {client}, got "
                f"{f'a signature of {size} bytes that is not its' if size else 'no signature'}."
            ) from None


def context(terms: Terms, first: int, second: int) -> bytes:
    """Return the context of a message or key: this sum, from the first client to the second.

    What was sealed, signed or hashed under one context is invalid under any other.
    """
    return terms.digest + _number(first) + _number(second)


def pair_context(terms: Terms, adverts: Mapping[int, Advert]) -> bytes:
    """Return the context of two clients' keys.

    The keys agree only if both clients have seen the same two adverts: a man in the middle, who
    shows each of them a key of its own, finds that nothing unseals.
    """
    first, second = sorted(adverts)
    return context(terms, first, second) + view_digest(terms, adverts)


def view_digest(terms: Terms, adverts: Mapping[int, Advert]) -> bytes:
    """Return the SHA-256 of a set of adverts, 32 bytes."""
    hasher = hashlib.sha256(b"adverts" + terms.digest)
    for client in sorted(adverts):
        # Each advert is hashed by itself: it has two lengths, with and without a signature.
        hasher.update(_number(client) + hashlib.sha256(adverts[client].to_bytes()).digest())
    return hasher.digest()


def survivors_digest(terms: Terms, survivors: Collection[int]) -> bytes:
    """Return the SHA-256 of a set of survivors, 32 bytes."""
    numbers = b"".join(map(_number, sorted(survivors)))
    return hashlib.sha256(b"survivors" + terms.digest + numbers).digest()


def confirmation(key: bytes, sender: int, digest: bytes) -> bytes:
    # Under the key of the two clients, so that the server cannot forge one; and with the sender's
    # number, so that the server cannot send a client's own confirmation back to it.
    return hmac.digest(key, b"confirm" + _number(sender) + digest, "sha256")


def masked_format(terms: Terms, client: int) -> Format:
    # Sum and client are in the format's digest: a vector of another sum or client does not unpack.
    return Format.from_facts(2**terms.bits, "masked", terms.digest.hex(), str(client))


def accusation(clients: Collection[int]) -> bytes:
    # The end of a client's upload: the neighbours whose shares are invalid.
    return b"".join(map(_number, sorted(clients)))


def read_accusation(message: bytes) -> frozenset[int]:
    """Invert `accusation`; ProtocolError for anything else."""
    # Encoded again and compared: no number twice, none out of order, no bytes left.
    parts = [message[at : at + NUMBER_BYTES] for at in range(0, len(message), NUMBER_BYTES)]
    clients = frozenset(int.from_bytes(part, "big") for part in parts)
    if accusation(clients) != message:
        raise ProtocolError(
            "Expected numbers of clients in ascending order after a masked vector, got "
            f"{len(message)} bytes that are not: {message[:16].hex()}."
        )
    return clients


def exactly_bytes(message: object) -> bytes:
    """Return the message; ProtocolError if it is of another type."""
    if not isinstance(message, bytes):
        raise ProtocolError(f"Expected a message in bytes, got {type(message).__name__}.")
    return message


def check_inbox(inbox: object, others: Collection[int], *sizes: int) -> None:
    """Raise ProtocolError unless this is one message at most for each of these clients.

    Args:
        inbox: the messages that a client sent, by receiver.
        others: the clients that it may send one to.
        sizes: the lengths that a message may have, in bytes.
    """
    if not isinstance(inbox, Mapping):
        raise ProtocolError(
            f"Expected one message at most for each neighbour, got {type(inbox).__name__}."
        )
    if not inbox.keys() <= frozenset(others):  # compares lengths first: a huge inbox costs nothing
        raise ProtocolError(
            f"Expected one message at most for each of {len(others)} neighbours, got {len(inbox)}, "
            "not all of them for neighbours."
        )
    for message in inbox.values():
        if len(exactly_bytes(message)) not in sizes:
            raise ProtocolError(
                f"Expected messages of {' or '.join(map(str, sizes))} bytes, got {len(message)}."
            )


def _number(client: int) -> bytes:
    return client.to_bytes(NUMBER_BYTES, "big")
