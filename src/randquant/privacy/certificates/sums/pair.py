"""The moment of one pair of neighbours behind the others' noise, however small, from both sides.

Everything is expressed by the change r = (p - q)/q, which has its own error bound: small
divergences keep their digits. Derivations: `docs/theory/sums.md`.
"""

from __future__ import annotations

import math

import numpy as np

from randquant.privacy.certificates.sums import kernel
from randquant.privacy.certificates.sums.law import Law, log_trimmed
from randquant.privacy.divergence import UNIT

LARGEST_EXPONENT = 300.0
"""Beyond it moments are summed as logarithms: no divergence is small there."""


def log_moment(
    noise: Law, q: np.ndarray, difference: np.ndarray, order: float
) -> tuple[float, float]:
    """Bound log of sum_z P(z)^order Q(z)^(1-order), P and Q being p and q convolved with noise.

    Args:
        noise: law of the other clients' sum; its trimmed mass counts as impossible in the upper
            bound, and as possible in the lower one.
        q: (m,) float64 probabilities, within 1 unit.
        difference: (m,) p - q, within 1 unit.
        order: in (1, inf]; infinity gives the largest log P/Q.

    Returns:
        (lower, upper), both at least 0; the trimmed mass must still be added to the upper one.
    """
    length = len(noise) + len(q) - 1
    values, exponent = np.empty((3, length)), np.empty(length, np.int64)
    parts = np.stack([q, difference, np.abs(difference)])
    if kernel.spread(noise.mantissa, noise.exponent, parts, values, exponent):
        return 0.0, math.inf  # some value is too far below its neighbours to be told from 0
    below, change, scale = values
    if ((scale > 0) & (below == 0)).any():
        return (math.inf if noise.trimmed == 0 else 0.0), math.inf
    use = below > 0
    below, change, scale, exponent = below[use], change[use], scale[use], exponent[use]
    # theory/sums.md, Proposition 6: e + m + 2 units of q and of p - q.
    units = 1.01 * (noise.error + len(q) + 8)
    ratio = change / below
    # theory/sums.md, Proposition 9: the change is off by units · scale, q by units of itself.
    slack = UNIT * (units * scale / below + (units + 4) * np.abs(ratio)) * (1 + 8 * UNIT)
    upper = _bounds(ratio, slack, below, exponent, units, order)[1]
    extra = _ratio_to(log_trimmed(noise.trimmed, noise.floor), below, exponent)
    slack = slack + extra * (2 + np.abs(ratio))
    # theory/sums.md, Proposition 7: for a lower bound what was trimmed may lie anywhere.
    sure = slack < 0.5 * np.abs(ratio)  # every code adds to a moment: some may be left out
    if not sure.any():
        return 0.0, upper
    parts = ratio[sure], slack[sure], below[sure], exponent[sure]
    return _bounds(*parts, units, order)[0], upper


def _ratio_to(log_mass: float, below: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """The trimmed mass over each probability; rounded up."""
    if log_mass == -math.inf:
        return np.zeros_like(below)
    logs = log_mass - np.log(below) - exponent * math.log(2)
    # 1e-9 is far above the rounding of logarithms below 1e5.
    return np.exp(np.minimum(logs + 1e-9, 700.0))


def _bounds(ratio, slack, below, exponent, units, order) -> tuple[float, float]:
    """(lower, upper) of the log moment, from change/q = ratio ± slack."""
    low, high = np.maximum(ratio - slack, -1.0), ratio + slack
    if math.isinf(order):
        largest = float(high.max())
        least = float(low.max())
        return (
            # log1p 8 units, the product 1.
            math.log1p(max(least, 0.0)) * (1 - 16 * UNIT),
            math.log1p(max(largest, 0.0)) * (1 + 16 * UNIT),
        )
    steepest = float(np.log1p(np.abs(ratio) + slack).max(initial=0.0))
    # theory/sums.md, Proposition 9.
    if order * steepest > LARGEST_EXPONENT:
        return _far(low, high, below, exponent, units, order)
    with np.errstate(under="ignore"):
        mass = np.ldexp(below, np.maximum(exponent, -2000))
    # f is convex and least at 0: its extremes over an interval are at the ends, or 0.
    crosses = (low < 0) & (high > 0)
    (low_down, low_up), (high_down, high_up) = (_excess(end, order) for end in (low, high))
    least = np.where(crosses, 0.0, np.minimum(low_down, high_down))
    most = np.maximum(low_up, high_up)
    # theory/sums.md, Proposition 9: masses 1 to 2 units each, sum and products the rest.
    grow = (2 * units + len(mass) + 32) * UNIT
    upper = float(((mass + 1e-300) * most).sum()) * (1 + grow)
    lower = float((mass * least).sum()) * (1 - grow)
    lower = max(lower, 0.0)
    return (
        math.log1p((order - 1) * lower) * (1 - 16 * UNIT),
        math.log1p((order - 1) * upper) * (1 + 16 * UNIT),
    )


def _excess(change: np.ndarray, order: float) -> tuple[np.ndarray, np.ndarray]:
    """Bound ((1 + r)^a - 1 - a r)/(a - 1) for r >= -1, a the order: never negative, 0 at 0."""
    close = np.abs(change) * (order + 1) <= 1 / 8
    value, error = np.empty_like(change), np.empty_like(change)
    z = change[close]
    series = np.ones_like(z)
    for k in reversed(range(14)):
        series = 1 + (order - (2 + k)) / (k + 3) * z * series
    value[close] = order / 2 * z**2 * series
    # theory/sums.md, Proposition 9; the series: theory/vector.md, Proposition 11.
    error[close] = 24 * UNIT * value[close]
    z = np.maximum(change[~close], -1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        power = (order - 1) * np.log1p(z)
        first = np.where(z > -1, (1 + z) * np.expm1(power) / (order - 1), 0.0)
        terms = np.where(z > -1, np.abs(first) + (1 + z) * np.exp(power) * np.abs(power), 0.0)
    value[~close] = first - z
    # theory/sums.md, Proposition 9: 12 and 10 of these 32 units are needed.
    error[~close] = 32 * UNIT * (terms / min(order - 1, 1.0) + np.abs(z))
    return np.maximum(value - error, 0.0), np.maximum(value + error, 0.0)


def _far(low, high, below, exponent, units, order) -> tuple[float, float]:
    """The same by logarithms of p·(p/q)^(order-1)."""
    base = np.log(below) + exponent * math.log(2)
    bounds = []
    for end in (low, high):
        with np.errstate(divide="ignore"):
            terms = base + order * np.log1p(end)
        top = terms.max()
        with np.errstate(under="ignore"):
            total = top + np.log(np.exp(terms - top).sum())
        steepest = np.abs(np.log1p(end[end > -1])).max(initial=0.0)
        deepest = np.abs(exponent).max() + 200.0
        # theory/sums.md, Proposition 8, for one pair: logarithms, their products, the shift.
        error = 16 * (order * steepest + deepest + abs(top)) + units + len(base) + 64
        bounds.append((total, 1.01 * UNIT * error))
    lower, upper = bounds[0][0] - bounds[0][1], bounds[1][0] + bounds[1][1]
    return max(float(lower), 0.0), max(float(upper), 0.0)
