"""The client's own rows, the others' vertices, and the pairs of rows that count."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.divergence import UNIT, log_ratio, renyi
from randquant.privacy.guarantee import Neighboring


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in exact integers over one total; of equal vertices one is kept.

    Attributes:
        weights: (R, m) Python integers or int64; the first `vertices` are the channel's, and, if
            neighbours leave one out, the last is the row of input 0.
        total: the sum of every row.
        inputs: (R,) an input that has each row.
        vertices: how many distinct rows the channel's vertices have.
        allowed: (R, R) bool: (p, q) is a pair of neighbours.
        mirror: whether turning vertices and codes round changes nothing.
    """

    weights: np.ndarray
    total: int
    inputs: np.ndarray
    vertices: int
    allowed: np.ndarray
    mirror: bool

    @staticmethod
    def of(channel: Channel, neighboring: Neighboring) -> Rows:
        """The rows that matter for sums of a channel's codes."""
        table, total = channel.weights, channel.denominator
        # theory/sums.md, Proposition 1: equal rows count once, in the order of the inputs.
        first = np.sort(np.unique(table, axis=0, return_index=True)[1])
        weights, inputs = table[first], np.array([channel.input_of(int(v)) for v in first])
        count = len(first)
        mirror = bool((weights[::-1, ::-1] == weights).all())
        if neighboring == "replace_one":
            return Rows(weights, total, inputs, count, ~np.eye(count, dtype=bool), mirror)
        zero, zero_total = channel.mix(0.0)
        # The row of 0 over its own total, exactly: all rows are brought to that.
        scale = zero_total // total
        weights = np.concatenate([weights.astype(object) * scale, zero[None]])
        divisor = math.gcd(*weights.ravel().tolist(), zero_total)
        allowed = np.zeros((count + 1, count + 1), dtype=bool)
        # theory/sums.md, Proposition 1: pairs (v, 0) and (0, v).
        allowed[-1, :-1] = allowed[:-1, -1] = True
        mirror &= bool((zero[::-1] == zero).all())
        return Rows(
            weights // divisor,
            zero_total // divisor,
            np.append(inputs, 0.0),
            count,
            allowed,
            mirror,
        )

    @property
    def probabilities(self) -> np.ndarray:
        """(R, m) float64, within 1 unit each."""
        return _divided(self.weights, self.total)

    @property
    def differences(self) -> np.ndarray:
        """(R, R, m) float64: row p less row q, exact but for 1 unit each."""
        return _divided(self.weights[:, None] - self.weights[None], self.total)

    @property
    def apart(self) -> bool:
        """Whether some code is possible in one row and impossible in another."""
        possible = self.weights > 0
        return bool((possible.any(axis=0) & ~possible.all(axis=0)).any())

    def alone(self, order: float) -> tuple[np.ndarray, np.ndarray]:
        """(lower, upper): (R, R) divergence of one client's own code, for pairs of neighbours."""
        # theory/rounding.md, Propositions 3 to 6.
        table = [renyi(row, self.weights, self.total, order) for row in self.weights]
        lower, upper = (np.array(side) for side in zip(*table, strict=True))
        return np.where(self.allowed, lower, 0.0), np.where(self.allowed, upper, 0.0)

    def ratios(self, code: int) -> np.ndarray:
        """(R, R) log of two rows' weights of a code, at most; 0 for pairs that do not count."""
        column = self.weights[:, code]
        ratio = log_ratio(column[:, None], column[None])
        # theory/rounding.md, Proposition 6: a lower bound of the logarithm.
        return np.where(self.allowed, np.maximum(ratio, 0.0) * (1 - 17 * UNIT), 0.0)


def _divided(integers: np.ndarray, total: int) -> np.ndarray:
    if integers.dtype == object:
        return np.vectorize(lambda n: n / total, otypes=[np.float64])(integers)
    return integers / total  # a power of two: nothing but the conversion rounds
