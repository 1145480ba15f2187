"""Estimates with their errors: what noise adds, what sampling adds, and an interval of both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from randquant._internal.rounding import round_down, round_up
from randquant.privacy.guarantee import Interval

NORMAL = 2.05
"""Standard deviations on either side of 96 % of the normal law: 1 % is for what is not normal."""

LAPLACE = 2.28
"""The same of Laplace's law, -log(0.04) / sqrt(2); sums of such noise are closer to the normal."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One number, estimated from noisy sums.

    Attributes:
        estimate: the number.
        noise_error: standard deviation of what the noise changes it by.
        sampling_error: standard deviation of what another sample of records would change it by.
        interval: contains the number of the population that records are a sample of in at least
            95 of 100 tables, as simulations say; all that is possible where nothing is known.
        among_records: the same for the number of just these records: of the noise alone.
    """

    estimate: float
    noise_error: float
    sampling_error: float
    interval: Interval
    among_records: Interval

    @property
    def standard_error(self) -> float:
        """Of noise and sampling together."""
        return math.hypot(self.noise_error, self.sampling_error)

    def __str__(self) -> str:
        return f"{self.estimate:.4g} ({ends(self.interval)})"


def ends(interval: Interval) -> str:
    """Both ends of an interval, rounded outward.

    Example:
        >>> ends(Interval(0.12346, 0.12341 + 1)), ends(Interval(-math.inf, 0.0))
        ('0.1234 to 1.124', '-∞ to 0')
    """
    lower, upper = interval.lower, interval.upper
    low = round_down(lower, 4) if math.isfinite(lower) else "-∞"
    return f"{low} to {round_up(upper, 4) if math.isfinite(upper) else '∞'}"


@dataclass(frozen=True, slots=True, eq=False)
class Answer(Mapping[str, Estimate]):
    """What one query's answer is: estimates by their labels, the most important one first.

    Attributes:
        estimates: by label.
        places: (k,) where a curve's estimates lie, such as times; None of no curve.
        unit: of all estimates: `records`, `values` of the column, or `probability`; None if they
            differ, and cannot be compared.
    """

    estimates: dict[str, Estimate]
    places: tuple[float, ...] | None = None
    unit: Literal["records", "values", "probability"] | None = None

    @property
    def estimate(self) -> float:
        """Of the first one."""
        return self._first.estimate

    @property
    def interval(self) -> Interval:
        """Of the first one."""
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
        tail: how many of them an interval has on either side: NORMAL or LAPLACE.
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
    """An estimate with symmetric intervals, within what is possible at all.

    Example:
        >>> smooth(0.9, 0.1, 0.1, SumNoise(1.0, NORMAL), high=1.0).interval.upper
        1.0
    """
    both = math.hypot(noise.tail * noise_error, NORMAL * sampling_error)
    alone = noise.tail * noise_error
    ends = [Interval(_within(estimate - half, low, high), _within(estimate + half, low, high))
            for half in (both, alone)]  # fmt: skip
    return Estimate(_within(estimate, low, high), noise_error, sampling_error, *ends)


def ratio(
    numerator: float,
    denominator: float,
    squares: tuple[float, float, float],
    low: float,
    high: float,
) -> Interval:
    """Fieller's interval of a ratio: all t with (numerator - t · denominator)^2 <= a + b·t + c·t^2.

    Args:
        numerator, denominator: noisy; the latter is a number of records, of which half is none.
        squares: a, b, c: the largest likely square of numerator - t · denominator at t.
        low, high: the least and the largest ratio possible.

    Example:
        >>> ratio(1.0, 2.0, (0.25, 0.0, 0.0), -1.0, 1.0)
        Interval(lower=0.25, upper=0.75)
    """
    a, b, c = squares
    # q t^2 - 2 h t + r <= 0
    q, h, r = denominator**2 - c, numerator * denominator + b / 2, numerator**2 - a
    root = h * h - q * r
    if q <= 0 or denominator < 0.5 or root < 0:
        return Interval(low, high)
    ends = ((h - math.sqrt(root)) / q, (h + math.sqrt(root)) / q)
    return Interval(*(_within(end, low, high) for end in ends))


def proportion(count: float, records: float, noise_error: float, noise: SumNoise) -> Interval:
    """Wilson's interval of a probability, with noise on the count: in records, 0 to `records`."""
    # (|count - records·p| - 1/2)^2 <= z^2 records·p(1 - p) + tail^2 noise^2: the half is for steps.
    z, n = NORMAL**2, records
    squares = ((noise.tail * noise_error) ** 2, z * n, -z * n)
    near = (_within(count + step, 0.0, n) for step in (-0.5, 0.5))
    lower, upper = (ratio(each, n, squares, 0.0, 1.0) for each in near)
    return Interval(lower.lower * n, upper.upper * n)


def error(mixing: np.ndarray, gradient: np.ndarray, noise: SumNoise) -> float:
    """Standard deviation of gradient · (mixing @ noise)."""
    return noise.deviation * float(np.linalg.norm(gradient @ mixing))


def sampled(counts: np.ndarray, gradient: np.ndarray) -> float:
    """Standard deviation of gradient · counts of a multinomial sample, from its (noisy) counts."""
    counts = np.maximum(counts, 0.0)
    records = max(counts.sum(), 1.0)
    mean = float(gradient @ counts) / records
    return math.sqrt(float((gradient - mean) ** 2 @ counts))


def _within(value: float, low: float, high: float) -> float:
    return float(min(max(value, low), high))
