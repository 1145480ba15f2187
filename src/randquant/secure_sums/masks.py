"""Masks: streams of AES-256 in counter mode, added modulo a power of two."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from randquant.channels.keys import Key

# Coordinates that are masked at a time. Their masks, 64 to 256 kB, stay in the processor's cache;
# with many more they would be read from memory, with many fewer NumPy's calls take most time.
_PART_COORDINATES = 2**16
# Coordinates in two blocks of the cipher, of the narrowest type: threads start at multiples of it.
# A thread that started within a block could not enter the stream there.
_BLOCK_COORDINATES = 32
# Coordinates of all masks together from which several threads add them. They take 1 ms on one core;
# of half as many, starting the threads would take a tenth.
_MIN_SHARED_COORDINATES = 2**21
# Coordinates of a thread. Of half as many, to enter a stream would take as long as to draw it; with
# twice as many, vectors of 100,000 would be left to one core.
_MIN_THREAD_COORDINATES = 2**15


def dtype(bits: int) -> np.dtype:
    """Return the narrowest unsigned integers that wrap around at a multiple of 2**bits.

    Sums modulo the type's range are then right modulo 2**bits, without a reduction at each step.
    """
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)


def add(totals: np.ndarray, secret: bytes, sign: int) -> None:
    add_all(totals, [secret], sign)


def add_all(
    totals: np.ndarray,
    secrets: Iterable[bytes],
    sign: int,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Add the masks of secrets to totals (d,), or subtract them, modulo the range of their type.

    A large vector is divided among all cores: no mask is ever in memory as a whole.

    Args:
        totals: changed in place.
        secrets: of each mask, 32 bytes; each is used for one mask.
        sign: +1 or -1.
        check: called before each mask, also by several threads at once; what it raises ends the
            work.
    """
    # Not above: it brings the compiler, which small sums do not need.
    from randquant.channels.encoding import cores, map_over

    secrets = list(secrets)
    threads = 1
    if totals.size * len(secrets) >= _MIN_SHARED_COORDINATES:
        threads = max(1, min(cores(), totals.size // _MIN_THREAD_COORDINATES))
    # Whole blocks of the cipher, so that each thread can enter the streams at its first coordinate.
    size = -(-totals.size // (threads * _BLOCK_COORDINATES)) * _BLOCK_COORDINATES

    def add_range(start: int) -> None:
        _add_range(totals[start : start + size], start, secrets, sign, check)

    map_over(add_range, range(0, totals.size, size), threads)


def _add_range(
    totals: np.ndarray, first: int, secrets: list[bytes], sign: int, check: Callable[[], None]
) -> None:
    words = np.empty(_PART_COORDINATES * totals.itemsize // 8, dtype=np.uint64)
    apply = np.add if sign > 0 else np.subtract
    for secret in secrets:
        check()
        # Each secret is used for one mask only, so every stream may start at the same place.
        fill = Key(secret).stream(first * totals.itemsize // words.itemsize)
        for start in range(0, totals.size, _PART_COORDINATES):
            part = totals[start : start + _PART_COORDINATES]
            fill(words[: -(-part.nbytes // words.itemsize)])
            # Little-endian, as the stream's bytes: the same mask on every machine.
            mask = words.astype("<u8", copy=False).view(totals.dtype.newbyteorder("<"))
            apply(part, mask[: part.size], out=part)
