"""The facts that integer noise must provide, and the divergence between shifts of it.

Noise of unlike mechanisms (discrete Gaussian, Skellam, binomial) is certified by two facts of the
law of a sum: its largest curvature and a variance that dominates it. The bound that follows from
them is proven in `docs/theory/additive.md`, Proposition 1.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from randquant.channels.keys import Key
from randquant.privacy.divergence import UNIT

# The formula of theory/additive.md, Proposition 1 (`shift_divergence`) has a dozen roundings; those
# of Propositions 2 to 5 as few, and an exp or a log, which are right to 8 units.
ROUND_UP_FACTOR = 1 + 256 * UNIT
"""Factor that rounds a short formula of non-negative terms up, whatever float64 did to it."""


class Noise(Protocol):
    """One client's integer noise on one coordinate; clients' noises are independent and add up.

    Every integer is possible and -log of its probability is convex (so it is for sums): releases
    are compared with Gaussian noise on that ground.
    """

    @property
    def variance(self) -> float:
        """Variance of one client's noise (for the discrete Gaussian, its parameter, just above)."""
        ...

    # The largest second difference of -log p: theory/additive.md, Propositions 2 (discrete
    # Gaussian), 3 (Skellam) and 4 (binomial).
    def curvature(self, terms: int) -> float:
        """Bound the curvature of the law of a sum of `terms` clients' noise from above."""
        ...

    # theory/additive.md, Propositions 2 to 4; Proposition 1 takes any v that is large enough.
    def spread(self, terms: int) -> float:
        """Return a variance v for that law: log E exp(a X) <= a^2 v / 2 for |a| <= 1/v."""
        ...

    # Tables draw a law that is only nearly the one above: theory/additive.md, Proposition 5; the
    # binomial adds the mass beyond the window of Proposition 4. theory/accounting.md, Proposition
    # 4, pays for it out of delta.
    def distance(self, terms: int) -> float:
        """Bound the total variation distance between the sum as drawn and the law above."""
        ...

    def draw(self, count: int, key: Key) -> np.ndarray:
        """Draw (count,) int64, with a key used for nothing else."""
        ...


def shift_divergence(
    curvature: float, spread: float, squared_distance: float, order: float
) -> float:
    """Bound the Rényi divergence between two shifts of a vector of independent noise.

    Args:
        curvature: k, upper bound of the curvature of each coordinate's law.
        spread: v, such that each coordinate's noise X has log E exp(a X) <= a^2 v / 2 for
            |a| <= 1/v; infinite where none is known.
        squared_distance: squared L2 distance of the two integer shifts.
        order: in (1, inf].

    Returns:
        squared_distance / 2 · (order · k + (k - 1/v) · t(1 - t)/(order - 1)), t the fractional part
        of the order, rounded up. For a Gaussian k = 1/v is one over the variance.

    References:
        theory/additive.md, Proposition 1.

    Example:
        >>> round(shift_divergence(0.25, 4.0, 4.0, 3.5), 12)
        1.75
    """
    if squared_distance == 0:
        return 0.0
    # Proposition 1 is for real orders; in the tails, the likelihood ratio of shifts is unbounded.
    if math.isinf(order):
        return math.inf
    # Exact: the order is at most twice its floor.
    part = order - math.floor(order)
    # The quotient is rounded once, so 8 units keep it below 1/v. A negative difference counts as 0:
    # the proof multiplies it by f >= 0.
    excess = max(curvature - (1 - 8 * UNIT) / spread, 0.0)
    # theory/additive.md, Proposition 1: at whole orders t = 0, and the spread drops out.
    slope = order * curvature + excess * (part * (1 - part) / (order - 1))
    # No term is negative, so every rounding is relative to the result.
    return squared_distance / 2 * slope * ROUND_UP_FACTOR
