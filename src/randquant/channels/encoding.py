"""Values to codes and codes to values, with the integers from which the certificate is computed.

The problem: the distribution that is drawn must be the certified one bit for bit, whatever
floating-point rounding, chunks and threads do, at millions of coordinates a second.

The random bits of coordinate k depend only on the key and k, so that chunks, threads and the slow
reference all draw the same codes. Derivation: `docs/theory/encoding.md`, Propositions 1 to 4.

From top to bottom: conversion of inputs without loss; lookup tables of a channel; `Encoder`, which
draws an update's codes on several threads; `encode`, `encode_payload`, `decode`; many short updates
at once.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from randquant._internal import validate
from randquant.channels import wire
from randquant.channels.channel import DITHER_STEPS, MAX_DENOMINATOR, Channel
from randquant.channels.kernels import CODE_BITS, DITHER_BITS, GUIDE_BITS, UNSETTLED_BIT
from randquant.channels.keys import Key, KeyStream
from randquant.channels.wire import block, blocks, length

__all__ = [
    "CHUNK_SIZE",
    "SEGMENT_SIZE",
    "cores",
    "decode",
    "encode",
    "encode_payload",
    "encode_payloads",
]


# Accepted inputs: floats of 16, 32 and 64 bits, from NumPy or torch.

Widen = Callable[[np.ndarray], np.ndarray]
"""Converts a part of an input exactly to this machine's float32 or float64."""


def floats(x: Any) -> tuple[np.ndarray, Widen]:
    """Return an input as an array, and the function that widens its parts; copy nothing large.

    Args:
        x: float16, float32, float64 or bfloat16 (of torch or ml_dtypes), any shape.

    Raises:
        TypeError: x is not an array of such floats.
    """
    torch = sys.modules.get("torch")  # if x is a tensor, torch has been imported
    if torch is not None and isinstance(x, torch.Tensor):
        try:
            x = x.detach().cpu().resolve_neg()  # a view may be lazily negated
            if x.dtype == torch.bfloat16:
                return x.contiguous().view(torch.int16).numpy().view(np.uint16), _from_bfloat16
            x = x.numpy()
        except (RuntimeError, TypeError):  # sparse, nested, without storage, or another dtype
            raise TypeError(
                "Expected a dense tensor of dtype float16, float32, float64 or bfloat16, got "
                f"{x.dtype}, {x.layout}."
            ) from None
    try:
        x = np.asarray(x)
    except ValueError:
        raise TypeError(
            "Expected x to be one array of floats, got lists of uneven lengths."
        ) from None
    if x.dtype.name == "bfloat16":
        return np.ascontiguousarray(x).view(np.uint16), _from_bfloat16
    if x.dtype.kind != "f" or x.dtype.itemsize > 8:
        raise TypeError(
            f"Expected floats of dtype float16, float32, float64 or bfloat16, got {x.dtype}: "
            "convert them."
        )
    return x, _as_is if x.dtype.itemsize >= 4 and x.dtype.isnative else _widened


def vector(x: Any) -> np.ndarray:
    """Convert one client's update exactly to NumPy's float32 or float64.

    Args:
        x: (d,), see `floats`; also a list of floats.

    Raises:
        TypeError: x is not an array of floats.
        ValueError: x is not a vector.
    """
    array, widen = floats(x)
    return widen(one_vector(array))


def as_codes(codes: Any) -> np.ndarray:
    try:
        return np.asarray(codes)
    except ValueError:
        raise TypeError("Expected one array of codes, got lists of uneven lengths.") from None


def one_vector(array: np.ndarray) -> np.ndarray:
    if array.ndim != 1:
        raise ValueError(
            f"Expected an update (d,), got shape {array.shape}: flatten it, or give a "
            "mechanism a state dict, and encode one client's update at a time."
        )
    return array


def not_finite(value: float, *index: int) -> ValueError:
    """Return the error that names the first NaN or infinity of an input."""
    where = ", ".join(map(str, index))
    return ValueError(
        f"Expected finite values to encode, got {value} at index [{where}]: "
        "drop or repair this update."
    )


