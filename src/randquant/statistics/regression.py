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

MOST_COLUMNS = 32
"""Most columns of one query."""

BLURRED = 0.5
"""From where on noise in the features, relative to them, leaves their slopes unknown."""

Bounds = Mapping[str, Sequence[float]]
"""Columns with their public bounds, (low, high) each; values beyond count as the nearer one."""


@final
@dataclass(frozen=True, slots=True)
class Covariance:
    """Variances and covariances of a few columns.

    Args:
        columns: public bounds by column. A record with any of them missing is left out.

    Labels are the column, or the two columns joined by ", ".

    Example:
        >>> import numpy as np, randquant as rq
        >>> x = np.random.default_rng(0).normal(size=(50000, 2)) @ [[1, 0.5], [0, 1]]
        >>> asked = {"xy": rq.Covariance({"x": (-5, 5), "y": (-5, 5)})}
        >>> data = [{"x": x[:, 0], "y": x[:, 1]}]
        >>> table = rq.statistics(data, epsilon=1, queries=asked, trust="central", unit="example")
        >>> bool(abs(table["xy"]["x, y"].estimate - 0.5) < 0.05)
        True
    """

    columns: Bounds

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _checked(self.columns))

    def named(self, name: str, queries: Mapping[str, query.Query]) -> Covariance:
        """As it is."""
        return self

    def block(self) -> Products:
        """All products of two columns."""
        return Products(len(self.columns))

    def rows(self, columns: query.Columns) -> np.ndarray:
        """Scaled to [-1, 1]."""
        return _rows(columns, self.columns)

    def answer(self, totals: query.Totals) -> Answer:
        """Mean products less products of means."""
        moments = NoisyMoments.of(totals, len(self.columns))
        _, half = _units(self.columns)
        named = list(enumerate(self.columns))
        return Answer(
            {
                ", ".join(dict.fromkeys((one, other))): moments.covariance_estimate(
                    i + 1, j + 1, half[i] * half[j]
                )
                for i, one in named
                for j, other in named[i:]
            }
        )


@final
@dataclass(frozen=True, slots=True)
class LinearRegression:
    """Least squares: the target as a constant plus multiples of the features.

    Args:
        target: its column and public bounds: `{"y": (0, 10)}`.
        features: columns with their public bounds. A record with any value missing is left out.

    Labels are the features, in units of target per unit of feature, then `constant`. Where the
    noise is as large as what the features vary by, intervals are unbounded. As usual, sampling
    errors assume that the target varies around the line by as much for all features.
    """

    target: Bounds
    features: Bounds

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", _checked(self.target))
        object.__setattr__(self, "features", _checked(self.features))
        if len(self.target) != 1 or set(self.target) & set(self.features):
            raise ValueError("Expected one target that is no feature in LinearRegression.")

    def named(self, name: str, queries: Mapping[str, query.Query]) -> LinearRegression:
        """As it is."""
        return self

    def block(self) -> Products:
        """All products of two columns."""
        return Products(len(self.features) + 1)

    def rows(self, columns: query.Columns) -> np.ndarray:
        """Scaled to [-1, 1], the target last."""
        return _rows(columns, {**self.features, **self.target})

    def answer(self, totals: query.Totals) -> Answer:
        """The normal equations, and how noise in all of them moves their solution."""
        moments = NoisyMoments.of(totals, len(self.features) + 1)
        sums, entries, noise = moments.sums, moments.errors.copy(), totals.noise
        diagonal = np.arange(1, len(sums))
        entries[diagonal, diagonal] = np.hypot(entries[diagonal, diagonal], entries[0, 0] / 2)
        matrix, right = sums[:-1, :-1], sums[:-1, -1]
        # theory/statistics.md, Proposition 10: how far noise may turn the features, against them.
        inverse = np.linalg.pinv(matrix)
        sizes = np.diag(inverse)
        blur = noise.tail * math.sqrt(
            float(np.sum(entries[:-1, :-1] ** 2 * (np.outer(sizes, sizes) + inverse**2)))
        )
        known = float(np.linalg.eigvalsh(matrix)[0]) > 0 and blur < BLURRED
        slopes = inverse @ right
        residual = np.append(-slopes, 1.0)
        of_spread = entries * np.outer(residual, residual)
        spread = max(float(residual @ sums @ residual), 0.0)
        spread += float(np.linalg.norm(of_spread))  # which noise may have taken from it
        spread /= max(sums[0, 0] - len(matrix) - 2, 1.0)
        middle, half = _units({**self.features, **self.target})
        # Slopes in the columns' own units, and the constant at their zero.
        back = np.diag(np.append(1.0, half[-1] / half[:-1]))
        back[0] = half[-1] * np.append(1.0, -middle[:-1] / half[:-1])
        values = back @ slopes + np.append(middle[-1], np.zeros(len(half) - 1))
        # Each entry moves a slope by its effect on two equations, or on one if it is a square.
        moved = entries * np.pad(back @ inverse, ((0, 0), (0, 1)))[:, :, None] * residual
        once = np.diagonal(moved, axis1=1, axis2=2)
        twice = moved + moved.transpose(0, 2, 1)
        noisy = np.sqrt((twice**2).sum(axis=(1, 2)) / 2 - (once**2).sum(axis=1))
        noisy = noisy / (1 - blur) if known else np.full(len(slopes), math.inf)
        sampling = np.sqrt(np.maximum(np.diag(back @ (spread * inverse) @ back.T), 0.0))
        return Answer(
            {
                name: smooth(values[place], noisy[place], sampling[place], noise)
                for place, name in [*enumerate(self.features, 1), (0, "constant")]
            }
        )


def _checked(columns: Bounds) -> dict[str, tuple[float, float]]:
    if not isinstance(columns, Mapping) or not 1 <= len(columns) <= MOST_COLUMNS:
        raise ValueError(
            f"Expected 1 to {MOST_COLUMNS} columns with their bounds, such as "
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
    whole = np.stack(rows, axis=1)
    whole[np.isnan(whole).any(axis=1)] = np.nan
    return whole


def _units(bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half width of each column's bounds."""
    ends = np.array(list(bounds.values()), dtype=np.float64)
    return ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / 2
