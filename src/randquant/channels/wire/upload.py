"""Bytes that a client sends for one update, as plain codes, masked vectors or floats."""

from __future__ import annotations

from randquant._internal import validate
from randquant.channels.wire import payload as wire


def floats(dimension: int) -> int:
    """Bytes of an update sent as 32-bit floats, without a header."""
    return 4 * validate.whole("dimension", dimension, low=0)


def coded(coding: wire.Coding, size: int) -> int:
    """Bytes of `size` codes that the server sees one by one, header included.

    Example:
        >>> coded(wire.Format.of(2, "a bit"), 1024)
        168
    """
    return wire.HEADER_BYTES + wire.body_bytes(coding, validate.whole("size", size, low=0))


def sum_bits(levels: int, clients: int) -> int:
    """Bits per coordinate in which any sum of `clients` clients' codes is exact.

    `aggregation.modulus` says how many fewer suffice.

    Example:
        >>> sum_bits(2, 200), sum_bits(16, 40)
        (8, 10)
    """
    return (validate.whole("clients", clients, low=1) * (levels - 1)).bit_length()


def masked(size: int, bits: int) -> int:
    """Bytes of a vector that is masked for a sum modulo 2**bits, header included.

    Masks are uniform, so that every coordinate takes as many bits as a coordinate of the sum.

    Example:
        >>> masked(1024, sum_bits(2, 200))
        1064
    """
    return wire.HEADER_BYTES + (validate.whole("size", size, low=0) * bits + 7) // 8
