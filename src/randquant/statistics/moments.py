"""Means, covariances and linear regression, from noisy sums of columns and their products."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from randquant._internal import validate
from randquant.privacy.guarantee import Interval
from randquant.statistics import query
from randquant.statistics.query import (
    NORMAL_HALF_WIDTH,
    Answer,
    Estimate,
    Products,
    Totals,
    count_estimate,
    ratio,
    smooth,
)

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


@final
@dataclass(frozen=True, slots=True)
class Mean:
    """Mean, standard deviation and number of the values of a column.

    Args:
        low, high: public bounds. A value beyond them counts as the nearer one.
        column: by default the query's name.

    A missing value is left out, and counted: `present` estimates how many are not missing.

    Example:
        >>> import numpy as np, randquant as rq
        >>> ages = [{"age": age} for age in np.linspace(20, 80, 5000)]
        >>> table = rq.statistics(ages, epsilon=1, delta=1e-6, queries={"age": rq.Mean(0, 100)})
        >>> list(table["age"]), bool(abs(table["age"].estimate - 50) < 2)
        (['mean', 'deviation', 'present'], True)
    """

    low: float
    high: float
    column: str = ""

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        query.bounds("a mean", self.low, self.high)

    def named(self, name: str, queries: Mapping[str, query.Query]) -> Mean:
        return replace(self, column=self.column or name)

    def block(self) -> Products:
        return Products(1)

    def rows(self, columns: query.Columns) -> np.ndarray:
        """Scale the column to [-1, 1]: (n, 1) float64."""
        values = query.numbers(columns[self.column], self.column)
        return query.scaled(values, self.low, self.high)[:, None]

    def answer(self, totals: query.Totals) -> Answer:
        """Estimate mean and deviation by ratios to the noisy number of present values."""
        moments = NoisyMoments.from_totals(totals, 1)
        half, middle = (self.high - self.low) / 2, (self.low + self.high) / 2
        present = float(moments.sums[0, 0])
        return Answer(
            {
                "mean": moments.mean_estimate(1, middle, half),
                "deviation": _square_root(moments.covariance_estimate(1, 1, 1.0), half),
                "present": count_estimate(
                    present, moments.errors[0, 0], totals.records, totals.noise
                ),
            }
        )


def _square_root(variance: Estimate, scale: float) -> Estimate:
    root = math.sqrt(variance.estimate)

    def error(variance_error: float) -> float:
        # The derivative is useless near zero, where a root changes by at most the root of what its
        # square changes by.
        return scale * min(variance_error / (2 * max(root, 1e-9)), math.sqrt(variance_error))

    ends = [Interval(scale * math.sqrt(each.lower), scale * math.sqrt(each.upper))
            for each in (variance.interval, variance.among_records)]  # fmt: skip
    return Estimate(
        scale * root, error(variance.noise_error), error(variance.sampling_error), *ends
    )


MAX_COLUMNS = 32
"""Largest number of columns of one query. A vector has an integer for each pair of columns, and the
distance of two records grows with the number of columns: 32 columns have 561 integers."""

MAX_NOISE_RATIO = 0.5
"""Largest noise in the features' matrix, relative to it, at which slopes are estimated. Errors are
divided by 1 less this ratio (theory/statistics.md, Proposition 10): at 1 features may be collinear
as far as the table knows."""

Bounds = Mapping[str, Sequence[float]]
"""Columns with their public bounds, (low, high) each. A value beyond them counts as the nearer."""


@final
@dataclass(frozen=True, slots=True)
class Covariance:
    """Variances and covariances of a few columns.

    Args:
        columns: public bounds by column. A record in which any of them is missing is left out.

    Labels are the column for a variance, or two columns joined by ", " for their covariance.

    Example:
        >>> import numpy as np, randquant as rq
        >>> x = np.random.default_rng(0).normal(size=(50000, 2)) @ [[1, 0.5], [0, 1]]
        >>> pair = {"xy": rq.Covariance({"x": (-5, 5), "y": (-5, 5)})}
        >>> data = [{"x": x[:, 0], "y": x[:, 1]}]
        >>> table = rq.statistics(data, epsilon=1, queries=pair, trust="central", unit="example")
        >>> bool(abs(table["xy"]["x, y"].estimate - 0.5) < 0.05)
        True
    """

    columns: Bounds

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _checked(self.columns))

    def named(self, name: str, queries: Mapping[str, query.Query]) -> Covariance:
        return self

    def block(self) -> Products:
        return Products(len(self.columns))

    def rows(self, columns: query.Columns) -> np.ndarray:
        return _rows(columns, self.columns)

    def answer(self, totals: query.Totals) -> Answer:
        """Estimate each variance and covariance, from mean products less products of means."""
        moments = NoisyMoments.from_totals(totals, len(self.columns))
        _, half = _middles_and_halves(self.columns)
        columns = list(enumerate(self.columns))
        return Answer(
            {
                ", ".join(dict.fromkeys((first, second))): moments.covariance_estimate(
                    i + 1, j + 1, half[i] * half[j]
                )
                for i, first in columns
                for j, second in columns[i:]
            }
        )


@final
@dataclass(frozen=True, slots=True)
class LinearRegression:
    """Least squares: the target as a constant plus multiples of the features.

    Args:
        target: its column and public bounds: `{"y": (0, 10)}`.
        features: columns with their public bounds. A record with any value missing is left out.

    Labels are the features, in units of target per unit of feature, then `constant`. If the noise
    is as large as the variation of the features, intervals are unbounded. As usual, sampling errors
    assume that the residuals have the same variance for all values of the features.
    """

    target: Bounds
    features: Bounds

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", _checked(self.target))
        object.__setattr__(self, "features", _checked(self.features))
        if len(self.target) != 1 or set(self.target) & set(self.features):
            raise ValueError(
                "Expected one target that is not a feature in LinearRegression, got target "
                f"{', '.join(self.target)} and features {', '.join(self.features)}."
            )

    def named(self, name: str, queries: Mapping[str, query.Query]) -> LinearRegression:
        return self

    def block(self) -> Products:
        return Products(len(self.features) + 1)

    def rows(self, columns: query.Columns) -> np.ndarray:
        # The target is the last column.
        return _rows(columns, {**self.features, **self.target})

    def answer(self, totals: query.Totals) -> Answer:
        """Solve the normal equations, and propagate the noise of all their entries."""
        moments = NoisyMoments.from_totals(totals, len(self.features) + 1)
        sums, errors, noise = moments.sums, moments.errors.copy(), totals.noise
        # Squares hold half of the number of records, with the noise of that.
        diagonal = np.arange(1, len(sums))
        errors[diagonal, diagonal] = np.hypot(errors[diagonal, diagonal], errors[0, 0] / 2)
        matrix, right = sums[:-1, :-1], sums[:-1, -1]
        # theory/statistics.md, Proposition 10: noise in the features relative to their matrix.
        inverse = np.linalg.pinv(matrix)
        sizes = np.diag(inverse)
        noise_ratio = noise.tail * math.sqrt(
            float(np.sum(errors[:-1, :-1] ** 2 * (np.outer(sizes, sizes) + inverse**2)))
        )
        solvable = float(np.linalg.eigvalsh(matrix)[0]) > 0 and noise_ratio < MAX_NOISE_RATIO
        slopes = inverse @ right
        residual = np.append(-slopes, 1.0)
        variance = max(float(residual @ sums @ residual), 0.0)
        # The noise may have made it smaller than it is, by this deviation.
        variance += float(np.linalg.norm(errors * np.outer(residual, residual)))
        variance /= max(sums[0, 0] - len(matrix) - 2, 1.0)
        middle, half = _middles_and_halves({**self.features, **self.target})
        # From scaled columns to slopes in the columns' own units, and the constant at their zero.
        rescale = np.diag(np.append(1.0, half[-1] / half[:-1]))
        rescale[0] = half[-1] * np.append(1.0, -middle[:-1] / half[:-1])
        values = rescale @ slopes + np.append(middle[-1], np.zeros(len(half) - 1))
        # Entry (i, j) is also (j, i): its noise enters two equations, or one on the diagonal.
        effects = errors * np.pad(rescale @ inverse, ((0, 0), (0, 1)))[:, :, None] * residual
        diagonal_effects = np.diagonal(effects, axis1=1, axis2=2)
        pair_effects = effects + effects.transpose(0, 2, 1)
        noise_errors = np.sqrt(
            (pair_effects**2).sum(axis=(1, 2)) / 2 - (diagonal_effects**2).sum(axis=1)
        )
        noise_errors = (
            noise_errors / (1 - noise_ratio) if solvable else np.full(len(slopes), math.inf)
        )
        covariance = rescale @ (variance * inverse) @ rescale.T
        sampling = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        return Answer(
            {
                name: smooth(values[place], noise_errors[place], sampling[place], noise)
                for place, name in [*enumerate(self.features, 1), (0, "constant")]
            }
        )


def _checked(columns: Bounds) -> dict[str, tuple[float, float]]:
    if not isinstance(columns, Mapping) or not 1 <= len(columns) <= MAX_COLUMNS:
        raise ValueError(
            f"Expected 1 to {MAX_COLUMNS} columns with their bounds, such as "
            f"{{'age': (18, 100)}}, got {validate.shown(columns)}."
        )
    checked = {}
    for name, ends in columns.items():
        low, high = validate.listed(f"bounds of {name}", ends)
        checked[str(name)] = query.bounds(str(name), low, high)
    return checked


def _rows(columns: query.Columns, bounds: Bounds) -> np.ndarray:
    rows = [
        query.scaled(query.numbers(columns[name], name), *ends) for name, ends in bounds.items()
    ]
    matrix = np.stack(rows, axis=1)
    # A record with one value missing is missing altogether: all sums are of the same records.
    matrix[np.isnan(matrix).any(axis=1)] = np.nan
    return matrix


def _middles_and_halves(bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    ends = np.array(list(bounds.values()), dtype=np.float64)
    return ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / 2
