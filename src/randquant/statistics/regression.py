"""Covariances of a few columns, and linear regression from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from randquant._internal import validate
from randquant.statistics import query
from randquant.statistics.encodings import Products
from randquant.statistics.estimate import Answer, smooth
from randquant.statistics.moments import NoisyMoments

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
