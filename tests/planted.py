"""Errors planted on purpose: every statistical test must catch the one it is there for."""

from __future__ import annotations

import numpy as np

from randquant.channels.channel import Channel
from randquant.channels.encoding.codec import encode
from randquant.channels.keys import Key


def biased_level(channel: Channel, part: float) -> Channel:
    """The channel with `part` of its likeliest code's mass moved to the next code, in every row."""
    weights = channel.weights.copy()
    for row in weights:
        code = int(row[:-1].argmax())
        moved = int(part * int(row[code]))
        row[code] -= moved
        row[code + 1] += moved
    return Channel(channel.inputs, channel.values, weights, channel.denominator)


def swapped_rows(channel: Channel) -> Channel:
    """The channel with its first two rows exchanged."""
    weights = channel.weights.copy()
    weights[[0, 1]] = weights[[1, 0]]
    return Channel(channel.inputs, channel.values, weights, channel.denominator)


def reused_key(channel: Channel, x: np.ndarray, clients: int, key: Key) -> np.ndarray:
    """Codes of clients that all encode with the same key."""
    return np.stack([encode(channel, x, key) for _ in range(clients)])


def modulo_words(words: np.ndarray) -> np.ndarray:
    """Random words whose top bit is stuck at zero."""
    return words & np.uint64(2**63 - 1)
