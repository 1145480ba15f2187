"""Means and covariances from noisy sums of numbers and their products."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from randquant.privacy.guarantee import Interval
from randquant.statistics.encodings import Products
from randquant.statistics.estimate import NORMAL_HALF_WIDTH, Estimate, ratio
from randquant.statistics.query import Totals

VARIANCE_DEVIATIONS = 1.5
"""Deviations by which a mean's interval assumes that the sample's variance is too low (theory/
statistics.md, Proposition 7). If all values are equal, this is the only width of the interval: 1.5
excludes three expected records at the other bound, of which a sample has none in 5 of 100."""


@dataclass(frozen=True, slots=True)
class NoisyMoments:
    """Noisy sums over records of the products of (1, columns), the columns in [-1, 1].

    Index 0 is the constant 1, so [0, 0] is the number of records, [0, i] the sum of column i and
    [i, j] the sum of products.

    Attributes:
        sums: (p + 1, p + 1) symmetric.
        errors: (p + 1, p + 1) symmetric, standard deviations of independent noises. On the diagonal
            from 1 on, of the sum of squares less half of the number of records.
        tail: half width of an interval in such deviations.
    """

    sums: np.ndarray
    errors: np.ndarray
    tail: float

    @classmethod
    def from_totals(cls, totals: Totals, p: int) -> NoisyMoments:
        """Read the totals of `Products(p)`."""
        scales = Products(p).scales(totals.amplitude, totals.norm)
        values, noise = totals.values / scales, totals.noise.deviation / scales
        pairs, upper = p * (p - 1) // 2, np.triu_indices(p + 1, 1)
        sums, errors = np.zeros((p + 1, p + 1)), np.zeros((p + 1, p + 1))
        sums[upper], errors[upper] = values[: p + pairs], noise[: p + pairs]
        present = totals.records - values[-1]
        # Squares were sent less 1/2, which makes the integers smaller: put it back.
        squares = values[p + pairs : -1] + present / 2
        sums += sums.T + np.diag([present, *squares])
        errors += errors.T + np.diag([noise[-1], *noise[p + pairs : -1]])
        return cls(sums, errors, totals.noise.tail)

    @property
    def present(self) -> float:
        # Estimated, and at least 1, because sums are divided by it.
        return max(float(self.sums[0, 0]), 1.0)

    def mean(self, i: int) -> float:
        # Columns are counted from 1; a noisy ratio may lie beyond their bounds.
        return float(np.clip(self.sums[0, i] / self.present, -1.0, 1.0))

    def mean_estimate(self, i: int, middle: float, half: float) -> Estimate:
        """Estimate the mean of column i, in units of the column.

        Args:
            i: counted from 1.
            middle, half: middle and half width of the column's public bounds.
        """
        n, mean = self.present, self.mean(i)
        # theory/statistics.md, Proposition 7: the sample's variance is too low if it misses large
        # deviations on one side, so each end takes the largest likely variance for its own side.
        variances = [self._centred(i, i, 1 + side * mean, VARIANCE_DEVIATIONS).upper
                     for side in (1, -1)]  # fmt: skip
        lower = self._mean_interval(i, variances[0]).lower
        upper = self._mean_interval(i, variances[1]).upper
        noise_only = self._mean_interval(i, 0.0)
        noise_error = math.hypot(self.errors[0, i], mean * self.errors[0, 0]) / n
        return Estimate(
            middle + half * mean, half * noise_error, half * math.sqrt(self._covariance(i, i) / n),
            Interval(middle + half * lower, middle + half * upper),
            Interval(middle + half * noise_only.lower, middle + half * noise_only.upper),
        )  # fmt: skip

    def covariance_estimate(self, i: int, j: int, unit: float) -> Estimate:
        """Estimate the covariance of two columns, or the variance of one, as a multiple of unit."""
        n = self.present
        spread = self._spread(i, j)
        a, b, c = self._noise_square(i, j)
        value = self._covariance(i, j)
        noise_error = math.sqrt(max(a + b * value + c * value**2, 0.0)) / (self.tail * n)
        ends = []
        for z in (NORMAL_HALF_WIDTH, 0.0):
            around_means = self._centred(i, j, spread, z)
            # theory/statistics.md, Proposition 7: products are taken around estimated means, which
            # shifts them by the product of the errors of both means; a variance only upward.
            shift = self._mean_error(i, z) * self._mean_error(j, z)
            low, high = (0.0, 1.0) if i == j else (-1.0, 1.0)
            ends.append(Interval(
                unit * max(around_means.lower - shift, low),
                unit * min(around_means.upper + (0.0 if i == j else shift), high),
            ))  # fmt: skip
        sampling = spread * math.sqrt(max(value, 0.0) / n) if i == j else math.sqrt(spread / n)
        return Estimate(unit * value, unit * noise_error, unit * sampling, *ends)

    def _covariance(self, i: int, j: int) -> float:
        value = float(self._centred_sum(i, j)) / self.present
        return min(max(value, 0.0 if i == j else -1.0), 1.0)

    def _centred_sum(self, i: int, j: int) -> float:
        # The sum of the products of both columns' deviations from their estimated means.
        s, mean_i, mean_j = self.sums, self.mean(i), self.mean(j)
        return s[i, j] - mean_j * s[0, i] - mean_i * s[0, j] + mean_i * mean_j * s[0, 0]

    def _noise_square(self, i: int, j: int) -> tuple[float, float, float]:
        """Return a, b, c of the largest likely square of the noise of `_centred_sum` less t · n.

        It is a + b·t + c·t^2, as `ratio` takes it.
        """
        e, mean_i, mean_j = self.errors, self.mean(i), self.mean(j)
        sum_errors = (2 * mean_i * e[0, i],) if i == j else (mean_j * e[0, i], mean_i * e[0, j])
        # The weight of the number of records: squares have half of it in them.
        weight = mean_i * mean_j + 0.5 * (i == j)
        deviation = math.hypot(e[i, j], *sum_errors, weight * e[0, 0])
        count = e[0, 0] ** 2
        return self.tail**2 * deviation**2, -2 * self.tail**2 * weight * count, self.tail**2 * count

    def _centred(self, i: int, j: int, spread: float, z: float) -> Interval:
        """Return the interval of the mean product around estimated means, z deviations wide.

        Args:
            i, j: columns.
            spread: see `_spread`.
            z: deviations of sampling; 0 for the noise alone.
        """
        a, b, c = self._noise_square(i, j)
        sampling, total, low = z**2 * self.present, self._centred_sum(i, j), -float(i != j)
        if i == j:  # the variance of a squared deviation is at most spread^2 · t - t^2
            b, c, correction = b + sampling * spread**2, c - sampling, spread**2 / 2
        else:
            a += sampling * spread
            correction = (1 + abs(self.mean(i))) * (1 + abs(self.mean(j))) / 2
        # Where a few far records make up the whole sum it grows in large steps: half of the largest
        # product is what the continuity correction of 1/2 is for counts.
        n, shifted = self.sums[0, 0], np.array([-correction, correction]) * (z > 0) + total
        shifted = np.clip(shifted, low * self.present, self.present).tolist()
        lower, upper = (ratio(numerator, n, (a, b, c), low, 1.0) for numerator in shifted)
        return Interval(lower.lower, upper.upper)

    def _spread(self, i: int, j: int) -> float:
        """Return one column's largest deviation, or the largest variance of two columns' product.

        Both hold for every distribution within the bounds.
        """
        largest = [1 + abs(self.mean(k)) for k in (i, j)]
        if i == j:
            return largest[0]
        variance_i, variance_j = (
            self._centred(k, k, deviation, VARIANCE_DEVIATIONS).upper
            for k, deviation in zip((i, j), largest, strict=True)
        )
        return min(largest[0] ** 2 * variance_j, largest[1] ** 2 * variance_i)

    def _mean_interval(self, i: int, variance: float) -> Interval:
        sampling, e = NORMAL_HALF_WIDTH**2 * variance * self.present, self.tail * self.errors
        squares = e[0, i] ** 2 + sampling, 0.0, e[0, 0] ** 2
        # Half a deviation more: sums of columns with few different values grow in large steps.
        correction = np.array([-0.5, 0.5]) * math.sqrt(variance)
        shifted = np.clip(self.sums[0, i] + correction, -self.present, self.present).tolist()
        lower, upper = (ratio(each, self.sums[0, 0], squares, -1.0, 1.0) for each in shifted)
        return Interval(lower.lower, upper.upper)

    def _mean_error(self, i: int, z: float) -> float:
        # The largest likely error of the estimated mean; without sampling if z is 0.
        largest = 1 + abs(self.mean(i))
        variance = self._centred(i, i, largest, VARIANCE_DEVIATIONS).upper if z else 0.0
        ends, mean = self._mean_interval(i, variance), self.mean(i)
        return max(mean - ends.lower, ends.upper - mean)
