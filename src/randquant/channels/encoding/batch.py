"""Encoding of many short updates at once, for simulations of many clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from randquant._internal import validate
from randquant.channels import wire
from randquant.channels.channel import Channel
from randquant.channels.encoding.inputs import floats, not_finite
from randquant.channels.encoding.threads import CHUNK, Encoder, scratch
from randquant.channels.keys import Key
from randquant.channels.wire.block_codes import block

SLAB = 1 << 17
"""Random words held at a time: together with their coordinates they fit a second-level cache."""


def encode_payloads(channel: Channel, x: np.ndarray, keys: Sequence[Key]) -> list[bytes]:
    """Encode each client's update into its payload, on one thread.

    Args:
        channel: the channel.
        x: (n, d), one update a row; floats as in `encode`.
        keys: n keys, each used for this one encoding only.

    Returns:
        n payloads.

    Guarantees:
        Payload i is encode_payload(channel, x[i], keys[i]). For short updates this is faster: one
        call of compiled code serves many updates, without waiting for other threads.

    Raises:
        ValueError, TypeError: as in `encode`; or x is not a matrix with one row for each key.

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
    if dimension <= CHUNK and block(channel.levels)[0] == 1:
        step = max(SLAB // (dimension + 1), 1)
        for start in range(0, len(keys), step):
            part = slice(start, start + step)
            drawn[part] = _together(channel, encoders[part], widen(array[part]), bodies[part])
    for i in np.flatnonzero(~drawn):
        bad = encoders[i].run(np.ascontiguousarray(array[i]), widen, bodies[i], threads=1)
        if bad is not None:
            raise not_finite(widen(array[i, bad : bad + 1])[0], int(i), bad)
    return [wire.frame(channel, dimension, body) for body in bodies]


def _together(
    channel: Channel, encoders: Sequence[Encoder], x: np.ndarray, bodies: np.ndarray
) -> np.ndarray:
    """Encode rows; (n,) bool says for which of them 32 random bits per draw were enough."""
    from randquant.channels.encoding import kernel
    from randquant.channels.encoding.thresholds import tables

    width = x.shape[1] + x.shape[1] % 2
    words = scratch("rows", np.uint64, len(x) * width).reshape(len(x), width)
    for encoder, row in zip(encoders, words, strict=True):
        encoder.words(row)
    statuses = np.empty(len(x), dtype=np.int64)
    kernel.encode_rows(x, words, *tables(channel), channel.bits, bodies, statuses)
    return statuses == 0
