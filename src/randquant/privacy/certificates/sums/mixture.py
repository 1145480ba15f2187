"""Moments of all pairs behind one noise, or behind a noise whose law is revealed at random."""

from __future__ import annotations

import math

import numpy as np

from randquant.privacy.certificates.sums import kernel
from randquant.privacy.certificates.sums.law import Law, log_trimmed
from randquant.privacy.certificates.sums.pair import log_moment
from randquant.privacy.certificates.sums.rows import Rows
from randquant.privacy.divergence import UNIT

CANDIDATES = 8
"""Pairs that are evaluated with all digits, at most."""

ENOUGH = 1e-7
"""Rounding of a bound, relatively, below which more digits are not needed."""


def table(rows: Rows, noise: Law, order: float) -> tuple[np.ndarray, float]:
    """Log moments of all pairs behind a noise, without the mass that was trimmed off the noise.

    Returns:
        (R, R) log moments, rounded up; -inf for pairs that do not count. And by how much, at most,
        they are rounded up where they are largest.
    """
    probabilities = rows.probabilities
    count, codes = probabilities.shape
    length = len(noise) + codes - 1
    values, exponents = np.empty((count, length)), np.empty(length, np.int64)
    lost = kernel.spread(noise.mantissa, noise.exponent, probabilities, values, exponents)
    moments, logs = np.empty((count, count)), np.empty((count + 1, length))
    fixed, per_unit = kernel.log_moments(values, exponents, length, order, logs, moments)
    if lost and rows.apart:
        moments[:] = np.inf
    # theory/sums.md, Propositions 6 and 8.
    slack = (fixed + per_unit * (noise.error + codes + 2)) * UNIT
    return np.where(rows.allowed, np.maximum(moments + slack, 0.0), -np.inf), 2 * slack


def mixed(
    rows: Rows, laws: list[Law], log_masses: np.ndarray, log_single: float, order: float
) -> float:
    """Bound the log moment when the noise's law is revealed at random.

    Args:
        rows: the client's rows.
        laws: the possible noises.
        log_masses: (g,) log of at least the probability of each.
        log_single: at least the largest log moment of one client without noise.
        order: in (1, inf).

    Returns:
        At least the largest log of sum_g mass_g·moment_g over all pairs.
    """
    rough, slack = np.full(rows.allowed.shape, -np.inf), 0.0
    for law, mass in zip(laws, log_masses, strict=True):
        moments, wide = table(rows, law, order)
        moments, slack = add_trimmed(moments, law.trimmed, law.floor, log_single), max(slack, wide)
        # theory/sums.md, Proposition 3: the mean of the moments given the noise's law.
        rough = np.logaddexp(rough, mass + moments)
    # Each addition costs 16 units at most; smaller sums on the way count by their share only.
    rough[rows.allowed] += 16 * (len(laws) + 4) * UNIT * (1 + np.abs(rough[rows.allowed]))
    if slack <= ENOUGH * rough.max():
        return float(rough.max())
    ranks = np.argsort(-rough, axis=None)
    probabilities, differences = rows.probabilities, rows.differences
    best = 0.0
    for rank, place in enumerate(ranks):
        p, q = np.unravel_index(place, rough.shape)
        if rough[p, q] <= best:
            break
        # What is not evaluated again is below the next rough bound, for they are sorted.
        if rank == CANDIDATES:
            return max(best, float(rough[p, q]))
        pair = probabilities[q], differences[p, q]
        moments = [
            add_trimmed(log_moment(law, *pair, order)[1], law.trimmed, law.floor, log_single)
            for law in laws
        ]
        best = max(best, min(_mix(np.array(moments), log_masses), float(rough[p, q])))
    return best


def add_trimmed(log_moment, trimmed: float, floor: float, log_single: float):
    """Add the mass trimmed off a noise's law: with at most that probability there is no noise.

    Args:
        log_moment: of the noise that was kept; any shape.
        trimmed: how many entries below 2**-floor were left out.
        floor: in bits.
        log_single: at least the largest log moment of one client without noise.
    """
    if trimmed == 0:
        return log_moment
    # theory/sums.md, Proposition 7; 1e-9 is far above the rounding of exp, and sums with the moment
    # are covered by the unit that every user of a log moment adds.
    added = log_trimmed(trimmed, floor) + log_single - log_moment
    return np.minimum(log_moment + np.exp(np.minimum(added, 700.0)) * (1 + 1e-9), log_single)


def _mix(log_moments: np.ndarray, log_masses: np.ndarray) -> float:
    """log of sum e^log_masses · e^log_moments, where the masses stand for 1; rounded up."""
    if log_moments.max() <= 600:
        # As masses stand for 1, E M - 1 is the mean of M - 1: small excesses keep their digits. exp
        # and expm1 8 units each, product and sum the rest.
        excess = float((np.exp(log_masses) * np.expm1(log_moments)).sum())
        slack = 1 + UNIT * (32 + len(log_masses) + 12 * float(log_moments.max()))
        # A mass below e^-700 may underflow: its moments are below e^600.
        return math.log1p(excess * slack + len(log_masses) * 1e-40) * (1 + 16 * UNIT)
    logs = log_masses + log_moments
    top = float(logs.max())
    if math.isinf(top):
        return math.inf
    total = top + math.log(float(np.exp(logs - top).sum()))
    return total + UNIT * (64 + len(logs) + 16 * (abs(total) + float(np.abs(log_moments).max())))
