"""Means and covariances from noisy sums of numbers and their products."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from randquant.privacy.guarantee import Interval
from randquant.statistics.encodings import Products
from randquant.statistics.estimate import NORMAL, Estimate, ratio
from randquant.statistics.query import Totals

UNSEEN = 1.5
"""Standard deviations by which a sample's variance may be too low while its mean is off by two."""


@dataclass(frozen=True, slots=True)
class NoisyMoments:
    """Noisy sums over records of the products of (1, columns), the columns within -1 and 1.

    Attributes:
        sums: (p + 1, p + 1) symmetric.
        errors: (p + 1, p + 1) symmetric, standard deviations of independent noises: in the number
            of records [0, 0], the sums of columns, their products; and in the squares less half of
            the number of records.
        tail: how many of them an interval has on either side.
    """

    sums: np.ndarray
    errors: np.ndarray
    tail: float

    @classmethod
    def of(cls, totals: Totals, p: int) -> NoisyMoments:
        """Read the totals of `Products(p)`."""
        scales = Products(p).scales(totals.amplitude, totals.norm)
        values, noise = totals.values / scales, totals.noise.deviation / scales
        pairs, one = p * (p - 1) // 2, np.triu_indices(p + 1, 1)
        sums, errors = np.zeros((p + 1, p + 1)), np.zeros((p + 1, p + 1))
        sums[one], errors[one] = values[: p + pairs], noise[: p + pairs]
        present = totals.records - values[-1]
        squares = values[p + pairs : -1] + present / 2
        sums += sums.T + np.diag([present, *squares])
        errors += errors.T + np.diag([noise[-1], *noise[p + pairs : -1]])
        return cls(sums, errors, totals.noise.tail)

    @property
    def present(self) -> float:
        """How many records there are of which nothing is missing; at least one, to divide by."""
        return max(float(self.sums[0, 0]), 1.0)

    def mean(self, i: int) -> float:
        """Of a column, from 1 on."""
        return float(np.clip(self.sums[0, i] / self.present, -1.0, 1.0))

    def mean_estimate(self, i: int, middle: float, half: float) -> Estimate:
        """The mean of a column, from 1 on, in units of the column."""
        n, mean = self.present, self.mean(i)
        # theory/statistics.md, Proposition 7: each end with what may be unseen on its side.
        lower = self._mean_interval(i, self._centred(i, i, 1 + mean, UNSEEN).upper).lower
        upper = self._mean_interval(i, self._centred(i, i, 1 - mean, UNSEEN).upper).upper
        alone = self._mean_interval(i, 0.0)
        noisy = math.hypot(self.errors[0, i], mean * self.errors[0, 0]) / n
        return Estimate(
            middle + half * mean, half * noisy, half * math.sqrt(self._second(i, i) / n),
            Interval(middle + half * lower, middle + half * upper),
            Interval(middle + half * alone.lower, middle + half * alone.upper),
        )  # fmt: skip

    def covariance_estimate(self, i: int, j: int, unit: float) -> Estimate:
        """The covariance of two columns, or the variance of one, in these units."""
        n = self.present
        reach = self._reach(i, j)
        a, b, c = self._noise(i, j)
        value = self._second(i, j)
        noisy = math.sqrt(max(a + b * value + c * value**2, 0.0)) / (self.tail * n)
        ends = []
        for z in (NORMAL, 0.0):
            found = self._centred(i, j, reach, z)
            # theory/statistics.md, Proposition 7: the means are only estimated.
            off = self._off(i, z) * self._off(j, z)
            low, high = (0.0, 1.0) if i == j else (-1.0, 1.0)
            ends.append(Interval(
                unit * max(found.lower - off, low),
                unit * min(found.upper + (0.0 if i == j else off), high),
            ))  # fmt: skip
        sampling = reach * math.sqrt(max(value, 0.0) / n) if i == j else math.sqrt(reach / n)
        return Estimate(unit * value, unit * noisy, unit * sampling, *ends)

    def _second(self, i: int, j: int) -> float:
        """The covariance: the mean product around the means."""
        value = float(self._around(i, j)) / self.present
        return min(max(value, 0.0 if i == j else -1.0), 1.0)

    def _around(self, i: int, j: int) -> float:
        """Sum of the products around the means."""
        s, one, other = self.sums, self.mean(i), self.mean(j)
        return s[i, j] - other * s[0, i] - one * s[0, j] + one * other * s[0, 0]

    def _noise(self, i: int, j: int) -> tuple[float, float, float]:
        """a, b, c: a + b·t + c·t^2 is the likely square of the noise of `_around` less t · n."""
        e, one, other = self.errors, self.mean(i), self.mean(j)
        of_sums = (2 * one * e[0, i],) if i == j else (other * e[0, i], one * e[0, j])
        shift = one * other + 0.5 * (i == j)
        own, count = math.hypot(e[i, j], *of_sums, shift * e[0, 0]), e[0, 0] ** 2
        return self.tail**2 * own**2, -2 * self.tail**2 * shift * count, self.tail**2 * count

    def _centred(self, i: int, j: int, reach: float, z: float) -> Interval:
        """Of the mean product around the means as they are estimated, with z of sampling."""
        a, b, c = self._noise(i, j)
        more, around, low = z**2 * self.present, self._around(i, j), -float(i != j)
        if i == j:  # the variance of a squared deviation is at most reach^2 · t - t^2
            b, c, step = b + more * reach**2, c - more, reach**2 / 2
        else:
            a, step = a + more * reach, (1 + abs(self.mean(i))) * (1 + abs(self.mean(j))) / 2
        # Half of the largest product, for samples in which a few records count for all.
        n, near = self.sums[0, 0], np.array([-step, step]) * (z > 0) + around
        near = np.clip(near, low * self.present, self.present).tolist()
        lower, upper = (ratio(each, n, (a, b, c), low, 1.0) for each in near)
        return Interval(lower.lower, upper.upper)

    def _reach(self, i: int, j: int) -> float:
        """Of one column, its largest deviation; of two, the largest variance of their product."""
        ways = [1 + abs(self.mean(k)) for k in (i, j)]
        if i == j:
            return ways[0]
        one, other = (
            self._centred(k, k, way, UNSEEN).upper for k, way in zip((i, j), ways, strict=True)
        )
        return min(ways[0] ** 2 * other, ways[1] ** 2 * one)

    def _mean_interval(self, i: int, variance: float) -> Interval:
        sampling, e = NORMAL**2 * variance * self.present, self.tail * self.errors
        squares = e[0, i] ** 2 + sampling, 0.0, e[0, 0] ** 2
        # Half a deviation more, for samples whose sums come in steps.
        step = np.array([-0.5, 0.5]) * math.sqrt(variance)
        near = np.clip(self.sums[0, i] + step, -self.present, self.present).tolist()
        lower, upper = (ratio(each, self.sums[0, 0], squares, -1.0, 1.0) for each in near)
        return Interval(lower.lower, upper.upper)

    def _off(self, i: int, z: float) -> float:
        """How far the mean may be from its estimate."""
        variance = self._centred(i, i, 1 + abs(self.mean(i)), UNSEEN).upper if z else 0.0
        ends, mean = self._mean_interval(i, variance), self.mean(i)
        return max(mean - ends.lower, ends.upper - mean)
