"""The group of the protocol: the prime-order subgroup of edwards25519, by libsodium."""

from __future__ import annotations

import os
from collections.abc import Iterable

from randquant._internal.extras import needed
from randquant.secure_sums.secagg.terms import ProtocolError

with needed("secure aggregation", "secagg"):
    from nacl import bindings

ORDER = 2**252 + 27742317777372353535851937790883648493
"""Order of the group, a prime; scalars are taken modulo it."""
FIELD = 2**255 - 19
"""Coordinates of points are taken modulo it, a prime."""
SCALAR_BYTES = POINT_BYTES = 32
IDENTITY = bytes([1, *bytes(31)])


def random_scalar() -> int:
    """A scalar from 1 to ORDER - 1, uniform up to 2**-258."""
    return int.from_bytes(os.urandom(64), "little") % (ORDER - 1) + 1


def scalar_bytes(scalar: int) -> bytes:
    """32 bytes, little-endian."""
    return scalar.to_bytes(SCALAR_BYTES, "little")


def read_scalar(message: bytes) -> int:
    """Invert `scalar_bytes`; ProtocolError unless 1 to ORDER - 1: encodings are unique."""
    scalar = int.from_bytes(message, "little")
    if len(message) != SCALAR_BYTES or not 0 < scalar < ORDER:
        raise ProtocolError("Expected a number modulo the group's order, got another.")
    return scalar


def read_point(message: bytes) -> bytes:
    """The point; ProtocolError unless in the prime-order group and not its identity."""
    if len(message) != POINT_BYTES or not bindings.crypto_core_ed25519_is_valid_point(message):
        raise ProtocolError("Expected a public key, got bytes that encode none.")
    return message


def base(scalar: int) -> bytes:
    """A nonzero scalar times the base point."""
    return bindings.crypto_scalarmult_ed25519_base_noclamp(scalar_bytes(scalar))


def times(scalar: int, point: bytes) -> bytes:
    """A scalar times a point; ProtocolError if the scalar is 0 or `read_point` refuses the point.

    The library itself refuses points of small order, and those outside the prime-order group.
    """
    try:
        return bindings.crypto_scalarmult_ed25519_noclamp(scalar_bytes(scalar), point)
    except (RuntimeError, TypeError):
        raise ProtocolError("Expected a point of the group, got another.") from None


def total(points: Iterable[bytes]) -> bytes:
    """The sum of points returned by `base` or `times`."""
    result = IDENTITY
    for point in points:
        result = bindings.crypto_core_ed25519_add(result, point)
    return result