def _as_is(part: np.ndarray) -> np.ndarray:
    return part


def _widened(part: np.ndarray) -> np.ndarray:
    return part.astype(np.float32 if part.dtype.itemsize < 8 else np.float64)


def _from_bfloat16(part: np.ndarray) -> np.ndarray:
    # A bfloat16 is the upper half of a float32.
    return (part.astype(np.uint32) << np.uint32(16)).view(np.float32)


# The encoder's lookup tables for a channel: integer thresholds and two guide tables.

CELL_BUCKET_COUNT = 1024
"""Buckets of equal width between -clip and clip, in which the cell of an input is looked up: 8 KiB,
a quarter of the first-level cache. With fewer, more cells fall into one bucket and are searched."""

# The kernel has constants of its own, for its compiled code is cached by file.
if (DITHER_STEPS, MAX_DENOMINATOR) != (1 << DITHER_BITS, 1 << CODE_BITS):
    raise ImportError("Expected the kernel and the channel to agree on their integers.")


class Tables(NamedTuple):
    """Lookup tables of one channel, in the order of the kernel's arguments.

    Attributes:
        inputs: (V,) float64 vertices.
        next_input: (V-1,) float64, the end of each cell; infinity for the last.
        inverse: (V-1,) float64, one over each cell's width.
        bucket_scale: buckets per unit of input.
        first_cell: (buckets + 1,) int64, a cell at or before the first cell of a bucket.
        hops: largest number of cells by which an input lies beyond its bucket's first_cell.
        thresholds: (V·m,) int64; code i is drawn if thresholds[i-1] <= r < thresholds[i] for r
            uniform below 2**62; the last of a row is 2**62.
        first_code: (V·2**GUIDE_BITS,) uint16, the code at the start of each guide bucket of r,
            plus UNSETTLED_BIT if a threshold lies inside the bucket.
        levels: m.
    """

    inputs: np.ndarray
    next_input: np.ndarray
    inverse: np.ndarray
    bucket_scale: float
    first_cell: np.ndarray
    hops: int
    thresholds: np.ndarray
    first_code: np.ndarray
    levels: int


@functools.lru_cache(maxsize=64)
def tables(channel: Channel) -> Tables:
    """Build the tables of a channel, or return the cached ones.

    Raises:
        ValueError: the channel has more than 256 codes.
    """
    if channel.levels > 256:
        raise ValueError(
            f"Expected at most 256 levels to encode, got {channel.levels}: a code is one byte."
        )
    inputs = channel.inputs
    with np.errstate(divide="ignore"):
        inverse = 1.0 / np.diff(inputs)  # infinite at a jump, which contains no input
    scale = CELL_BUCKET_COUNT / (2 * channel.clip)
    first_cell, hops = _buckets(inputs, scale)
    units = MAX_DENOMINATOR // channel.denominator
    # Exact: a row's weights sum to the denominator, so its last threshold is 2**62.
    thresholds = np.cumsum(channel.weights, axis=1) * units
    # The code at a bucket's first and last draw: where they agree, the bucket decides the code.
    starts = np.arange(1 << GUIDE_BITS, dtype=np.int64) << (CODE_BITS - GUIDE_BITS)
    ends = starts + ((1 << (CODE_BITS - GUIDE_BITS)) - 1)
    first, last = (
        np.array([np.searchsorted(row, draws, side="right") for row in thresholds])
        for draws in (starts, ends)
    )
    first_code = (first + UNSETTLED_BIT * (last > first)).astype(np.uint16)
    built = Tables(
        inputs=inputs,
        next_input=np.append(inputs[1:-1], np.inf),
        inverse=inverse,
        bucket_scale=scale,
        first_cell=first_cell,
        hops=hops,
        thresholds=thresholds.reshape(-1),
        first_code=first_code.reshape(-1),
        levels=channel.levels,
    )
    for table in built:
        if isinstance(table, np.ndarray):
            table.flags.writeable = False  # shared by all encodings
    return built


