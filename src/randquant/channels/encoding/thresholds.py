"""The encoder's lookup tables for a channel: integer thresholds and two guide tables."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from randquant.channels.channel import DITHER_STEPS, MAX_DENOMINATOR, Channel
from randquant.channels.encoding.kernel import CODE_BITS, DITHER_BITS, GUIDE_BITS, UNSETTLED

CELL_BUCKETS = 1024

if (DITHER_STEPS, MAX_DENOMINATOR) != (1 << DITHER_BITS, 1 << CODE_BITS):
    raise ImportError("Expected the kernel and the channel to agree on their integers.")


class Tables(NamedTuple):
    """Lookup tables of one channel, in the order of the kernel's arguments.

    Attributes:
        inputs: (V,) float64 vertices.
        next_input: (V-1,) float64, the end of each cell; infinity for the last.
        inverse: (V-1,) float64, one over each cell's width.
        bucket_scale: buckets per unit of input.
        first_cell: (buckets + 1,) int64, a cell at or before the first one of a bucket.
        hops: most cells by which an input lies beyond its bucket's first_cell.
        thresholds: (V·m,) int64; code i is drawn if thresholds[i-1] <= r < thresholds[i] for r
            uniform below 2**62; the last of a row is 2**62.
        first_code: (V·2**GUIDE_BITS,) uint16, the code at the start of each guide bucket of r,
            plus UNSETTLED if a threshold lies inside the bucket.
        levels: m.
    """

    inputs: np.ndarray
    next_input: np.ndarray
    inverse: np.ndarray
    bucket_scale: float
    first_cell: np.ndarray
    hops: int
    thresholds: np.ndarray
    first_code: np.ndarray
    levels: int


@functools.lru_cache(maxsize=64)
def tables(channel: Channel) -> Tables:
    """Build the tables of a channel, or return the cached ones.

    Raises:
        ValueError: the channel has more than 256 codes.
    """
    if channel.levels > 256:
        raise ValueError(
            f"Expected at most 256 levels to encode, got {channel.levels}: a code is one byte."
        )
    inputs = channel.inputs
    with np.errstate(divide="ignore"):
        inverse = 1.0 / np.diff(inputs)  # infinite at a jump, which contains no input
    scale = CELL_BUCKETS / (2 * channel.clip)
    first_cell, hops = _buckets(inputs, scale)
    units = MAX_DENOMINATOR // channel.denominator
    thresholds = np.cumsum(channel.weights, axis=1) * units
    starts = np.arange(1 << GUIDE_BITS, dtype=np.int64) << (CODE_BITS - GUIDE_BITS)
    ends = starts + ((1 << (CODE_BITS - GUIDE_BITS)) - 1)
    first, last = (
        np.array([np.searchsorted(row, draws, side="right") for row in thresholds])
        for draws in (starts, ends)
    )
    first_code = (first + UNSETTLED * (last > first)).astype(np.uint16)
    built = Tables(
        inputs=inputs,
        next_input=np.append(inputs[1:-1], np.inf),
        inverse=inverse,
        bucket_scale=scale,
        first_cell=first_cell,
        hops=hops,
        thresholds=thresholds.reshape(-1),
        first_code=first_code.reshape(-1),
        levels=channel.levels,
    )
    for table in built:
        if isinstance(table, np.ndarray):
            table.flags.writeable = False  # shared by all encodings
    return built


def _buckets(inputs: np.ndarray, scale: float) -> tuple[np.ndarray, int]:
    """The first possible cell of each bucket, and the most cells that a bucket's inputs span.

    Bucket b holds the inputs with b <= (x - inputs[0])·scale < b + 1; it is widened by one bucket
    on either side, far more than the rounding of the product.
    """
    left, right = (inputs[0] + (np.arange(CELL_BUCKETS + 1) + shift) / scale for shift in (-1, 2))
    first, last = (
        np.clip(np.searchsorted(inputs, edge, side="right") - 1, 0, len(inputs) - 2)
        for edge in (left, right)
    )
    return first, int((last - first).max())
