"""Multi-threaded encoding, in chunks that fit the processor's cache."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import Channel
from randquant.channels.encoding.inputs import Widen
from randquant.channels.keys import Key, KeyStream
from randquant.channels.wire.block_codes import block, blocks, length

if TYPE_CHECKING:
    from randquant.channels.encoding.thresholds import Tables

CHUNK = 1 << 14
"""Coordinates per kernel call: its random words fit the second-level cache."""

SEGMENT = 1 << 17
"""Fewest coordinates that are worth another thread; a multiple of CHUNK."""

_scratch = threading.local()
_NO_WORDS = np.empty(0, dtype=np.uint64)


class Encoder:
    """Draws the codes of one update, a part of it on each thread.

    Args:
        channel: the channel.
        key: used for this one update only.
        packed: whether codes are packed as in a payload; otherwise each takes one byte.

    Raises:
        TypeError: an argument has the wrong type.
    """

    def __init__(self, channel: Channel, key: Key, packed: bool) -> None:
        # numba is slow to import, and most commands do not need it
        from randquant.channels.encoding.thresholds import tables

        validate.kind("channel", channel, Channel)
        validate.kind("key", key, Key)
        key.claim()
        self._levels = channel.levels
        self._each, self._bits = block(channel.levels) if packed else (1, 8)
        self.chunk = CHUNK // (8 * self._each) * 8 * self._each
        """Number of coordinates whose codes fill whole bytes."""
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
        segments = min(threads, -(-x.size // SEGMENT)) or 1
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
        """Fill a buffer with the update's first random words, one a coordinate."""
        self._draw.stream()(buffer)

    def _encode(self, x: np.ndarray, stream: KeyStream, first: int, out: np.ndarray) -> bool:
        """Encode a chunk from coordinate `first` on; return whether all numbers are finite."""
        from randquant.channels.encoding import kernel
        from randquant.channels.wire import packing

        words = scratch("words", np.uint64, x.size + x.size % 2)
        stream(words)
        bits, codes = self._bits, out
        if self._each > 1:
            bits, codes = 8, scratch("codes", np.uint8, x.size)
        status = kernel.encode(x, words, _NO_WORDS, *self._lookup, bits, codes)
        if status == kernel.TIE:  # the first 32 bits of some draw do not determine its code
            low = self._key.fold_in("tie").words(words.size, first)
            status = kernel.encode(x, words, low, *self._lookup, bits, codes)
        if self._each > 1:
            packing.pack_blocks(codes, self._levels, *blocks(self._levels, x.size), out)
        return status != kernel.NOT_FINITE

    def _bytes(self, count: int) -> int:
        """Number of bytes of the codes before coordinate `count`."""
        if self._each == 1:
            return (count * self._bits + 7) // 8
        return (length(self._levels, count) + 7) // 8


def map_over(work: Callable[[int], int | None], starts: range, threads: int) -> list[int | None]:
    """The results of `work` for all starts, computed by this number of threads."""
    if threads == 1:
        return [work(start) for start in starts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, starts))


def cores(threads: int | None = None) -> int:
    """The given number of threads, by default the number of cores that this process may use."""
    if threads is not None:
        return validate.whole("threads", threads, low=1)
    if hasattr(os, "sched_getaffinity"):  # only Linux knows the cores of a container
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def scratch(name: str, dtype: type, count: int) -> np.ndarray:
    """This thread's scratch array of `count` entries; a fresh one would cost page faults."""
    array = getattr(_scratch, name, None)
    if array is None or array.size < count:
        array = np.empty(max(count, CHUNK), dtype=dtype)
        setattr(_scratch, name, array)
    return array[:count]
