"""Sums of channels with two rows (one noisy bit a coordinate, say) against Gaussian noise.

martingale.md: delta of a run is E_Q[(R - K)_+], K = e^epsilon, R the likelihood ratio. Step by step
(a coordinate of a round) the ratio of the step is replaced by a lognormal variable of the same
variance, and what that may cost is bounded by the ratio's moments of orders 3 to 6.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, Overflow
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

from .curves import products
from .gaussian import delta_of
from .intervals import (
    DOWN,
    UP,
    Interval,
    density,
    exp,
    interval,
    largest,
    log,
    power,
    raised,
    smallest,
    sqrt,
    upper_tail,
)
from .rows import EXACT, Spread, sums_of

SCALE = 224  # probabilities are whole numbers of 2^-SCALE, rounded down
POINT = 128  # ratios are whole numbers of 2^-POINT
ENDS = (Fraction(0), Fraction(1))  # of the segment between the rows
KEPT = 96  # outcomes less likely than 2^-KEPT are left out, and paid for


def convolve(a: list[int], b: list[int]) -> list[int]:
    """The law of a sum, from its first entry above 2^-204 to its last; others above become 0.

    To the errors of both laws each entry adds less than 2^-203; all are lowered.
    """
    entries = (entry >> SCALE for entry in products(a, b, 1 << SCALE))
    law = [entry if entry >> 20 else 0 for entry in entries]
    first = next(k for k, entry in enumerate(law) if entry)
    last = next(k for k, entry in enumerate(reversed(law)) if entry)
    return law[first : len(law) - last]


def laws_of_sums(row: list[int], counts: list[int]) -> list[list[int]]:
    """Laws of sums of so many codes, in rising order, each from the one before.

    Errors of entries are below 2 count 2^-203, whatever is added to what (induction).
    """

    @lru_cache
    def law_of(count: int) -> list[int]:
        if count < 2:
            return row if count else [1 << SCALE]
        return convolve(law_of(count // 2), law_of(count - count // 2))

    found = [law_of(counts[0])]
    for before, count in itertools.pairwise(counts):
        found.append(convolve(found[-1], law_of(count - before)))
    return found


@dataclass(frozen=True)
class Arrangement:
    """What the sum of some others' codes says: laws with the client at either end of the segment.

    `low` and `high` are in units of 2^-SCALE / denominator; outcomes below 2^-KEPT are left out.
    """

    low: list[int]
    high: list[int]
    denominator: int

    def moments(self, place: Fraction, orders: range, tilt: int = 0) -> list[int]:
        """Sums of s^j Q (1 +- s)^tilt, s = (b - a)/Q, Q the law at a place of the segment.

        In units of 2^-SCALE. With a tilt Q must be an end, and P is the other end.
        """
        part, parts = place.as_integer_ratio()
        sums = [0] * len(orders)
        one = 1 << POINT
        for a, b in zip(self.low, self.high, strict=True):
            q = (parts - part) * a + part * b
            s = (parts * (b - a) << POINT) // q
            term = q
            if tilt:
                term = q * raised(one - s if part else one + s, tilt, POINT) >> POINT
            for _ in range(orders[0]):
                term = term * s >> POINT
            for k in range(len(orders)):
                sums[k] += term
                term = term * s >> POINT
        return [total // (parts * self.denominator) for total in sums]


def arrangements(rows: tuple, denominator: int, clients: int) -> Iterator[Arrangement]:
    """martingale.md, Proposition 2: i of the others at the right end, the rest at the left.

    If there are many, those with i to i + block - 1 at the right count as i there and block - 1
    clients fewer (sums.md, Proposition 2); the farther from the ends, the more together.
    """
    unit = (1 << SCALE) // denominator
    left, right = ([weight * unit for weight in row] for row in rows)
    others, steps = clients - 1, [(0, 1)]
    last = others // 2 if rows[0] == rows[1][::-1] else others  # codes may be mirrored
    while (i := sum(steps[-1])) <= last:
        steps.append((i, 1 + min(i, others - i) // 64))
    at_left = [max(0, others - i - block + 1) for i, block in reversed(steps)]
    laws = zip(
        laws_of_sums(right, [i for i, _ in steps]),
        reversed(laws_of_sums(left, at_left)),
        strict=True,
    )
    for law in itertools.starmap(convolve, laws):
        low, high = ([0] * (len(law) + len(left) - 1) for _ in rows)
        for row, total in zip(rows, (low, high), strict=True):
            for code, weight in enumerate(row):
                if weight:
                    for place, mass in enumerate(law):
                        total[place + code] += weight * mass
        least = denominator << SCALE - KEPT
        pairs = [(a, b) for a, b in zip(low, high, strict=True) if a > least and b > least]
        yield Arrangement([a for a, _ in pairs], [b for _, b in pairs], denominator)


class TwoRows:
    """A channel whose row at any input is a mix of two rows, summed over clients.

    rows: two tuples of whole weights; denominator: the sum of either; clients: how many draw their
    codes as agreed. Displacements are shares of the segment between the rows, 0 to 1.
    """

    def __init__(self, rows: tuple[tuple[int, ...], ...], denominator: int, clients: int) -> None:
        if any((a == 0) != (b == 0) for a, b in zip(*rows, strict=True)):
            raise ValueError("a code that one row never sends")
        used = [k for k in range(len(rows[0])) if rows[0][k]]
        # More clients hide more (vector-sums.md, Proposition 1): this is a limit of time.
        clients = min(clients, max(1, 20_000 // (len(rows[0]) - 1)))
        self.rows, self.denominator, self.clients = rows, denominator, clients
        # The client's own code bounds (b - a)/Q of every sum (data processing).
        ratios = (Fraction(abs(rows[1][k] - rows[0][k]), min(r[k] for r in rows)) for k in used)
        self.ratio = interval(max(Fraction(1, 2**40), *ratios))
        self.arrangements = list(arrangements(rows, denominator, clients))
        self.parts = max(8, min(128, 8192 // clients))
        places = [Fraction(p, self.parts) for p in range(self.parts + 1)]
        #: M_2 and M_3 of each arrangement at places of the segment.
        self.grid = self._moments(places, range(2, 4))
        ends = self._moments(ENDS, range(4, 7))
        self.second = largest(*(two for points in self.grid for two, _ in points))
        self.fifth = largest(*(abs(five) for pair in ends for _, five, _ in pair))
        self.sixth = largest(*(six for pair in ends for _, _, six in pair))
        # |M_4 - 3 M_2^2| on the segment: its ends, and half of a bound of its derivative.
        third = largest(*(abs(three) for points in self.grid for _, three in points))
        worst_end = interval(0)
        for points, pair in zip(self.grid, ends, strict=True):
            for (two, _), (four, _, _) in zip(points[:: self.parts], pair, strict=True):
                worst_end = largest(worst_end, abs(four - 3 * two * two))
        self.fourth = worst_end + (3 * self.fifth + 6 * self.second * third) / 2

    def _moments(self, places: Sequence[Fraction], orders: range, tilt: int = 0) -> list:
        """Of each arrangement, at each place, in each order."""
        return [
            [
                [self._interval(m, j, tilt) for j, m in zip(orders, row, strict=True)]
                for row in (arrangement.moments(place, orders, tilt) for place in places)
            ]
            for arrangement in self.arrangements
        ]

    def _interval(self, total: int, order: int, tilt: int = 0) -> Interval:
        """A computed moment, with the errors of laws and ratios and what was left out.

        Laws are off by e <= 6 n 2^-203 and ratios by (2 + R) e 2^KEPT + 2^-POINT, R the largest
        one, so terms together by less than (order + tilt + 1)(1 + R)^(tilt + 2) R^(order - 1) n
        2^-99; n m outcomes at most were left out, each of 2^-95 R^order (1 + R)^(tilt + 1) or less.
        """
        slack = math.ceil(self._slack(order, tilt) * (1 << SCALE - 94))
        low, high = ((Decimal(total + way * slack), Decimal(1 << SCALE)) for way in (-1, 1))
        return Interval(DOWN.divide(*low), UP.divide(*high))

    @lru_cache  # noqa: B019
    def _slack(self, order: int, tilt: int) -> Fraction:
        size = self.clients * len(self.rows[0]) * (order + tilt + 3)
        return Fraction(
            (size * power(1 + self.ratio, tilt + 2) * power(self.ratio, order - 1)).high
        )

    @lru_cache  # noqa: B019
    def third(self, longest: Interval) -> Interval:
        """martingale.md, Proposition 4: the largest |D M_3(p') - 3 D^2 M_2(p')^2|, |D| <= longest.

        In each part of the segment M_3 falls, and M_2 is convex with the derivative -M_3; p' and
        p' + D are in [0, 1].
        """
        worst = zero = interval(0)
        for points in self.grid:
            for k in range(self.parts):
                (two_a, three_a), (two_b, three_b) = points[k : k + 2]
                least = two_a - largest(zero, three_a) / self.parts
                least = largest(zero, least, two_b - largest(zero, -three_b) / self.parts)
                bend, most = 3 * least * least, largest(two_a, two_b)
                ways = ((self.parts - k, three_a, three_b), (k + 1, -three_b, -three_a))
                for room, above, below in ways:
                    d = smallest(longest, Fraction(room, self.parts))
                    # Concave in D: least at an end, and at most its largest value anywhere.
                    worst = largest(worst, 3 * most * most * d * d - below * d)
                    if above.high > 0:
                        worst = largest(worst, _peak(above, bend, d))
        return worst

    @lru_cache  # noqa: B019
    def like_gaussian(self, rare: int) -> Interval:
        """verifier.md, Proposition 2: c, of two codes, of tests likelier than 2^-rare.

        A test "at most j" has errors A and 1 - B with the client at either end, whose difference
        is that of the ends, p(j), against the least density of normal quantiles between.
        """
        worst = interval(0)
        # Each outcome that is left out has less than 2^-KEPT in one of the laws.
        error = self.clients * math.ceil((1 + self.ratio).high) << SCALE - KEPT + 2
        for arrangement in self.arrangements:
            one, total = arrangement.denominator, [0, 0]
            sums = [sum(arrangement.low), sum(arrangement.high)]
            for a, b in zip(arrangement.low, arrangement.high, strict=True):
                total = [total[0] + a, total[1] + b]
                least = min(*total, *(s - t for s, t in zip(sums, total, strict=True)))
                y = least // one - error
                if y > 1 << SCALE - rare:
                    gap = abs(total[0] - total[1]) // one + error
                    if gap << SCALE > quantile_density_near(y) * math.floor(worst.high * 2**SCALE):
                        y, gap = Fraction(y, 1 << SCALE), Fraction(gap, 1 << SCALE)
                        worst = largest(worst, gap / quantile_density(y))
        return worst

    @lru_cache  # noqa: B019
    def tilted(self, tilt: int) -> Interval:
        """The largest sum of s^6 Q (P/Q)^tilt, P and Q the two ends."""
        moments = self._moments(ENDS, range(6, 7), tilt)
        return largest(*(six for pair in moments for (six,) in pair))


def quantile_density(y: Fraction) -> Interval:
    """The least of the normal density at the quantiles of y and more, up to 1 - y; from below."""
    z, more = Decimal(-NormalDist().inv_cdf(min(0.5, float(y)))), Decimal("1e-15")
    while upper_tail(z + more).high > y:
        more *= 2
    return density(z + more)


@lru_cache
def quantile_densities() -> tuple[list[int], list[int]]:
    """Tails, rounded up, and densities, rounded down, from far out to 0: in units of 2^-SCALE."""
    ends = [(upper_tail(Fraction(k, 64)), density(Fraction(k, 64))) for k in range(768, -1, -1)]
    tails = [math.ceil(tail.high * 2**SCALE) for tail, _ in ends]
    return [0, *tails], [0, *(math.floor(top.low * 2**SCALE) for _, top in ends)]


def quantile_density_near(y: int) -> int:
    """Below quantile_density, which is concave: chords of points that are below it."""
    tails, tops = quantile_densities()
    k = min(bisect.bisect_right(tails, y), len(tails) - 1)
    share = (tops[k] - tops[k - 1]) * (min(y, tails[k]) - tails[k - 1]) // (tails[k] - tails[k - 1])
    return tops[k - 1] + share


def _peak(slope: Interval, bend: Interval, end: Interval) -> Interval:
    """An upper bound of slope D - bend D^2 for 0 <= D <= end, bend >= 0."""
    highest = [(slope * end).high]
    if bend.low > 0:
        highest.append((slope * slope / (4 * bend)).high)
        if (slope / (2 * bend)).low >= end.high:  # it rises all the way
            highest.append((slope * end - bend * end * end).high)
    return interval(min(highest))


@dataclass(frozen=True)
class Steps:
    """All steps of one channel: in each round squared displacements add up to `square` at most.

    No displacement is longer than `longest`, which is at most 1, and there are `sent` of them.
    fixed: the place between the rows where one end of all displacements is, if there is one.
    """

    channel: TwoRows
    square: Interval
    rounds: int
    longest: Interval
    sent: int
    fixed: Fraction | None = None

    @property
    def pure(self) -> Interval:
        """accounting.md, Proposition 6: log-likelihoods change by R a unit, in all `sent` steps.

        By at most log(1 + R) each; displacements add up to sqrt(sent square) at most.
        """
        ratio = self.channel.ratio
        by_length = ratio * sqrt(self.sent * self.square)
        every = self.sent * log(1 + ratio)
        return self.rounds * interval(min(by_length.high, every.high))

    def squared_mu(self, delta: Fraction) -> tuple[Interval, Fraction]:
        """verifier.md, Proposition 2: Gaussian noise like it, and what that misses of delta."""
        count = self.sent * self.rounds
        rare = min(64, math.ceil(math.log2(count / max(float(delta), 1e-12))) + 36)
        one = self.channel.like_gaussian(rare)
        missed = Fraction(4 * count * math.ceil((1 + self.channel.ratio).high), 2**rare)
        return one * one * self.square * self.rounds, missed

    @property
    def spread(self) -> Spread:
        """The same, to be bounded by Renyi divergences."""
        tables = sums_of(ENDS, self.channel.rows, min(self.channel.clients, EXACT), self.fixed)
        return Spread(tables, self.square * self.rounds, self.longest, self.pure, self.fixed)

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
    """martingale.md, Proposition 1: absolute coefficients of the product of all X + 1 + t - i."""
    result = [Fraction(1)]
    for i in range(2, order):
        shifted = [Fraction(0), *result]
        result = [a + (1 + t - i) * b for a, b in zip(shifted, [*result, Fraction(0)], strict=True)]
    return [abs(c) for c in result]


def delta_at(
    steps: list[Steps],
    gaussian: Interval,
    epsilon: Fraction,
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
    if start.low <= 0:  # moments that are known too roughly for any smoothing
        return interval(1)
    worst = [
        largest(*values) for values in zip(*(s.differences(t, tilt) for s in steps), strict=True)
    ]
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


def delta_of_steps(
    steps: list[Steps], gaussian: Interval, epsilon: Fraction, near: Fraction
) -> Decimal:
    """The least of delta_at over some t and smoothings: t is log delta's slope, about `near`."""
    energy, share = gaussian, largest(*(s.largest_share for s in steps))
    for s in steps:
        energy = energy + s.energy
    slope = max(Fraction(1, 10), near / Fraction(energy.high) - Fraction(1, 2))
    slope = min(Fraction(200), slope).limit_denominator(64)
    tilt = max(0, math.ceil(slope * Fraction(6, 5) - 5))

    def delta(t: Fraction, smoothing: Fraction) -> Decimal:
        added = share.high + energy * smoothing
        try:
            return delta_at(steps, gaussian, epsilon, t, tilt, added).high
        except (Overflow, OverflowError):
            return Decimal(1)

    tries = [(slope * k / 20, Fraction(3**j, 10**4)) for k in (16, 18, 20, 22) for j in range(7)]
    t, smoothing = min(tries, key=lambda pair: delta(*pair))
    finer = itertools.product((38, 39, 40, 41, 42), (14, 20, 28))
    tries = [(min(t * k / 40, slope * 6 / 5), smoothing * j / 20) for k, j in finer]
    return min(itertools.starmap(delta, tries))
