"""Encoding in segments over threads, in chunks that stay in a processor's cache."""

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
from randquant.channels.wire.blocks import block, blocks, length

if TYPE_CHECKING:
    from randquant.channels.encoding.tables import Tables

CHUNK = 1 << 14  # coordinates per kernel call: its random words fit the second-level cache
SEGMENT = 1 << 17  # fewest coordinates worth another thread; a multiple of CHUNK
_scratch = threading.local()
_NO_WORDS = np.empty(0, dtype=np.uint64)


class Encoder:
    """Draws the codes of one update, any part of it.

    Args:
        channel: the channel.
        key: of this one update.
        packed: whether codes are packed as in a payload; else each takes a byte.

    Raises:
        TypeError: an argument is of another kind.
    """

    def __init__(self, channel: Channel, key: Key, packed: bool) -> None:
        # numba is slow to import: most commands do without
        from randquant.channels.encoding.tables import tables

        validate.kind("channel", channel, Channel)
        validate.kind("key", key, Key)
        key.claim()
        self._levels = channel.levels
        self._each, self._bits = block(channel.levels) if packed else (1, 8)
        self.chunk = CHUNK // (8 * self._each) * 8 * self._each
        """Coordinates whose codes begin and end at whole bytes."""
        self._lookup: Tables = tables(channel)
        self._key, self._draw = key, key.fold_in("draw")

    def run(
        self, x: np.ndarray, widen: Widen, body: np.ndarray, threads: int, first: int = 0
    ) -> int | None:
        """Encode x (n,) into the bytes of body; return the index of the first bad number, or None.

        Args:
            x: coordinates first, first + 1, ... of the update; `first` a multiple of `chunk`.
            widen: turns a part of x into float32 or float64.
            body: as many bytes as their codes take.
            threads: how many to use at most.
        """
        segments = min(threads, -(-x.size // SEGMENT)) or 1
        size = -(-x.size // segments // self.chunk) * self.chunk if segments > 1 else x.size
        starts = range(0, x.size, max(size, 1))

        def segment(start: int) -> int | None:
            stream, stop = self._draw.stream(first + start), min(start + size, x.size)
            for begin in range(start, stop, self.chunk):
                part = widen(x[begin : min(begin + self.chunk, stop)])
                out = body[self._bytes(begin) : self._bytes(begin + part.size)]
                if not self._encode(part, stream, first + begin, out):
                    return begin + int(np.argmin(np.isfinite(part)))
            return None

        first_bad = map_over(segment, starts, segments)
        return next((index for index in first_bad if index is not None), None)

    def words(self, buffer: np.ndarray) -> None:
        """Fill a buffer with the update's first random words, one a coordinate."""
        self._draw.stream()(buffer)

    def _encode(self, x: np.ndarray, stream: KeyStream, first: int, out: np.ndarray) -> bool:
        """Encode a chunk that begins at coordinate `first`; whether all numbers are finite."""
        from randquant.channels.encoding import kernel
        from randquant.channels.wire import kernel as packing

        words = scratch("words", np.uint64, x.size + x.size % 2)
        stream(words)
        bits, codes = self._bits, out
        if self._each > 1:
            bits, codes = 8, scratch("codes", np.uint8, x.size)
        status = kernel.encode(x, words, _NO_WORDS, *self._lookup, bits, codes)
        if status == kernel.TIE:  # some draw was not settled by its first 32 bits
            low = self._key.fold_in("tie").words(words.size, first)
            status = kernel.encode(x, words, low, *self._lookup, bits, codes)
        if self._each > 1:
            packing.pack_blocks(codes, self._levels, *blocks(self._levels, x.size), out)
        return status != kernel.NOT_FINITE

    def _bytes(self, count: int) -> int:
        """Bytes that the codes before coordinate `count` take."""
        if self._each == 1:
            return (count * self._bits + 7) // 8
        return (length(self._levels, count) + 7) // 8


def map_over(work: Callable[[int], int | None], starts: range, threads: int) -> list[int | None]:
    """What `work` gives for each start, with so many threads."""
    if threads == 1:
        return [work(start) for start in starts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, starts))


def cores(threads: int | None = None) -> int:
    """So many threads as asked for, or as many cores as this process may use."""
    if threads is not None:
        return validate.whole("threads", threads, low=1)
    if hasattr(os, "sched_getaffinity"):  # Linux alone knows what a container was given
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def scratch(name: str, dtype: type, count: int) -> np.ndarray:
    """This thread's scratch of so many entries: a fresh one each time would cost page faults."""
    held = getattr(_scratch, name, None)
    if held is None or held.size < count:
        held = np.empty(max(count, CHUNK), dtype=dtype)
        setattr(_scratch, name, held)
    return held[:count]
