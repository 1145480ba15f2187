"""How narrow a masked sum may be: bits of its modulus, and the sum from its remainder.

A wrong lift is an error of the mean, never of the guarantee. Derivations:
`docs/theory/narrow-sums.md`.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from randquant._internal import validate
from randquant.channels import wire
from randquant.channels.channel import Channel

MAX_WRAP_PROBABILITY = 1e-8
"""Largest probability that any coordinate of one round's sum wraps around: 1e-6 in a run of a
hundred rounds."""

TILTS = np.geomspace(1e-6, 300, 320)
"""Tilts of the Chernoff bound times the largest code: any are valid, so dense ones are enough."""


@functools.lru_cache(maxsize=256)
def sum_bits(channel: Channel, clients: int, size: int, deviation: float = math.inf) -> int:
    """Count the fewest bits of a sum that wraps with a probability of MAX_WRAP_PROBABILITY at most.

    Args:
        channel: what the codes are drawn from.
        clients: how many clients are in the sum, at most.
        size: coordinates of the sum.
        deviation: bound of the standard deviation of a client's input to a coordinate, over the
            signs of a rotation that updates do not depend on; infinite if nothing is known.

    Returns:
        Bits of the modulus, enough for a single code and never more than the exact sum needs.

    Guarantees:
        Fewer clients never need more bits.

    Example:
        >>> import randquant as rq
        >>> bit = rq.stochastic_rounding(clip=0.01, levels=2, margin=1.0)
        >>> sum_bits(bit, 1000, 2**17, deviation=0.003), wire.sum_bits(2, 1000)
        (8, 10)
    """
    exact = wire.sum_bits(channel.levels, clients)
    for bits in range(channel.bits, exact):
        if wrap_probability(channel, clients, size, bits, deviation) <= MAX_WRAP_PROBABILITY:
            return bits
    return exact


def wrap_probability(
    channel: Channel, clients: int, size: int, bits: int, deviation: float = math.inf
) -> float:
    """Bound the probability that a sum modulo 2**bits is lifted wrongly in some coordinate.

    Args:
        channel, clients, size, deviation: as in `sum_bits`.
        bits: of the modulus; fewer than the exact sum needs.

    Returns:
        An upper bound, at most 1.
    """
    size = validate.whole("size", size, low=1)
    tilts, slopes, heights = _tails(channel)
    # theory/narrow-sums.md, Propositions 2 and 3; the last term pays for rounding.
    with np.errstate(invalid="ignore", over="ignore"):
        moved = np.where(slopes == 0, 0.0, (clients * deviation * slopes) ** 2 / 2)
    exponents = clients * (heights + 1e-14) + moved - tilts * 2.0 ** (bits - 1)
    above, below = exponents.min(axis=(0, 2))
    return min(size * (math.exp(min(above, 0.0)) + math.exp(min(below, 0.0))), 1.0)


def lifted(totals: np.ndarray, bits: int, levels: int, clients: int) -> np.ndarray:
    """Return the sums nearest the middle of all possible sums, from remainders modulo 2**bits.

    Args:
        totals: (d,) integers, of which only the remainders count.
        bits: of the modulus.
        levels: of the channel.
        clients: how many clients are in the sum.

    Returns:
        (d,) int64.

    Example:
        >>> lifted(np.array([500 % 256, 390 % 256]), 8, levels=2, clients=1000)
        array([500, 390])
    """
    middle, half = (clients * (levels - 1) + 1) // 2, 1 << (bits - 1)
    return ((totals.astype(np.int64) - middle + half) & (2 * half - 1)) + (middle - half)


@functools.lru_cache(maxsize=64)
def _tails(channel: Channel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lines above log E exp(±t (code - middle)) as a function of x, for each tilt t > 0.

    Returns:
        (tilts, slopes, heights), shapes (1, 1, T), (3, 2, T) and (3, 2, T): for every input x of
        the channel the log is at most slope · x + height.
    """
    middle = (channel.levels - 1) / 2
    codes = np.arange(channel.levels) - middle
    tilts = TILTS / max(channel.levels - 1, 1)
    x, sides = channel.inputs[:, None], []
    for sign in (1, -1):
        moments = channel.probabilities @ np.exp(sign * np.outer(codes, tilts))
        logs = np.log(moments)
        inner = np.searchsorted(channel.inputs, 0.0, side="right")
        around = (max(inner - 1, 0), min(inner, len(channel.inputs) - 1))
        sloped = [np.zeros_like(tilts)]
        for left, right in ((0, -1), around):
            width = float(x[right, 0] - x[left, 0])
            sloped.append((logs[right] - logs[left]) / width if width else sloped[0])
        slopes = np.stack(sloped)
        sides.append(
            (slopes, np.stack([_line_height(x, moments, logs, slope) for slope in slopes]))
        )
    slopes, heights = (np.stack(each, axis=1) for each in zip(*sides, strict=True))
    return tilts[None, None], slopes, np.maximum(heights, 0.0)


def _line_height(
    x: np.ndarray, moments: np.ndarray, logs: np.ndarray, slope: np.ndarray
) -> np.ndarray:
    # The largest log(moment) - slope · x, (T,). The moment is linear between vertices, so that the
    # maximum is at a vertex or where the derivative is zero.
    heights = (logs - slope * x).max(axis=0)
    left, right, width = moments[:-1], moments[1:], np.diff(x, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rise = (right - left) / width  # of a cell; NaN or infinite at a jump, which has none
        top = rise / slope  # where the derivative is zero
        within = (np.minimum(left, right) < top) & (top < np.maximum(left, right))
        place = x[:-1] + (top - left) / rise
        inside = np.where(within, np.log(top) - slope * place, -np.inf)
    return np.maximum(heights, inside.max(axis=0, initial=-np.inf))
