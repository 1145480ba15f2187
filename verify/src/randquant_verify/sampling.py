"""Rounds drawn secretly, by Renyi divergences of whole orders: docs/theory/sampling.md.

P and P' are a round's laws with the client in two worlds, A is the law without it, and M - 1 of
a pair of order a is e^((a - 1) D_a) - 1. Bounds here are of (M - 1)/(a (a - 1) rate^2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from .intervals import Interval, exp, interval, log, power, smallest
from .rows import Spread

MOST_ORDER = 128  # a limit of time


class Laws:
    """Any two of some laws of one round: D_k <= K_k times the squared distance, and pure."""

    def __init__(self, spread: Spread) -> None:
        self.spread, self.pure = spread, spread.pure

    @lru_cache  # noqa: B019
    def divergence(self, k: int) -> Interval:
        """Of a whole order that is looked at: where the one before is pure, so is this."""
        before = self._looked_at(k - 1)[0]
        if before > 1 and self.divergence(before).high >= self.pure.high:
            return self.pure
        return smallest(self.pure, self.spread.divergence(k))

    def _looked_at(self, k: int) -> tuple[int, int]:
        """The orders around k, of 1 to 4 and then a fourth apart."""
        low, high = 1, 2
        while high <= k:
            low, high = high, high + 1 + high // 4
        return low, high

    @lru_cache  # noqa: B019
    def moment(self, k: int) -> Interval:
        """Proposition 12: (k - 1) D_k, at most its chord."""
        low, high = self._looked_at(k)
        a = (low - 1) * self.divergence(low) if low > 1 else interval(0)
        if k == low:
            return a
        b = (high - 1) * self.divergence(high)
        chord = a + (b - a) * Fraction(k - low, high - low)
        return smallest(chord, (k - 1) * self.pure)

    @lru_cache  # noqa: B019
    def excess(self, k: int) -> Interval:
        """Proposition 3: V_k, the integral of hockey sticks that D_k bounds."""
        if k == 1:
            return smallest(self.moment(2), self.excess(2))
        return (exp(self.moment(k)) - 1) / (k * (k - 1))


def binomial(trials: int, rate: Fraction) -> list[Interval]:
    q, p = interval(rate), interval(1 - rate)
    ways = [math.comb(trials, k) for k in range(trials + 1)]
    return [way * power(q, k) * power(p, trials - k) for k, way in enumerate(ways)]


def total(terms: list[Interval]) -> Interval:
    return sum(terms, interval(0))


def against_absence(laws: Laws, rate: Fraction, order: int) -> Interval:
    """Proposition 5: (1 - rate) A + rate P against A."""
    weights = binomial(order - 2, rate)
    return total([weight * laws.excess(k) for k, weight in enumerate(weights, 2)])


def of_absence(laws: Laws, rate: Fraction, order: int) -> Interval:
    """Proposition 6: A against (1 - rate) A + rate P."""
    at = max(Fraction(2), rate * (order + 1) - 1)
    low = math.floor(at)
    return (low + 1 - at) * laws.excess(low) + (at - low) * laws.excess(low + 1)


def of_both(laws: Laws, rate: Fraction, order: int) -> Interval:
    """Propositions 7 and 8: (1 - rate) A + rate P against (1 - rate) A + rate P'."""

    @lru_cache
    def remainder(x: Fraction) -> Interval:
        lowest = 2 + max(0, math.ceil(-x))
        return smallest(*(peak(x + k - 2) * laws.excess(k) for k in range(lowest, lowest + 6)))

    apart = [w * laws.excess(k) for k, w in enumerate(binomial(order - 1, rate), 1)]
    near = [w * remainder(Fraction(-k)) for k, w in enumerate(binomial(order - 2, rate))]
    far = remainder(1 + rate * order) + remainder(rate * (order + 1))
    return total(apart) + (1 - rate) * (total(near) + far)


@lru_cache(2**12)
def peak(y: Fraction) -> Interval:
    """Proposition 8: c(y), the largest (g - 1) g^(-1 - y) of g > 1."""
    if y == 0:
        return interval(1)
    return exp(y * log(y / (1 + y)) - log(1 + y))


def mixed(laws: Laws, rate: Fraction, order: int, bound: Callable) -> Interval:
    """D_order of a pair that is mixed with one law; by convexity too (Proposition 10)."""
    convex = rate * (exp(laws.moment(order)) - 1)
    excess = order * (order - 1) * rate * rate * bound(laws, rate, order)
    return smallest(log(1 + smallest(convex, excess)) / (order - 1), pure(laws, rate))


def pure(laws: Laws, rate: Fraction) -> Interval:
    return log(1 - rate + rate * exp(laws.pure))


class HiddenCodes(NamedTuple):
    """Rounds drawn secretly: codes of one, under replace_one and with zeros in one world."""

    far: Laws
    near: Laws
    draw: str
    rate: Fraction
    rounds: int
    relation: str

    @property
    def pure(self) -> Interval:
        """Proposition 10, order infinity."""
        return self.rounds * pure(self.far, self.rate)

    @lru_cache  # noqa: B019
    def divergence(self, order: int) -> Interval:
        """D_order of all rounds (Proposition 1); a stand-in's update is like any other."""
        if order > MOST_ORDER:
            return self.pure
        rate = self.rate
        both = mixed(self.far, rate, order, of_both)
        if self.draw == "fixed":
            return self.rounds * both
        forward = mixed(self.near, rate, order, against_absence)
        if self.relation == "zero_out":
            back = mixed(self.near, rate, order, of_absence)
            return self.rounds * max(forward, back, key=lambda bound: bound.high)
        # Proposition 9: by way of absence, which is closer.
        forward = mixed(self.near, rate, 2 * order - 1, against_absence)
        back = mixed(self.near, rate, 2 * order, of_absence)
        return self.rounds * smallest(both, Fraction(2 * order, 2 * order - 1) * forward + back)
