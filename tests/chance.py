"""Statistical tests with a stated false-alarm rate: thresholds are derived from it, not chosen.

Every function returns whether the sample is consistent with the claim. On correct code it returns
False with probability at most FALSE_ALARM per call (the chi-square and normal laws are limits: they
are applied at half that rate and to expected counts of 100 or more, which leaves room for their
error). Keys are seeded, so a pass stays a pass.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6


def fits(codes: np.ndarray, row: np.ndarray) -> bool:
    """Whether codes look drawn from a row: a chi-square test, rare codes pooled.

    A code of probability zero that occurs fails at once.
    """
    return counts_fit(np.bincount(codes.reshape(-1), minlength=len(row)), row)


def counts_fit(counts: np.ndarray, row: np.ndarray) -> bool:
    """As `fits`, for how often each code was drawn."""
    if (counts[row == 0] > 0).any():
        return False
    expected = row * counts.sum()
    common = expected >= 100  # below it the chi-square law is not yet reliable at 1e-6
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    observed, wanted = observed[wanted >= 100], wanted[wanted >= 100]
    if len(wanted) < 2:
        raise ValueError("Expected at least two codes likely enough to test; draw more.")
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    return bool(statistic <= stats.chi2.isf(FALSE_ALARM / 2, len(wanted)))


def mean_is(sample: np.ndarray, mean: float, spread: float) -> bool:
    """Whether a bounded sample has a mean (Hoeffding's inequality: valid for every sample size).

    Args:
        spread: largest minus smallest possible value.
    """
    bound = spread * math.sqrt(math.log(2 / FALSE_ALARM) / (2 * sample.size))
    return bool(abs(float(sample.mean()) - mean) <= bound)


def uncorrelated(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two samples of independent draws look independent (normal limit, n > 10^4)."""
    correlation = np.corrcoef(a.reshape(-1), b.reshape(-1))[0, 1]
    return bool(abs(correlation) * math.sqrt(a.size) <= stats.norm.isf(FALSE_ALARM / 4))
