"""Encoding of updates that need not fit in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from randquant._internal import validate
from randquant.channels import wire
from randquant.channels.channel import Channel
from randquant.channels.encoding.inputs import floats, not_finite
from randquant.channels.encoding.threads import Encoder, cores
from randquant.channels.keys import Key
from randquant.channels.wire.block_codes import length

PIECE = 1 << 22
"""Approximate number of coordinates encoded at a time: 16 MiB of float32."""


def encode_to(
    file: BinaryIO,
    channel: Channel,
    parts: Iterable[Any],
    dimension: int,
    key: Key,
    *,
    threads: int | None = None,
) -> int:
    """Encode an update that comes in parts into a file, as a payload of `wire`.

    Args:
        file: open for writing and seekable: the header is written last.
        channel, key, threads: as in `encode`.
        parts: consecutive vectors of the update; float16, float32, float64 or bfloat16. Each part
            is used before the next is requested, so that they may share memory.
        dimension: number of coordinates of all parts together.

    Returns:
        Number of bytes written.

    Guarantees:
        The file's bytes are `encode_payload` of the whole update. Besides the largest part it needs
        about 100 MB, for updates of any length.

    Raises:
        ValueError: a number is NaN or infinite, or the parts have another dimension. The file then
            holds no valid payload: its header is zeros.
        TypeError: as in `encode`.

    Example:
        >>> import io, randquant as rq
        >>> channel, file = rq.stochastic_rounding(clip=1.0, levels=2, margin=0.5), io.BytesIO()
        >>> encode_to(file, channel, [np.zeros(3), np.ones(5)], 8, rq.Key.from_seed(1))
        41
    """
    validate.answers("file", file, "a file open for writing", "write", "tell", "seek")
    if (
        isinstance(parts, str | bytes)
        or not isinstance(parts, Iterable)
        or getattr(parts, "ndim", 1) == 0
    ):
        raise TypeError(f"Expected parts to be vectors, one after another, got {parts!r}.")
    encoder, threads = Encoder(channel, key, packed=True), cores(threads)
    dimension = validate.whole("dimension", dimension, low=0, high=2**48)
    digest, begin = hashlib.sha256(wire.bare_header(channel, dimension)), file.tell()
    file.write(bytes(wire.HEADER_BYTES))
    done = 0
    for piece in _pieces(parts, PIECE // encoder.chunk * encoder.chunk):
        if done + piece.size > dimension:
            raise ValueError(f"Expected {dimension} coordinates in all parts, got more.")
        body = np.empty((length(channel.levels, piece.size) + 7) // 8, dtype=np.uint8)
        bad = encoder.run(piece, lambda part: part, body, threads, done)
        if bad is not None:
            raise not_finite(piece[bad], done + bad)
        digest.update(body.data)
        file.write(body.data)
        done += piece.size
    if done < dimension:
        raise ValueError(f"Expected {dimension} coordinates in all parts, got {done}.")
    end = file.tell()
    file.seek(begin)
    file.write(wire.header(channel, dimension, digest.digest()))
    file.seek(end)
    return end - begin


def _pieces(parts: Iterable[Any], size: int) -> Iterator[np.ndarray]:
    """The same numbers, `size` at a time, as float32 or float64; fewer in the last piece."""
    held: list[np.ndarray] = []
    count = 0
    for part in parts:
        flat, widen = floats(part)
        if flat.ndim != 1:
            raise ValueError(f"Expected parts that are vectors, got shape {flat.shape}.")
        start = 0
        while start < flat.size:
            taken = widen(flat[start : start + size - count])
            held.append(taken)
            start, count = start + taken.size, count + taken.size
            if count == size:
                yield _joined(held)
                held, count = [], 0
        if held:  # the next part may come in the same memory
            held[-1] = held[-1].copy()
    if held:
        yield _joined(held)


def _joined(held: list[np.ndarray]) -> np.ndarray:
    return np.ascontiguousarray(held[0]) if len(held) == 1 else np.concatenate(held)
