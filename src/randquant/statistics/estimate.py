"""Estimates with their errors: of the noise, of sampling, and an interval for both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from randquant._internal.formatting import round_down, round_up
from randquant.privacy.guarantee import Interval

NORMAL_HALF_WIDTH = 2.05
"""Half width of intervals, in standard deviations of normal noise: it holds 96 % of a normal law.
The 1 % above 95 % is a reserve for the error of the normal approximation; 1.96 leaves none."""

LAPLACE_HALF_WIDTH = 2.28
"""Half width of intervals, in standard deviations of Laplace noise, -log(0.04) / sqrt(2). Sums of
such noise are closer to normal, so that their intervals hold more than 96 %."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One number, estimated from noisy sums.

    Attributes:
        estimate: the number.
        noise_error: its standard deviation because of the noise.
        sampling_error: its standard deviation because the records are a sample.
        standard_error: of both together.
        interval: contains the population's value in at least 95 of 100 tables, according to
            simulations; the whole possible range if the noise hides everything.
        among_records: the interval for the value of these very records, of the noise alone.
    """

    estimate: float
    noise_error: float
    sampling_error: float
    interval: Interval
    among_records: Interval

    @property
    def standard_error(self) -> float:
        return math.hypot(self.noise_error, self.sampling_error)

    def __str__(self) -> str:
        return f"{self.estimate:.4g} ({ends(self.interval)})"


def ends(interval: Interval) -> str:
    """Write both ends of an interval, rounded outward.

    Example:
        >>> ends(Interval(0.12346, 0.12341 + 1)), ends(Interval(-math.inf, 0.0))
        ('0.1234 to 1.124', '-∞ to 0')
    """
    lower, upper = interval.lower, interval.upper
    low = round_down(lower, 4) if math.isfinite(lower) else "-∞"
    return f"{low} to {round_up(upper, 4) if math.isfinite(upper) else '∞'}"


@dataclass(frozen=True, slots=True, eq=False)
class Answer(Mapping[str, Estimate]):
    """The answer to one query: estimates by their labels, the most important one first.

    Attributes:
        estimates: by label.
        estimate, interval: of the first label.
        places: (k,) where a curve's estimates lie, such as times; None if it is not a curve.
        unit: of all estimates: `records`, `values` of the column, or `probability`; None if they
            have different units and cannot be compared.
    """

    estimates: dict[str, Estimate]
    places: tuple[float, ...] | None = None
    unit: Literal["records", "values", "probability"] | None = None

    @property
    def estimate(self) -> float:
        return self._first.estimate

    @property
    def interval(self) -> Interval:
        return self._first.interval

    @property
    def _first(self) -> Estimate:
        return next(iter(self.estimates.values()))

    def __getitem__(self, label: str) -> Estimate:
        return self.estimates[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)


@dataclass(frozen=True, slots=True)
class SumNoise:
    """The noise of a table's totals.

    Attributes:
        deviation: standard deviation of each total's noise, in steps.
        tail: half width of an interval in such deviations, for normal or Laplace noise.
    """

    deviation: float
    tail: float


def smooth(
    estimate: float,
    noise_error: float,
    sampling_error: float,
    noise: SumNoise,
    low: float = -math.inf,
    high: float = math.inf,
) -> Estimate:
    """Make an estimate with symmetric intervals, cut to the possible range from low to high.

    Example:
        >>> smooth(0.9, 0.1, 0.1, SumNoise(1.0, NORMAL_HALF_WIDTH), high=1.0).interval.upper
        1.0
    """
    noise_half = noise.tail * noise_error
    full_half = math.hypot(noise_half, NORMAL_HALF_WIDTH * sampling_error)
    ends = [Interval(_within(estimate - half, low, high), _within(estimate + half, low, high))
            for half in (full_half, noise_half)]  # fmt: skip
    return Estimate(_within(estimate, low, high), noise_error, sampling_error, *ends)


def ratio(
    numerator: float,
    denominator: float,
    squares: tuple[float, float, float],
    low: float,
    high: float,
) -> Interval:
    """Return Fieller's interval of a ratio.

    It holds all t with (numerator - t · denominator)^2 <= a + b·t + c·t^2: also right if the noise
    is as large as the denominator, where the ratio is far from normal.

    Args:
        numerator, denominator: noisy; the latter is a number of records, unknown if below a half.
        squares: a, b, c: the largest likely square of numerator - t · denominator at t.
        low, high: the smallest and the largest possible ratio, which the result is cut to, and
            which it is if the denominator may be zero.

    Example:
        >>> ratio(1.0, 2.0, (0.25, 0.0, 0.0), -1.0, 1.0)
        Interval(lower=0.25, upper=0.75)
    """
    a, b, c = squares
    # The inequality for t is q t^2 - 2 h t + r <= 0: an interval only if q > 0.
    q, h, r = denominator**2 - c, numerator * denominator + b / 2, numerator**2 - a
    discriminant = h * h - q * r
    if q <= 0 or denominator < 0.5 or discriminant < 0:
        return Interval(low, high)
    ends = ((h - math.sqrt(discriminant)) / q, (h + math.sqrt(discriminant)) / q)
    return Interval(*(_within(end, low, high) for end in ends))


def proportion(count: float, records: float, noise_error: float, noise: SumNoise) -> Interval:
    """Return Wilson's interval of a probability, times `records`, with noise on the count."""
    # (|count - records·p| - 1/2)^2 <= z^2 records·p(1 - p) + tail^2 noise^2: the half is the usual
    # continuity correction, since counts are whole numbers.
    z, n = NORMAL_HALF_WIDTH**2, records
    squares = ((noise.tail * noise_error) ** 2, z * n, -z * n)
    shifted = (_within(count + half, 0.0, n) for half in (-0.5, 0.5))
    lower, upper = (ratio(each, n, squares, 0.0, 1.0) for each in shifted)
    return Interval(lower.lower * n, upper.upper * n)


def _within(value: float, low: float, high: float) -> float:
    return float(min(max(value, low), high))


def count_estimate(
    noisy_count: float, noise_error: float, records: int, noise: SumNoise
) -> Estimate:
    """Estimate how many of a public number of records have a property."""
    count = min(max(noisy_count, 0.0), float(records))
    share = count / records if records else 0.0
    sampling = math.sqrt(records * share * (1 - share))
    noise_only = smooth(count, noise_error, 0.0, noise, 0.0, records).among_records
    both = proportion(noisy_count, records, noise_error, noise)
    return Estimate(count, noise_error, sampling, both, noise_only)
