"""Channels by their rows: one client's code, or a sum of codes beside others who are fixed.

By coordinates the largest curve of all pairs of rows counts; clipped in norm, Renyi divergences of
a whole order by squared distance, on boxes of pairs of inputs that are cut where it matters.
"""

from __future__ import annotations

import heapq
import itertools
import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from .curves import Side, products
from .intervals import Interval, interval, log, raised

CUTS = 2**20  # of a cell between neighbouring inputs; boxes are cut down to one of them
POINT = 256  # powers of ratios are whole numbers of 2^-POINT
STEEP = 1024  # squared slopes are whole numbers of 2^-STEEP: a rare sum's are tiny, its bend large
MOST_BOXES, MOST_WAYS = 2000, 150
EXACT = 64  # clients in a sum whose law is computed exactly
Point = tuple[int, int]  # a cell, and how many of its cuts from the left
Box = tuple[Point, Point, int]  # where either input begins, and how many cuts it goes on


def largest_of_rows(pairs: list[tuple[tuple, tuple]]) -> Side:
    """composition.md, Proposition 1: the largest hockey-stick divergence of pairs of rows.

    Of long masses 256 bits count: the first law's rounded up, the second's down.
    """
    whole = sum(pairs[0][0])
    spare = max(0, whole.bit_length() - 256)
    short = [([-(-a >> spare) for a in p], [b >> spare for b in q]) for p, q in pairs]
    whole = whole >> spare << 64

    def side(g: Interval) -> Interval:
        ratio = math.floor(g.low * 2**64)
        sums = (
            sum(max(0, (a << 64) - ratio * b) for a, b in zip(p, q, strict=True)) for p, q in short
        )
        return interval(Fraction(max(sums), whole))

    return side


