"""Values to codes and codes to values, with the integers from which the certificate is computed.

The random bits of coordinate k depend only on the key and k, so that chunks, threads and the slow
reference all draw the same codes. Derivation: `docs/theory/encoding.md`, Propositions 1 to 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from randquant._internal import validate
from randquant.channels import wire
from randquant.channels.channel import Channel
from randquant.channels.encoding.inputs import Widen, as_codes, floats, not_finite, one_vector
from randquant.channels.encoding.threads import Encoder, cores
from randquant.channels.keys import Key


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
        channel, x, key, threads: as in `encode`; x is a vector (d,).
        padding: how many of its coordinates an update was padded with, which the header states.
        coding: what the header says about the codes, of as many levels; the channel by default.

    Returns:
        bytes: 40 + `wire.body_bytes` of them, log2 m bits a code and at most 1 % more.

    Guarantees:
        Equal to wire.pack(channel, encode(channel, x, key), padding); `encode`'s guarantees hold.

    Raises:
        ValueError, TypeError: as in `encode`; or x is not a vector.
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
