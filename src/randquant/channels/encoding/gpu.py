"""The encoder on a GPU: clip, find the cell, dither, draw and pack in one pass, by Triton.

It uses the same tables and 62-bit thresholds as on a CPU. For simulation, random bits come from a
seed, by Philox4x32-10 on the device. For deployment they come from a `Key`, by AES-256-CTR on the
CPU: Philox is not a cipher, and codes of known inputs might reveal its seed. With a key the codes
are those of `encode`, bit for bit.

Needs torch and triton (they come together with a CUDA build of torch). Without a GPU the kernel
runs on Triton's interpreter (TRITON_INTERPRET=1, set before the import), slowly: for tests.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
from __future__ import annotations

import functools

import numpy as np
import torch
import triton
import triton.language as tl

from randquant._internal import validate
from randquant.channels.channel import Channel
from randquant.channels.encoding.kernel import (
    CODE_BITS,
    DITHER_BITS,
    FIRST_BITS,
    GUIDE_BITS,
    LOW_BITS,
    UNSETTLED,
)
from randquant.channels.encoding.thresholds import tables
from randquant.channels.keys import Key

ROWS = 128
"""Groups of eight coordinates that one program encodes."""

_PHILOX, _WORDS, _ALL_WORDS = 0, 1, 2  # source of random bits; the last includes those of ties


def encode_tensor(
    channel: Channel,
    x: torch.Tensor,
    *,
    key: Key | None = None,
    seed: int | None = None,
    packed: bool = False,
) -> torch.Tensor:
    """Draw a code for every coordinate of a tensor, on the device that it is on.

    Args:
        channel: the channel.
        x: any shape, float16, bfloat16, float32 or float64; clipped to [-clip, clip].
        key: used for this one encoding only, for deployment.
        seed: for simulation, 0 to 2**63 - 1; a fresh one for each update. Give key or seed.
        packed: return the body of a payload (`wire`) instead of codes; the number of levels must be
            a power of two.

    Returns:
        uint8 codes of the shape of x, or a vector of packed codes.

    Guarantees:
        Each code is drawn from exactly the channel's row, as by `encode`; with a key it is the same
        code as that of `encode`.

    Raises:
        ValueError: a coordinate is NaN or infinite, not exactly one of key and seed is given, or
            the codes cannot be packed.
        TypeError: an argument has the wrong type.
    """
    validate.kind("channel", channel, Channel)
    validate.kind("x", x, torch.Tensor)
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(f"Expected x of 16, 32 or 64 bit floats, got {x.dtype}.")
    if (key is None) == (seed is None):
        raise ValueError("Expected a key (to deploy) or a seed (to simulate), got both or none.")
    if packed and channel.levels & (channel.levels - 1):
        raise ValueError(
            f"Expected levels that are a power of two to pack, got {channel.levels}: take codes, "
            "and `wire.pack` them."
        )
    flat, bits = x.contiguous().reshape(-1), channel.bits if packed else 8
    out = torch.empty((flat.numel() * bits + 7) // 8, dtype=torch.uint8, device=x.device)
    if key is None:
        seed = validate.whole("seed", seed, low=0, high=2**63 - 1)
        flags = _launch(channel, flat, out, bits, _PHILOX, seed, None, None)
    else:
        validate.kind("key", key, Key)
        key.claim()
        count = flat.numel() + flat.numel() % 2
        words = _on(x.device, key.fold_in("draw").words(count))
        flags = _launch(channel, flat, out, bits, _WORDS, 0, words, None)
        if flags[1]:  # the first 32 bits of some draw do not determine its code
            low = _on(x.device, key.fold_in("tie").words(count))
            flags = _launch(channel, flat, out, bits, _ALL_WORDS, 0, words, low)
    if flags[0]:
        index = int(torch.argmin(torch.isfinite(flat).to(torch.uint8)))
        raise ValueError(
            f"Expected finite values to encode, got {flat[index].item()} at index [{index}] of all "
            "coordinates: drop or repair this update."
        )
    return out if packed else out.reshape(x.shape)


def _launch(
    channel: Channel,
    x: torch.Tensor,
    out: torch.Tensor,
    bits: int,
    source: int,
    seed: int,
    words: torch.Tensor | None,
    low: torch.Tensor | None,
) -> list[int]:
    """(whether a number is not finite, whether a tie is undecided)."""
    host = tables(channel)
    on = _tables_on(channel, x.device)
    flags = torch.zeros(2, dtype=torch.int32, device=x.device)
    nothing = flags.to(torch.int64)
    programs = -(-x.numel() // (8 * ROWS))
    if programs:
        _encode[(programs,)](
            x, out, flags, nothing if words is None else words, nothing if low is None else low,
            *on, x.numel(), out.numel(), len(host.inputs), host.levels, seed,
            HOPS=host.hops, SEARCH=_search(channel), BITS=bits, SOURCE=source, ROWS=ROWS,
            GUIDE_BITS=GUIDE_BITS, FIRST_BITS=FIRST_BITS, LOW_BITS=LOW_BITS, UNSETTLED=UNSETTLED,
            DITHER=2.0**DITHER_BITS, enable_fp_fusion=False,
        )  # fmt: skip
    return flags.tolist()


@functools.lru_cache(maxsize=64)
def _tables_on(channel: Channel, device: torch.device) -> tuple[torch.Tensor, ...]:
    host = tables(channel)
    scale = np.array([host.bucket_scale])
    arrays = (
        host.inputs, host.next_input, host.inverse, scale, host.first_cell, host.thresholds,
        host.first_code.astype(np.int32),
    )  # fmt: skip
    return tuple(_on(device, array) for array in arrays)


@functools.lru_cache(maxsize=64)
def _search(channel: Channel) -> int:
    """Most thresholds that lie in one bucket of the guide."""
    host = tables(channel)
    buckets = host.thresholds.reshape(-1, host.levels) >> (CODE_BITS - GUIDE_BITS)
    return max(int(np.bincount(row).max()) for row in buckets)


def _on(device: torch.device, array: np.ndarray) -> torch.Tensor:
    if array.dtype == np.uint64:
        array = array.view(np.int64)
    return torch.from_numpy(np.array(array)).to(device)


@triton.jit
def _encode(
    x, out, flags, words, low_words, inputs, next_input, inverse, scale, first_cell, thresholds,
    first_code, count, size, vertices, levels, seed,
    HOPS: tl.constexpr, SEARCH: tl.constexpr, BITS: tl.constexpr, SOURCE: tl.constexpr,
    ROWS: tl.constexpr, GUIDE_BITS: tl.constexpr, FIRST_BITS: tl.constexpr, LOW_BITS: tl.constexpr,
    UNSETTLED: tl.constexpr, DITHER: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, 8).to(tl.int64)
    k = row[:, None] * 8 + column[None, :]
    inside = k < count
    lowest, highest = tl.load(inputs), tl.load(inputs + vertices - 1)
    value = tl.load(x + k, mask=inside, other=0.0).to(tl.float64)
    good = tl.abs(value) < float("inf")
    if tl.max((inside & ~good).to(tl.int32).reshape(ROWS * 8)) > 0:
        tl.store(flags, 1)
    value = tl.minimum(tl.maximum(tl.where(good, value, 0.0), lowest), highest)
    cell = tl.load(first_cell + ((value - lowest) * tl.load(scale)).to(tl.int64))
    for _ in range(HOPS):
        cell += (value >= tl.load(next_input + cell)).to(tl.int64)
    position = (value - tl.load(inputs + cell)) * tl.load(inverse + cell)
    steps = (position * DITHER + 0.5).to(tl.int64)
    if SOURCE == 0:
        zero = (k * 0).to(tl.uint32)
        r0, r1, r2, _r3 = tl.philox(seed, k.to(tl.uint32), (k >> 32).to(tl.uint32), zero, zero)
        dither, first = r0.to(tl.int64), r1.to(tl.int64)
        low = r2.to(tl.int64) & ((1 << LOW_BITS) - 1)
    else:
        word = tl.load(words + k, mask=inside, other=0)
        dither, first = word & 0xFFFFFFFF, (word >> 32) & 0xFFFFFFFF
        low = k * 0
        if SOURCE == 2:
            low = tl.load(low_words + k, mask=inside, other=0) & ((1 << LOW_BITS) - 1)
    vertex = cell + (dither < steps).to(tl.int64)
    guide = (vertex << GUIDE_BITS) + (first >> (FIRST_BITS - GUIDE_BITS))
    code = tl.load(first_code + guide).to(tl.int64)
    searched = code >= UNSETTLED  # a threshold lies in this bucket of draws: compare
    code = tl.where(searched, code - UNSETTLED, code)
    draw = (first << LOW_BITS) | low
    at = thresholds + vertex * levels
    for _ in range(SEARCH):
        code += (searched & (tl.load(at + code) <= draw)).to(tl.int64)
    if SOURCE == 1:
        open_ = inside & searched & (tl.load(at + code) < draw + (1 << LOW_BITS))
        if tl.max(open_.to(tl.int32).reshape(ROWS * 8)) > 0:
            tl.store(flags + 1, 1)
    packed = tl.sum(tl.where(inside, code, 0) << (column[None, :] * BITS), axis=1)
    for byte in tl.static_range(BITS):
        place = row * BITS + byte
        tl.store(out + place, ((packed >> (8 * byte)) & 255).to(tl.uint8), mask=place < size)


__all__ = ["encode_tensor"]
