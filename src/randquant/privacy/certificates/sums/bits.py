"""Channels whose code is a sum of independent bits, read off their rows.

Derivation: `docs/theory/vector-sums.md`, "Sums of bits".
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np

from randquant.channels.channel import EVEN, Channel

SCALE = 2**62
"""Denominator of the bits' probabilities."""

LARGEST_ERROR = 2.0**-20
"""Rows further from binomial laws than this, relatively, are not taken for sums of bits."""

GROW = 1 + 2.0**-36
"""Outward rounding of factors that are formed from positive terms."""


@dataclass(frozen=True, slots=True)
class Bits:
    """Units at one of two ends, whose sums every client's code is a mix of, up to rounding.

    Attributes:
        trials: how many of them a code is the sum of.
        ends: two rows of whole numbers: the law of a unit at either end.
        error: no weight is further than this from the mix's, relatively.
        even: the share of all codes that is spread evenly, 0 or EVEN.
        mirrored: whether one end is the mirror image of the other.
    """

    trials: int
    ends: tuple[np.ndarray, np.ndarray]
    error: float
    even: float
    mirrored: bool

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def of(channel: Channel) -> Bits | None:
        """Read them off the rows; None if they are not (nearly) such sums."""
        rows = np.unique(channel.weights, axis=0)
        if channel.levels == 2 or len(rows) == 2:
            # theory/vector-sums.md, Propositions 2 and 14: every row is a mix of two, exactly.
            ends = rows[0], rows[-1]
            return Bits(1, ends, 0.0, 0.0, np.array_equal(ends[0], ends[1][::-1]))
        if not rows.all():
            return None
        some = [Bits._sum(rows, channel.denominator, even) for even in (0.0, EVEN)]
        return min((each for each in some if each), key=lambda each: each.error, default=None)

    @staticmethod
    def _sum(rows: np.ndarray, total: int, even: float) -> Bits | None:
        trials = rows.shape[1] - 1
        chances, error = [], 0.0
        # Exact integers: what is left of a bit's probability is how far rows are off.
        for row in rows.tolist():
            mean = sum(code * weight for code, weight in enumerate(row)) / total
            chance = round((mean - even * trials / 2) / (1 - even) / trials * SCALE)
            # theory/vector-sums.md, Proposition 14: whatever they are read off as, rows are
            # compared.
            if not 0 < chance < SCALE:
                return None
            error = max(error, _off(row, total, chance, even))
            if error > LARGEST_ERROR:
                return None
            chances.append(chance)
        # theory/vector-sums.md, Proposition 11: every bit is a mix of two at the ends.
        low, high = min(chances), max(chances)
        if abs(low + high - SCALE) <= 2**12:  # nearly mirrored: what is further out covers more
            low = min(low, SCALE - high)
            high = SCALE - low
        ends = np.array([[SCALE - low, low], [SCALE - high, high]])
        return Bits(trials, (ends[0], ends[1]), error, even, low + high == SCALE)


def straightened(channel: Channel) -> tuple[Channel, float] | None:
    """One bit for the codes of a channel that has two; None where it has more, or jumps.

    Returns:
        A channel of inputs -1 to 1 whose ends have the least and the largest probability; and the
        narrowest way between two inputs that have these.
    """
    widths, weights = np.diff(channel.inputs), channel.weights
    constant = bool((weights == weights[0]).all())
    if channel.levels != 2 or constant or widths.min() <= 0 or not weights.all():
        return None
    # theory/vector-sums.md, Proposition 14: whole numbers, and a step over the steepest slope.
    chances = [int(weight) * (SCALE // channel.denominator) for weight in weights[:, 1]]
    steps = np.array([abs(b - a) / SCALE for a, b in itertools.pairwise(chances)])
    low, high = min(chances), max(chances)
    ends = np.array([[SCALE - low, low], [SCALE - high, high]], dtype=np.int64)
    narrowest = (high - low) / SCALE / float((steps / widths).max())
    return Channel(np.array([-1.0, 1.0]), np.array([-1.0, 1.0]), ends, SCALE), narrowest


def _off(row: list[int], total: int, bit: int, even: float) -> float:
    """How far a row is from a binomial law, partly spread evenly, at most: relatively, rounded up.

    All are exact integers.
    """
    trials, worst = len(row) - 1, 0.0
    spread, parts = even.as_integer_ratio()
    unit = SCALE**trials * (trials + 1) * parts
    evenly = SCALE**trials * spread * total
    for code, weight in enumerate(row):
        law = math.comb(trials, code) * bit**code * (SCALE - bit) ** (trials - code)
        exact = law * (trials + 1) * (parts - spread) * total + evenly
        worst = max(worst, abs(weight * unit - exact) / exact)
    return worst * GROW
