"""The privacy blanket: what every client's code has in common, and how many clients drew from it.

Derivations: `docs/theory/sums.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from randquant.channel import Channel
from randquant.divergence import UNIT
from randquant.sums.law import KEEP_ALL, Law

MOST_TRIALS = 2**20
"""More clients than this are counted as so many: more only hide better."""


@dataclass(frozen=True, slots=True)
class Blanket:
    """Every row of a channel is at least beta·omega, so each client draws omega so often.

    Attributes:
        weights: (m,) integers, the least weight of each code over all inputs.
        share: their sum.
        denominator: the channel's; beta = share/denominator, omega = weights/share.
    """

    weights: np.ndarray
    share: int
    denominator: int

    @staticmethod
    def of(channel: Channel) -> Blanket:
        """The blanket of a channel, exactly."""
        weights = channel.weights.min(axis=0)
        return Blanket(weights, int(weights.astype(object).sum()), channel.denominator)

    @property
    def beta(self) -> float:
        """The probability that a client draws from omega, whatever its input; within 1 unit."""
        return self.share / self.denominator

    def law(self, floor: float = KEEP_ALL) -> Law:
        """The law omega; the share must not be 0."""
        return Law.of(self.weights, self.share, floor)


def binomial_groups(
    trials: int, share: int, denominator: int, depth: float, points: int
) -> tuple[np.ndarray, np.ndarray]:
    """Group the values of a binomial variable, with their probabilities rounded up.

    Args:
        trials: how many trials.
        share, denominator: the probability of success, exactly.
        depth: values less likely than e^-depth, compared with the likeliest, may share a group.
        points: how many groups at most, about.

    Returns:
        (least, log_mass): (g,) the least value of each group, rising from 0; (g,) the log of at
        least its probability. Every value from 0 to trials is in one group.

    Guarantees:
        With a decreasing function h, E[h(K)] <= sum e^log_mass · h(least).

    Example:
        >>> least, log_mass = binomial_groups(2, 1, 2, 50.0, 10)
        >>> least.tolist(), np.exp(log_mass).round(6).tolist()
        ([0, 1, 2], [0.25, 0.5, 0.25])
    """
    trials = min(trials, MOST_TRIALS)
    if share == 0 or share == denominator or trials == 0:
        certain = trials if share == denominator else 0
        return np.array([0, certain][certain == 0 :]), np.array([-math.inf, 0.0][certain == 0 :])
    success = share / denominator
    mode = min(int((trials + 1) * success), trials)
    odds = share / (denominator - share)
    deviation = math.sqrt(trials * success * (1 - success))
    width = int(2 * deviation * math.sqrt(2 * depth)) + 2 * int(depth) + 10
    first, last = max(mode - width, 0), min(mode + width, trials)
    k = np.arange(first, last, dtype=np.float64)
    step = np.log((trials - k) / (k + 1) * odds)  # from k to k + 1
    at = mode - first
    logs = np.concatenate([-np.cumsum(step[:at][::-1])[::-1], [0.0], np.cumsum(step[at:])])
    size = len(logs)
    deepest = float(np.abs(logs).max()) + float(np.abs(step).max(initial=0.0))
    error = 1.01 * UNIT * size * (deepest + 32)
    total = math.log(float(np.exp(logs).sum())) - error - (size + 32) * UNIT
    inside = np.flatnonzero(logs >= -depth)
    low, high = int(inside[0]), int(inside[-1])
    chosen = np.unique(np.linspace(low, high, min(points, high - low + 1)).astype(np.int64))
    ends = np.append(chosen[1:], size)
    masses = [
        _log_sum(logs[start:end]) + error - total
        for start, end in zip(chosen, ends, strict=True)
    ]
    # Beyond the window a value is no likelier than the window's end.
    masses[-1] = np.logaddexp(masses[-1], _log(trials - last) + logs[-1] + error - total)
    least = first + chosen
    if least[0] > 0:
        below = np.logaddexp(_log_sum(logs[:low]), _log(first) + logs[0]) + error - total
        least, masses = np.append(0, least), [below, *masses]
    slack = (size + 64) * UNIT * (1 + np.abs(masses))
    return least, np.minimum(np.array(masses) + slack, 0.0)


def _log(count: int) -> float:
    return math.log(count) if count > 0 else -math.inf


def _log_sum(logs: np.ndarray) -> float:
    if len(logs) == 0:
        return -math.inf
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))
