"""Curves of hockey-stick divergences, put on a grid and composed in whole numbers.

verifier.md, Proposition 1: a curve's values at ratios G^k, G = 1 + 1/parts, joined by chords,
are the curve of a pair of laws whose losses are k log G. Masses under the first law are whole
numbers of 10^-PLACES, rounded up; what is left out counts as an infinite loss.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from .intervals import Interval, exp, interval, log, upper_tail

MOST_LOSSES = 2**19  # in one law: a limit of memory
PLACES = 40
UNIT = 10**PLACES
FINE = 10**56  # heights of curves are whole numbers of 1/FINE, rounded up
#: Of two worlds' ratio at most 1 (or at least 1): H_g of the first against the second, g >= 1.
Side = Callable[[Interval], Interval]


class Curve(NamedTuple):
    """What one release shows: both orders of the two worlds, and how often it is repeated."""

    ahead: Side
    back: Side
    repeats: int

    def exchanged(self) -> Curve:
        return Curve(self.back, self.ahead, self.repeats)


def products(a: list[int], b: list[int], most: int) -> list[int]:
    """All sums of a[i] b[k - i], 0 <= a, b <= most: one product of long decimals (Kronecker)."""
    width = len(str(min(len(a), len(b)) * most * most))
    size = width * (len(a) + len(b) - 1)
    with localcontext() as context:
        context.prec, context.Emax = size + 1, 10**9
        x, y = (Decimal("".join(str(v).zfill(width) for v in law)) for law in (a, b))
        digits = str(x * y).zfill(size)
    return [int(digits[i : i + width]) for i in range(0, size, width)]


class Losses(NamedTuple):
    """Masses of the losses first, first + 1, ... (times log G), and of an infinite one."""

    first: int
    masses: list[int]
    infinite: int

    def beside(self, other: Losses, spare: int) -> Losses:
        """The law of the sum of two independent losses; ends that have `spare` are left out."""
        if len(self.masses) + len(other.masses) > MOST_LOSSES:
            raise OverflowError("more losses than there is memory for")
        mine, theirs = sum(self.masses) + self.infinite, sum(other.masses)
        infinite = -(-(self.infinite * theirs + other.infinite * mine) // UNIT)
        most = max(*self.masses, *other.masses)
        masses = [-(-v // UNIT) for v in products(self.masses, other.masses, most)]
        return Losses(self.first + other.first, masses, infinite).trimmed(spare)

    def trimmed(self, spare: int) -> Losses:
        left_out, ends = 0, []
        for masses in (self.masses, self.masses[::-1]):
            end = total = 0
            while end < len(masses) - 1 and total + masses[end] <= spare:
                total, end = total + masses[end], end + 1
            ends.append(end)
            left_out += total
        low, high = ends[0], len(self.masses) - ends[1]
        if low >= high:
            return Losses(0, [0], self.infinite + sum(self.masses))
        return Losses(self.first + low, self.masses[low:high], self.infinite + left_out)

    def repeated(self, count: int, spare: int) -> Losses:
        result = self
        for digit in bin(count)[3:]:
            result = result.beside(result, spare)
            if digit == "1":
                result = result.beside(self, spare)
        return result

    def delta(self, epsilon: Fraction, parts: int) -> Fraction:
        """The sum of masses times 1 - e^(epsilon - loss), where that is positive."""
        step = log(1 + Fraction(1, parts))
        total = self.infinite * UNIT
        least = max(self.first, math.floor((epsilon / step).low))
        share = math.floor((exp(epsilon - least * step) * UNIT).low)  # falls by G a step
        for mass in self.masses[least - self.first :]:
            total += mass * max(0, UNIT - share)
            share = share * parts // (parts + 1)
        return Fraction(total, UNIT * UNIT)


def on_grid(curve: Curve, parts: int, spare: int) -> Losses:
    """verifier.md, Proposition 1."""
    step = log(1 + Fraction(1, parts))

    def height(k: int) -> int:
        """The curve at G^k, rounded up; below 1 it is 1 - g + g h(1/g)."""
        g = exp(abs(k) * step)
        value = curve.ahead(g) if k >= 0 else 1 - 1 / g + curve.back(g) / g
        return math.ceil((value * FINE).high)

    def reach(sign: int) -> int:
        """Where the rest counts for little: the distance from max(0, 1 - g) is below spare."""
        k = 64
        while k < 2**15:
            floor = math.floor((1 - exp(-k * step)).low * FINE) if sign < 0 else 0
            if (height(sign * k) - floor) * UNIT <= spare * FINE:
                break
            k = k * 5 // 4
        return k

    low, high = -reach(-1), reach(1)
    heights = [height(k) for k in range(low, high + 1)]
    rises = [b - a for a, b in itertools.pairwise(heights)] + [0]
    masses = [parts * rises[0] + FINE - heights[0]]
    masses += [parts * b - (parts + 1) * a for a, b in itertools.pairwise(rises)]
    whole = [max(0, -(-mass * UNIT // FINE)) for mass in masses]
    return Losses(low, whole, -(-heights[-1] * UNIT // FINE)).trimmed(spare)


def composed(curves: list[Curve], parts: int, delta: Fraction) -> Losses:
    """All curves together; a millionth of delta may be left out."""
    spare = math.floor(delta * UNIT / (10**6 * sum(curve.repeats for curve in curves)))
    total = Losses(0, [UNIT], 0)
    for curve in curves:
        total = total.beside(on_grid(curve, parts, spare).repeated(curve.repeats, spare), spare)
    return total


def mixtures(m: Interval, n: Interval, rate: Fraction) -> Side:
    """sampling.md, Propositions 13 to 16: (1-q) N(0,1) + q N(m,1) against the same of n, m > n.

    Their ratio r rises beyond (m + n)/2, where it is 1, so H_r(t) has the best test x > t. H_g is
    at most that for any r(t) <= g; t is looked for in floating point.
    """
    middle = (m + n) / 2
    a, b, q = float(m.high), float(n.low), float(rate)

    def ratio(x: Interval) -> Interval:
        first, second = (1 - rate + rate * exp(t * x - t * t / 2) for t in (m, n))
        return first / second

    @lru_cache(2**15)  # of either order of the worlds, of g and 1/g
    def side(g: Interval) -> Interval:
        low, high, wanted = (a + b) / 2, 40 + 2 * a, float(g.low) * (1 - 1e-14)
        for _ in range(60):
            x = (low + high) / 2
            top, bottom = (1 - q + q * math.exp(min(700, t * x - t * t / 2)) for t in (a, b))
            low, high = (x, high) if top < wanted * bottom else (low, x)
        x = interval(Fraction(low))
        reached = ratio(x)
        if x.low < middle.high or not reached.high <= g.low:
            x, reached = middle, interval(1)
        near, here = upper_tail(x - m), upper_tail(x)
        far = here if n.low == n.high == 0 else upper_tail(x - n)
        return rate * (near - reached * far) + (1 - rate) * (1 - reached) * here

    return side
