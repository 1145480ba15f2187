"""Many releases of one loss by the Berry-Esseen theorem for its tilted law: good for large n."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import erfcx

from randquant.privacy.accounting.composition.loss import PrivacyLoss, Tilted
from randquant.privacy.divergence import UNIT

BERRY_ESSEEN = 0.4748
"""Distance of distributions of a sum of n independent equal terms from the normal one is at most
this · E|X - EX|^3 / (sd^3 · sqrt(n)) (Shevtsova 2011, Theorem 1)."""

SPECIAL = 1e-12
"""Relative error that is allowed for erfcx."""


def by_normal(
    loss: PrivacyLoss, releases: int, tilt: float
) -> tuple[Callable[[float], float], float] | None:
    """Bound log delta of many releases as a function of epsilon; as `by_fourier`.

    Returns:
        (log_delta, centre), or None where the tilted loss hardly varies.
    """
    tilted = Tilted.of(loss, releases, tilt)
    total = math.fsum(tilted.weights)
    mass = tilted.weights / total
    mean = math.fsum(mass * loss.losses)
    apart = loss.losses - mean
    variance = math.fsum(mass * apart**2)
    largest = float(np.abs(loss.losses).max())
    if variance <= 1e-6 * largest**2:
        return None
    third = math.fsum(mass * np.abs(apart) ** 3)
    # theory/composition.md, Proposition 8: 1.001 pays for variance and third moment.
    distance = BERRY_ESSEEN * 1.001 * third / (variance**1.5 * math.sqrt(releases))
    # The mean is within 24 units of the largest loss, the variance within 64 of its square.
    distance += 24 * UNIT * largest * math.sqrt(releases / variance)
    distance += 64 * UNIT * largest**2 / variance
    spread = math.sqrt(releases * variance)
    growth, sign = releases * math.log(total), 1 if loss.upward else -1
    # The total mass to the n-th: its sum and logarithm, n times.
    slack = releases * (len(mass) + 4) * UNIT

    def log_delta(epsilon: float) -> float:
        offset = releases * mean - epsilon
        value, error = _smoothed(offset, spread, tilt, tilted.peak)
        # theory/composition.md, Proposition 8: g rises once and falls once, so it varies by 2
        # peaks.
        error += 2 * tilted.peak * (distance + 4 * UNIT * abs(epsilon) / spread)
        scale = math.exp(growth + sign * (slack + 20 * UNIT))
        return tilted.log_delta(epsilon, (value + sign * error) * scale)

    return log_delta, releases * mean


def _smoothed(offset: float, spread: float, tilt: float, peak: float) -> tuple[float, float]:
    """Mean of g(X), X > 0, for X normal (offset, spread^2): (value, error).

    E[e^(-k X); X > 0] = e^(-offset^2 / (2 spread^2)) erfcx((k spread - offset/spread)/sqrt 2)/2.
    """
    first, second = ((rate * spread - offset / spread) / math.sqrt(2) for rate in (tilt, tilt + 1))
    # Beyond, erfcx would overflow: g lies between 0 and its peak, which always holds.
    if first < -20 or abs(offset / spread) > 35:
        return peak / 2, peak / 2
    height = math.exp(-((offset / spread) ** 2) / 2) / 2
    left, right = float(erfcx(first)), float(erfcx(second))
    # The argument's own error, relative to the derivative -2 x erfcx(x) and less.
    moved = 8 * UNIT * ((tilt + 1) * spread + abs(offset / spread)) * (2 + 2 * abs(first))
    return height * (left - right), height * (left + right) * (SPECIAL + moved)
