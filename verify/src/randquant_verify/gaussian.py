"""Gaussian noise, and noise on integers that is dominated by it."""

from __future__ import annotations

import math
from fractions import Fraction

from .intervals import Interval, Number, exp, interval, log, power, sqrt, upper_tail


def delta_of(squared_mu: Number, epsilon: Number) -> Interval:
    """gaussian.md, Proposition 1: the delta of N(0, 1) and N(mu, 1) at epsilon."""
    if interval(squared_mu).high == 0:
        return interval(0)
    mu = sqrt(squared_mu)
    a = epsilon / interval(mu.high) - interval(mu.high) / 2
    if interval(epsilon).high > 10**9:  # beyond decimals' exponents; more without the second term
        return upper_tail(a)
    return upper_tail(a) - exp(epsilon) * upper_tail(a + mu.high)


def discrete_gaussian_curvature(variance: Fraction, clients: int) -> Interval:
    """additive.md, Proposition 2: of the sum of n discrete Gaussians of this variance each.

    The law of a sum of k + 1 of them is that of k times a theta function of width
    w = variance k/(k + 1), whose logarithm ranges over at most log((1 + 2q/(1 - q^3))/(1 - 2q)),
    q = exp(-2 pi^2 w). As w grows with k, the terms from the 64th on are at most that one each.
    """
    total = 1 / interval(clients * variance)
    for k in range(1, min(clients, 65)):
        # pi^2 > 9.8696
        q = exp(-interval(variance * Fraction(k, k + 1)) * 2 * Fraction(98696, 10000))
        if q.high >= Fraction(1, 2):
            raise ValueError("the noise of one client is too small to bound sums of it")
        term = log((1 + 2 * q / (1 - power(q, 3))) / (1 - 2 * q))
        total = total + 2 * term * (clients - 64 if k == 64 else 1)
    return total


def skellam_curvature(variance: Fraction) -> Interval:
    """additive.md, Proposition 3: 2 log(I_0(m)/I_1(m)) of Skellam noise of variance m.

    I_1/I_0 is the continued fraction r_1 of r_k = 1/(2k/m + r_(k+1)), 0 < r < 1, whose ends are
    bounds on either side; far out, where it would be long, it is Amos' bound (1974).
    """
    m = interval(variance)
    if variance > 10**5:
        return 2 * log((Fraction(1, 2) + sqrt(m * m + 1)) / m)
    ratio = Interval(interval(0).low, interval(1).high)
    for k in range(int(12 * variance**0.5) + 60, 0, -1):
        ratio = 1 / (2 * k / m + ratio)
    return -2 * log(ratio)


def binomial_curvature(trials: int) -> tuple[Interval, Interval]:
    """additive.md, Proposition 4: the curvature of a law near the binomial one, and how near it is.

    Beyond h from the middle the law goes on as its curvature at h says, for ever.
    """
    h = math.isqrt(50 * trials - 1) + 1
    if 2 * h >= trials:
        raise ValueError("too few trials of binomial noise")
    kappa = log(1 + interval(trials + 1) / (Fraction(trials**2, 4) - h * h))
    slope = log(Fraction(trials + 2 * h, trials - 2 * h + 2))
    return kappa, 2 * exp(-Fraction(2 * h * h, trials)) * (1 + 1 / slope)


def squared_mu_of_a_step(curvature: Interval) -> Interval:
    """gaussian.md, Proposition 4: c^2 = -log(2 exp(-kappa/2) - 1)."""
    inside = 2 * exp(-curvature / 2) - 1
    if inside.low <= 0:
        raise ValueError("the noise is too small to be compared with Gaussian noise")
    return -log(inside)
