"""Masks: streams of AES-256 in counter mode, added modulo a power of two."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from randquant.channels.keys import Key

# Coordinates that are masked at a time. Their masks, 64 to 256 kB, stay in the processor's cache;
# with many more they would be read from memory, with many fewer NumPy's calls take most time.
_PART_COORDINATES = 2**16


def dtype(bits: int) -> np.dtype:
    """Return the narrowest unsigned integers that wrap around at a multiple of 2**bits.

    Sums modulo the type's range are then right modulo 2**bits, without a reduction at each step.
    """
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)


def add(totals: np.ndarray, secret: bytes, sign: int) -> None:
    add_all(totals, [secret], sign)


def add_all(totals: np.ndarray, secrets: Iterable[bytes], sign: int) -> None:
    """Add the masks of secrets to totals (d,), or subtract them, modulo the range of their type."""
    words = np.empty(_PART_COORDINATES * totals.itemsize // 8, dtype=np.uint64)
    apply = np.add if sign > 0 else np.subtract
    for secret in secrets:
        # Each secret is used for one mask only, so every stream may start at the same place.
        fill = Key(secret).stream()
        for start in range(0, totals.size, _PART_COORDINATES):
            part = totals[start : start + _PART_COORDINATES]
            fill(words[: -(-part.nbytes // words.itemsize)])
            # Little-endian, as the stream's bytes: the same mask on every machine.
            mask = words.astype("<u8", copy=False).view(totals.dtype.newbyteorder("<"))
            apply(part, mask[: part.size], out=part)
