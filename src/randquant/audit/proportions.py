"""Confidence bounds on proportions, and a lower bound of epsilon from two counts.

Derivations: `docs/theory/audit.md`.
"""

from __future__ import annotations

import numpy as np

BETA_ERROR = 1e-9
"""Generous bound of the relative error of scipy's inverse incomplete beta function.

With too small a bound the audit's lower bounds would be unproven; twice as large a one costs a few
1e-9 of epsilon."""


def proportion(hits: int | np.ndarray, trials: int, error: float) -> tuple[np.ndarray, np.ndarray]:
    """Bound a probability from below and from above by counts of its event.

    Args:
        hits: number of trials in which the event happened, any shape.
        trials: number of independent trials, >= 1.
        error: upper bound of the probability with which each bound fails, in (0, 1).

    Returns:
        (lower, upper), float64, of the shape of hits: two one-sided bounds, which together fail
        with a probability of at most 2 · error.

    References:
        Clopper and Pearson 1934.

    Example:
        >>> lower, upper = proportion(0, 100, 0.05)
        >>> float(lower), round(float(upper), 6)
        (0.0, 0.029513)
    """
    from scipy.special import betainccinv, betaincinv

    hits = np.asarray(hits, dtype=np.float64)
    missed = trials - hits
    # If a beta distribution would have a parameter of 0, the bound is 0 or 1.
    lower = np.where(hits == 0, 0.0, betaincinv(np.maximum(hits, 1), missed + 1, error))
    upper = np.where(missed == 0, 1.0, betainccinv(hits + 1, np.maximum(missed, 1), error))
    return lower * (1 - BETA_ERROR), np.minimum(upper * (1 + BETA_ERROR), 1.0)


def least_epsilon(
    hits: int | np.ndarray, others: int | np.ndarray, trials: int, delta: float, error: float
) -> np.ndarray:
    """Bound epsilon from below by counts of an event in two neighbouring worlds.

    Args:
        hits: number of trials of one world in which the event happened, any shape.
        others: the same number for the other world, same shape.
        trials: number of independent trials in each world.
        delta: the delta of the claim, in [0, 1).
        error: upper bound of the probability with which the bound fails, in (0, 1).

    Returns:
        float64, in nats: under (epsilon, delta)-differential privacy with a smaller epsilon such
        counts have a probability below `error`. Negative or minus infinity if they show nothing.

    Example:
        >>> round(float(least_epsilon(900, 300, 1000, 0.0, 0.01)), 4)
        0.9469
    """
    # Half of the error for each of the two bounds, so that both hold with probability 1 - error.
    lower, _ = proportion(hits, trials, error / 2)
    _, upper = proportion(others, trials, error / 2)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(lower - delta, 0.0) / upper) - BETA_ERROR


def ceiling(trials: int, delta: float, error: float) -> float:
    """Return the largest `least_epsilon` that this many trials can show.

    Its event happened in every trial of one world, and in none of the other.
    """
    return max(0.0, float(least_epsilon(trials, 0, trials, delta, error)))
