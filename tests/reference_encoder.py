"""A slow reference encoder in plain NumPy, which the kernel must equal code for code."""

from __future__ import annotations

import numpy as np

from randquant.channels import DITHER_STEPS, LOW_BITS, Channel, Key, tables


def encode(channel: Channel, x: np.ndarray, key: Key) -> np.ndarray:
    """Encode like `randquant.channels.encoding`, always comparing all 62 bits of every draw.

    Args:
        channel: the channel.
        x: (n,) finite floats.
        key: the same key as the kernel's.

    Returns:
        (n,) uint8 codes.
    """
    count = x.size
    words = key.fold_in("draw").words(count)
    low = key.fold_in("tie").words(count) % (1 << LOW_BITS)
    draw = ((words >> 32 << LOW_BITS) | low).astype(np.int64)
    cell, position = channel.locate(np.clip(x.astype(np.float64), -channel.clip, channel.clip))
    steps = np.floor(position * DITHER_STEPS + 0.5).astype(np.int64)
    vertex = cell + ((words % DITHER_STEPS).astype(np.int64) < steps)
    thresholds = tables(channel).thresholds.reshape(-1, channel.levels)
    return (thresholds[vertex] <= draw[:, None]).sum(axis=1).astype(np.uint8)
