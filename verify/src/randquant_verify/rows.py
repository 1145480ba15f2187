"""Channels of many rows, one client's code by itself: by coordinates, or clipped in norm."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import lru_cache

from .curves import Side
from .intervals import Interval, interval, largest, log, raised

PARTS = 8  # of each cell between neighbouring inputs
POINT = 256  # powers of ratios are whole numbers of 2^-POINT


def largest_of_rows(pairs: list[tuple[tuple, tuple]]) -> Side:
    """composition.md, Proposition 1: the largest hockey-stick divergence of pairs of rows."""
    whole = sum(pairs[0][0]) << 64

    def side(g: Interval) -> Interval:
        ratio = math.floor(g.low * 2**64)
        sums = (
            sum(max(0, (a << 64) - ratio * b) for a, b in zip(p, q, strict=True)) for p, q in pairs
        )
        return interval(Fraction(max(sums), whole))

    return side


class ManyRows:
    """Rows at inputs, and mixes of neighbouring rows between: whole weights of one sum."""

    def __init__(self, inputs: list[Fraction], weights: list[list[int]]) -> None:
        used = [column for column in zip(*weights, strict=True) if any(column)]
        if not all(map(all, used)):
            raise ValueError("a code that one input never sends")
        if len(set(inputs)) < len(inputs):
            raise ValueError("a jump")
        rows = list(zip(*used, strict=True))
        #: The pure epsilon of one code (certificates.md, Proposition 1, at order infinity).
        self.pure = log(max(Fraction(max(column), min(column)) for column in used))
        #: Inputs, PARTS to a cell, and what they send in units of 1/whole.
        self.whole, self.points = PARTS * sum(rows[0]), [(inputs[0], [PARTS * w for w in rows[0]])]
        for (x, p), (y, q) in itertools.pairwise(zip(inputs, rows, strict=True)):
            for k in range(1, PARTS + 1):
                row = [(PARTS - k) * a + k * b for a, b in zip(p, q, strict=True)]
                self.points.append((x + (y - x) * k / PARTS, row))

    @lru_cache  # noqa: B019
    def bends(self, k: int, j: int, order: int) -> list[int]:
        """vector.md, Proposition 2: C(p, q) of each code at two points, in units of 2^-POINT."""
        found = []
        for p, q in zip(self.points[k][1], self.points[j][1], strict=True):
            if p == q:
                bend = (order * self.whole << POINT - 1) // q
            else:
                excess = raised((p << POINT) // q + 1, order, POINT)
                excess -= (q + order * (p - q) << POINT) // q
                bend = excess * q * self.whole // ((order - 1) * (p - q) ** 2)
            found.append(bend + 1)
        return found

    def slopes(self, k: int, j: int) -> list[Fraction]:
        """Squared slopes of codes' probabilities between two points."""
        (x, p), (y, q) = self.points[k], self.points[j]
        return [((a - b) / (x - y) / self.whole) ** 2 for a, b in zip(p, q, strict=True)]

    @lru_cache  # noqa: B019
    def curvature(self, order: int, longest: Interval) -> Interval:
        """vector.md, Proposition 3: K of D_order <= K |x - x'|^2, at a whole order.

        In a box of inputs S is at most its largest with slopes of one corner and rows of another.
        """
        worst = interval(0)
        for k, j in itertools.product(range(len(self.points) - 1), repeat=2):
            (low, _), (high, _) = self.points[max(k, j)], self.points[min(k, j) + 1]
            nearest = max(Fraction(0), low - high)
            if nearest > longest.high:
                continue
            corners = list(itertools.product((k, k + 1), (j, j + 1)))
            ways = [pair for pair in corners if pair[0] != pair[1]]
            if k // PARTS == j // PARTS:
                ways = ways[:1]
            slopes = [[math.ceil(m * 2**64) for m in self.slopes(*pair)] for pair in ways]
            bends = [self.bends(*pair, order) for pair in corners]
            most = max(
                sum(m * c for m, c in zip(way, bend, strict=True))
                for way, bend in itertools.product(slopes, bends)
            )
            bound = s = interval(Fraction(most, 1 << POINT + 64))
            if nearest and bound.high > worst.high:
                square = (order - 1) * nearest**2
                bound = log(1 + s * square) / square
            worst = largest(worst, bound)
        return worst
