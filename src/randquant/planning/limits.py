"""What quantisers are compared with: Gaussian noise.

Figures for comparison, in float64; guarantees come from `account`. Derivation:
`docs/theory/plan.md`.
"""

from __future__ import annotations

import math

from scipy.special import log_ndtr, ndtr

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
