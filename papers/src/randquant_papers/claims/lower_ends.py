"""Lower ends of the epsilon of Gaussian noise, by two inputs that are easy to tell apart.

Derivation: `papers/docs/claims.md`, Proposition 3.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtr

REACH = 12.0
"""Outcomes farther from all three means, in deviations, are left out: less than 1e-32 of each."""

CELLS = 2**13
"""Cells of the line in which an outcome is seen; more cells cost time and lose less."""

SCORES = 2**12
"""Scores within which all likely sums lie: a convolution takes the square of it in operations."""

LEAST = 1e-25
"""Sums that are less likely in both worlds are left out: far below any delta that is stated."""

ERROR = 1e-10
"""Relative error that each round is given: a cell's difference of two tails, below 1e-11, and its
share of convolutions, sums of up to 1e5 positive products with 1.1e-16 each, about as much again.
Four times both; with twice this figure a lower end of a million rounds loses 1e-4 of a mass."""

MOST_ROUNDS = 10**6
"""More rounds are counted as so many: whoever sees more may ignore the others."""


def gaussian_lower(mu: float, delta: float) -> float:
    """Bound epsilon at delta of neighbours that are `mu` deviations apart from below."""
    if delta <= 0 or math.isinf(mu):
        return math.inf

    def surely(epsilon: float) -> bool:
        # Balle and Wang 2018, Theorem 8, in logarithms; the margin is far above their rounding.
        there = log_ndtr(mu / 2 - epsilon / mu)
        back = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        if back >= there - 1e-6:
            return False
        margin = 1e-12 * (1 + abs(there)) + 1e-8
        return there + math.log1p(-math.exp(back - there)) - margin >= math.log(delta)

    if mu == 0 or not surely(0.0):
        return 0.0
    low, high = 0.0, mu * (mu / 2 + 40.0)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if surely(middle) else (low, middle)
    return low


def sampled_lower(places: tuple[float, float], rate: float, rounds: int, delta: float) -> float:
    """Bound epsilon at delta of many rounds with a client that takes part at random from below.

    Args:
        places: means of a round's outcome in the two worlds, in deviations, if the client takes
            part; it is 0 if not.
        rate: at most the probability of taking part in a round.
        rounds: of the run.
        delta: in (0, 1).
    """
    rounds = min(rounds, MOST_ROUNDS)
    if rate < 1:  # a rate that was rounded: taking part less often tells less
        rate *= 1 - 1e-15
    edges = np.linspace(min(*places, 0.0) - REACH, max(*places, 0.0) + REACH, CELLS + 1)
    absent = _cells(edges)
    laws = [(1 - rate) * absent + rate * _cells(edges - place) for place in places]
    known = np.min(laws, axis=0) > LEAST * LEAST
    if not known.any():  # means so far apart that no cell is likely enough in both worlds
        return 0.0
    pair = np.array([law[known] for law in laws])
    score = np.log(pair[0] / pair[1])
    spread = max(float(np.sqrt(law @ (score - law @ score) ** 2)) for law in pair)
    # All rounds' scores add up to a few deviations of theirs, which SCORES cells hold.
    step = max(float(np.ptp(score)) / SCORES, 16 * math.sqrt(rounds) * spread / SCORES, 1e-12)
    place = np.rint((score - score.min()) / step).astype(np.int64)
    one = np.array([np.bincount(place, weights=law) for law in pair])
    whole = _power(one, rounds)
    error = rounds * ERROR
    ways = ((whole[0], whole[1]), (whole[1], whole[0]))
    return max(_epsilon(first, second, delta, error) for first, second in ways)


def _cells(edges: np.ndarray) -> np.ndarray:
    """Normal masses of cells, by the smaller tails: a difference loses no digits there."""
    sign = np.where(edges[:-1] + edges[1:] > 0, -1.0, 1.0)
    return np.abs(ndtr(sign * edges[1:]) - ndtr(sign * edges[:-1]))


def _power(pair: np.ndarray, count: int) -> np.ndarray:
    """The laws of sums of so many scores; sums unlikely in both worlds are left out of both."""
    if count == 1:
        return pair
    half = _power(pair, count // 2)
    return _trimmed(_added(half, half) if count % 2 == 0 else _added(_added(half, half), pair))


def _added(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.array([np.convolve(a, b) for a, b in zip(one, other, strict=True)])


def _trimmed(pair: np.ndarray) -> np.ndarray:
    likely = np.flatnonzero(pair.max(axis=0) > LEAST)
    return pair[:, likely[0] : likely[-1] + 1]


def _epsilon(first: np.ndarray, second: np.ndarray, delta: float, error: float) -> float:
    """Epsilon at which these outcomes of the two worlds surely have more than delta."""
    surely, most = first * (1 - error), second * (1 + error)

    def enough(epsilon: float) -> bool:
        return float(np.maximum(surely - math.exp(epsilon) * most, 0.0).sum()) > delta * (1 + 1e-9)

    low, high = 0.0, 500.0
    if not enough(low):
        return 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low
