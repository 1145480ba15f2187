"""The privacy loss of a round of Gaussian noise in which a client takes part at random.

Both worlds are mixtures of normal laws on a line. Everything is rounded up:
`docs/theory/sampling.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr

from randquant.privacy.accounting.composition.loss import PrivacyLoss
from randquant.privacy.divergence import UNIT

CELLS = 2**12
"""Cells into which each side of the line is cut; any number gives a bound."""

RARE = 2.0**-20
"""Share of delta, at most about, that outcomes beyond the last cell cost."""

Shifts = tuple[float, float]
"""(m, n) with m > n and m >= 0: where the client's part moves the noise in either world."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Pairs of worlds that dominate one round, whatever happened before it.

    In a pair (m, n) the adversary sees (1 - rate) N(0) + rate N(m) in the one world and
    (1 - rate) N(0) + rate N(n) in the other, N(t) the normal law of mean t and variance 1.

    Attributes:
        rate: probability of taking part, in (0, 1].
        ways: a pair for each direction in which a whole run may be attacked. In each, the pair with
            the largest hockey-stick divergences at epsilon >= 0, and the one whose divergences in
            the other direction are the largest, which decides at epsilon <= 0.
    """

    rate: float
    ways: tuple[tuple[Shifts, Shifts], ...]

    @classmethod
    def of_absence(cls, rate: float, apart: float) -> Mixture:
        """The client, at most so far from zero, is in the first world only, or in the second."""
        # A line is looked along from its other end: (0, apart) is (0, -apart).
        there, back = (apart, 0.0), (0.0, -apart)
        return cls(rate, ((there, back), (back, there)))

    @classmethod
    def of_zeros(cls, rate: float, apart: float) -> Mixture:
        """The client is in both worlds, with zeros in one; absence is as far from zeros."""
        there, back = (2 * apart, apart), (apart, 0.0)
        ways = (there, back), (back, there)
        return cls(rate, ways)

    @classmethod
    def of_exchange(cls, rate: float, shifts: Shifts) -> Mixture:
        """The client is in both worlds, which may be exchanged."""
        return cls(rate, ((shifts, shifts),))

    def losses(self, releases: int, delta: float) -> tuple[PrivacyLoss, ...]:
        """The loss of one of so many rounds, rounded up, for each way."""
        # theory/sampling.md, Proposition 17: any reach gives a bound.
        reach = math.sqrt(2 * (math.log(releases) - math.log(delta) - math.log(RARE)))
        return tuple(self._loss(above, below, reach) for above, below in self.ways)

    def _loss(self, above: Shifts, below: Shifts, reach: float) -> PrivacyLoss:
        """Positive losses of one pair, negative ones of the other, and what is left at zero."""
        gains, gained, rest = _positive(self.rate, above, reach)
        pains, pained, error = _negative(self.rate, below, reach)
        # theory/sampling.md, Propositions 15 and 17: what is left, and all errors below zero.
        neither = max(1.0 - float(gained.sum()) - rest - float(pained.sum()), 0.0) + error
        losses = np.concatenate([gains, [0.0], pains])
        masses = np.concatenate([gained, [neither], pained]) * (1 + 8 * UNIT)
        return PrivacyLoss(losses, masses, min(rest, 1.0), upward=True)


def _positive(rate: float, shifts: Shifts, reach: float) -> tuple[np.ndarray, np.ndarray, float]:
    """(losses, masses, infinite) of the cells in which the first world is the likelier one."""
    m, n = shifts
    middle = math.nextafter((m + n) / 2, -math.inf)
    x = np.linspace(middle, m + reach, CELLS + 1)
    loss, slack = _log_ratio(rate, shifts, x)
    top, bottom = loss + slack, loss - slack
    tail, error = _tail(rate, m, x)
    tail = tail + error
    inside = np.maximum(-np.diff(tail), 0.0)
    # theory/sampling.md, Proposition 16: most of a cell's mass that goes to its upper end.
    steepest = np.maximum((-n if n <= 0 else 2 * n) - x[:-1], 0.0)
    part = 1 - expit(-steepest * np.diff(x)) * np.exp(bottom[:-1] - top[1:])
    part = np.minimum(part * (1 + 32 * UNIT) + 32 * UNIT, 1.0)
    masses = np.append(inside * (1 - part), 0.0) + np.append(0.0, inside * part)
    return np.maximum(top, 0.0), masses, float(tail[-1]) + 1e-300


def _negative(rate: float, shifts: Shifts, reach: float) -> tuple[np.ndarray, np.ndarray, float]:
    """(losses, masses, error) of the same cells, seen from the second world."""
    m, n = shifts
    middle = math.nextafter((m + n) / 2, math.inf)
    x = np.linspace(middle, max(middle, 0.0) + reach, CELLS + 1)
    loss, slack = _log_ratio(rate, shifts, x)
    tail, error = _tail(rate, n, x)
    inside = np.maximum(-np.diff(tail), 0.0)
    # theory/sampling.md, Proposition 16: here the lower end of a ratio is the larger loss.
    steepest = np.maximum(x[1:] + m + max(n, 0.0) - 3 * min(n, 0.0), 0.0)
    part = np.minimum(expit(steepest * np.diff(x)) + 32 * UNIT, 1.0)
    masses = np.append(inside * part, float(tail[-1])) + np.append(0.0, inside * (1 - part))
    return slack - loss, masses, float(error.max()) + 64 * UNIT


def _tail(rate: float, shift: float, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probability of more than x under (1 - rate) N(0) + rate N(shift), and its error, at most."""
    value, error = np.zeros_like(x), np.zeros_like(x)
    for weight, away in ((1 - rate, x), (rate, x - shift)):
        part = weight * ndtr(-away)
        value += part
        # theory/sampling.md, Proposition 17: 16 units of 1 + x^2, and 8 for what is added up.
        error += part * UNIT * (24 + 16 * away**2)
    return value, error


def _log_ratio(rate: float, shifts: Shifts, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log of the ratio of the two worlds' densities at x, and its error, at most."""
    (first, error), (second, another) = (_log_relative(rate, shift, x) for shift in shifts)
    return first - second, error + another + 2 * UNIT * np.abs(first - second)


def _log_relative(rate: float, shift: float, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log(1 - rate + rate e^(shift x - shift^2 / 2)), and its error, at most."""
    exponent = shift * (x - shift / 2)
    with np.errstate(divide="ignore", over="ignore"):
        change = rate * np.expm1(exponent)
        near = np.log1p(np.clip(change, -0.5, 0.5))
        far = np.logaddexp(np.log1p(-rate), math.log(rate) + exponent)
    # theory/sampling.md, Proposition 17: a small change is precise relative to itself.
    small, size = np.abs(change) <= 0.5, np.abs(exponent)
    error = np.where(small, 32 * np.abs(near) + 2 * size, 32 * (1 + np.abs(far) + size))
    return np.where(small, near, far), error * UNIT
