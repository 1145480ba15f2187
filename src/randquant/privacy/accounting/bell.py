"""Sums of one bit of each client beside Gaussian noise that hides no more.

Derivation: `docs/theory/vector-sums.md`, "Beside Gaussian noise".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr, ndtri_exp

from randquant.channels.channel import Channel
from randquant.privacy.accounting.rounds import Powers, rounding
from randquant.privacy.certificates.sum_bits import linearised
from randquant.privacy.divergence import UNIT

MOST_CLIENTS = 2**17
"""More clients are not counted: they only hide more."""

FINE = 64
"""The k-th arrangement from an end is bounded together with k / FINE others, about."""

LARGE = 2**13
"""Of more clients, at least `WORK` / clients or `FEW` parts of all arrangements are bounded
together: each takes time that grows with the clients."""

WORK, FEW = 2**21, 48

LEAST = 1e-250
"""Less likely sums are bounded by a formula."""

SLACK = 1 + 1e-9
"""Pays for quotients, exponentials and logarithms, some dozens of units of themselves."""


@functools.lru_cache(maxsize=1024)
def bell_square(channel: Channel, clients: int) -> float:
    """Squared distance over variance of Gaussian noise that hides a coordinate no better.

    Args:
        channel: of every client.
        clients: how many codes are in the sum, at least.

    Returns:
        c^2, per squared unit of x: whatever the others' inputs, the sums for x and x' are no easier
        to tell apart than N(0, 1) and N(c (x - x'), 1), by any set of outcomes, in either order.
        Infinite where the channel has more than two codes, or one that is impossible.

    Example:
        >>> import randquant as rq
        >>> bit = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)  # values ±4
        >>> round(bell_square(bit, 200) * 200 * (4**2 - 1), 2)  # over the variance's inverse
        1.84
    """
    bit = linearised(channel)
    if bit is None:  # more codes: nothing is proven
        return math.inf
    one, narrowest = bit
    low, high = sorted(int(weight) for weight in one.weights[:, 1])
    mirror = low + high == one.denominator
    ends = low / one.denominator, high / one.denominator
    longest = _longest(*ends, clients - 1, mirror)
    # theory/vector-sums.md, Proposition 14: the way from end to end is this long, at least.
    return (longest / narrowest) ** 2 * SLACK


def _longest(low: float, high: float, others: int, mirror: bool) -> float:
    """Largest distance, in deviations, that the way from end to end has at some sum."""
    left, right = (Powers(np.array([1 - end, end])) for end in (low, high))
    error = rounding(min(others + 1, MOST_CLIENTS), 2) + 8 * UNIT
    worst = 0.0
    for at_left, at_right in _arrangements(others, mirror):
        noise = left.of(at_left).convolve(right.of(at_right))
        likely = np.flatnonzero(noise.mass >= LEAST)
        first, last = int(likely[0]), int(likely[-1])
        worst = max(worst, _within(noise.mass, low, high, error, first, last))
        # theory/vector-sums.md, Proposition 17: a sum from above is one of the other bits.
        below = noise.start + first
        above = at_left + at_right - (noise.start + last)
        worst = max(worst, _beyond(at_left, at_right, low, high, below))
        worst = max(worst, _beyond(at_right, at_left, 1 - high, 1 - low, above))
    return worst * (high - low) * SLACK


def _arrangements(others: int, mirror: bool) -> Iterator[tuple[int, int]]:
    """How many of the others are at the left and at the right end, at least."""
    together = others + 1 - MOST_CLIENTS
    if others > LARGE:
        together = max(together, others // max(WORK // others, FEW))
    done = 0
    while done <= others // 2:
        # theory/vector-sums.md, Proposition 1: who is not counted only hides more.
        more = min(max(done // FINE, together), others - done)
        yield others - done - more, done
        if not mirror:
            yield done, others - done - more
        done += more + 1


def _within(
    noise: np.ndarray, low: float, high: float, error: float, first: int, last: int
) -> float:
    """The most at sums of the others from `first` to `last`, over the way's length."""
    here, kept = noise[first : last + 1], slice(first, last + 1)
    below = np.append(0.0, np.cumsum(noise)[:-1])[kept]
    above = np.append(np.cumsum(noise[::-1])[-2::-1], 0.0)[kept]
    # theory/vector-sums.md, Proposition 18: sums of positive terms.
    error += (len(noise) + 8) * UNIT
    least = np.inf
    for share in (low, high):
        tail = np.minimum(below + (1 - share) * here, above + share * here)
        least = np.minimum(least, _height(tail * (1 - error)))
    return float((here / least).max()) * (1 + error)


def _height(tail: np.ndarray) -> np.ndarray:
    """The normal density where the normal law leaves `tail`, at most one half; rounded down."""
    tail = np.minimum(tail, 0.5)
    far = np.maximum(-ndtri_exp(np.log(tail)), 0.0)
    # theory/vector-sums.md, Proposition 18: it is concave in the tail, and 0 at 0.
    left = ndtr(-far) * (1 + 32 * UNIT * (1 + far**2))
    # 8 units and those of the exponent, twice.
    density = np.exp(-(far**2) / 2) / math.sqrt(2 * math.pi)
    return density * np.minimum(tail / left, 1.0) * (1 - 4 * UNIT * (8 + far**2))


def _beyond(at_left: int, at_right: int, low: float, high: float, below: int) -> float:
    """The most at sums of the others less than `below`, over the way's length."""
    if below == 0:
        return 0.0
    sums = np.arange(below)
    # theory/vector-sums.md, Proposition 17: odds of a bit, as if tilted, that make `sums` likely.
    odds = _odds(at_left, at_right, low, high, np.maximum(sums, 0.5))
    moments = sum(
        count * (np.log1p(end * odds / (1 - end)) + math.log1p(-end))
        for count, end in ((at_left, low), (at_right, high))
    )
    rare = -(moments - np.log(odds) * sums) * (1 - 1e-9)
    if rare.min() < 32:
        return math.inf
    outer = np.sqrt(2 * rare)
    far = np.sqrt(2 * (rare - math.log(math.sqrt(2 * math.pi)) - np.log(outer + 1 / outer)))
    falls = _odds(at_left, at_right, low, high, np.maximum(sums - 2, 0)) * (1 - 1e-9)
    return float((1 / ((1 - high + _falling(falls)) * far)).max()) * SLACK


def _falling(falls: np.ndarray) -> np.ndarray:
    """f_j + f_j f_(j-1) + …, or less: as many terms as float64 shows, twice as many each time."""
    tails, products, reach = falls.copy(), falls.copy(), 1
    while reach < len(falls) and products[reach:].max() > UNIT:
        # All terms are positive: whatever is left out makes the sum smaller.
        tails[reach:] += products[reach:] * tails[:-reach]
        products[reach:] *= products[:-reach]
        products[:reach], reach = 0.0, 2 * reach
    return tails


def _odds(at_left: int, at_right: int, low: float, high: float, mean: np.ndarray) -> np.ndarray:
    """By what all bits' odds are multiplied for the sum to have this mean, about."""
    first, second = low / (1 - low), high / (1 - high)
    square = first * second * (at_left + at_right - mean)
    linear = at_left * first + at_right * second - mean * (first + second)
    root = np.sqrt(linear**2 + 4 * square * mean)
    # Of two forms the one in which nothing cancels.
    return np.where(linear > 0, 2 * mean / (linear + root), (root - linear) / (2 * square))
