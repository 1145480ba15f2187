"""Masks: streams of AES-256 in counter mode, added modulo a power of two."""

from __future__ import annotations

import numpy as np

from randquant.channels.keys import Key

_PART = 2**16  # coordinates at a time: their masks stay in the processor's cache


def dtype(bits: int) -> np.dtype:
    """The narrowest unsigned integers that wrap around at a multiple of 2**bits."""
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)


def add(totals: np.ndarray, secret: bytes, sign: int) -> None:
    """Add a secret's mask to totals (d,), of `dtype`, or subtract it, modulo the type's range."""
    fill, words = Key(secret).stream(), np.empty(_PART * totals.itemsize // 8, dtype=np.uint64)
    for start in range(0, totals.size, _PART):
        part = totals[start : start + _PART]
        fill(words)
        # Little-endian, as the stream's bytes: the same mask on every machine.
        mask = words.astype("<u8", copy=False).view(totals.dtype.newbyteorder("<"))[: part.size]
        if sign > 0:
            part += mask
        else:
            part -= mask