def _buckets(inputs: np.ndarray, scale: float) -> tuple[np.ndarray, int]:
    """Return the first possible cell of each bucket, and the largest number of cells in a bucket.

    Bucket b holds the inputs with b <= (x - inputs[0])·scale < b + 1; it is widened by one bucket
    on either side, far more than the rounding of the product.
    """
    left, right = (
        inputs[0] + (np.arange(CELL_BUCKET_COUNT + 1) + shift) / scale for shift in (-1, 2)
    )
    first, last = (
        np.clip(np.searchsorted(inputs, edge, side="right") - 1, 0, len(inputs) - 2)
        for edge in (left, right)
    )
    return first, int((last - first).max())


# Multi-threaded encoding, in chunks that fit the processor's cache.

CHUNK_SIZE = 1 << 14
"""Coordinates per kernel call: its 128 KiB of random words fit the second-level cache."""

SEGMENT_SIZE = 1 << 17
"""Fewest coordinates that are worth another thread; a multiple of CHUNK_SIZE.

With fewer, starting a thread costs more than it saves."""

_scratch = threading.local()
_NO_WORDS = np.empty(0, dtype=np.uint64)


class Encoder:
    """The drawing of one update's codes, a part of it on each thread.

    Args:
        channel: the channel.
        key: used for this one update only.
        packed: whether codes are packed as in a payload; otherwise each takes one byte.

    Raises:
        TypeError: an argument has the wrong type.
    """

    def __init__(self, channel: Channel, key: Key, packed: bool) -> None:
        validate.kind("channel", channel, Channel)
        validate.kind("key", key, Key)
        # Before anything is drawn: a key that is used twice reveals the difference of two updates.
        key.claim()
        self._levels = channel.levels
        self._each, self._bits = block(channel.levels) if packed else (1, 8)
        self.chunk = CHUNK_SIZE // (8 * self._each) * 8 * self._each
        """Coordinates per kernel call, whose codes fill whole bytes: threads never share a byte."""
        self._lookup: Tables = tables(channel)
        self._key, self._draw = key, key.fold_in("draw")

    def run(self, x: np.ndarray, widen: Widen, body: np.ndarray, threads: int) -> int | None:
        """Encode x (n,) into the bytes of body; return the index of the first bad number, or None.

        Args:
            x: the update.
            widen: converts a part of x to float32 or float64.
            body: exactly the bytes of their codes.
            threads: most threads to use.
        """
        # Segments are whole chunks: no two threads write one byte. The codes do not depend on them,
        # for each coordinate has its place in the key's stream.
        segments = min(threads, -(-x.size // SEGMENT_SIZE)) or 1
        size = -(-x.size // segments // self.chunk) * self.chunk if segments > 1 else x.size
        starts = range(0, x.size, max(size, 1))

        def segment(start: int) -> int | None:
            stream, stop = self._draw.stream(start), min(start + size, x.size)
            for begin in range(start, stop, self.chunk):
                part = widen(x[begin : min(begin + self.chunk, stop)])
                out = body[self._bytes(begin) : self._bytes(begin + part.size)]
                if not self._encode(part, stream, begin, out):
                    return begin + int(np.argmin(np.isfinite(part)))
            return None

        first_bad = map_over(segment, starts, segments)
        return next((index for index in first_bad if index is not None), None)

    def words(self, buffer: np.ndarray) -> None:
        # The update's first random words, one a coordinate.
        self._draw.stream()(buffer)

    def _encode(self, x: np.ndarray, stream: KeyStream, first: int, out: np.ndarray) -> bool:
        # numba is slow to import, and most commands do not need it.
        from randquant.channels import kernels

        words = scratch("words", np.uint64, x.size + x.size % 2)
        stream(words)
        bits, codes = self._bits, out
        if self._each > 1:
            bits, codes = 8, scratch("codes", np.uint8, x.size)
        status = kernels.encode(x, words, _NO_WORDS, *self._lookup, bits, codes)
        # A tie: the first 32 bits of some draw do not determine its code. The other 30 are drawn
        # for the whole chunk, from a stream of their own, and the first 32 stay as they are.
        if status == kernels.TIE:
            low = self._key.fold_in("tie").words(words.size, first)
            status = kernels.encode(x, words, low, *self._lookup, bits, codes)
        if self._each > 1:
            kernels.pack_blocks(codes, self._levels, *blocks(self._levels, x.size), out)
        return status != kernels.NOT_FINITE

    def _bytes(self, count: int) -> int:
        if self._each == 1:
            return (count * self._bits + 7) // 8
        return (length(self._levels, count) + 7) // 8


def map_over(work: Callable[[int], int | None], starts: range, threads: int) -> list[int | None]:
    """Return the results of `work` for all starts, computed by this number of threads."""
    if threads == 1:
        return [work(start) for start in starts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, starts))


def cores(threads: int | None = None) -> int:
    """Return the number of threads, by default that of the cores that this process may use."""
    if threads is not None:
        return validate.whole("threads", threads, low=1)
    if hasattr(os, "sched_getaffinity"):  # only Linux knows the cores of a container
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def scratch(name: str, dtype: type, count: int) -> np.ndarray:
    """Return this thread's scratch array of at least `count` entries, of any content."""
    # A fresh array for each chunk would cost page faults.
    array = getattr(_scratch, name, None)
    if array is None or array.size < count:
        array = np.empty(max(count, CHUNK_SIZE), dtype=dtype)
        setattr(_scratch, name, array)
    return array[:count]


def encode(channel: Channel, x: Any, key: Key, *, threads: int | None = None) -> np.ndarray:
    """Draw a code for every coordinate.

    Args:
        channel: the channel.
        x: any shape, float16, float32, float64 or bfloat16, of NumPy or torch; clipped to
            [-clip, clip].
        key: a key used for this one encoding only.
        threads: most threads to use; by default one for every core, for large enough arrays. It
            does not change the codes.

    Returns:
        uint8 codes 0..m-1, same shape as x.

    Guarantees:
        Each code is drawn independently from exactly the channel's row at its input: the mixture
        (`Channel.mix`) of two certified rows, in integers.
        The input's position in its cell is rounded to a multiple of 2**-32 of the cell; this
        can shift the mean by 2**-33 of a cell and cannot weaken the certificate.

    Raises:
        ValueError: a coordinate is NaN or infinite (the error names the first one).
        TypeError: x is not an array of floats, or channel or key has the wrong type.

    Example:
        >>> import randquant as rq
        >>> channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
        >>> rq.encode(channel, np.array([-1.0, 0.0, 9.0]), rq.Key.from_seed(1)).dtype
        dtype('uint8')
    """
    encoder = Encoder(channel, key, packed=False)
    array, widen = floats(x)
    codes = np.empty(array.size, dtype=np.uint8)
    _run(encoder, array, widen, codes, threads)
    return codes.reshape(array.shape)


def encode_payload(
    channel: Channel,
    x: Any,
    key: Key,
    *,
    threads: int | None = None,
    padding: int = 0,
    coding: wire.Coding | None = None,
) -> bytes:
    """Encode a vector directly as a payload of `wire`, without an array of codes.

    Args:
        channel, x, key, threads: see `encode`; x is a vector (d,).
        padding: number of its coordinates that are padding, which the header states.
        coding: identifies the codes in the header, with as many levels; the channel by default.

    Returns:
        bytes: 40 + `wire.body_bytes` of them, log2 m bits a code and at most 1 % more.

    Guarantees:
        Equal to wire.pack(channel, encode(channel, x, key), padding); `encode`'s guarantees hold.

    Raises:
        ValueError, TypeError: see `encode`; or x is not a vector.
    """
    encoder = Encoder(channel, key, packed=True)
    array, widen = floats(x)
    one_vector(array)
    body = np.empty(wire.body_bytes(channel, array.size), dtype=np.uint8)
    _run(encoder, array, widen, body, threads)
    return wire.frame(coding or channel, array.size, body, padding)


def decode(channel: Channel, codes: np.ndarray) -> np.ndarray:
    """Return the values of codes.

    Args:
        channel: the channel.
        codes: integers 0..m-1, any shape.

    Returns:
        float32, same shape: the value of each code.

    Raises:
        ValueError, TypeError: a code is out of range or not an integer.
    """
    validate.kind("channel", channel, Channel)
    codes = as_codes(codes)
    if codes.dtype.kind not in "iu":
        raise TypeError(f"Expected integer codes, got dtype {codes.dtype}.")
    if codes.size and not (int(codes.min()) >= 0 and int(codes.max()) < channel.levels):
        raise ValueError(
            f"Expected codes 0 to {channel.levels - 1}, got {codes.min()} to {codes.max()}."
        )
    return channel.values.astype(np.float32)[codes]


def _run(
    encoder: Encoder, x: np.ndarray, widen: Widen, body: np.ndarray, threads: int | None
) -> None:
    flat = np.ascontiguousarray(x).reshape(-1)
    bad = encoder.run(flat, widen, body, cores(threads))
    if bad is not None:
        index = np.unravel_index(bad, x.shape) if x.ndim else ()
        raise not_finite(widen(flat[bad : bad + 1])[0], *map(int, index))


# Encoding of many short updates at once, for simulations of many clients.

SLAB_SIZE = 1 << 17
"""Random words in memory at a time: with their coordinates they fill a second-level cache."""


def encode_payloads(channel: Channel, x: np.ndarray, keys: Sequence[Key]) -> list[bytes]:
    """Encode each client's update into its payload, on one thread.

    Args:
        channel: the channel.
        x: (n, d), one update a row; floats, see `encode`.
        keys: n keys, each used for this one encoding only.

    Returns:
        n payloads.

    Guarantees:
        Payload i is encode_payload(channel, x[i], keys[i]). For short updates this is faster: one
        call of compiled code serves many updates, without waiting for other threads.

    Raises:
        ValueError, TypeError: see `encode`; or x is not a matrix with one row for each key.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=0.5)
        >>> keys = [rq.Key.from_seed(1).fold_in("client", i) for i in range(3)]
        >>> [len(payload) for payload in encode_payloads(channel, np.zeros((3, 80)), keys)]
        [50, 50, 50]
    """
    keys = validate.listed("keys", keys)
    array, widen = floats(x)
    if array.ndim != 2 or len(array) != len(keys):
        raise ValueError(
            f"Expected a row for each of {len(keys)} keys, got shape {array.shape}: "
            "give every client a key of its own."
        )
    encoders, dimension = [Encoder(channel, key, packed=True) for key in keys], array.shape[1]
    bodies = np.empty((len(keys), wire.body_bytes(channel, dimension)), dtype=np.uint8)
    drawn = np.zeros(len(keys), dtype=bool)
    # The fast path is for codes of whole bits; rows with a tie or a bad number are encoded again,
    # each by itself, which names the bad number.
    if dimension <= CHUNK_SIZE and block(channel.levels)[0] == 1:
        step = max(SLAB_SIZE // (dimension + 1), 1)
        for start in range(0, len(keys), step):
            part = slice(start, start + step)
            drawn[part] = _encode_rows(channel, encoders[part], widen(array[part]), bodies[part])
    for i in np.flatnonzero(~drawn):
        bad = encoders[i].run(np.ascontiguousarray(array[i]), widen, bodies[i], threads=1)
        if bad is not None:
            raise not_finite(widen(array[i, bad : bad + 1])[0], int(i), bad)
    return [wire.frame(channel, dimension, body) for body in bodies]


def _encode_rows(
    channel: Channel, encoders: Sequence[Encoder], x: np.ndarray, bodies: np.ndarray
) -> np.ndarray:
    # (n,) bool, False where a row must be encoded again: a tie, or a number that is not finite.
    from randquant.channels import kernels

    width = x.shape[1] + x.shape[1] % 2
    words = scratch("rows", np.uint64, len(x) * width).reshape(len(x), width)
    for encoder, row in zip(encoders, words, strict=True):
        encoder.words(row)
    statuses = np.empty(len(x), dtype=np.int64)
    kernels.encode_rows(x, words, *tables(channel), channel.bits, bodies, statuses)
    return statuses == 0
