"""Limits to compare quantisers with: Gaussian noise, and PrivUnit for pure local privacy.

Figures for comparison, in float64; guarantees come from `account`. Derivation:
`docs/theory/plan.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, log_ndtr, ndtr

from randquant._internal import validate
from randquant.mechanisms.tuning import CLOSE, SPREAD


def gaussian_multiplier(epsilon: float, delta: float, rounds: int) -> float:
    """Smallest noise multiplier with which Gaussian noise meets a target.

    Args:
        epsilon: in nats, > 0.
        delta: in [0, 1).
        rounds: number of releases; a client takes part in each.

    Returns:
        The noise multiplier, from the exact (epsilon, delta) of a Gaussian: `rounds` releases are
        equivalent to one with sqrt(rounds) times the sensitivity. Infinity for delta = 0.

    References:
        Balle and Wang 2018, Theorem 8.

    Example:
        >>> round(gaussian_multiplier(8.0, 1e-6, 5), 4)
        1.46
    """
    epsilon = validate.real("epsilon", epsilon, above=0)
    delta = validate.real("delta", delta, low=0, below=1)
    rounds = validate.whole("rounds", rounds, low=1)
    if delta == 0:
        return math.inf

    def delta_of(multiplier: float) -> float:
        half, far = 0.5 / multiplier, epsilon * multiplier
        return math.exp(log_ndtr(half - far)) - math.exp(epsilon + log_ndtr(-half - far))

    low, high = 1e-9, 1e15
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high * math.sqrt(rounds)


def one_bit_excess(size: int, sharing: int, multiplier: float, distance: float = 2.0) -> float:
    """How much more variance one bit a coordinate needs than Gaussian noise, about.

    Args:
        size: coordinates of a rotated update.
        sharing: how many clients share the noise: the cohort under a secure sum, else 1.
        multiplier: the Gaussian's noise multiplier at the same guarantee.
        distance: largest distance of neighbouring updates, in units of clip_norm.

    Returns:
        The excess over 1. Sums of t bits a client have about 1/t of it: it is the most that more
        bits could win back. Derivation: `docs/theory/plan.md`.

    Example:
        >>> round(one_bit_excess(1024, 200, 4.24), 4)
        0.0271
    """
    share = sharing / (size * (multiplier * distance) ** 2)
    return min((k**2 - 1) * share + 4 * float(ndtr(-k)) for k in (CLOSE, SPREAD))


@dataclass(frozen=True, slots=True)
class PrivUnit:
    """PrivUnit of a unit vector u: a random point of the cap {v: <v, u> >= threshold}, or outside.

    Attributes:
        dimension: coordinates.
        keep: probability of a point in the cap.
        threshold: gamma of the cap, in [0, 1).
        scale: E<v, u>: v / scale is unbiased, with an expected squared norm of 1 / scale^2.
        epsilon: the exact pure epsilon.
    """

    dimension: int
    keep: float
    threshold: float
    scale: float
    epsilon: float

    @property
    def deviation(self) -> float:
        """Root mean square of a sent coordinate, for any vector of norm at most 1.

        A shorter vector is first rounded, without bias, to a random unit vector.
        """
        return 1 / (self.scale * math.sqrt(self.dimension))


def privunit(dimension: int, epsilon: float) -> PrivUnit:
    """Return the PrivUnit with the least error at a pure epsilon.

    Args:
        dimension: coordinates, >= 1.
        epsilon: pure, in nats, 1e-9 to 1e6.

    Returns:
        The best pair of keep and threshold; its pure epsilon is exactly the target.

    References:
        Bhowmick, Duchi, Freudiger, Kapoor and Rogers 2018 (PrivUnit2); Asi, Feldman and Talwar
        2022 (its best pair is optimal among a wide family of unbiased pure mechanisms).

    Example:
        >>> mechanism = privunit(dimension=1000, epsilon=4.0)
        >>> round(mechanism.deviation, 4)
        0.66
    """
    dimension = validate.whole("dimension", dimension, low=1, high=2**53)
    epsilon = validate.real("epsilon", epsilon, low=1e-9, high=1e6)
    if dimension == 1:  # the sphere is {-1, 1}: randomised response
        return PrivUnit(1, 1 / (1 + math.exp(-epsilon)), 0.0, math.tanh(epsilon / 2), epsilon)
    # epsilon is the sum of log(keep / (1 - keep)) and the log odds of missing the cap. The error,
    # as a function of this split, has one minimum.
    low, high = 0.0, 1.0
    while True:
        shares = np.linspace(low, high, 9)
        candidates = [_with(dimension, epsilon, float(share)) for share in shares]
        best = int(np.argmax([candidate.scale for candidate in candidates]))
        if high - low < 1e-4:
            return candidates[best]
        low, high = float(shares[max(best - 1, 0)]), float(shares[min(best + 1, 8)])


def _with(dimension: int, epsilon: float, share: float) -> PrivUnit:
    """PrivUnit with a cap whose mass has log odds -(1 - share) · epsilon."""
    odds = (1 - share) * epsilon
    log_mass = -_softplus(odds)
    logit = _logit(dimension, log_mass)
    log_mass = log_cap(dimension, logit)  # larger if no float is close enough to 1
    keep = 1 / (1 + math.exp(-share * epsilon))
    # The integral of <v, u> over the cap; outside the cap it is minus that.
    a = (dimension - 1) / 2
    log_moment = -a * _softplus(logit) - math.log(2 * a) - float(betaln(a, 0.5))
    inside = math.exp(log_moment - log_mass)
    outside = math.exp(log_moment) / -math.expm1(log_mass)
    scale = keep * inside - math.exp(-_softplus(share * epsilon)) * outside
    return PrivUnit(dimension, keep, math.exp(-_softplus(-logit) / 2), scale, epsilon)


def _logit(dimension: int, log_mass: float) -> float:
    """Invert `log_cap`: the logit of the cap with this logarithm of its share, <= log(1/2)."""
    low, high = -80.0, 700.0
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if log_cap(dimension, middle) > log_mass else (low, middle)
    return (low + high) / 2


def log_cap(dimension: int, logit: float) -> float:
    """Logarithm of the share of the unit sphere with <v, u> >= threshold >= 0.

    The threshold is given as logit = log(threshold^2 / (1 - threshold^2)), which is exact at both
    ends. The share is half the regularised incomplete beta function of 1 - threshold^2 at
    (dimension - 1)/2, 1/2, by its continued fraction, on the side where that converges.

    Example:
        >>> round(math.exp(log_cap(3, math.log(1 / 3))), 12)  # threshold 1/2: linear in the height
        0.25
    """
    a, x, rest = (dimension - 1) / 2, math.exp(-_softplus(logit)), math.exp(-_softplus(-logit))
    log_front = -a * _softplus(logit) - 0.5 * _softplus(-logit) - float(betaln(a, 0.5))
    if x < (a + 1) / (a + 2.5):
        return log_front - math.log(2 * a) + math.log(_fraction(a, 0.5, x))
    complement = math.exp(log_front) / 0.5 * _fraction(0.5, a, rest)
    return math.log1p(-complement) - math.log(2)


def _softplus(x: float) -> float:
    """log(1 + e^x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function, by Lentz's method (DLMF 8.17.22)."""
    d = 1 / (1 - (a + b) * x / (a + 1))
    c, value = 1.0, d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1 / (1 + term * d), 1 + term / c
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            return value
    raise ArithmeticError(f"The continued fraction at {a}, {b}, {x} did not converge.")
