"""Values to codes and codes to values, with the integers that the certificate was computed from.

The random bits of coordinate k depend on the key and k alone, so that chunks, threads and the
slow reference all draw the same codes. Derivation: `docs/theory/encoding.md`.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from randquant import _validate, wire
from randquant.blocks import block, blocks
from randquant.blocks import length as bits_of
from randquant.channel import Channel
from randquant.keys import Key, KeyStream

if TYPE_CHECKING:
    from randquant.encode.tables import Tables

CHUNK = 1 << 14  # coordinates per kernel call: its random words fit the second-level cache
SEGMENT = 1 << 17  # fewest coordinates worth another thread; a multiple of CHUNK
_scratch = threading.local()
_NO_WORDS = np.empty(0, dtype=np.uint64)


def encode(channel: Channel, x: np.ndarray, key: Key, *, threads: int | None = None) -> np.ndarray:
    """Draw a code for every coordinate.

    Args:
        channel: the channel.
        x: any shape, float16, float32 or float64; clipped to [-clip, clip].
        key: a key used for this one encoding only.
        threads: how many threads to use at most; by default every core, for arrays large enough
            to be worth it. It does not change the codes.

    Returns:
        uint8 codes 0..m-1, same shape as x.

    Guarantees:
        Each code is drawn, independently, from exactly the channel's row at its input: the mix
        (`Channel.mix`) of two certified rows, in integers.
        The input's position in its cell is rounded to a multiple of 2**-32 of the cell; this
        can shift the mean by 2**-33 of a cell and cannot weaken the certificate.

    Raises:
        ValueError: a coordinate is NaN or infinite (the first bad index is named).
        TypeError: x is not an array of floats, or channel or key of another kind.

    Example:
        >>> import randquant as rq
        >>> channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
        >>> rq.encode(channel, np.array([-1.0, 0.0, 9.0]), rq.Key.from_seed(1)).dtype
        dtype('uint8')
    """
    x = np.asarray(x)
    codes = np.empty(x.size, dtype=np.uint8)
    _run(channel, x, key, 8, codes, threads)
    return codes.reshape(x.shape)


def encode_payload(
    channel: Channel, x: np.ndarray, key: Key, *, threads: int | None = None
) -> bytes:
    """Encode a vector straight into the payload that `wire` reads, without an array of codes.

    Args:
        channel, x, key, threads: as in `encode`; x is a vector (d,).

    Returns:
        bytes: 40 + `wire.body_bytes` of them, log2 m bits a code and at most 1 % more.

    Guarantees:
        Equal to wire.pack(channel, encode(channel, x, key)), and like `encode` otherwise.

    Raises:
        ValueError, TypeError: as in `encode`.
    """
    _validate.kind("channel", channel, Channel)
    x = np.asarray(x)
    body = np.empty(wire.body_bytes(channel, x.size), dtype=np.uint8)
    _run(channel, x, key, channel.bits, body, threads, each=block(channel.levels)[0])
    return wire.frame(channel, x.size, body)


def decode(channel: Channel, codes: np.ndarray) -> np.ndarray:
    """Return what codes stand for.

    Args:
        channel: the channel.
        codes: integers 0..m-1, any shape.

    Returns:
        float32, same shape: the value of each code.

    Raises:
        ValueError, TypeError: a code is out of range or not an integer.
    """
    codes = np.asarray(codes)
    if codes.dtype.kind not in "iu":
        raise TypeError(f"Expected integer codes, got dtype {codes.dtype}.")
    if codes.size and not (int(codes.min()) >= 0 and int(codes.max()) < channel.levels):
        raise ValueError(
            f"Expected codes 0 to {channel.levels - 1}, got {codes.min()} to {codes.max()}."
        )
    return channel.values.astype(np.float32)[codes]


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux alone knows what a container was given
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run(
    channel: Channel,
    x: np.ndarray,
    key: Key,
    bits: int,
    body: np.ndarray,
    threads: int | None,
    each: int = 1,
) -> None:
    """Encode all of x into body, in segments over threads.

    A code takes `bits` bits, or `each` > 1 of them a block as in `blocks`.
    """
    from randquant import _bits
    from randquant.encode.tables import tables  # numba is slow to import: most commands do without

    _validate.kind("channel", channel, Channel)
    _validate.kind("key", key, Key)
    if x.dtype.kind != "f" or x.dtype.itemsize > 8:
        raise TypeError(f"Expected x of dtype float16, float32 or float64, got {x.dtype}.")
    if threads is None:
        threads = cores()
    threads = _validate.whole("threads", threads, low=1)
    flat = np.ascontiguousarray(x).reshape(-1)
    if flat.dtype.itemsize < 4 or not flat.dtype.isnative:
        flat = flat.astype(np.float32 if flat.dtype.itemsize < 8 else np.float64)  # exact
    lookup, draw, tie = tables(channel), key.fold_in("draw"), key.fold_in("tie")
    chunk = CHUNK // (8 * each) * 8 * each  # the codes of one begin and end at whole bytes
    segments = min(threads, -(-flat.size // SEGMENT)) or 1
    length = -(-flat.size // segments // chunk) * chunk if segments > 1 else flat.size
    levels = channel.levels

    def segment(start: int) -> int | None:
        stream = draw.stream(start)
        for begin in range(start, min(start + length, flat.size), chunk):
            part = flat[begin : begin + chunk]
            if each == 1:
                out = body[begin * bits // 8 :][: (part.size * bits + 7) // 8]
                bad = _encode_chunk(lookup, part, stream, tie, begin, bits, out)
            else:
                codes = _scratch_of("codes", np.uint8)[: part.size]
                bad = _encode_chunk(lookup, part, stream, tie, begin, 8, codes)
                out = body[bits_of(levels, begin) // 8 :]
                _bits.pack_blocks(codes, levels, *blocks(levels, part.size), out)
            if bad is not None:
                return bad
        return None

    starts = range(0, flat.size, max(length, 1))
    if segments == 1:
        bad = [segment(start) for start in starts]
    else:
        with ThreadPoolExecutor(segments) as pool:
            bad = list(pool.map(segment, starts))
    first_bad = next((index for index in bad if index is not None), None)
    if first_bad is not None:
        index = np.unravel_index(first_bad, x.shape)
        where = ", ".join(str(int(i)) for i in index) if x.ndim else ""
        raise ValueError(
            f"Expected finite values to encode, got {flat[first_bad]} at index [{where}]: "
            "drop or repair this update."
        )


def _encode_chunk(
    lookup: Tables, x: np.ndarray, stream: KeyStream, tie: Key, start: int, bits: int, body
) -> int | None:
    """Encode the coordinates from `start` on; return the first bad index, or None."""
    from randquant.encode import kernel

    words = _scratch_of("words", np.uint64)[: x.size + x.size % 2]
    stream(words)
    status = kernel.encode(x, words, _NO_WORDS, *lookup, bits, body)
    if status == kernel.TIE:  # some draw was not settled by its first 32 bits
        low = tie.words(words.size, start)
        status = kernel.encode(x, words, low, *lookup, bits, body)
    if status == kernel.NOT_FINITE:
        return start + int(np.argmin(np.isfinite(x)))
    return None


def _scratch_of(name: str, dtype: type) -> np.ndarray:
    """This thread's CHUNK entries of scratch: a fresh one each time would cost its page faults."""
    if not hasattr(_scratch, name):
        setattr(_scratch, name, np.empty(CHUNK, dtype=dtype))
    return getattr(_scratch, name)


__all__ = ["decode", "encode", "encode_payload"]
