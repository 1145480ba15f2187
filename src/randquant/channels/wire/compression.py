"""Optional entropy coding of payloads, for codes that are not equally likely.

Nothing in this package compresses by itself, since the length of the result depends on the codes.
Under `local` trust the guarantee covers everything that is computed from a client's codes, their
length included. Under `aggregate` trust it covers sums only: the length of one client's message
reveals something about its codes, so pad all messages to one size. Masked codes of a secure sum are
uniform and cannot be compressed.

    offset  bytes  field
    0       4      magic "RQPZ"
    4       36     the payload's header after its magic (`wire`)
    40             raw deflate of bytes that hold as many codes as fit: the digits of a number in
                   base `levels`, most significant first; after the last code, zeros
                   any number of zeros: the padding
"""

from __future__ import annotations

import functools
import zlib

import numpy as np

from randquant._internal import validate
from randquant.channels.wire import payload as wire
from randquant.channels.wire.payload import Coding

MAGIC = b"RQPZ"
LARGEST = 256
"""Most levels that are compressed: a code takes a byte."""


def compress(channel: Coding, payload: bytes, *, pad_to: int | None = None) -> bytes:
    """Compress a payload by Huffman coding (deflate, RFC 1951).

    Args:
        channel: the channel or format of the payload.
        payload: with at most 256 levels, from `wire.pack` or `encode_payload`.
        pad_to: bytes of the result, so that its length reveals nothing; choose it before the codes
            are drawn, and equal for all clients. None for no padding.

    Returns:
        bytes: within 3 % of the first-order entropy of the codes, for updates of a million
        coordinates; for equally likely codes up to 2 % more than the payload.

    Guarantees:
        decompress(channel, compress(channel, payload), d) equals the payload.
        Without `pad_to` the length depends on the codes: a guarantee under `local` trust covers
        it, one under `aggregate` trust does not.

    Raises:
        ValueError: it is not a payload of this channel, has more than 256 levels, or compresses to
            more than `pad_to` bytes.

    References:
        Huffman 1952; Deutsch 1996 (RFC 1951).

    Example:
        >>> import randquant as rq
        >>> channel = rq.qmgeo(clip=1.0, levels=256, p=0.9)
        >>> payload = wire.pack(channel, rq.encode(channel, np.zeros(1000), rq.Key.from_seed(0)))
        >>> small = compress(channel, payload)
        >>> len(payload), len(small) < 300, decompress(channel, small, 1000) == payload
        (1040, True, True)
        >>> len(compress(channel, payload, pad_to=500))
        500
    """
    _few(channel)
    # A payload that states more coordinates than it has codes is refused before unpacking.
    stated, _ = wire.sizes(payload)
    codes = wire.unpack(channel, payload, stated)
    codes_per_byte = _digits(channel.levels).shape[1]
    groups = np.zeros((-(-codes.size // codes_per_byte), codes_per_byte), dtype=np.uint8)
    groups.reshape(-1)[: codes.size] = codes
    symbols = groups @ (channel.levels ** np.arange(codes_per_byte)[::-1]).astype(np.uint8)
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    stream = deflate.compress(symbols) + deflate.flush()
    compressed = MAGIC + payload[len(MAGIC) : wire.HEADER_BYTES] + stream
    if pad_to is None:
        return compressed
    if len(compressed) > validate.whole("pad_to", pad_to, low=0):
        raise ValueError(
            f"Expected codes that compress to pad_to={pad_to} bytes, got {len(compressed)}: choose "
            "a larger pad_to."
        )
    return compressed.ljust(pad_to, b"\0")


def decompress(channel: Coding, data: bytes, dimension: int) -> bytes:
    """Invert `compress`.

    Args:
        channel: the channel or format that the receiver expects.
        data: the received bytes.
        dimension: number of coordinates that the receiver expects.

    Returns:
        The payload, for `wire.unpack` and `wire.add`.

    Guarantees:
        Damaged or truncated data, and data for another channel or dimension, raises. No more is
        decompressed than the expected dimension requires, for any data.

    Raises:
        ValueError: one sentence that says what is wrong with the bytes.
    """
    _few(channel)
    dimension = validate.whole("dimension", dimension, low=0)
    if data[: len(MAGIC)] != MAGIC or len(data) < wire.HEADER_BYTES:
        raise ValueError(
            f"Expected a compressed payload that starts with {MAGIC!r}, got "
            f"{bytes(data[: len(MAGIC)])!r} in {len(data)} bytes: read other payloads with `wire`."
        )
    header = wire.MAGIC + data[len(MAGIC) : wire.HEADER_BYTES]
    wire.checked_header(channel, header, dimension)
    digits = _digits(channel.levels)
    symbols = _inflated(data[wire.HEADER_BYTES :], -(-dimension // digits.shape[1]))
    if symbols.size and int(symbols.max()) >= len(digits):
        raise ValueError(
            f"Expected bytes that hold codes below {channel.levels}, got {symbols.max()}: it was "
            "not written by `compress`."
        )
    codes = digits[symbols].reshape(-1)
    if codes[dimension:].any():
        raise ValueError(
            "Expected zeros after the last code, got others: it was not written by `compress`."
        )
    payload = wire.pack(channel, codes[:dimension], wire.sizes(header)[1])
    if payload[: wire.HEADER_BYTES] != header:
        raise ValueError("Expected a payload whose checksum matches, got a damaged one: ask again.")
    return payload


def _inflated(stream: bytes, size: int) -> np.ndarray:
    """(size,) uint8 from a deflate stream and its padding."""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        symbols = inflate.decompress(stream, size + 1)  # one more byte reveals excess length
    except zlib.error as error:
        raise ValueError(f"Expected a deflate stream, got another ({error}): ask again.") from None
    if len(symbols) != size or not inflate.eof:
        kind = "more" if len(symbols) > size else "a truncated stream"
        raise ValueError(f"Expected {size} bytes after decompression, got {kind}.")
    if inflate.unused_data.strip(b"\0"):
        raise ValueError("Expected zeros as padding, got others: it was not written by `compress`.")
    return np.frombuffer(symbols, dtype=np.uint8)


def _few(channel: Coding) -> None:
    if not 2 <= channel.levels <= LARGEST:
        raise ValueError(
            f"Expected 2 to {LARGEST} levels to compress, got {channel.levels}: masked codes "
            "are uniform and cannot be compressed."
        )


@functools.lru_cache(maxsize=64)
def _digits(levels: int) -> np.ndarray:
    """(levels**k, k) uint8: the k codes of each byte, for the largest possible k.

    Example:
        >>> _digits(16).shape, _digits(3).shape, _digits(256).shape
        ((256, 2), (243, 5), (256, 1))
        >>> _digits(3)[100].tolist()
        [1, 0, 2, 0, 1]
    """
    count = max(k for k in range(1, 9) if levels**k <= LARGEST)
    digits = np.indices((levels,) * count, dtype=np.uint8).reshape(count, -1).T.copy()
    digits.flags.writeable = False
    return digits
