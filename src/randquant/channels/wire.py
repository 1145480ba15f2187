"""Codes to bytes and back: the payload that a client uploads.

A payload is a header of 40 bytes and a body of packed codes: log2 m bits each, or within 1 % of
that if m is not a power of two (`blocks`). The codes are those of a `Channel`, or of a `Format` if
there is no channel. Fingerprint and checksum, short as they are, detect mistakes and damage, not
forgery: authenticity is the transport's task. The header::

    offset  bytes  field
    0       4      magic "RQPL"
    4       1      version, 2; 3 if some codes are padding; 4 if some coordinates are left out
    5       1      reserved, 0
    6       2      levels, modulo 2**16 (the fingerprint determines the rest)
    8       8      how many codes; in version 3: how many codes (4), how many of them padding (4);
                   in version 4: how many codes (4), how many more coordinates an update has (4)
    16      16     fingerprint of the channel or format
    32      8      checksum: first bytes of SHA-256 over the 32 bytes above and the body
"""

from __future__ import annotations

import functools
import hashlib
import struct
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from randquant._internal import validate

__all__ = [
    "HEADER_BYTES",
    "MAGIC",
    "PADDED_VERSION",
    "TOTAL_TYPES",
    "Coding",
    "Format",
    "add",
    "bare_header",
    "body_bytes",
    "frame",
    "pack",
    "sizes",
    "stated_dimension",
    "unpack",
]


# Packing of codes when the number of levels is not a power of two: a block is one number.
#
# A block of k codes c_1 .. c_k below m is the number (c_1·m + c_2)·m + ... + c_k, in the fewest
# bits that hold m^k - 1, with the least k for which this is within 1 % of k·log2(m): for 3 levels,
# 5 codes in a byte. Blocks follow each other, lowest bit first; the last one may have fewer codes,
# and then fewer bits.

MAX_BLOCK_LEVELS = 256
"""Most levels that are packed in blocks: those of codes of one byte. With more, whole bits per code
waste at most 13 %."""


@functools.lru_cache(maxsize=256)
def block(levels: int) -> tuple[int, int]:
    """Return (codes, bits) of a block: one code for a power of two, and at most 128 bits.

    Example:
        >>> block(16), block(3), block(5)
        ((1, 4), (5, 8), (3, 7))
    """
    codes, bits = 1, (levels - 1).bit_length()
    if levels & (levels - 1) == 0 or levels > MAX_BLOCK_LEVELS:
        return codes, bits
    # theory/encoding.md, Proposition 5: bits <= 1.01 · codes · log2(levels), in whole numbers.
    while 2 ** (100 * bits) > levels ** (101 * codes):
        codes += 1
        bits = (levels**codes - 1).bit_length()
    return codes, bits


def blocks(levels: int, count: int) -> tuple[int, int, int]:
    """Return (codes, bits, bits of the last block if it has fewer codes) for `count` codes."""
    codes, bits = block(levels)
    return codes, bits, (levels ** (count % codes) - 1).bit_length()


def bits_per_code(levels: int) -> float:
    """Return the average bits per code in a long payload: log2(levels), or up to 1 % more.

    Example:
        >>> bits_per_code(16), bits_per_code(3)
        (4.0, 1.6)
    """
    codes, bits = block(levels)
    return bits / codes


def length(levels: int, count: int) -> int:
    """Return the number of bits that `count` codes take."""
    codes, bits, last = blocks(levels, count)
    return count // codes * bits + last


MAGIC = b"RQPL"
"""First bytes of every payload."""

VERSION = 2
"""Version of a payload with a code for each coordinate. Payloads of other versions than this,
`PADDED_VERSION` and `PARTIAL_VERSION` are refused."""

PADDED_VERSION = 3
"""Version of a payload whose last codes are padding, as a rotated update's are."""

PARTIAL_VERSION = 4
"""Version of a payload with fewer codes than an update has coordinates (`aggregation.rotation`)."""

HEADER = struct.Struct("<4sBBHQ16s8s")
"""Layout of the header, whose fields the module describes."""

HEADER_BYTES = HEADER.size
"""Length of the header."""

Payload = bytes | bytearray | memoryview
"""Bytes that were received: a view of a larger message saves a copy of them."""

NO_LOCK = nullcontext()
"""For totals that one thread adds to."""

TOTAL_TYPES = ("int32", "int64", "uint32", "uint64")
"""Integer types in which sums of codes may be kept."""


