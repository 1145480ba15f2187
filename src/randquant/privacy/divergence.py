"""Divergences with proven bounds: of two rows of integer weights, and of shifts of integer noise.

Knows no channel and no mechanism. The error bounds of rows are derived in
`docs/theory/rounding.md`; in short: the difference of two integer weights is exact, so every
log-likelihood ratio is right to a relative 16 units of 2**-53 however close the rows are, and all
that follows is bounded from there. Noise of unlike mechanisms (discrete Gaussian, Skellam,
binomial) is bounded by two facts of the law of a sum, which `Noise` provides: its largest curvature
and a variance that dominates it (`docs/theory/additive.md`, Proposition 1).
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from randquant._internal import validate
from randquant.channels.keys import Key

UNIT = 2.0**-53
"""Unit roundoff of float64; exp, log and their kin are taken to be right within 8 of them."""

LARGEST_ORDER = 1e9
"""Above it the order-infinity divergence serves as upper bound: it is less than 66/1e9 above."""


def renyi(p: np.ndarray, q: np.ndarray, total: int, order: float) -> tuple[np.ndarray, np.ndarray]:
    """Bound the Rényi divergence D_order(p || q) of rows of integer weights.

    Args:
        p, q: (..., m) integer weights (int64 or Python integers), broadcast over leading axes.
        total: what every row sums to.
        order: in (1, inf]; infinity gives the max divergence.

    Returns:
        (lower, upper): arrays of the leading shape, float64, in nats.

    Guarantees:
        lower <= D_order(p || q) <= upper, with upper infinite exactly when some code has
        p > 0 and q = 0. Nothing overflows for any order.

    References:
        Rényi 1961; van Erven and Harremoës 2014 (monotone in the order, Theorem 3).

    Example:
        >>> lower, upper = renyi(np.array([3, 1]), np.array([1, 3]), 4, math.inf)
        >>> bool(lower <= math.log(3) <= upper)
        True
    """
    total, order = validate.whole("total", total, low=1), validate.renyi_order(order)
    p, q = np.broadcast_arrays(p, q)
    ratio = log_ratio(p, q)
    if math.isinf(order):
        return _max_divergence(ratio)
    if order > LARGEST_ORDER:
        return renyi(p, q, total, LARGEST_ORDER)[0], _max_divergence(ratio)[1]
    impossible = np.isposinf(ratio).any(axis=-1)
    # theory/rounding.md, Propositions 3 and 4, count 1 unit: totals are powers of two, or p holds
    # Python integers, whose quotient is rounded once.
    mass = (p / total).astype(np.float64)
    # Codes with p = 0 carry no mass; finite stand-ins keep NaN and infinity out of the sums.
    exponents = (order - 1) * np.where(np.isinf(ratio), 0.0, ratio)
    largest = np.abs(exponents).max(axis=-1)
    codes = p.shape[-1]
    if largest.max(initial=0.0) <= 1.0:
        log_moment, error = _near_one(mass, exponents, codes)
    else:
        log_moment, error = _far_from_one(mass, exponents, largest, codes)
    # theory/rounding.md, Proposition 5: 8 units for the quotient and the product.
    lower = np.maximum(log_moment - error, 0.0) / (order - 1) * (1 - 8 * UNIT)
    upper = (log_moment + error) / (order - 1) * (1 + 8 * UNIT)
    return np.where(impossible, np.inf, lower), np.where(impossible, np.inf, upper)


def hockey_stick(
    p: np.ndarray, q: np.ndarray, total: int, epsilon: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bound the hockey-stick divergence sum max(0, p - e^epsilon q) of rows of integer weights.

    It is the least delta for which (epsilon, delta) bounds the likelihoods of p by those of q.

    Args:
        p, q: (..., m) integer weights (int64 or Python integers), broadcast over leading axes.
        total: what every row sums to.
        epsilon: in [-700, 700]; of a shape that broadcasts with the leading axes.

    Returns:
        (lower, upper): arrays of the leading shape, float64, within [0, 1].

    Guarantees:
        lower <= divergence <= upper. Both are 0 where every p is clearly below e^epsilon q.

    Raises:
        ValueError: epsilon is beyond 700, where e^epsilon overflows.

    References:
        Balle, Barthe and Gaboardi 2018 (its relation to privacy and its joint convexity).

    Example:
        >>> lower, upper = hockey_stick(np.array([3, 1]), np.array([1, 3]), 4, 0.0)
        >>> bool(lower <= 0.5 <= upper)
        True
    """
    epsilon = np.asarray(epsilon, dtype=np.float64)
    if not (np.abs(epsilon) <= 700).all():
        raise ValueError(f"Expected epsilon within [-700, 700], got {epsilon}.")
    top, bottom = p.astype(np.float64), q.astype(np.float64)
    scaled = np.exp(epsilon)[..., None] * bottom
    excess = top - scaled
    # theory/rounding.md, Proposition 7: 12 units, and codes + 4 for the sum.
    error = 12 * UNIT * (top + scaled)
    codes = p.shape[-1]
    lower = np.maximum(excess - error, 0.0).sum(axis=-1) / float(total) * (1 - (codes + 4) * UNIT)
    above = np.where(excess + error > 0, excess + error, 0.0)
    upper = above.sum(axis=-1) / float(total) * (1 + (codes + 4) * UNIT)
    return np.minimum(lower, 1.0), np.minimum(upper, 1.0)


