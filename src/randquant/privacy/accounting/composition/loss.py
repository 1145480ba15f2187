"""Privacy loss as a finite measure of floats, exponentially tilted so that its tail is central.

Everything is rounded towards the safe side of a bound, so the floats are treated as exact
afterwards. Derivations: `docs/theory/composition.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from randquant.privacy.divergence import UNIT, log_ratio

LARGEST_EXPONENT = 600.0
"""Largest |tilt · loss|: e to it does not overflow."""

STRIDE = 20
"""Steps in which a grid of tilts is looked at first: about the root of its length."""

SMALLEST_WEIGHT = 1e-300
"""Smaller tilted masses would lose digits: they are raised to it, or dropped."""


@dataclass(frozen=True, slots=True)
class PrivacyLoss:
    """The loss log(p/q) of one release, under p.

    Attributes:
        losses: (k,) float64, finite, in nats.
        masses: (k,) float64, the probability of each.
        infinite: the probability of a code that q never sends.
        upward: whether it errs towards more loss (for upper bounds) or towards less.
    """

    losses: np.ndarray
    masses: np.ndarray
    infinite: float
    upward: bool

    @staticmethod
    def of(
        p: np.ndarray, q: np.ndarray, total: int, *, upward: bool, slip: float = 0.0
    ) -> PrivacyLoss:
        """Loss of a pair of rows of integers, rounded one way; slip is added to each loss.

        Rows may hold Python integers beyond 64 bits.
        """
        ratio = log_ratio(p, q)
        mass = (p / float(total)).astype(np.float64)
        sign = 1 if upward else -1
        # theory/composition.md, Proposition 4: 2 of 4 units; of Python integers 3.
        mass *= 1 + sign * 4 * UNIT
        # theory/composition.md, Proposition 4: a unit for each mass that is added.
        infinite = float(mass[np.isposinf(ratio)].sum()) * (1 + sign * len(p) * UNIT)
        finite = np.isfinite(ratio)
        losses = ratio[finite]
        # theory/composition.md, Proposition 4: 16 units of the logarithm and two sums.
        losses = losses + sign * 18 * UNIT * np.abs(losses) + slip * (1 + 4 * UNIT)
        return PrivacyLoss(losses, mass[finite], min(infinite, 1.0), upward)

    def infinite_of(self, releases: int) -> float:
        """Probability that any of the releases has infinite loss, rounded to its side."""
        if self.infinite == 0:
            return 0.0
        if self.infinite == 1:
            return 1.0
        # theory/composition.md, Proposition 4: 17 of 40 units.
        some = -math.expm1(releases * math.log1p(-self.infinite))
        return min(1.0, some * (1 + 40 * UNIT)) if self.upward else some * (1 - 40 * UNIT)


class Worlds(Protocol):
    """Pairs of laws that dominate a part of a run, such as a round, whatever happened before it."""

    def losses(self, releases: int, delta: float) -> tuple[PrivacyLoss, ...]:
        """The loss of one of so many parts, rounded up, for each way to attack all of them.

        Args:
            releases: how many are composed.
            delta: at which; a small share of it may be spent.
        """
        ...


@dataclass(frozen=True, slots=True)
class Tilted:
    """A privacy loss whose masses are multiplied by e^(tilt · loss - constant).

    With T(epsilon) the integral of g(x) = e^(-tilt x) (1 - e^-x), x = total loss - epsilon > 0,
    over `releases` independent losses of these weights, the hockey-stick divergence is
    e^(releases · constant - tilt · epsilon) T(epsilon) plus the share of infinite losses.

    Attributes:
        loss: what was tilted.
        releases: how many are composed.
        tilt: the exponent, > 0; 1 + tilt is a Rényi order.
        constant: chosen so that the weights sum to nearly 1.
        weights: (k,) float64.
        error: relative error, at most, of each weight.
    """

    loss: PrivacyLoss
    releases: int
    tilt: float
    constant: float
    weights: np.ndarray
    error: float

    @staticmethod
    def of(loss: PrivacyLoss, releases: int, tilt: float) -> Tilted:
        """Tilt a loss; any tilt gives valid bounds."""
        # theory/composition.md, Proposition 3: any constant and any tilt give bounds.
        constant = float(log_moments(loss, np.array([tilt]))[0])
        exponents = tilt * loss.losses - constant
        weights = loss.masses * np.exp(exponents)
        if loss.upward:
            # theory/composition.md, Proposition 4: raising adds losses, dropping takes some away.
            weights = np.maximum(weights, SMALLEST_WEIGHT)
        else:
            weights = np.where(weights < SMALLEST_WEIGHT, 0.0, weights)
        # theory/composition.md, Proposition 3: the relative error of a weight.
        largest = float((np.abs(tilt * loss.losses) + np.abs(exponents)).max())
        return Tilted(loss, releases, tilt, constant, weights, 1.01 * UNIT * (largest + 12))

    @property
    def peak(self) -> float:
        """What g never exceeds: its maximum, at e^-x = tilt/(tilt+1), is below 1/(tilt+1)."""
        # A sum and a quotient: 2 of 4 units.
        return (1 + 4 * UNIT) / (1 + self.tilt)

    @property
    def centre(self) -> tuple[float, float]:
        """Mean and variance of one tilted loss, normalised; roughly."""
        mass = self.weights / self.weights.sum()
        mean = float(mass @ self.loss.losses)
        return mean, float(mass @ (self.loss.losses - mean) ** 2)

    def log_delta(self, epsilon: float, integral: float) -> float:
        """log of the hockey-stick divergence at epsilon, rounded to the loss's side.

        Args:
            epsilon: the argument.
            integral: T(epsilon), already rounded to that side.
        """
        sign = 1 if self.loss.upward else -1
        whole = self.loss.infinite_of(self.releases)
        if integral <= 0:
            return math.log(whole) if whole > 0 else -math.inf
        first, second = self.releases * self.constant, self.tilt * epsilon
        # theory/composition.md, Proposition 3: a logarithm, two products, three sums.
        slack = 12 * UNIT * (abs(first) + abs(second) + abs(math.log(integral)) + 1)
        slack += 1.01 * self.releases * self.error
        log_finite = first - second + math.log(integral) + sign * slack
        if whole == 0:
            return log_finite
        # Of the two, errors count by their share: 8 units of a logarithm, 3 sums, exp, log1p.
        both = float(np.logaddexp(log_finite, math.log(whole)))
        return both + sign * 40 * UNIT * (1 + abs(both))


def log_moments(loss: PrivacyLoss, tilts: np.ndarray) -> np.ndarray:
    """log of the sum of mass · e^(tilt · loss), roughly; one for each tilt."""
    with np.errstate(divide="ignore"):
        exponents = tilts[:, None] * loss.losses + np.log(loss.masses)
    shift = exponents.max(axis=-1)
    return shift + np.log(np.exp(exponents - shift[:, None]).sum(axis=-1))


def best_tilt(loss: PrivacyLoss, releases: int, delta: float) -> float:
    """The tilt at which Rényi composition gives about the least epsilon."""
    # theory/composition.md, Proposition 3: no exponential of a tilted loss overflows.
    cap = LARGEST_EXPONENT / max(float(np.abs(loss.losses).max(initial=0.0)), 1e-12)
    tilts = np.geomspace(min(1e-9, cap / 2), cap, 400)

    def bound(some: np.ndarray) -> np.ndarray:
        return (releases * log_moments(loss, some) - math.log(delta)) / some

    for _ in range(2):
        # Rényi composition's own best order, from a grid that is refined twice; not proven to be
        # best, which nothing rests on. The bound falls, then rises: log moments are convex.
        near = STRIDE * int(bound(tilts[::STRIDE]).argmin())
        first = max(near - STRIDE + 1, 0)
        at = first + int(bound(tilts[first : near + STRIDE]).argmin())
        tilts = np.linspace(tilts[max(at - 1, 0)], tilts[min(at + 1, len(tilts) - 1)], 101)
    return float(tilts[50])


def crossing(
    falling: Callable[[float], float], start: float, step: float
) -> tuple[float | None, float | None]:
    """Close in on where a function of epsilon >= 0 falls through 0.

    Returns:
        (a, b): a with falling(a) > 0 and b with falling(b) <= 0, as close as the search got;
        None where none was found. The function may be wrong far from its crossing.
    """
    low, high = _bracket(falling, max(start, 0.0), step)
    if low is None or high is None:
        return (low and low[0]), (high and high[0])
    before = math.inf
    for turn in range(60):
        width, tolerance = high[0] - low[0], 1e-9 * high[0] + 1e-13
        # Tightness only: both ends are evaluated points.
        if width <= tolerance:
            break
        middle = low[0] + width / 2
        # Bisection where two steps did not halve the width, or values are infinite.
        if width < before / 2 and math.isfinite(low[1]) and math.isfinite(high[1]):
            secant = low[0] + width * low[1] / (low[1] - high[1])
            nearer = low[0] if low[1] < -high[1] else high[0]
            # Every other time as far beyond it as the nearer end is before: both ends close in.
            away = max(abs(secant - nearer), tolerance / 4) * (turn % 2)
            middle = secant + math.copysign(away, secant - nearer)
            if not low[0] < middle < high[0]:
                middle = low[0] + width / 2
        before = width if turn % 2 else before
        value = falling(middle)
        low, high = ((middle, value), high) if value > 0 else (low, (middle, value))
    return low[0], high[0]


Point = tuple[float, float]


def _bracket(
    falling: Callable[[float], float], start: float, step: float
) -> tuple[Point | None, Point | None]:
    """Walk from start, in growing steps, to both sides of the crossing."""
    at, low, high = start, None, None
    value = falling(at)
    for _ in range(80):
        if value > 0:
            low = (at, value)
            at += step
        else:
            high = (at, value)
            if at == 0:
                break
            at = max(at - step, 0.0)
        if low is not None and high is not None:
            break
        step *= 2
        value = falling(at)
    return low, high
