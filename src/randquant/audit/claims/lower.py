"""Epsilon of Gaussian noise from below: thresholds on the sum of all rounds, and cells of each.

Derivation: `docs/theory/claims.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.special import gammaln, log_ndtr, ndtr

from randquant.privacy.accounting.composition.loss import PrivacyLoss
from randquant.privacy.accounting.composition.rule import reached_epsilon
from randquant.privacy.divergence import UNIT

SLACK = 1e-9
"""Generous bound of the relative error of scipy's normal tails, their differences and logarithms,
and of binomial probabilities."""

CELLS, FURTHEST = 2000, 30.0
"""Cells into which a round's outcome is cut, and the largest shift for which it is."""

THRESHOLDS, PASSES = 201, 3
"""How many thresholds are tried, and how often closer to the best: any gives a valid bound."""

LARGEST = 2**14
"""Most counts of rounds that are weighed; beyond, nothing is said."""

TAIL = 1e-20
"""Mass of a binomial that is left out, to the attacker's disadvantage."""


def attained(pairs: Iterable[tuple[float, float]], rate: float, rounds: int, delta: float) -> float:
    """Bound epsilon from below, of rounds in each of which a client takes part at random.

    Args:
        pairs: two worlds each: where the client takes part in a round, its outcome is N(m, 1) in
            one world and N(m', 1) in the other; where it does not, N(0, 1).
        rate: probability of taking part, the same in both worlds.
        rounds: how many, 1 to 2**40.
        delta: in [0, 1).

    Returns:
        No smaller epsilon is true at delta, in nats.

    Example:
        >>> round(attained([(1.0, 0.0)], 1.0, 1, 1e-5), 4)  # Gaussian noise: the exact figure
        4.3772
    """
    if delta == 0:
        return math.inf if any(m != other for m, other in pairs) else 0.0
    pairs = list(pairs)
    best = 0.0
    if rate < 1 and rounds > 1 and max(map(abs, np.ravel(pairs))) <= FURTHEST:
        best = max(reached_epsilon(_in_cells(rate, *pair), rounds, delta) for pair in pairs)
    taken, mass = _binomial(rate, rounds)
    if taken.size > LARGEST:
        return best
    root = math.sqrt(rounds)
    # theory/claims.md, Proposition 3: of logarithms of factorials.
    error = 16 * UNIT * float(gammaln(rounds + 1))
    for m, other in pairs:
        first, second = taken * (m / root), taken * (other / root)
        centre, spread = float(mass @ first), float(np.ptp(first)) + 40.0
        low, high = centre - spread, centre + spread
        for _ in range(PASSES):
            at = np.linspace(low, high, THRESHOLDS)
            epsilons = _epsilons(at, first, second, mass, delta, error)
            place = int(epsilons.argmax())
            best = max(best, float(epsilons[place]))
            low, high = at[max(place - 2, 0)], at[min(place + 2, THRESHOLDS - 1)]
    return best


def _in_cells(rate: float, m: float, other: float) -> PrivacyLoss:
    """The loss of a round, rounded down, if only the cell that the outcome lies in is seen."""
    # theory/claims.md, Proposition 5.
    x = np.linspace(min(m, other, 0.0) - 12, max(m, other, 0.0) + 12, CELLS + 1)
    p, q = ((1 - rate) * _masses(x) + rate * _masses(x - centre) for centre in (m, other))
    kept = (p > 1e-280) & (q > 1e-280)
    ratio = np.log(p[kept] / q[kept])
    losses = ratio - 4 * SLACK * (1 + np.abs(ratio))
    return PrivacyLoss(losses, p[kept] * (1 - 2 * SLACK), 0.0, upward=False)


def _masses(x: np.ndarray) -> np.ndarray:
    """What a normal law has between neighbouring points, from the tail that is smaller."""
    low, high = x[:-1], x[1:]
    return np.where(high <= 0, ndtr(high) - ndtr(low), ndtr(-low) - ndtr(-high))


def attained_if_seen(
    pairs: Iterable[tuple[float, float]], rate: float, rounds: int, delta: float
) -> float:
    """The same against whoever sees in which rounds the client takes part.

    Example:
        >>> attained_if_seen([(1.0, 0.0)], 0.5, 100, 1e-5) < attained([(1.0, 0.0)], 1.0, 50, 2e-5)
        True
    """
    # theory/claims.md, Proposition 4: in half of all runs it takes part at least so often.
    often = math.floor(rounds * rate * (1 - SLACK))
    return attained(pairs, 1.0, often, 2 * delta) if often > 0 and 2 * delta < 1 else 0.0


def _epsilons(
    at: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    mass: np.ndarray,
    delta: float,
    error: float,
) -> np.ndarray:
    """log((P(S > t) - delta) / Q(S > t)) for each threshold t, lowered."""
    # theory/claims.md, Proposition 3: what the binomial leaves out counts for Q, and not for P.
    above = _log_mean(log_ndtr(first - at[:, None]), mass)
    other = _log_mean(log_ndtr(second - at[:, None]), mass)
    other = np.logaddexp(other, math.log(TAIL)) if mass.size > 1 else other
    above, other = above - _slack(above, error), other + _slack(other, error)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        left = above + np.log1p(-np.exp(math.log(delta) - above))
    return np.where(np.isnan(left), -np.inf, left) - other


def _slack(logs: np.ndarray, error: float) -> np.ndarray:
    """What rounding may have changed in these logarithms."""
    return 4 * SLACK * (1 + np.abs(logs)) + error


def _log_mean(logs: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """log of the sum of mass · e^logs over the last axis."""
    peak = logs.max(axis=1)
    return peak + np.log(np.exp(logs - peak[:, None]) @ mass)


def _binomial(rate: float, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """How often it takes part, and how probable that is, without what is too improbable."""
    if rate == 1:
        return np.array([float(rounds)]), np.ones(1)
    mean = rounds * rate
    # theory/claims.md, Proposition 3: by Bernstein's inequality all but TAIL is within it.
    width = 16 + math.sqrt(16**2 + 94 * mean * (1 - rate))
    taken = np.arange(max(math.floor(mean - width), 0), min(math.ceil(mean + width), rounds) + 1)
    if taken.size > LARGEST:
        return taken, np.zeros(0)
    missed = rounds - taken
    ways = gammaln(rounds + 1) - gammaln(taken + 1) - gammaln(missed + 1)
    return taken, np.exp(ways + taken * math.log(rate) + missed * math.log1p(-rate))
