"""Numbers that are known to lie between two decimals: every operation rounds outward.

The decimal module rounds +, -, *, / and square roots as its context says, and exp and ln to the
nearest decimal, whatever the context says (General Decimal Arithmetic Specification): of the
latter the neighbours on both sides are taken.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

DIGITS = 60
DOWN = decimal.Context(DIGITS, decimal.ROUND_FLOOR, Emin=-(10**9), Emax=10**9)
UP = decimal.Context(DIGITS, decimal.ROUND_CEILING, Emin=-(10**9), Emax=10**9)
for context in (DOWN, UP):
    context.clear_traps()
    for signal in (decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow):
        context.traps[signal] = True


@dataclass(frozen=True, slots=True)
class Interval:
    """A real number between `low` and `high`."""

    low: Decimal
    high: Decimal

    def __add__(self, other: Number) -> Interval:
        other = interval(other)
        return Interval(DOWN.add(self.low, other.low), UP.add(self.high, other.high))

    def __neg__(self) -> Interval:
        return Interval(self.high.copy_negate(), self.low.copy_negate())

    def __sub__(self, other: Number) -> Interval:
        return self + -interval(other)

    def __rsub__(self, other: Number) -> Interval:
        return interval(other) + -self

    def __mul__(self, other: Number) -> Interval:
        other = interval(other)
        if self.low >= 0 and other.low >= 0:
            return Interval(DOWN.multiply(self.low, other.low), UP.multiply(self.high, other.high))
        pairs = [(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(
            min(DOWN.multiply(a, b) for a, b in pairs), max(UP.multiply(a, b) for a, b in pairs)
        )

    def __truediv__(self, other: Number) -> Interval:
        other = interval(other)
        if other.low <= 0 <= other.high:
            raise ZeroDivisionError("a divisor that may be 0")
        inverse = Interval(DOWN.divide(1, other.high), UP.divide(1, other.low))
        return self * inverse

    def __rtruediv__(self, other: Number) -> Interval:
        return interval(other) / self

    __radd__ = __add__
    __rmul__ = __mul__

    def __abs__(self) -> Interval:
        high = max(abs(self.low), abs(self.high))
        crosses = self.low <= 0 <= self.high
        return Interval(Decimal(0) if crosses else min(abs(self.low), abs(self.high)), high)


Number = Interval | Decimal | Fraction | int


def interval(value: Number) -> Interval:
    """The narrowest interval of decimals that holds an exact number."""
    if isinstance(value, Interval):
        return value
    if isinstance(value, Fraction):
        top, bottom = Decimal(value.numerator), Decimal(value.denominator)
        return Interval(DOWN.divide(top, bottom), UP.divide(top, bottom))
    exact = Decimal(value)
    return Interval(DOWN.plus(exact), UP.plus(exact))


def hull(*values: Number) -> Interval:
    """The least interval that holds all of these."""
    all_of_them = [interval(value) for value in values]
    return Interval(min(v.low for v in all_of_them), max(v.high for v in all_of_them))


def largest(*values: Number) -> Interval:
    all_of_them = [interval(value) for value in values]
    return Interval(max(v.low for v in all_of_them), max(v.high for v in all_of_them))


def smallest(*values: Number) -> Interval:
    """The bound that is least from above."""
    return min(map(interval, values), key=lambda value: value.high)


def exp(value: Number) -> Interval:
    value = interval(value)
    low, high = DOWN.exp(value.low), UP.exp(value.high)
    return Interval(max(Decimal(0), DOWN.next_minus(low)), UP.next_plus(high))


def log(value: Number) -> Interval:
    value = interval(value)
    if value.low <= 0:
        raise ValueError("the logarithm of a number that may be 0")
    return Interval(DOWN.next_minus(DOWN.ln(value.low)), UP.next_plus(UP.ln(value.high)))


def sqrt(value: Number) -> Interval:
    value = interval(value)
    low, high = DOWN.sqrt(max(value.low, Decimal(0))), UP.sqrt(value.high)
    return Interval(max(Decimal(0), DOWN.next_minus(low)), UP.next_plus(high))


def power(base: Number, exponent: int) -> Interval:
    """A whole power by squaring."""
    result, base = interval(1), interval(base)
    while exponent:
        if exponent & 1:
            result = result * base
        base, exponent = base * base, exponent >> 1
    return result


@lru_cache
def pi() -> Interval:
    """By Machin's formula 16 arctan(1/5) - 4 arctan(1/239), each an alternating series."""

    def arctan(whole: int) -> Interval:
        terms = [Fraction((-1) ** k, (2 * k + 1) * whole ** (2 * k + 1)) for k in range(90)]
        return hull(sum(terms), sum(terms[:-1]))

    return 16 * arctan(5) - 4 * arctan(239)


def density(x: Number) -> Interval:
    """The normal density."""
    x = interval(x)
    return exp(-(x * x) / 2) / sqrt(2 * pi())


def upper_tail(x: Number) -> Interval:
    """P(Z > x) of a normal variable Z, which falls with x.

    Density over tail rises, more slowly than x (Sampford 1953), from 0.8 at 0: over a width w the
    tail falls by w (x + 1) of itself at most, x the end, or by w if that is negative.
    """
    x = interval(x)
    tail, width = _tail_at(x.low), UP.subtract(x.high, x.low)
    kept = 1 - width * (1 + largest(0, x.high))
    return Interval(DOWN.multiply(tail.low, max(Decimal(0), kept.low)), tail.high)


@lru_cache(2**14)
def _tail_at(x: Decimal) -> Interval:
    """The tail at one number: Laplace's series in whole numbers of 2^-320; far out by its fraction.

    From 0 to x the density integrates to phi(x) (x + x^3/3 + x^5/(3*5) + ...): positive terms,
    rounded down. What a rounding costs grows as they do, by e^(x^2/2) < 2^104 at most, and where
    the loop ends, after fewer than 2^9 terms, the rest halves at least: 2^130 units cover all.
    """
    if x < 0:
        return 1 - _tail_at(-x)
    if x > 12:
        return density(x) * hull(_mills_ratio(x, 24), _mills_ratio(x, 25))
    top, bottom = x.as_integer_ratio()
    term = total = (top << 320) // bottom
    square, odd = term * term >> 320, 1
    while term or odd << 320 < 2 * square:
        odd += 2
        term = term * square // (odd << 320)
        total += term
    ends = (DOWN.divide(total, 1 << 320), UP.divide(total + (1 << 130), 1 << 320))
    return interval(Fraction(1, 2)) - density(x) * Interval(*ends)


def _mills_ratio(x: Decimal, terms: int) -> Interval:
    """Of tail and density, x > 0: Laplace's continued fraction, whose ends are bounds by turns."""
    ratio = interval(x)
    for k in range(terms, 0, -1):
        ratio = x + k / ratio
    return 1 / ratio


def raised(base: int, exponent: int, point: int) -> int:
    """A power in units of 2^-point, rounded up by some units of itself."""
    result = 1 << point
    while exponent:
        if exponent & 1:
            result = (result * base >> point) + 1
        base, exponent = (base * base >> point) + 1, exponent >> 1
    return result
