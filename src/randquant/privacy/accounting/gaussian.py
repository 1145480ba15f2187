"""Gaussian noise exactly: many adaptive releases are one, whose delta has a closed form.

Derivations: `docs/theory/gaussian.md`.
"""

from __future__ import annotations

import math

from scipy.special import erfcx, ndtr

from randquant.privacy.divergence import UNIT

SPECIAL_ERROR = 1e-12
"""Relative error that is allowed for erfcx and the normal distribution, and for all around them."""


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the least epsilon of one Gaussian release, rounded up.

    Args:
        mu: at least the distance of neighbours over the standard deviation of the noise; >= 0.
        delta: in [0, 1).

    Returns:
        An upper bound of epsilon, in nats, the same for both orders of the neighbours.

    References:
        Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 2.13.

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 4)
        4.3772
    """
    if mu == 0:
        return 0.0
    if delta == 0 or math.isinf(mu):
        return math.inf
    log_delta = math.log(delta) * (1 + 8 * UNIT)
    # A bisection, whose upper end was evaluated at every step and so is proven.
    # theory/gaussian.md, Proposition 2: at the lower end epsilon <= 0, the upper end always holds.
    low = max(-mu / 2, -40.0)
    high = math.sqrt(-2 * log_delta) * (1 + 1e-9) + 1e-9
    if log_gaussian_delta(low, mu) <= log_delta:
        return 0.0
    while (middle := (low + high) / 2) not in (low, high):
        if log_gaussian_delta(middle, mu) <= log_delta:
            high = middle
        else:
            low = middle
    # theory/gaussian.md, Proposition 3: four roundings.
    return max(0.0, mu * (high + mu / 2) + 4 * UNIT * mu * (abs(high) + mu / 2))


def gaussian_noise(epsilon: float, delta: float) -> float:
    """Estimate the deviation of Gaussian noise of this guarantee at distance 1; nothing is proven.

    Args:
        epsilon: in nats, > 0.
        delta: in [0, 1); for 0 the result is 1/epsilon.

    Example:
        >>> round(gaussian_noise(4.3772, 1e-5), 4)
        1.0
    """
    if delta == 0:
        return 1 / epsilon
    low, high = 0.0, 2 * math.sqrt(2 * epsilon) + 40
    for _ in range(60):
        mu = (low + high) / 2
        enough = log_gaussian_delta(epsilon / mu - mu / 2, mu) <= math.log(delta)
        low, high = (mu, high) if enough else (low, mu)
    return 1 / high


def log_gaussian_delta(threshold: float, mu: float) -> float:
    """Bound log delta from above at epsilon = mu · (threshold + mu/2) >= 0.

    Example:
        >>> round(math.exp(log_gaussian_delta(0.0, 1e6)), 6)  # half of the mass lies beyond
        0.5
    """
    root = math.sqrt(2)
    right = float(erfcx((threshold + mu) / root))
    if threshold < 0:
        # theory/gaussian.md, Proposition 1: both parts are below 1.
        value = float(ndtr(-threshold)) - math.exp(-(threshold**2) / 2) * right / 2
        # The allowance also keeps the logarithm finite where the difference cancels.
        return math.log(min(value + 4 * SPECIAL_ERROR, 1.0))
    left = float(erfcx(threshold / root))
    # theory/gaussian.md, Proposition 1: the difference loses digits where mu is small; erfcx is
    # convex, so it falls by at most the distance times its slope at the left end.
    slope = 2 / math.sqrt(math.pi) - root * threshold * left
    tangent = mu / root * (slope + 2 * SPECIAL_ERROR)
    log = math.log(min(left - right + 2 * SPECIAL_ERROR * left, tangent) / 2)
    # theory/gaussian.md, Proposition 3.
    return log - threshold**2 / 2 + 16 * UNIT * (1 + abs(log) + threshold**2)


def step_square(curvature: float) -> float:
    """Bound the squared distance over variance of Gaussian noise that hides shifts by 1 no better.

    Args:
        curvature: upper bound of the second differences of -log p, for a law p on the integers
            that is positive, and whose -log is convex.

    Returns:
        c^2, such that a shift by d is dominated by Gaussian noise with mu = c·d; infinite where
        the law is too narrow.

    Example:
        >>> round(step_square(0.01), 6)  # a variance of 100
        0.010025
    """
    # theory/gaussian.md, Proposition 4.
    if curvature >= 2 * math.log(2) - 1e-9:
        return math.inf
    square = -math.log1p(2 * math.expm1(-curvature / 2))
    # theory/gaussian.md, Proposition 5.
    return square * (1 + 32 * UNIT / (1 + 2 * math.expm1(-curvature / 2)))
