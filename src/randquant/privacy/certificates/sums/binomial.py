"""Binomial probabilities with a proven error deep into the tails: how many draw from a shape.

Derivations: `docs/theory/sums.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from randquant.privacy.divergence import UNIT

UNLIKELY, COARSE, PART = -9.0, 6, 0.7
"""Logarithm of a probability below which values are grouped coarsely, by such a part of them; how
many standard deviations are in a group of likelier ones."""


@dataclass(frozen=True, slots=True)
class LogBinomial:
    """A binomial variable K, its probabilities rounded up, in logarithms.

    Attributes:
        trials: K is at most this.
        first: logs[i] is at least log P(K = first + i).
        logs: (w,) float64; a value outside this window is less likely than its nearer end.
        deviation: the standard deviation of K, roughly.
        slack: how far each of the logs may be above the truth.
    """

    trials: int
    first: int
    logs: np.ndarray
    deviation: float
    slack: float

    @staticmethod
    def of(trials: int, share: int, denominator: int, depth: float) -> LogBinomial:
        """K of `trials` trials, each successful with probability share/denominator.

        Args:
            trials: >= 0.
            share, denominator: whole numbers, so that the probability is exact.
            depth: the window holds all values whose probability is at least e^-depth times that
                of the likeliest.
        """
        if share == 0 or share == denominator or trials == 0:
            logs = np.full(min(trials, 1) + 1, -math.inf)
            certain = share == denominator
            logs[-1 if certain else 0] = 0.0
            return LogBinomial(trials, max(trials - 1, 0) if certain else 0, logs, 0.0, 0.0)
        success, failure = share / denominator, (denominator - share) / denominator
        mode = min(int((trials + 1) * success), trials)
        deviation = math.sqrt(trials * success * failure)
        width = int(2 * deviation * math.sqrt(2 * depth)) + 2 * int(depth) + 10
        first, last = max(mode - width, 0), min(mode + width, trials)
        k = np.arange(first, last, dtype=np.float64)
        # theory/sums.md, Proposition 10: exact integers, 5 roundings, the logarithm.
        step = np.log((trials - k) / (k + 1) * (success / failure))  # from k to k + 1
        at = mode - first
        logs = np.concatenate([-np.cumsum(step[:at][::-1])[::-1], [0.0], np.cumsum(step[at:])])
        # theory/sums.md, Proposition 10: the longest step counts once more, see there.
        deepest = float(np.abs(logs).max()) + float(np.abs(step).max(initial=0.0))
        error = 1.01 * UNIT * len(logs) * (deepest + 32)
        # The window's probabilities sum to at most 1.
        total = math.log(float(np.exp(logs).sum())) - (len(logs) + 32) * UNIT
        inside = np.flatnonzero(logs >= -depth)
        logs = logs[inside[0] : inside[-1] + 1] - total + 3 * error
        return LogBinomial(trials, first + int(inside[0]), logs, deviation, 6 * error)

    @property
    def last(self) -> int:
        """The end of the window."""
        return self.first + len(self.logs) - 1

    def below(self, value: int) -> float:
        """log of at least P(K < value)."""
        # Outside the window no value is likelier than its nearer end.
        tail = _log(min(value, self.first)) + float(self.logs[0])
        inside = self.logs[: max(value - self.first, 0)]
        beyond = _log(max(min(value, self.trials + 1) - self.last - 1, 0)) + float(self.logs[-1])
        return _log_sum(np.append(inside, [tail, beyond]))

    def groups(self) -> list[tuple[int, int, float]]:
        """Cut 0..trials into groups: (least, greatest, log of at least its mass), largest first.

        They are fine where K is likely, and coarse below; what is below the window is one group.
        With h decreasing, E[h(K)] is at most sum mass·h(least).
        """
        found, end = [], self.trials + 1
        wide = max(int(PART * self.deviation), 1)
        # More than these are about as good as these.
        high = self.first + int(self.logs.argmax()) + int(2 * self.deviation) + 2
        while end > 0:
            # Any cuts are valid (theory/sums.md, Proposition 4).
            likely = self.below(end) > UNLIKELY
            start = min(end, high) - (wide if likely else max(end // COARSE, wide))
            start = max(start, self.first) if end > self.first else 0
            mass = self._between(start, end)
            if mass > -math.inf:
                found.append((start, end - 1, mass))
            end = start
        return found

    def _between(self, start: int, end: int) -> float:
        """log of at least P(start <= K < end)."""
        low, high = max(start - self.first, 0), max(end - self.first, 0)
        before = _log(max(min(end, self.first) - start, 0)) + float(self.logs[0])
        after = _log(max(end - max(start, self.last + 1), 0)) + float(self.logs[-1])
        # A probability: rounding may not bring it above 1.
        return min(_log_sum(np.append(self.logs[low:high], [before, after])), 0.0)


def _log(count: int) -> float:
    # 1e-15 is 9 units; the rest of its error is in the spare units of `_log_sum`, for it stands
    # beside a window's end, whose logarithm is below -29 where values lie outside: with the next
    # step it is below -60, and steps differ by log 4 at most.
    return math.log(count) + 1e-15 if count > 0 else -math.inf


def _log_sum(logs: np.ndarray) -> float:
    """log of the sum of e^logs, rounded up."""
    top = float(logs.max(initial=-math.inf))
    if top == -math.inf:
        return top
    total = top + math.log(float(np.exp(logs - top).sum()))
    # theory/sums.md, Proposition 10: 16 of 32 units are spared for sums of such logarithms.
    return total + UNIT * (len(logs) + 32) * (1 + abs(total))
