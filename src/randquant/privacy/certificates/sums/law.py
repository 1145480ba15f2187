"""The law of a sum of codes, in scaled floats with a proven error, and its powers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from randquant.privacy.certificates.sums import kernel
from randquant.privacy.divergence import UNIT

KEEP_ALL = 1e15
"""A floor so low that nothing is trimmed."""


@dataclass(frozen=True, slots=True)
class Law:
    """Probabilities of consecutive sums: mantissa·2**exponent. Where they begin does not matter.

    Attributes:
        mantissa: (L,) float64 >= 0, 0 or within 2**-128 and 2**128.
        exponent: (L,) int64, multiples of 256; that of a zero has no meaning.
        error: relative error of every entry, at most, in units of 2**-53.
        trimmed: how many entries, each below 2**-floor, were left out at the ends.
        floor: in bits.
    """

    mantissa: np.ndarray
    exponent: np.ndarray
    error: float
    trimmed: float
    floor: float

    @staticmethod
    def of(row: np.ndarray, total: int, floor: float = KEEP_ALL) -> Law:
        """The law of one code, from a row of integers and their sum."""
        # A quotient of integers is rounded once: 1 unit.
        mantissa = np.array([int(weight) / total for weight in row])
        return Law(mantissa, np.zeros(len(row), np.int64), 1.0, 0.0, floor)

    @staticmethod
    def nothing(floor: float = KEEP_ALL) -> Law:
        """The law of an empty sum."""
        return Law(np.ones(1), np.zeros(1, np.int64), 0.0, 0.0, floor)

    def __len__(self) -> int:
        return len(self.mantissa)

    def __mul__(self, other: Law) -> Law:
        """The law of the sum of two independent sums."""
        length = len(self) + len(other) - 1
        mantissa, exponent = np.empty(length), np.empty(length, np.int64)
        floor = min(self.floor, other.floor)
        kept, trimmed = kernel.convolve(
            self.mantissa, self.exponent, other.mantissa, other.exponent, mantissa, exponent, floor
        )
        return Law(
            mantissa[:kept],
            exponent[:kept],
            # theory/sums.md, Proposition 6.
            self.error + other.error + min(len(self), len(other)) + 1.0,
            # theory/sums.md, Proposition 7: each trimmed entry is below the floor when it goes, and
            # convolving what is left out with a law leaves its mass as it is.
            self.trimmed + other.trimmed + trimmed,
            floor,
        )

    def power(self, clients: int) -> Law:
        """The law of the sum of `clients` independent copies."""
        return product([self], [clients])


def product(laws: Sequence[Law], counts: Sequence[int]) -> Law:
    """The law of a sum of independent copies: counts[j] of laws[j]; one squaring for all."""
    result = Law.nothing(min(law.floor for law in laws))
    # Squaring: log2 of the largest count convolutions, instead of as many as draws.
    for bit in reversed(range(max(counts).bit_length())):
        result = result * result
        for law, count in zip(laws, counts, strict=True):
            if count >> bit & 1:
                result = result * law
    return result


def multiples(single: Law, counts: Iterable[int]) -> dict[int, Law]:
    """The laws of sums of so many independent copies, each from the one before it."""
    known = {0: Law.nothing(single.floor)}
    steps: dict[int, Law] = {}
    last = 0
    for count in sorted(set(counts)):
        step = count - last
        if step not in steps:
            steps[step] = single.power(step) if step else known[0]
        known[count] = known[last] * steps[step] if step else known[last]
        last = count
    return known


def log_trimmed(trimmed: float, floor: float) -> float:
    """log of the probability of `trimmed` entries below 2**-floor, rounded up; -inf for none."""
    if trimmed == 0:
        return -math.inf
    # Twice: an entry is compared with the floor after rounding.
    count, bits = math.log(2 * trimmed), floor * math.log(2)
    # A logarithm, two products, a difference: below 16 of 32 units.
    return count - bits + 32 * UNIT * (count + bits)
