"""Laws of sums of clients that each draw from one of two laws, with proven rounding.

Derivation: `docs/theory/vector-sums.md`, "Rounding".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from randquant.privacy.divergence import UNIT

LOST = 1e-300
"""Probabilities below it are taken for 0 while laws are convolved."""

MANY = 2**12
"""Laws of the sum of so many equal bits, or more, are computed outward from their mode."""


@dataclass(frozen=True, slots=True)
class ChainLaw:
    """Probabilities (L,) of start, start + 1, …; outside there is next to nothing."""

    start: int
    mass: np.ndarray

    def convolve(self, other: ChainLaw, lost: float = LOST) -> ChainLaw:
        """The law of the sum; products and sums of positive numbers, so each is nearly exact."""
        mass = np.convolve(self.mass, other.mass)
        # theory/vector-sums.md, Proposition 6: products beyond the range of floats are lost. Fewer
        # than 2n + 64 such losses stay below 1e-294 an entry, which counts where entries are 1e-275
        # or more.
        some = np.flatnonzero(mass >= lost)
        first, last = int(some[0]), int(some[-1])
        return ChainLaw(self.start + other.start + first, mass[first : last + 1])


class Powers:
    """Laws of sums of clients with equal inputs, by halving; computed laws are kept."""

    def __init__(self, row: np.ndarray, lost: float = LOST):
        """`lost` may be larger, where only larger probabilities count: shorter laws take less."""
        self._known = {0: ChainLaw(0, np.ones(1)), 1: ChainLaw(0, row)}
        self._lost = lost

    def of(self, count: int) -> ChainLaw:
        """The law of the sum of `count` codes."""
        if count not in self._known and count >= MANY and len(self._known[1].mass) == 2:
            self._known[count] = _binomial(self._known[1].mass, count, self._lost)
        if count not in self._known:
            # Halves: the error is n log n, where adding one client at a time would make it n^2.
            half = count // 2
            self._known[count] = self.of(half).convolve(self.of(count - half), self._lost)
        return self._known[count]


def _binomial(row: np.ndarray, count: int, lost: float) -> ChainLaw:
    """The law of the sum of many bits with these probabilities, both positive."""
    total = float(row.sum())
    mode = min(int((count + 1) * row[1] / total), count)
    # theory/vector-sums.md, Proposition 6: beyond, all is below 1e-300.
    reach = math.isqrt(350 * count) + 2
    below = np.arange(mode, max(mode - reach, 0), -1)
    above = np.arange(mode, min(mode + reach, count))
    odds = row[1] / row[0]
    parts = [
        np.cumprod(below / ((count - below + 1) * odds))[::-1],
        np.ones(1),
        np.cumprod((count - above) * odds / (above + 1)),
    ]
    mass = np.concatenate(parts)
    mass *= total**count / mass.sum()
    some = np.flatnonzero(mass >= lost)
    first, last = int(some[0]), int(some[-1])
    return ChainLaw(mode - len(below) + first, mass[first : last + 1])


def sums(left: np.ndarray, right: np.ndarray, clients: int) -> Iterator[ChainLaw]:
    """Laws of the sum when k clients draw from `right` and the rest from `left`, k = 0, 1, … n.

    Args:
        left, right: (m,) probabilities.
        clients: n.

    Guarantees:
        Each probability from 1e-275 on is within `rounding(n, m)` of the truth, relatively.
    """
    some_left, some_right = Powers(left), Powers(right)

    def between(low: int, high: int, common: ChainLaw) -> Iterator[ChainLaw]:
        """For k from low to high; `common` is the law of the clients that all of these share."""
        if low == high:
            yield common
            return
        # theory/vector-sums.md, Proposition 2: n convolutions with short laws in all.
        middle = (low + high) // 2
        yield from between(low, middle, common.convolve(some_left.of(high - middle)))
        yield from between(middle + 1, high, common.convolve(some_right.of(middle + 1 - low)))

    return between(0, clients, some_left.of(0))


def rounding(clients: int, levels: int) -> float:
    """Relative error of `sums`, and of `Powers.of(clients)`: each convolution adds its terms.

    A sum of n is convolved from halves, so its error, in units, is twice that of n/2 and n/2 times
    levels - 1, and at most n (1 + (levels - 1)/2 · log2 n) + 2n; the way down the tree of `sums`
    meets such laws of n/2, n/4, … and adds n (levels - 1).
    """
    depth = clients.bit_length()
    # theory/vector-sums.md, Proposition 6; `depth` is at least log2(clients).
    units = clients * ((levels - 1) * (depth / 2 + 1) + 4) + 8 * depth + 16
    return 1.05 * units * UNIT
