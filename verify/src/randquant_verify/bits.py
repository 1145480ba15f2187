"""Sums of channels with two rows (one noisy bit a coordinate, say) against Gaussian noise.

martingale.md: delta of a run is E_Q[(R - K)_+], K = e^epsilon, R the likelihood ratio. Step by step
(a coordinate of a round) the ratio of the step is replaced by a lognormal variable of the same
variance, and what that may cost is bounded by the ratio's moments of orders 3 to 6.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from .gaussian import delta_of
from .intervals import DOWN, UP, Interval, Number, density, exp, hull, interval, largest, log, power, sqrt

SCALE = 224  # probabilities are whole numbers of 2^-SCALE, rounded down
POINT = 128  # ratios are whole numbers of 2^-POINT
KEPT = 96  # outcomes less likely than 2^-KEPT are left out, and paid for
PARTS = 4  # of the segment between the two rows
FINER = 32  # and of these, where it counts


def convolve(a: list[int], b: list[int]) -> list[int]:
    """The law of a sum, from its first entry above 2^-204 to its last; others above become 0.

    Each list is packed into one large integer (Kronecker's substitution), as Python multiplies
    these fast. To the errors of both laws each entry adds less than 2^-203; all are lowered.
    """
    width = (2 * SCALE + min(len(a), len(b)).bit_length() + 15) // 8

    def pack(values: list[int]) -> int:
        return int.from_bytes(b"".join(v.to_bytes(width, "little") for v in values), "little")

    size = (len(a) + len(b) - 1) * width
    text = (pack(a) * pack(b)).to_bytes(size, "little")
    entries = (int.from_bytes(text[i : i + width], "little") >> SCALE for i in range(0, size, width))
    law = [entry if entry >> 20 else 0 for entry in entries]
    first = next(k for k, entry in enumerate(law) if entry)
    last = next(k for k, entry in enumerate(reversed(law)) if entry)
    return law[first : len(law) - last]


def power_law(row: list[int], count: int) -> list[int]:
    """The law of a sum of `count` codes; errors of entries are below 2 count 2^-203 (induction)."""
    result = [1 << SCALE]
    for digit in bin(count)[2:]:
        result = convolve(result, result)
        if digit == "1":
            result = convolve(result, row)
    return result


@dataclass(frozen=True)
class Arrangement:
    """What the sum of some others' codes says: laws with the client at either end of the segment.

    `low` and `high` are in units of 2^-SCALE / denominator; outcomes below 2^-KEPT are left out.
    """

    low: list[int]
    high: list[int]
    denominator: int

    def moments(self, part: int, orders: range, tilt: int = 0) -> list[int]:
        """Sums of s^j Q (1 +- s)^tilt, s = (b - a)/Q, Q the law at `part` of the segment.

        In units of 2^-(SCALE + j POINT). With a tilt Q must be an end, and P is the other end.
        """
        sums = [0] * len(orders)
        one = 1 << POINT
        for a, b in zip(self.low, self.high, strict=True):
            q = (PARTS - part) * a + part * b
            s = (PARTS * (b - a) << POINT) // q
            term = q
            if tilt:
                term = q * _raise(one - s if part else one + s, tilt) >> POINT
            term *= s ** orders[0]
            for k in range(len(orders)):
                sums[k] += term
                term *= s
        return [total // (PARTS * self.denominator) for total in sums]


def _raise(base: int, exponent: int) -> int:
    """A power in units of 2^-POINT, rounded up by some units of itself, which slack pays for."""
    result = 1 << POINT
    while exponent:
        if exponent & 1:
            result = (result * base >> POINT) + 1
        base, exponent = (base * base >> POINT) + 1, exponent >> 1
    return result


def arrangements(rows: list[list[int]], denominator: int, clients: int) -> Iterator[Arrangement]:
    """martingale.md, Proposition 2: k of the others at the right end, the rest at the left.

    If there are many, those with i to i + block - 1 at the right count as i there and
    block - 1 clients fewer (sums.md, Proposition 2).
    """
    unit = (1 << SCALE) // denominator
    left, right = ([weight * unit for weight in row] for row in rows)
    others = clients - 1
    block = -(-clients // (1024 if clients <= 4096 else 64))
    jump_right, jump_left = power_law(right, block), power_law(left, block)
    # All laws from one left to right: lefts[i] is the law of `others - (i + 1) block + 1` or 0.
    counts = [max(0, others - i - block + 1) for i in range(0, others + 1, block)]
    lefts = {0: [1 << SCALE], counts[-1]: power_law(left, counts[-1])}
    for more, less in zip(counts[-2::-1], counts[:0:-1], strict=True):
        whole = more - less == block
        lefts[more] = convolve(lefts[less], jump_left) if whole else power_law(left, more)
    at_right = [1 << SCALE]
    mirrored = rows[0] == rows[1][::-1] and block == 1
    for count in counts[: (len(counts) + 1) // 2 if mirrored else None]:
        law = convolve(at_right, lefts[count])
        low, high = ([0] * (len(law) + len(left) - 1) for _ in rows)
        for row, total in zip(rows, (low, high), strict=True):
            for code, weight in enumerate(row):
                if weight:
                    for place, mass in enumerate(law):
                        total[place + code] += weight * mass
        least = denominator << SCALE - KEPT
        pairs = [(a, b) for a, b in zip(low, high, strict=True) if a > least and b > least]
        yield Arrangement([a for a, _ in pairs], [b for _, b in pairs], denominator)
        at_right = convolve(at_right, jump_right)


class Point(NamedTuple):
    """M_2 and M_3 of an arrangement at a place of the segment."""

    place: Fraction
    two: Interval
    three: Interval


class TwoRows:
    """A channel whose row at any input is a mix of two rows, summed over clients.

    rows: two lists of whole weights; denominator: the sum of either; clients: how many draw their
    codes as agreed. Displacements are shares of the segment between the rows, 0 to 1.
    """

    def __init__(self, rows: list[list[int]], denominator: int, clients: int) -> None:
        if any((a == 0) != (b == 0) for a, b in zip(*rows, strict=True)):
            raise ValueError("a code that one row never sends")
        used = [k for k in range(len(rows[0])) if rows[0][k]]
        self.rows, self.denominator, self.clients = rows, denominator, clients
        # The client's own code bounds (b - a)/Q of every sum (data processing).
        self.ratio = max(
            Fraction(abs(rows[1][k] - rows[0][k]), min(rows[0][k], rows[1][k])) for k in used
        )
        self.arrangements = list(arrangements(rows, denominator, clients))
        every = [[a.moments(p, range(2, 4)) for p in range(PARTS + 1)] for a in self.arrangements]
        ends = [[a.moments(p, range(4, 7)) for p in (0, PARTS)] for a in self.arrangements]
        m = self._interval
        #: M_2 and M_3 of each arrangement at PARTS + 1 points of the segment.
        self.grid = [
            [Point(Fraction(p, PARTS), m(two, 2), m(three, 3)) for p, (two, three) in enumerate(points)]
            for points in every
        ]
        self.second = largest(*(point.two for points in self.grid for point in points))
        self.even = largest(*(m(four, 4) for pair in ends for four, _, _ in pair))
        self.sixth = largest(*(m(six, 6) for pair in ends for _, _, six in pair))
        self.fifth = largest(*(abs(m(five, 5)) for pair in ends for _, five, _ in pair))
        self.fourth = largest(
            *(self._fourth(p, [m(f[0], 4) for f in pair]) for p, pair in zip(self.grid, ends, strict=True))
        )

    def _interval(self, total: int, order: int, tilt: int = 0) -> Interval:
        """A computed moment, with the errors of laws and ratios and what was left out.

        Laws are off by e <= 6 n 2^-203, ratios by (2 + R) e 2^KEPT + 2^-POINT, R the largest one, so
        all terms together by less than (order + tilt + 2)(1 + R)^(order + tilt + 1) n 2^-102; at
        most n m outcomes were left out, each of which adds 2^-95 (1 + R)^(order + tilt) or less.
        """
        shift = SCALE + order * POINT
        slack = self._slack(order + tilt) << shift - 94
        low, high = ((Decimal(total + way * slack), Decimal(1 << shift)) for way in (-1, 1))
        return Interval(DOWN.divide(*low), UP.divide(*high))

    @lru_cache  # noqa: B019
    def _slack(self, order: int) -> int:
        size = self.clients * len(self.rows[0]) * (order + 3)
        return math.ceil((size * power(1 + interval(self.ratio), order + 2)).high)

    def _fourth(self, points: list[Point], fourths: list[Interval]) -> Interval:
        """martingale.md, Proposition 4: |M_4 - 3 M_2^2| on the segment, from its ends."""
        ends = (points[0].two, points[-1].two)
        values = [abs(four - 3 * two * two) for four, two in zip(fourths, ends, strict=True)]
        third = largest(*(abs(point.three) for point in points))
        slope = 3 * self.fifth + 6 * largest(*ends) * third
        return largest(*values) + slope / 2

    @lru_cache  # noqa: B019 - there are few channels
    def third(self, longest: Interval) -> Interval:
        """martingale.md, Proposition 4: the largest |D M_3(p') - 3 D^2 M_2(p')^2|, |D| <= longest.

        The parts of the segment with the largest bounds are halved until one of a fine grid is
        first: M_3'' = 6 M_5 and M_2'' = 2 M_4 say how far M_3 and M_2 are from their chords.
        """
        chord = Fraction(1, 8 * PARTS**2)
        bends = hull(0, -2 * chord * self.even), hull(-1, 1) * 6 * chord * self.fifth

        def point(points: list[Point], place: int) -> Point:
            k, share = divmod(place, FINER)
            if not share:
                return points[k]
            a, b = points[k], points[k + 1]
            two, three = (
                (x * (FINER - share) + y * share) / FINER + bend
                for x, y, bend in ((a.two, b.two, bends[0]), (a.three, b.three, bends[1]))
            )
            return Point(Fraction(place, FINER * PARTS), two, three)

        def node(k: int, low: int, high: int) -> tuple[Decimal, int, int, int]:
            bound = _part(point(self.grid[k], low), point(self.grid[k], high), longest)
            return -bound.high, k, low, high

        heap = [
            node(k, p * FINER, (p + 1) * FINER) for k in range(len(self.grid)) for p in range(PARTS)
        ]
        heapq.heapify(heap)
        while heap[0][3] - heap[0][2] > 1:
            _, k, low, high = heapq.heappop(heap)
            middle = (low + high) // 2
            heapq.heappush(heap, node(k, low, middle))
            heapq.heappush(heap, node(k, middle, high))
        return interval(-heap[0][0])

    @lru_cache  # noqa: B019
    def tilted(self, tilt: int) -> Interval:
        """The largest sum of s^6 Q (P/Q)^tilt, P and Q the two ends."""
        moments = (
            a.moments(p, range(6, 7), tilt)[0] for a in self.arrangements for p in (0, PARTS)
        )
        return largest(*(self._interval(m, 6, tilt) for m in moments))


def _part(a: Point, b: Point, longest: Interval) -> Interval:
    """Bound |D M_3 - 3 D^2 M_2^2| where p' is between two points and p' + D within [0, 1].

    M_3 falls from a to b; M_2 is convex, with the derivative -M_3.
    """
    zero, width = interval(0), b.place - a.place
    most = largest(a.two, b.two)
    least = largest(
        zero, a.two - largest(zero, a.three) * width, b.two - largest(zero, -b.three) * width
    )
    worst = zero
    for room, above, below in ((1 - a.place, a.three, b.three), (b.place, -b.three, -a.three)):
        d = interval(min(longest.high, interval(room).high))
        lowest = below * d - 3 * most * most * d * d  # concave in D: least at an end
        worst = largest(worst, -lowest, _peak(above, 3 * least * least, d))
    return worst


def _peak(slope: Interval, bend: Interval, end: Interval) -> Interval:
    """An upper bound of slope D - bend D^2 for 0 <= D <= end, bend >= 0."""
    if slope.high <= 0:
        return interval(0)
    highest = [(slope * end).high]
    if bend.low > 0:
        highest.append((slope * slope / (4 * bend)).high)
        if (slope / (2 * bend)).low >= end.high:  # it rises all the way
            highest.append((slope * end - bend * end * end).high)
    return interval(min(highest))


@dataclass(frozen=True)
class Steps:
    """All steps of one channel: in each round squared displacements add up to `square` at most.

    No displacement is longer than `longest`, which is at most 1.
    """

    channel: TwoRows
    square: Interval
    rounds: int
    longest: Interval

    @property
    def largest_share(self) -> Interval:
        return self.channel.second * self.longest * self.longest

    @property
    def energy(self) -> Interval:
        return self.channel.second * self.square * self.rounds

    @lru_cache  # noqa: B019
    def differences(self, t: Fraction, tilt: int) -> list[Interval]:
        """martingale.md, Proposition 3: bounds d_3 to d_6 of moments' differences over the share.

        tilt: a whole number that is at least t - 5, or 0 for t <= 5.
        """
        channel, d = self.channel, self.longest
        share = channel.second
        x = largest(self.largest_share, Fraction(1, 10**18))
        x = interval(x.high)
        per_share = log(1 + x)
        odds = max(Fraction(0), t - 5) / (7 * tilt) if tilt else Fraction(0)

        def lognormal(order: int, tilt: int = 0) -> Interval:
            """E (L - 1)^order L^tilt, L lognormal with mean 1 and variance x."""
            total = interval(0)
            for k in range(order + 1):
                term = power(1 + x, (tilt + k) * (tilt + k - 1) // 2)
                total = total + (-1) ** (order - k) * math.comb(order, k) * term
            return total

        sixth, sixth_of_lognormal = channel.sixth, lognormal(6)
        if tilt:
            sixth = (1 - odds) * sixth + odds * channel.tilted(tilt)
            sixth_of_lognormal = (1 - odds) * sixth_of_lognormal + odds * lognormal(6, tilt)
        return [
            channel.third(d) / share + power(x, 3) / per_share,
            power(d, 2) * channel.fourth / share + (lognormal(4) - 3 * x * x) / per_share,
            power(d, 3) * channel.fifth / share + lognormal(5) / per_share,
            power(d, 4) * sixth / share + sixth_of_lognormal / per_share,
        ]


def polynomial(order: int, t: Fraction) -> list[Fraction]:
    """martingale.md, Proposition 1: absolute coefficients of the product of X + 1 + t - i, i < k."""
    result = [Fraction(1)]
    for i in range(2, order):
        shifted = [Fraction(0), *result]
        result = [a + (1 + t - i) * b for a, b in zip(shifted, [*result, Fraction(0)], strict=True)]
    return [abs(c) for c in result]


def delta_at(
    steps: list[Steps],
    gaussian: Interval,
    epsilon: Number,
    t: Fraction,
    tilt: int,
    smoothing: Interval,
) -> Interval:
    """martingale.md, Proposition 5: an upper bound of delta of all steps and Gaussian noise beside.

    gaussian: the squared mu of the Gaussian noise; t >= 0 and smoothing (tau^2) are any numbers.
    """
    share = largest(*(s.largest_share for s in steps))
    end = gaussian + smoothing
    for s in steps:
        end = end + s.energy
    start, stop = smoothing - share.high, end - share.high
    assert start.low > 0, "smoothing must be more than one step's share"
    worst = [largest(*values) for values in zip(*(s.differences(t, tilt) for s in steps), strict=True)]
    top = density(0)
    tops = [top, density(1), top, interval(Fraction(5506, 10000)), 3 * top]
    rate, integral = interval(t * (1 + t) / 2), interval(0)
    for order, difference in enumerate(worst, 3):
        choose = Fraction(1)
        for i in range(order):
            choose *= (1 + t - i) / (i + 1)
        rate = rate + difference * abs(choose)
        for power_of_x, coefficient in enumerate(polynomial(order, t)):
            area = _area(start, stop, power_of_x)
            factor = difference * coefficient / math.factorial(order)
            integral = integral + factor * tops[power_of_x] * area
    return delta_of(end, epsilon) + exp(rate * end - t * interval(epsilon)) * integral


def _area(start: Interval, stop: Interval, k: int) -> Interval:
    """The integral of x^(-(k + 1)/2) from start to stop."""
    if k == 1:
        return log(stop / start)
    a, b = (sqrt(end) for end in (start, stop))
    if k == 0:
        return 2 * (b - a)
    return Fraction(2, k - 1) * (1 / power(a, k - 1) - 1 / power(b, k - 1))


def delta_of_steps(steps: list[Steps], gaussian: Interval, epsilon: Fraction) -> Decimal:
    """The least of delta_at over some t and smoothings: t is near the slope of log delta."""
    energy, share = gaussian, largest(*(s.largest_share for s in steps))
    for s in steps:
        energy = energy + s.energy
    slope = max(Fraction(1, 10), epsilon / Fraction(energy.high) - Fraction(1, 2))
    slope = min(Fraction(200), slope).limit_denominator(64)
    tilt = max(0, math.ceil(slope * Fraction(6, 5) - 5))

    def delta(t: Fraction, smoothing: Fraction) -> Decimal:
        return delta_at(steps, gaussian, epsilon, t, tilt, share.high + energy * smoothing).high

    tries = [(slope * k / 20, Fraction(3**j, 10**4)) for k in (16, 18, 20, 22) for j in range(7)]
    t, smoothing = min(tries, key=lambda pair: delta(*pair))
    tries = [(t * k / 40, smoothing * j / 20) for k in (38, 39, 40, 41, 42) for j in (14, 20, 28)]
    return min(delta(min(t, slope * 6 / 5), smoothing) for t, smoothing in tries)
