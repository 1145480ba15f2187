"""Confidence bounds on proportions, and the least epsilon that two counts allow.

Derivations: `docs/theory/audit.md`.
"""

from __future__ import annotations

import numpy as np

SLACK = 1e-9
"""Relative error, at most, of scipy's inverse incomplete beta function, with much to spare."""


def proportion(hits: int | np.ndarray, trials: int, error: float) -> tuple[np.ndarray, np.ndarray]:
    """Bound a probability from below and from above, from how often its event happened.

    Args:
        hits: how many of the trials the event happened in, any shape.
        trials: how many independent trials there were, >= 1.
        error: probability, at most, with which either bound fails, in (0, 1).

    Returns:
        (lower, upper), float64, of the shape of hits. Each is a one-sided bound; both together
        fail with a probability of at most 2 · error.

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
    # Where a beta distribution would have a parameter of 0 the bound is 0 or 1.
    lower = np.where(hits == 0, 0.0, betaincinv(np.maximum(hits, 1), missed + 1, error))
    upper = np.where(missed == 0, 1.0, betainccinv(hits + 1, np.maximum(missed, 1), error))
    return lower * (1 - SLACK), np.minimum(upper * (1 + SLACK), 1.0)


def least_epsilon(
    hits: int | np.ndarray, others: int | np.ndarray, trials: int, delta: float, error: float
) -> np.ndarray:
    """Bound epsilon from below by how often one event happened in two neighbouring worlds.

    Args:
        hits: how often the event happened in one world, any shape.
        others: how often it happened in the other world, same shape.
        trials: how many independent trials there were in each world.
        delta: the delta of the claim, in [0, 1).
        error: probability, at most, with which the bound fails, in (0, 1).

    Returns:
        float64, in nats: (epsilon, delta)-differential privacy with a smaller epsilon has less than
        a chance of `error` to produce such counts. Below 0, or minus infinity, where they say
        nothing.

    Example:
        >>> round(float(least_epsilon(900, 300, 1000, 0.0, 0.01)), 4)
        0.9469
    """
    lower, _ = proportion(hits, trials, error / 2)
    _, upper = proportion(others, trials, error / 2)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(lower - delta, 0.0) / upper) - SLACK


def ceiling(trials: int, delta: float, error: float) -> float:
    """Return the most that `least_epsilon` can give: the event always happened, or never."""
    return max(0.0, float(least_epsilon(trials, 0, trials, delta, error)))
