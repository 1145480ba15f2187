"""Gaussian noise that dominates sums of one bit of each client.

Hidden cohorts need a dominating pair, and sums over more than 4096 clients have no tighter bound:
without this comparison their epsilon would be up to 31 % and 5 % larger.

Derivation: `docs/theory/vector-sums.md`, "Beside Gaussian noise".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr, ndtri_exp

from randquant.channels.channel import Channel
from randquant.privacy.accounting.ratios import Powers, rounding
from randquant.privacy.certificates.sum_bits import linearised
from randquant.privacy.divergence import UNIT

MOST_CLIENTS = 2**17
"""More clients are not counted: they only hide more."""

ARRANGEMENTS_FRACTION = 64
"""Arrangement k from an end is bounded together with about k / ARRANGEMENTS_FRACTION others."""

MAX_FINE_CLIENTS = 2**13
"""Of more clients, whole parts of all arrangements are bounded together, at least `MAX_WORK_SIZE` /
clients or `MIN_PART_COUNT` parts: each takes time that grows with the clients."""

MAX_WORK_SIZE, MIN_PART_COUNT = 2**21, 48

MIN_EXACT_PROB = 1e-250
"""Less likely sums are bounded by a formula."""

ROUND_UP_FACTOR = 1 + 1e-9
"""Factor that pays for the rounding of quotients, exponentials and logarithms: some dozens of units
of 2**-53, so that half as much would do, and costs 1e-9 of a bound."""


@functools.lru_cache(maxsize=1024)
def unit_squared_mu(channel: Channel, clients: int, spared: float = 0.0) -> float:
    """Bound the squared distance over variance of Gaussian noise that hides a coordinate no better.

    Args:
        channel: of every client.
        clients: how many codes are in the sum, at least.
        spared: tests whose errors, or powers, are not above this are left out; 0, or at least
            1e-200.

    Returns:
        c^2, per squared unit of x: whatever the others' inputs, the sums for x and x' are no easier
        to tell apart than N(0, 1) and N(c (x - x'), 1), by any set of outcomes, in either order; of
        tests that are left out, hockey-stick divergences are at most `spared_cost` times `spared`.
        Infinite where the channel has more than two codes, or one that is impossible.

    Example:
        >>> import randquant as rq
        >>> bit = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)  # values ±4
        >>> round(unit_squared_mu(bit, 200) * 200 * (4**2 - 1), 2)  # over the variance's inverse
        1.84
    """
    bit = linearised(channel)
    if bit is None:  # more codes: nothing is proven
        return math.inf
    one, narrowest = bit
    low, high = sorted(int(weight) for weight in one.weights[:, 1])
    mirror = low + high == one.denominator
    ends = low / one.denominator, high / one.denominator
    longest = _largest_distance(*ends, clients - 1, mirror, spared)
    # theory/vector-sums.md, Proposition 14: the distance of the ends is at least this.
    return (longest / narrowest) ** 2 * ROUND_UP_FACTOR


def spared_cost(channel: Channel) -> float:
    """Return the largest ratio of two inputs' probabilities of a code of two."""
    bit = linearised(channel)
    if bit is None:
        return math.inf
    weights = bit[0].weights
    return float((weights.max(axis=0) / weights.min(axis=0)).max()) * ROUND_UP_FACTOR


def _largest_distance(
    low: float, high: float, others: int, mirror: bool, spared: float = 0.0
) -> float:
    # Between the laws for the two ends of a client's input, in standard deviations of the noise.
    left, right = (Powers(np.array([1 - end, end])) for end in (low, high))
    error = rounding(min(others + 1, MOST_CLIENTS), 2) + 8 * UNIT
    worst = 0.0
    for at_left, at_right in _arrangement_groups(others, mirror):
        noise = left.law(at_left).convolve(right.law(at_right))
        likely = np.flatnonzero(noise.mass >= MIN_EXACT_PROB)
        first, last = int(likely[0]), int(likely[-1])
        law = noise.mass
        worst = max(worst, _likely_distance(law, low, high, error, first, last, spared))
        # theory/vector-sums.md, Proposition 22: sums beyond are less likely than what is spared.
        if spared:
            continue
        # theory/vector-sums.md, Proposition 17: a sum from above is one of the other bits.
        below = noise.start + first
        above = at_left + at_right - (noise.start + last)
        worst = max(worst, _rare_distance(at_left, at_right, low, high, below))
        worst = max(worst, _rare_distance(at_right, at_left, 1 - high, 1 - low, above))
    return worst * (high - low) * ROUND_UP_FACTOR


def _arrangement_groups(others: int, mirror: bool) -> Iterator[tuple[int, int]]:
    # Of each group the least numbers of other clients at either end: every arrangement in it has at
    # least these, so the group bounds it.
    grouped = others + 1 - MOST_CLIENTS
    if others > MAX_FINE_CLIENTS:
        grouped = max(grouped, others // max(MAX_WORK_SIZE // others, MIN_PART_COUNT))
    done = 0
    while done <= others // 2:
        # theory/vector-sums.md, Proposition 1: clients that are not counted only hide more.
        more = min(max(done // ARRANGEMENTS_FRACTION, grouped), others - done)
        yield others - done - more, done
        if not mirror:
            yield done, others - done - more
        done += more + 1


def _likely_distance(
    noise: np.ndarray,
    low: float,
    high: float,
    error: float,
    first: int,
    last: int,
    spared: float = 0.0,
) -> float:
    likely, kept = noise[first : last + 1], slice(first, last + 1)
    below = np.append(0.0, np.cumsum(noise)[:-1])[kept]
    above = np.append(np.cumsum(noise[::-1])[-2::-1], 0.0)[kept]
    # theory/vector-sums.md, Proposition 18: sums of positive terms.
    error += (len(noise) + 8) * UNIT
    least, counts = np.inf, np.True_
    for share in (low, high):
        tail = np.minimum(below + (1 - share) * likely, above + share * likely)
        least = np.minimum(least, _density(tail * (1 - error)))
        counts = counts & (tail * (1 + error) > spared)
    return float((likely / least).max(where=counts, initial=0.0)) * (1 + error)


def _density(tail: np.ndarray) -> np.ndarray:
    # A lower bound of the normal density where `tail`, at most one half, of the mass lies beyond.
    tail = np.minimum(tail, 0.5)
    quantile = np.maximum(-ndtri_exp(np.log(tail)), 0.0)
    # theory/vector-sums.md, Proposition 18: it is concave in the tail, and 0 at 0.
    left = ndtr(-quantile) * (1 + 32 * UNIT * (1 + quantile**2))
    # 8 units and those of the exponent, twice.
    density = np.exp(-(quantile**2) / 2) / math.sqrt(2 * math.pi)
    return density * np.minimum(tail / left, 1.0) * (1 - 4 * UNIT * (8 + quantile**2))


def _rare_distance(at_left: int, at_right: int, low: float, high: float, below: int) -> float:
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
    quantile = np.sqrt(2 * (rare - math.log(math.sqrt(2 * math.pi)) - np.log(outer + 1 / outer)))
    falls = _odds(at_left, at_right, low, high, np.maximum(sums - 2, 0)) * (1 - 1e-9)
    return float((1 / ((1 - high + _falling_sums(falls)) * quantile)).max()) * ROUND_UP_FACTOR


def _falling_sums(falls: np.ndarray) -> np.ndarray:
    # Lower bounds of f_j + f_j f_(j-1) + …; at each step the number of terms doubles.
    tails, products, reach = falls.copy(), falls.copy(), 1
    while reach < len(falls) and products[reach:].max() > UNIT:
        # All terms are positive: whatever is left out makes the sum smaller.
        tails[reach:] += products[reach:] * tails[:-reach]
        products[reach:] *= products[:-reach]
        products[:reach], reach = 0.0, 2 * reach
    return tails


def _odds(at_left: int, at_right: int, low: float, high: float, mean: np.ndarray) -> np.ndarray:
    first, second = low / (1 - low), high / (1 - high)
    square = first * second * (at_left + at_right - mean)
    linear = at_left * first + at_right * second - mean * (first + second)
    root = np.sqrt(linear**2 + 4 * square * mean)
    # Of two forms the one in which nothing cancels.
    return np.where(linear > 0, 2 * mean / (linear + root), (root - linear) / (2 * square))
