"""Drawing integers from a table with a proven, tiny distance to the target law.

Derivation: `docs/theory/additive.md`.
"""

from __future__ import annotations

import decimal
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from randquant.channels.keys import Key

BITS = 192
"""Bits of one draw: probabilities are whole multiples of 2**-192."""

_DIGITS = 80  # of the arithmetic: 22 more than 2**-192, for the errors of millions of products
_LOW = BITS - 64


@dataclass(frozen=True, slots=True, eq=False)
class CumulativeTable:
    """A law on the integers first, first + 1, …, as cumulative thresholds out of 2**192.

    Attributes:
        first: the least integer with mass.
        high: (K - 1,) uint64, the thresholds' first 64 bits, non-decreasing.
        low: their remaining 128 bits.
    """

    first: int
    high: np.ndarray
    low: list[int]

    @classmethod
    def of(
        cls,
        mode: int,
        up: Iterable[Decimal],
        down: Iterable[Decimal],
        limit: Decimal | None = None,
    ) -> CumulativeTable:
        """Tabulate a law whose ratios do not increase, as of a log-concave one, or are limited.

        Args:
            mode: an integer of largest mass.
            up: the ratios p(mode + 1) / p(mode), p(mode + 2) / p(mode + 1), …, non-increasing; the
                law's support ends where they end.
            down: the same on the other side.
            limit: below 1, at least all ratios, which may then increase.

        Guarantees:
            The total variation distance between the draws and the law is at most `distance`.
        """
        with decimal.localcontext(decimal.Context(prec=_DIGITS, Emin=-(10**9), Emax=10**9)):
            above, below = _weights(up, limit), _weights(down, limit)
            weights = [*reversed(below), Decimal(1), *above]
            unit = Decimal(1 << BITS) / sum(weights)
            thresholds, total = [], Decimal(0)
            for weight in weights[:-1]:
                total += weight
                thresholds.append(min(int(total * unit), (1 << BITS) - 1))
        high = np.array([threshold >> _LOW for threshold in thresholds], dtype=np.uint64)
        low = [threshold & ((1 << _LOW) - 1) for threshold in thresholds]
        return cls(mode - len(below), high, low)

    @property
    def distance(self) -> float:
        """Upper bound of the total variation distance to the tabulated law."""
        return 2.0 ** (1 - BITS) * (len(self.low) + 1)

    def draw(self, count: int, key: Key) -> np.ndarray:
        """Draw (count,) int64, with a key used for nothing else.

        The draw at index k depends only on the key and k.
        """
        words = key.fold_in("high").words(count)
        index = np.searchsorted(self.high, words, side="right")
        ties = np.flatnonzero(np.searchsorted(self.high, words, side="left") < index)
        if ties.size:  # 64 bits do not decide these draws
            rest = key.fold_in("low").words(2 * count)
            for k in ties:
                left = int(np.searchsorted(self.high, words[k], side="left"))
                low = int(rest[2 * k]) << 64 | int(rest[2 * k + 1])
                index[k] = bisect_right(self.low, low, left, int(index[k]))
        return self.first + index.astype(np.int64)


def _weights(ratios: Iterable[Decimal], limit: Decimal | None) -> list[Decimal]:
    """Masses relative to the mode's, up to a tail of less than 2**-200 of it."""
    weights: list[Decimal] = []
    weight, cut = Decimal(1), Decimal(2) ** -(BITS + 8)
    for ratio in ratios:
        # No later ratio is larger than this: the tail is at most a geometric series.
        most = ratio if limit is None else limit
        if most < 1 and weight * most < cut * (1 - most):
            break
        weight *= ratio
        weights.append(weight)
    return weights
