"""The law of a sum of integer noise, number by number, with proven errors: for lower ends."""

from __future__ import annotations

import functools
import math

import numpy as np

from randquant.mechanisms import Binomial, DiscreteGaussian, Skellam
from randquant.privacy import UNIT
from randquant.privacy.divergence import ROUND_UP_FACTOR

Law = tuple[np.ndarray, np.ndarray]


@functools.singledispatch
def log_law(noise: object, terms: int, reach: int) -> Law:
    """Return log p(k)/p(0) of the law of a sum of `terms` clients' noise, and upper bounds of their
    errors, k = 0 to reach or the end of its support (theory/composition.md, Proposition 12)."""
    raise TypeError(f"Expected integer noise, got {noise}.")


@log_law.register
def _(noise: DiscreteGaussian, terms: int, reach: int) -> Law:
    # The Gaussian law, with the deviation of a sum's as its error.
    logs = -(np.arange(reach + 1.0) ** 2) / (2 * terms * noise.variance)
    return logs, noise._log_deviation(terms) * ROUND_UP_FACTOR + 8 * UNIT * np.abs(logs)


@log_law.register
def _(noise: Skellam, terms: int, reach: int) -> Law:
    # I_k(mu) / I_0(mu), by the recurrence of their ratios, downward: upward, it would multiply
    # rounding errors.
    mu = terms * noise.variance
    start = reach + 40 + math.ceil(2 * math.sqrt(mu))
    ratio, error = 1 / (2 * start / mu + 1), math.log1p(mu / (2 * start)) + 4 * UNIT
    ratios, errors = np.empty(reach), np.empty(reach)
    for k in range(start - 1, 0, -1):
        most = ratio * math.exp(error)
        error = most / (2 * k / mu + most) * error + 4 * UNIT
        ratio = 1 / (2 * k / mu + ratio)
        if k <= reach:
            ratios[k - 1], errors[k - 1] = ratio, error
    return _summed_logs(ratios, errors)


@log_law.register
def _(noise: Binomial, terms: int, reach: int) -> Law:
    half = terms * noise.trials // 2
    k = np.arange(1.0, min(reach, half) + 1)
    ratios = (half - k + 1) / (half + k)
    return _summed_logs(ratios, np.full(len(k), 4 * UNIT))


def _summed_logs(ratios: np.ndarray, errors: np.ndarray) -> Law:
    # A logarithm is within 8 units, each sum within 1.
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    count = np.arange(len(logs))
    off = np.concatenate([[0.0], np.cumsum(errors)]) + (count + 10) * UNIT * np.abs(logs)
    return logs, off * (1 + len(logs) * UNIT)
