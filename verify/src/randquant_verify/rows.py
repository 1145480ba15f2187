"""Channels by their rows: one client's code, or a sum of codes beside others who are fixed.

By coordinates the largest curve of all pairs of rows counts; clipped in norm, Renyi divergences of
a whole order by squared distance, on pieces of the pairs that decide, cut where it matters.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from .curves import Side, products
from .intervals import Interval, interval, log, raised

CUTS = 2**20  # of a cell between neighbouring inputs; pieces are halved down to one of them
POINT = 256  # powers of ratios are whole numbers of 2^-POINT
MOST_PIECES, MOST_WAYS = 6000, 150
CLOSE = 0.003  # pieces are cut until their bound is that close to what a pair attains
EXACT = 64  # clients in a sum whose law is computed exactly
#: A place of one input, from where to where the other is, and whether the first is ahead.
Piece = tuple[int, int, int, bool]


def largest_of_rows(pairs: list[tuple[tuple, tuple]]) -> Side:
    """composition.md, Proposition 1: the largest hockey-stick divergence of pairs of rows.

    Of long masses 256 bits count: the first law's rounded up, the second's down.
    """
    whole = sum(pairs[0][0])
    spare = max(0, whole.bit_length() - 256)
    short = [([-(-a >> spare) for a in p], [b >> spare for b in q]) for p, q in pairs]
    whole = whole >> spare << 64

    @lru_cache(2**15)
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

    @lru_cache  # noqa: B019
    def at(self, place: int) -> tuple[Fraction, list[int]]:
        """An input and what it sends, in units of 1/whole; places are counted in cuts."""
        k = min(place // CUTS, len(self.inputs) - 2)
        (x, y), cut = self.inputs[k : k + 2], place - k * CUTS
        row = [(CUTS - cut) * a + cut * b for a, b in zip(*self.rows[k : k + 2], strict=True)]
        return x + (y - x) * cut / CUTS, row

    def around(self, fixed: Fraction | None) -> tuple[int, int]:
        """Places between which one of two inputs is (vector.md, Proposition 14)."""
        if fixed is None:
            return 0, (len(self.inputs) - 1) * CUTS
        found = []
        for x, rounded in ((fixed - self.rounding, math.floor), (fixed + self.rounding, math.ceil)):
            k = min(max(bisect.bisect_right(self.inputs, x), 1), len(self.inputs) - 1) - 1
            low, high = self.inputs[k : k + 2]
            found.append(k * CUTS + rounded(min(max(x - low, 0) / (high - low), 1) * CUTS))
        return found[0], found[1]

    def pieces(self, fixed: Fraction | None) -> list[Piece]:
        """verifier.md, Proposition 3: what decides, before anything is cut."""
        low, high = self.around(fixed)
        points = sorted({low, high, *range(0, len(self.inputs) * CUTS, CUTS)})
        return [
            (anchor, *((a, b) if anchor <= a else (b, a)), ahead)
            for (a, b), anchor in itertools.product(itertools.pairwise(points), points)
            if low <= anchor <= high or low <= a < b <= high
            for ahead in (True, False)
        ]

    @lru_cache(2**14)  # noqa: B019
    def excess(self, one: int, other: int, order: int) -> Fraction:
        """M - 1 of the laws of two inputs, from above; M is the sum of p^order q^(1 - order)."""
        total = -self.whole << POINT
        for p, q in zip(self.at(one)[1], self.at(other)[1], strict=True):
            total += raised((p << POINT) // q + 1, order, POINT) * q
        return Fraction(-((-total << POINT) // self.whole), 1 << 2 * POINT)

    @lru_cache  # noqa: B019
    def information(self, place: int, cell: int) -> Fraction:
        """The Fisher information at an input, from above; slopes at a vertex are a cell's."""
        gap, total = self.inputs[cell + 1] - self.inputs[cell], 0
        for p, a, b in zip(self.at(place)[1], *self.rows[cell : cell + 2], strict=True):
            slope = abs(b - a) * CUTS
            total += ((slope << POINT) // p + 1) * slope
        return Fraction(total, self.whole << POINT) / gap**2

    @lru_cache(2**14)  # noqa: B019
    def weighted_slopes(self, one: int, other: int, order: int, cell: int) -> Fraction:
        """S of the laws of two inputs with the slopes of a cell, from above."""
        gap, total = self.inputs[cell + 1] - self.inputs[cell], 0
        laws = self.at(one)[1], self.at(other)[1]
        for p, q, a, b in zip(*laws, *self.rows[cell : cell + 2], strict=True):
            if p == q:
                bend = (order * self.whole << POINT - 1) // q
            else:
                rest = raised((p << POINT) // q + 1, order, POINT)
                rest -= (q + order * (p - q) << POINT) // q
                bend = rest * q * self.whole // ((order - 1) * (p - q) ** 2)
            total += (bend + 1) * ((b - a) * CUTS) ** 2
        return Fraction(total, self.whole**2 << POINT) / gap**2

    def across(self, piece: Piece, order: int) -> Fraction | None:
        """verifier.md, Proposition 3 (c): a bound where the other input is in the next cell."""
        anchor, *ends, ahead = piece
        cell = min(ends) // CUTS
        step = -1 if anchor < cell * CUTS else 1
        corner = (cell + max(step, 0)) * CUTS
        if abs(anchor - corner) > CUTS:
            return None
        x, y, near = (self.at(place)[0] for place in (anchor, corner, ends[0]))
        pairs = [(anchor, end) if ahead else (end, anchor) for end in ends]
        first, second = (
            max(self.weighted_slopes(*pair, order, slopes) for pair in pairs)
            for slopes in (cell + step, cell)
        )
        return second + abs((y - x) / (near - x)) * max(first - second, 0)

    def bounds(self, piece: Piece, order: int, longest: Interval) -> tuple[float, Fraction]:
        """verifier.md, Proposition 3: D_order/h^2 at an end of a piece, and a bound in it."""
        anchor, *ends, ahead = piece
        x, *others = (self.at(place)[0] for place in (anchor, *ends))
        lengths = [abs(y - x) for y in others]
        if lengths[0] > longest.high:
            return 0.0, Fraction(0)
        cell, found, attained = min(ends) // CUTS, [], 0.0
        pairs = [(anchor, end) if ahead else (end, anchor) for end in ends]
        excesses = [self.excess(*pair, order) for pair in pairs]
        for excess, h in zip(excesses, lengths, strict=True):
            square = (order - 1) * h**2
            found.append(excess / square if h else order * self.information(anchor, cell) / 2)
            if h <= longest.high:
                pair = math.log1p(min(excess, 10**300)) / square if h else found[-1]
                attained = max(attained, float(pair))
        inside = cell * CUTS <= anchor <= (cell + 1) * CUTS
        most = [max(found) if inside else self.across(piece, order)]
        if lengths[0]:
            most.append(largest_of_chord(excesses, lengths) / (order - 1))
        return attained, min(bound for bound in most if bound is not None)


def largest_of_chord(excesses: list[Fraction], lengths: list[Fraction]) -> Fraction:
    """verifier.md, Proposition 3: log(1 + chord)/h^2 at most, the logarithm below a tangent.

    The tangent a + b h is that at the middle, and a + b h over h^2 is quadratic in 1/h.
    """
    middle = 1 + sum(excesses, Fraction(0)) / 2
    b = (excesses[1] - excesses[0]) / (lengths[1] - lengths[0]) / middle
    a = Fraction(log(middle).high) - b * sum(lengths) / 2
    first, last = 1 / lengths[1], 1 / lengths[0]
    tries = [first, last]
    if a < 0:
        tries.append(min(max(-b / (2 * a), first), last))
    return max(a * u * u + b * u for u in tries)


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

    def divergence(self, order: int) -> Interval:
        return curvature(self.tables, order, self.longest, self.fixed) * self.square


@lru_cache(64)
def curvature(
    tables: tuple[Rows, ...], order: int, longest: Interval, fixed: Fraction | None = None
) -> Interval:
    """K of D_order <= K h^2 for all of these: the largest bound of pieces that decide."""
    pieces: list = []
    attained = 0.0

    def add(k: int, table: Rows, piece: Piece) -> None:
        nonlocal attained
        least, most = table.bounds(piece, order, longest)
        attained = max(attained, least)
        heapq.heappush(pieces, (-most, k, piece))

    for k, table in enumerate(tables):
        for piece in table.pieces(fixed):
            add(k, table, piece)
    for _ in range(MOST_PIECES):
        negative, k, (anchor, near, far, ahead) = pieces[0]
        if attained > (CLOSE - 1) * negative or abs(far - near) == 1:
            break
        heapq.heappop(pieces)
        middle = (near + far) // 2
        add(k, tables[k], (anchor, near, middle, ahead))
        add(k, tables[k], (anchor, middle, far, ahead))
    return interval(-pieces[0][0])


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