class Rows:
    """Rows at inputs, and mixes of neighbouring rows between: whole weights of one sum."""

    def __init__(self, inputs: tuple[Fraction, ...], weights: list[list[int]]) -> None:
        used = [column for column in zip(*weights, strict=True) if any(column)]
        if not all(map(all, used)):
            raise ValueError("a code that one input never sends")
        if len(set(inputs)) < len(inputs):
            raise ValueError("a jump")
        self.inputs, self.rows = inputs, list(zip(*used, strict=True))
        #: The pure epsilon of one code (certificates.md, Proposition 1, at order infinity).
        self.pure = log(max(Fraction(max(column), min(column)) for column in used))
        self.whole = CUTS * sum(self.rows[0])
        self.rounding = max(b - a for a, b in itertools.pairwise(inputs)) / 2**32

    def holds(self, fixed: Fraction, low: Fraction, high: Fraction) -> bool:
        """vector.md, Proposition 14: whether an input, as it is encoded, may lie between these."""
        return low - self.rounding <= fixed <= high + self.rounding

    @lru_cache  # noqa: B019
    def at(self, point: Point) -> tuple[Fraction, list[int]]:
        """An input and what it sends, in units of 1/whole."""
        k, cut = point
        x, y = self.inputs[k : k + 2]
        row = [(CUTS - cut) * a + cut * b for a, b in zip(*self.rows[k : k + 2], strict=True)]
        return x + (y - x) * cut / CUTS, row

    @lru_cache(2**14)  # noqa: B019
    def bends(self, one: Point, other: Point, order: int) -> list[int]:
        """vector.md, Proposition 2: C(p, q) of each code at two points, in units of 2^-POINT."""
        found = []
        for p, q in zip(self.at(one)[1], self.at(other)[1], strict=True):
            if p == q:
                bend = (order * self.whole << POINT - 1) // q
            else:
                excess = raised((p << POINT) // q + 1, order, POINT)
                excess -= (q + order * (p - q) << POINT) // q
                bend = excess * q * self.whole // ((order - 1) * (p - q) ** 2)
            found.append(bend + 1)
        return found

    def slopes(self, one: Point, other: Point) -> list[int]:
        """Squared slopes of codes' probabilities between two points, in units of 2^-STEEP."""
        (x, p), (y, q) = self.at(one), self.at(other)
        top, bottom = (2**STEEP / ((x - y) * self.whole) ** 2).as_integer_ratio()
        return [-(-((a - b) ** 2) * top // bottom) for a, b in zip(p, q, strict=True)]

    def bounds(
        self, box: Box, order: int, longest: Interval, fixed: Fraction | None
    ) -> tuple[Interval, Interval]:
        """vector.md, Proposition 3: of D_order/|x - x'|^2 in a box, and the least that it may mean.

        S is at most its largest with slopes of one corner and rows of another.
        """
        (k, i), (j, h), size = box
        sides = [(k, i), (k, i + size)], [(j, h), (j, h + size)]
        (a, b), (c, d) = ([self.at(end)[0] for end in side] for side in sides)
        nearest = max(Fraction(0), a - d, c - b)
        # vector.md, Propositions 17 and 18: pairs that no neighbours have do not count.
        without = fixed is not None and not (self.holds(fixed, a, b) or self.holds(fixed, c, d))
        if nearest > longest.high or without:
            return interval(0), interval(0)
        corners = list(itertools.product(*sides))
        ways = [pair for pair in corners if self.at(pair[0])[0] != self.at(pair[1])[0]]
        slopes = [self.slopes(*way) for way in (ways[:1] if k == j else ways)]
        bends = [self.bends(*corner, order) for corner in corners]
        sums = [
            sum(m * c for m, c in zip(way, bend, strict=True))
            for way, bend in itertools.product(slopes, bends)
        ]
        least, most = (interval(Fraction(s, 1 << POINT + STEEP)) for s in (min(sums), max(sums)))
        near, far = ((order - 1) * h**2 for h in (nearest, max(d - a, b - c)))
        # As far apart as in the box the least is less: it only says whether to cut the box.
        least = log(1 + least * far) / far
        return least, (log(1 + most * near) / near if near else most)


class Spread(NamedTuple):
    """Codes of updates: a squared distance of all rounds, which any coordinates may share.

    No coordinate has more of it than longest^2; pure: the epsilon of all codes, whatever the sum;
    fixed: the input that one of two neighbours has in all coordinates, if there is one.
    """

    tables: tuple[Rows, ...]
    square: Interval
    longest: Interval
    pure: Interval
    fixed: Fraction | None = None

    def divergence(self, order: int, within: float = 0.01) -> Interval:
        found = curvature(self.tables, order, self.longest, self.fixed, within)
        return found * self.square


@lru_cache(64)
def curvature(
    tables: tuple[Rows, ...],
    order: int,
    longest: Interval,
    fixed: Fraction | None = None,
    within: float = 0.01,
) -> Interval:
    """K of D_order <= K |x - x'|^2 for all of these: the largest bound of boxes that cover them.

    The closer it is to be to the least that it may mean, the longer it takes.
    """
    boxes: list = []
    attained = 0.0

    def add(k: int, table: Rows, box: Box) -> None:
        nonlocal attained
        least, most = table.bounds(box, order, longest, fixed)
        attained = max(attained, float(least.low))
        heapq.heappush(boxes, (most.high.copy_negate(), k, box))

    for k, table in enumerate(tables):
        for cells in itertools.product(range(len(table.inputs) - 1), repeat=2):
            add(k, table, ((cells[0], 0), (cells[1], 0), CUTS))
    for _ in range(MOST_BOXES):
        negative, k, ((a, i), (b, j), size) = boxes[0]
        if attained > (within - 1) * float(negative) or size == 1:
            break
        heapq.heappop(boxes)
        for x, y in itertools.product((0, size // 2), repeat=2):
            add(k, tables[k], ((a, i + x), (b, j + y), size // 2))
    return interval(-boxes[0][0])


def others_of(rows: tuple[tuple, ...], clients: int) -> list[list[int]]:
    """Laws of the others' codes in a sum, exactly, one for each way to have them at inputs.

    vector-sums.md, Proposition 1. Where there are many ways, the others at all inputs but the last
    are counted by `block`, and (V - 1)(block - 1) fewer at the last (sums.md, Proposition 2). All
    laws have one sum.
    """
    others, kinds, block = clients - 1, len(rows) - 1, 1
    while math.comb(others // block + kinds, kinds) > MOST_WAYS:
        block += 1
    most, powers = sum(rows[0]) ** clients, [[[1]] for _ in rows]
    for row, laws in zip(rows, powers, strict=True):
        for _ in range(others):
            laws.append(products(laws[-1], list(row), most))
    found = []
    for counts in itertools.product(range(0, others + 1, block), repeat=kinds):
        left = others - sum(counts)
        if left >= 0:
            law = powers[-1][max(0, left - kinds * (block - 1))]
            for laws, count in zip(powers, counts, strict=False):
                law = products(law, laws[count], most)
            missing = sum(rows[0]) ** others // sum(law)
            found.append([mass * missing for mass in law])
    return found


@lru_cache(64)
def sums_of(
    inputs: tuple, rows: tuple[tuple, ...], clients: int, fixed: Fraction | None = None
) -> tuple[Rows, ...]:
    """One client's code beside the others, where one of its two inputs may be fixed.

    If inputs and codes may be mirrored, of two ways that mirror each other one is enough.
    """
    most, ends = sum(rows[0]) ** clients, inputs[0] + inputs[-1]
    laws = dict.fromkeys(map(tuple, others_of(rows, clients)))
    mirrored = (tuple(ends - x for x in inputs[::-1]), tuple(row[::-1] for row in rows[::-1]))
    if mirrored == (inputs, rows) and fixed in (None, ends / 2):
        for law in list(laws):
            if law in laws and law != law[::-1]:
                laws.pop(law[::-1], None)
    return tuple(
        Rows(inputs, [products(list(law), list(row), most) for row in rows]) for law in laws
    )
