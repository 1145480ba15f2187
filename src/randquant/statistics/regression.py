"""Covariances of a few columns, and linear regression from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from randquant._internal import validate
from randquant.privacy.guarantee import Interval
from randquant.statistics import query
from randquant.statistics.blocks import Products
from randquant.statistics.estimate import Answer, Estimate, smooth

MOST_COLUMNS = 32
"""Most columns of one query."""

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
        names, (_, half) = list(self.columns), _units(self.columns)
        sums, entries = _products(totals)
        present, noise = max(sums[0, 0], 1.0), totals.noise
        mean = np.clip(sums[0, 1:] / present, -1.0, 1.0)
        second = sums[1:, 1:] / present
        variances = np.clip(np.diag(second) - mean**2, 0.0, 1.0)
        most = np.minimum(
            variances + noise.tail * noise.deviation * 3 * entries.max() / present, 1 - mean**2
        )
        estimates = {}
        for i in range(len(names)):
            for j in range(i, len(names)):
                covariance = second[i, j] - mean[i] * mean[j]
                # Of the product, both means and the number of records.
                noisy = noise.deviation / present * math.hypot(
                    entries[i + 1, j + 1],
                    *([2 * mean[i] * entries[0, i + 1]] if i == j else
                      [mean[j] * entries[0, i + 1], mean[i] * entries[0, j + 1]]),
                    (second[i, j] - 2 * mean[i] * mean[j]) * entries[0, 0],
                )  # fmt: skip
                reach = min((1 + abs(mean[i])) ** 2 * most[j], (1 + abs(mean[j])) ** 2 * most[i])
                unit = half[i] * half[j]
                estimates[", ".join(dict.fromkeys((names[i], names[j])))] = smooth(
                    covariance * unit, noisy * unit, math.sqrt(reach / present) * unit, noise,
                    0.0 if i == j else -unit, unit,
                )  # fmt: skip
        return Answer(estimates)


@final
@dataclass(frozen=True, slots=True)
class LinearRegression:
    """Least squares: the target as a constant plus multiples of the features.

    Args:
        target: its column and public bounds: `{"y": (0, 10)}`.
        features: columns with their public bounds. A record with any value missing is left out.

    Labels are the features, in units of target per unit of feature, then `constant`. Where the
    noise is as large as what the features vary by, intervals are unbounded.
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
        sums, entries = _products(totals)
        matrix, right, noise = sums[:-1, :-1], sums[:-1, -1], totals.noise
        smallest = float(np.linalg.eigvalsh(matrix)[0])
        # theory/statistics.md, Proposition 10: first order, so only where noise is far smaller.
        blur = noise.deviation * float(np.linalg.norm(entries[:-1, :-1], 2))
        known = smallest > 3 * noise.tail * blur
        inverse = np.linalg.pinv(matrix)
        slopes = inverse @ right
        residual = np.append(-slopes, 1.0)
        spread = max(float(residual @ sums @ residual), 0.0) / max(sums[0, 0], 1.0)
        moved = []
        for i in range(len(sums)):
            for j in range(i, len(sums)):
                effect = np.zeros(len(sums))
                effect[i] += entries[i, j] * residual[j]
                if i != j:
                    effect[j] += entries[i, j] * residual[i]
                moved.append(inverse @ effect[:-1])
        middle, half = _units({**self.features, **self.target})
        # Slopes in the columns' own units, and the constant at their zero.
        back = np.diag(np.append(1.0, half[-1] / half[:-1]))
        back[0] = half[-1] * np.append(1.0, -middle[:-1] / half[:-1])
        values = back @ slopes + np.append(middle[-1], np.zeros(len(half) - 1))
        noisy = noise.deviation * np.linalg.norm(back @ np.array(moved).T, axis=1)
        sampling = np.sqrt(np.maximum(np.diag(back @ (spread * inverse) @ back.T), 0.0))
        estimates = {}
        for place, name in [*enumerate(self.features, 1), (0, "constant")]:
            if known:
                estimates[name] = smooth(values[place], noisy[place], sampling[place], noise)
            else:
                everything = Interval(-math.inf, math.inf)
                estimates[name] = Estimate(
                    float(values[place]), math.inf, float(sampling[place]), everything, everything
                )
        return Answer(estimates)


def _products(totals: query.Totals) -> tuple[np.ndarray, np.ndarray]:
    """Sums of products of (1, columns), and the noise of each entry over that of a total.

    Returns:
        (p + 1, p + 1) float64 each, symmetric.
    """
    size = len(totals.values)
    p = next(k for k in range(1, MOST_COLUMNS + 2) if Products(k).size == size)
    scales = Products(p).scales(totals.amplitude, totals.norm)
    sums, entries = np.zeros((p + 1, p + 1)), np.zeros((p + 1, p + 1))
    pairs, values = p * (p - 1) // 2, totals.values / scales
    present = max(totals.records - values[-1], 1.0)
    sums[0, 1:], entries[0, 1:] = values[:p], 1 / scales[:p]
    one, other = np.triu_indices(p, 1)
    sums[one + 1, other + 1] = values[p : p + pairs]
    entries[one + 1, other + 1] = 1 / scales[p : p + pairs]
    sums, entries = sums + sums.T, entries + entries.T
    sums[0, 0], entries[0, 0] = present, 1 / scales[-1]
    diagonal = np.arange(1, p + 1)
    sums[diagonal, diagonal] = values[p + pairs : -1] + present / 2
    # The squares' own noise, and half of that of the number of records.
    entries[diagonal, diagonal] = np.hypot(1 / scales[p + pairs : -1], 0.5 / scales[-1])
    return sums, entries


def _checked(columns: Bounds) -> dict[str, tuple[float, float]]:
    if not isinstance(columns, Mapping) or not 1 <= len(columns) <= MOST_COLUMNS:
        raise ValueError(
            f"Expected 1 to {MOST_COLUMNS} columns with their bounds, such as "
            f"{{'age': (18, 100)}}, got {validate.shown(columns)}."
        )
    checked = {}
    for name, ends in columns.items():
        low, high = validate.listed(f"bounds of {name}", ends)
        query.bounds(str(name), low, high)
        checked[str(name)] = (float(low), float(high))
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