def log_ratio(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Compute log(p/q) within a relative 16 units; +inf where only q is 0; -inf where p is 0."""
    difference = (p - q).astype(np.float64)
    top, bottom = p.astype(np.float64), q.astype(np.float64)
    bottom = np.where(bottom == 0, 1.0, bottom)
    # theory/rounding.md, Proposition 1: the difference of integers is exact, 3 units here. From 1/2
    # on the ratio itself is precise enough.
    change = difference / bottom
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(np.abs(change) <= 0.5, np.log1p(change), np.log(top / bottom))
    return np.where(p == 0, -np.inf, np.where(q == 0, np.inf, ratio))


def _max_divergence(ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    largest = np.maximum(ratio.max(axis=-1), 0.0)
    # theory/rounding.md, Proposition 6.
    return largest * (1 - 17 * UNIT), largest * (1 + 17 * UNIT)


def _near_one(mass: np.ndarray, exponents: np.ndarray, codes: int) -> tuple[np.ndarray, np.ndarray]:
    # |z| <= 1 throughout: summing exp(z) - 1 keeps the digits of small divergences.
    terms = mass * np.expm1(exponents)
    excess = np.maximum(terms.sum(axis=-1), 0.0)  # the true value is never negative
    # theory/rounding.md, Proposition 3: 39 units a term and one for each sum; log1p 9.
    error = 1.01 * (48 + codes) * UNIT * np.abs(terms).sum(axis=-1)
    log_moment = np.log1p(excess)
    return log_moment, error + 9 * UNIT * log_moment


def _far_from_one(
    mass: np.ndarray, exponents: np.ndarray, largest: np.ndarray, codes: int
) -> tuple[np.ndarray, np.ndarray]:
    # Shifted by the largest exponent that has mass, so that nothing overflows.
    shift = np.where(mass > 0, exponents, -np.inf).max(axis=-1)
    with np.errstate(under="ignore"):
        terms = mass * np.exp(np.minimum(exponents - shift[..., None], 0.0))
    log_sum = np.log(terms.sum(axis=-1))
    log_moment = np.maximum(shift + log_sum, 0.0)
    # theory/rounding.md, Proposition 4.
    error = 20 * largest + 1.01 * (codes + 12) + 10 * (np.abs(shift) + np.abs(log_sum))
    return log_moment, UNIT * error


# Shifts of integer noise.

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
