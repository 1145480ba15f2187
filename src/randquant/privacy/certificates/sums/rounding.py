"""Effect of rounding, and of outcomes with hardly any mass, on the curvature of a sum.

Derivations: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import math

import numpy as np

from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.vector import Kappa
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import at_most

PRECISE = 1e-275
"""Larger probabilities are known within their stated relative error."""

LOG_PRECISE = math.log(PRECISE)

FAINT = 2.0**-9
"""Outcomes that add up to no more than this share of S, at the worst, are not looked at."""


def largest_ratio(rows: np.ndarray) -> tuple[float, float]:
    """(ratio, loss): the largest of any two rows at one code, and its logarithm; rounded up."""
    # Rows are within 1 unit, the quotient 1: below 4 units. Bounds that use the logarithm have a
    # factor to spare (theory/vector-sums.md, Proposition 10).
    ratio = float((rows.max(axis=0) / rows.min(axis=0)).max()) * (1 + 8 * UNIT)
    return ratio, math.log(ratio) * (1 + 8 * UNIT) + 8 * UNIT


def log_keep(outcomes: int, loss: float, order: float) -> float:
    """Outcomes less likely than e to this are left out: together they hardly count."""
    # theory/vector-sums.md, Proposition 10: S gains less than e^-45.
    return -(46 + (_power(order) + 2) * loss + math.log(outcomes * (order + 1)))


def left_out(outcomes: int, log_least: float, loss: float, order: float) -> float:
    """Bound on their share of a moment; of S, over the square of the largest relative change."""
    # theory/vector-sums.md, Proposition 10, whose order/2 is raised to 2 (order + 1) at no loss.
    return 2 * (order + 1) * outcomes * math.exp(log_least + _power(order) * loss)


def _power(order: float) -> float:
    """Exponent of the largest ratio of two rows that bounds M, and S over squared changes."""
    return max(order - 1, 1.0)


def slack(error: float, loss: float, order: float) -> float:
    """Relative error of S computed from laws within a relative `error`.

    Ratios of laws and their distance from 1 count, not what a law is to the largest of its values:
    so it is small however large ratios are.
    """
    relative = 2 * error + 12 * UNIT
    # theory/vector-sums.md, Proposition 9.
    return 4 * (order + 4) * relative + (4000 + (64 + 400 * loss) * order) * UNIT


def spent(outcomes: int, loss: float, order: float) -> float:
    """Relative error, beside `slack`, of S summed over outcomes by powers of one row's ratios."""
    # theory/vector-sums.md, Proposition 18: what powers cost, and a sum of so many.
    powers = 5000 * (order + 1) * (20 * loss + 12) * max(1, 1 / (order - 1))
    return (powers + outcomes + 64) * UNIT


def fits(log_least: float, error: float, loss: float, order: float) -> bool:
    """Whether float64 holds all outcomes that count, and rounding hardly matters."""
    # theory/vector-sums.md, Proposition 10: a kept outcome is precise in every row.
    return log_least - loss >= LOG_PRECISE and slack(error, loss, order) <= 1e-3


def ratios(curvature: np.ndarray, order: float) -> np.ndarray:
    """Divergence over squared distance between points of an even grid, from S at pairs of them."""
    place = np.arange(len(curvature)) / (len(curvature) - 1)
    scale = (order - 1) * (place[:, None] - place) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(scale > 0, np.log1p(scale * curvature) / scale, curvature)


def between(lower: float, witness: tuple[float, float], upper: float, alone: Kappa) -> Kappa:
    """The interval of a sum; one client's bound holds for it too."""
    upper = min(upper, alone.upper)
    return Kappa(at_most(lower, upper), upper, alone.order, witness)


def thinned(lines: CellLines, order: float, most: float) -> tuple[np.ndarray, float, float]:
    """Leave out what hardly counts for any pair: what is kept, and what S and a moment may lose."""
    # theory/vector-sums.md, Proposition 12: code by code, the steepest cell at the worst rows.
    largest, least = lines.weights.max(axis=0), lines.weights.min(axis=0)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ratio = np.log(largest / least) * (1 + 4 * lines.error)
        steepest = lines.slopes().max(axis=0)
        # Twice what S may lose pays for rounding.
        logs = 2 * np.log(steepest) + math.log(order) + abs(order - 2) * ratio - np.log(least)
        lost = np.where(np.isnan(logs), np.inf, np.exp(logs))
        missing = 2 * largest * np.exp((order - 1) * ratio)
    # A moment less 1 is S times this, or more, for inputs a cell apart.
    apart = (order - 1) * float(lines.widths.min()) ** 2
    left = np.maximum(lost, missing / apart) <= most / max(lost.size, 1)
    return lines.weights[:, ~left], float(lost[left].sum()), float(missing[left].sum())