class Coding(Protocol):
    """The facts that sender and receiver must agree on; `Channel` and `Format` implement it."""

    @property
    def levels(self) -> int:
        """Number of codes."""
        ...

    @property
    def bits(self) -> int:
        """Bits per code."""
        ...

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that identify the meaning of the codes."""
        ...


@dataclass(frozen=True, slots=True)
class Format:
    """Codes 0 to levels - 1, with a fingerprint that identifies their meaning.

    Example:
        >>> Format.from_facts(2, "sign", 0.5).bits
        1
    """

    levels: int
    fingerprint: bytes

    @classmethod
    def from_facts(cls, levels: int, *facts: str | float) -> Format:
        """Return the format of codes whose meaning these names and numbers determine.

        Two sides that differ in any of them refuse each other's payloads.
        """
        levels = validate.whole("levels", levels, low=1)
        # `repr` shows every digit of a float. Numbers of NumPy are shown as Python's, so that both
        # sides hash the same text.
        stated = repr((levels, *map(validate.number, facts)))
        return cls(levels, hashlib.sha256(stated.encode()).digest()[:16])

    @property
    def bits(self) -> int:
        return (self.levels - 1).bit_length()


def body_bytes(channel: Coding, dimension: int) -> int:
    """Return the bytes of `dimension` packed codes, without the header.

    Example:
        >>> body_bytes(Format.from_facts(3, "five codes in a byte"), 11)
        3
    """
    return (_body_bits(channel, dimension) + 7) // 8


def pack(channel: Coding, codes: np.ndarray, padding: int = 0) -> bytes:
    """Turn codes into a payload.

    Args:
        channel: the channel that the codes were drawn from, or their format.
        codes: (d,) uint8, each below channel.levels; uint32 for codes of more than 8 bits.
        padding: number of codes that are padding, which the header states; if the update has more
            coordinates than codes, minus the difference.

    Returns:
        bytes: 40 + `body_bytes` of them, log2 m bits a code and at most 1 % more.

    Guarantees:
        unpack(channel, pack(channel, codes), d) returns the same codes.

    Raises:
        ValueError: codes is not a vector of that dtype, or a code is out of range.

    Example:
        >>> import randquant as rq
        >>> channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
        >>> len(pack(channel, np.zeros(650, dtype=np.uint8)))
        365
    """
    from randquant.channels import kernels

    _check_coding(channel)
    try:
        codes = np.ascontiguousarray(codes)
    except ValueError:
        raise TypeError("Expected codes (d,), got lists of uneven lengths.") from None
    if codes.ndim != 1 or codes.dtype != _dtype(channel):
        raise ValueError(
            f"Expected codes (d,) of dtype {_dtype(channel).name}, got shape {codes.shape}, "
            f"{codes.dtype}: pack one client's codes at a time."
        )
    # A code too large would spill into the bits of the next one.
    _check_range(channel, codes)
    body = np.empty(body_bytes(channel, codes.size), dtype=np.uint8)
    if _in_blocks(channel):
        kernels.pack_blocks(codes, channel.levels, *blocks(channel.levels, codes.size), body)
    else:
        kernels.pack(codes, channel.bits, body)
    return frame(channel, codes.size, body, padding)


def frame(channel: Coding, size: int, body: np.ndarray, padding: int = 0) -> bytes:
    """Put the header before a body of packed codes, (n,) uint8."""
    bare = bare_header(channel, size, padding)
    digest = hashlib.sha256(bare)
    digest.update(body.data)
    return b"".join((bare, digest.digest()[: struct.calcsize("8s")], body.data))


def bare_header(channel: Coding, size: int, padding: int = 0) -> bytes:
    """Return the header without the checksum, 32 bytes: the checksum covers it and the body."""
    version, count = _version(padding), size if padding == 0 else _both(size, padding)
    fields = (MAGIC, version, 0, channel.levels % 2**16, count, channel.fingerprint)
    return HEADER.pack(*fields, b"")[: -struct.calcsize("8s")]


def sizes(payload: Payload) -> tuple[int, int]:
    """Read (codes, how many of them are padding) from a header, without any check.

    Where coordinates were left out, the second number is negative: minus the number of coordinates
    that the update has in addition to the codes.
    """
    # A truncated header is filled with zeros: what it states is checked by those who use it.
    _, version, _, _, count, _, _ = HEADER.unpack_from(
        bytes(payload[:HEADER_BYTES]).ljust(HEADER_BYTES, b"\0")
    )
    codes, rest = count % 2**32, count >> 32
    return {PADDED_VERSION: (codes, rest), PARTIAL_VERSION: (codes, -rest)}.get(version, (count, 0))


def stated_dimension(channel: Coding, payload: Payload) -> int:
    """Read from a payload the number of coordinates of the update, without the padding.

    Raises:
        ValueError: the payload is not of this channel, or its length is not the one it states.

    Example:
        >>> coin = Format.from_facts(2, "a coin")
        >>> stated_dimension(coin, pack(coin, np.zeros(1024, dtype=np.uint8), padding=374))
        650
    """
    size, padding = sizes(payload)
    _checked_length(channel, payload, size)
    return size - padding


def _version(padding: int) -> int:
    return VERSION if padding == 0 else PADDED_VERSION if padding > 0 else PARTIAL_VERSION


def _both(size: int, padding: int) -> int:
    if not (-(2**32) < padding <= size < 2**32):
        raise ValueError(f"Expected padding of 0 to {size} codes, got {padding} of {size}.")
    return size | abs(padding) << 32


def _checked_header(
    channel: Coding, payload: Payload, dimension: int, padding: int | None = None
) -> bytes:
    # Everything is compared before the body is read, so that a wrong payload costs no memory.
    # Returns the checksum that the header states.
    magic, version, reserved, levels, _, fingerprint, checksum = HEADER.unpack_from(payload)
    if magic != MAGIC:
        raise ValueError(f"Expected a payload that starts with {MAGIC!r}, got {magic!r}.")
    size, padded = sizes(payload)
    if version != _version(padded) or reserved != 0:
        raise ValueError(
            f"Expected payload version {VERSION}, got {version}: client and server must run "
            "versions of randquant that share a format."
        )
    if fingerprint != channel.fingerprint or levels != channel.levels % 2**16:
        raise ValueError(
            f"Expected a payload of channel {channel.fingerprint.hex()[:8]} with "
            f"{channel.levels} levels, got channel {fingerprint.hex()[:8]} with {levels}: another "
            "mechanism, or another round's subset of coordinates."
        )
    if size != dimension or padded > size:
        raise ValueError(f"Expected a payload of {dimension} coordinates, got {size}.")
    if padding is not None and padded != padding:
        raise ValueError(
            f"Expected a payload of {dimension - padding} coordinates, got {size - padded}."
        )
    return checksum


def unpack(
    channel: Coding, payload: Payload, dimension: int, padding: int | None = None
) -> np.ndarray:
    """Turn a payload back into codes.

    Args:
        channel: the channel or format that the receiver expects.
        payload: the received bytes.
        dimension: number of codes that the receiver expects.
        padding: number of codes that are padding; None for any number.

    Returns:
        (dimension,) uint8 codes, each below channel.levels; uint32 for codes of more than 8 bits.

    Guarantees:
        A payload that is damaged, truncated, too long, or for another channel, dimension or version
        raises; it never yields an array. No more memory is allocated than the expected dimension
        requires.

    Raises:
        ValueError: the payload is invalid; the message says how.
    """
    _check_coding(channel)
    dimension = validate.whole("dimension", dimension, low=0)
    body = _checked_body(channel, payload, dimension, padding)
    return _codes(channel, body, dimension)


def add(
    channel: Coding,
    payload: Payload,
    totals: np.ndarray,
    padding: int | None = None,
    lock: AbstractContextManager[object] = NO_LOCK,
) -> None:
    """Add a payload's codes to running totals.

    Args:
        channel: the channel or format that the receiver expects.
        payload: the received bytes.
        totals: (dimension,) int32, int64, uint32 or uint64, changed in place, but not if the
            payload is refused.
        padding: number of codes that are padding; None for any number.
        lock: held while totals change, where several threads add to them. What takes longer than
            adding, the checks of the payload, is done before.

    Raises:
        ValueError: see `unpack`.
        TypeError: totals is not a writable vector of such integers.
    """
    from randquant.channels import kernels

    _check_coding(channel)
    validate.kind("totals", totals, np.ndarray)
    if totals.ndim != 1 or totals.dtype.name not in TOTAL_TYPES or not totals.flags.writeable:
        raise TypeError(
            f"Expected totals (d,) to add to, of dtype {', '.join(TOTAL_TYPES)}; got shape "
            f"{totals.shape}, {totals.dtype}."
        )
    # A bad payload is refused before totals change: otherwise one client could spoil a round.
    body = _checked_body(channel, payload, totals.size, padding)
    if channel.levels == 1 << channel.bits:
        with lock:
            kernels.add(body, channel.bits, totals)
    else:  # some bit patterns may not be codes: check all of them before adding
        codes = _codes(channel, body, totals.size).astype(totals.dtype)
        with lock:
            totals += codes


def _codes(channel: Coding, body: np.ndarray, dimension: int) -> np.ndarray:
    from randquant.channels import kernels

    if _in_blocks(channel):
        codes = np.empty(dimension, dtype=np.uint8)
        fields = blocks(channel.levels, dimension)
        if not kernels.unpack_blocks(body, channel.levels, *fields, codes):
            raise ValueError(
                f"Expected blocks of codes below {channel.levels}, got a larger number in one."
            )
        return codes
    codes = np.zeros(dimension, dtype=_dtype(channel))
    kernels.add(body, channel.bits, codes)
    _check_range(channel, codes)
    return codes


def _in_blocks(channel: Coding) -> bool:
    return block(channel.levels)[0] > 1


def _body_bits(channel: Coding, dimension: int) -> int:
    return length(channel.levels, dimension)


def _dtype(channel: Coding) -> np.dtype:
    return np.dtype(np.uint8 if channel.bits <= 8 else np.uint32)


def _checked_length(
    channel: Coding, payload: Payload, dimension: int, padding: int | None = None
) -> bytes:
    # Returns the checksum in the header, after checking the rest of the header and the length.
    if not isinstance(payload, Payload):
        raise TypeError(f"Expected a payload of bytes, got {validate.shown(payload)}.")
    expected = HEADER_BYTES + body_bytes(channel, dimension)
    if len(payload) < HEADER_BYTES:
        raise ValueError(
            f"Expected a payload of {expected} bytes, got {len(payload)}: it is truncated."
        )
    checksum = _checked_header(channel, payload, dimension, padding)
    if len(payload) != expected:
        kind = "truncated" if len(payload) < expected else "too long"
        raise ValueError(f"Expected a payload of {expected} bytes, got {len(payload)}: {kind}.")
    return checksum


def _checked_body(
    channel: Coding, payload: Payload, dimension: int, padding: int | None
) -> np.ndarray:
    checksum = _checked_length(channel, payload, dimension, padding)
    body = np.frombuffer(payload, dtype=np.uint8, offset=HEADER_BYTES)
    digest = hashlib.sha256(payload[: HEADER_BYTES - len(checksum)])
    digest.update(body.data)
    if checksum != digest.digest()[: len(checksum)]:
        stated, computed = checksum.hex(), digest.digest()[: len(checksum)].hex()
        raise ValueError(
            f"Expected a payload with checksum {stated} as its header says, got {computed}: it was "
            "damaged; ask again."
        )
    # Otherwise one update would have several payloads, and a client could hide bits in them.
    spare = body.size * 8 - _body_bits(channel, dimension)
    if spare and body[-1] >> (8 - spare):
        raise ValueError(
            f"Expected zeros in a payload's {spare} spare bits, got {body[-1] >> (8 - spare):b}: "
            "the sender encodes differently."
        )
    return body


def _check_coding(channel: Coding) -> None:
    wanted = "a Channel, or a Format of codes"
    validate.answers("channel", channel, wanted, "levels", "bits", "fingerprint")


def _check_range(channel: Coding, codes: np.ndarray) -> None:
    if codes.size and int(codes.max()) >= channel.levels:
        index = int(np.argmax(codes >= channel.levels))
        raise ValueError(
            f"Expected codes below {channel.levels}, got {codes[index]} at index {index}."
        )


# Bytes that a client sends for one update, as plain codes, masked vectors or floats.


def floats(dimension: int) -> int:
    # Without a header: baselines on floats have none.
    return 4 * validate.whole("dimension", dimension, low=0)


def coded(coding: Coding, size: int) -> int:
    """Return the bytes of `size` codes that the server sees one by one, header included.

    Example:
        >>> coded(Format.from_facts(2, "a bit"), 1024)
        168
    """
    return HEADER_BYTES + body_bytes(coding, validate.whole("size", size, low=0))


def sum_bits(levels: int, clients: int) -> int:
    """Return the bits per coordinate in which any sum of `clients` clients' codes is exact.

    `aggregation.channel_mechanisms.sum_bits` says how many fewer suffice.

    Example:
        >>> sum_bits(2, 200), sum_bits(16, 40)
        (8, 10)
    """
    return (validate.whole("clients", clients, low=1) * (levels - 1)).bit_length()


def masked(size: int, bits: int) -> int:
    """Return the bytes of a vector that is masked for a sum modulo 2**bits, header included.

    Masks are uniform, so every coordinate takes as many bits as a coordinate of the sum.

    Example:
        >>> masked(1024, sum_bits(2, 200))
        1064
    """
    return HEADER_BYTES + (validate.whole("size", size, low=0) * bits + 7) // 8
