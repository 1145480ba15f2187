"""Means, counts and quantiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, final

import numpy as np

from randquant._internal import validate
from randquant.privacy.guarantee import Interval
from randquant.statistics import estimate as errors
from randquant.statistics import query
from randquant.statistics.encodings import Cells, Products, Tree
from randquant.statistics.estimate import NORMAL, Answer, Estimate
from randquant.statistics.moments import NoisyMoments

NORMAL_PLACES = np.array([NormalDist().inv_cdf((k + 0.5) / 200) for k in range(200)])
"""Equally likely values of a standard normal variable."""

ELSE = "other or missing"
"""Label of records in none of the categories."""


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
        """With the column of this name."""
        return replace(self, column=self.column or name)

    def block(self) -> Products:
        """A number and its square."""
        return Products(1)

    def rows(self, columns: query.Columns) -> np.ndarray:
        """Scaled to [-1, 1]."""
        values = query.numbers(columns[self.column], self.column)
        return query.scaled(values, self.low, self.high)[:, None]

    def answer(self, totals: query.Totals) -> Answer:
        """By ratios to the number of values that are not missing."""
        moments = NoisyMoments.of(totals, 1)
        half, middle = (self.high - self.low) / 2, (self.low + self.high) / 2
        missing = totals.records - float(moments.sums[0, 0])
        return Answer(
            {
                "mean": moments.mean_estimate(1, middle, half),
                "deviation": _rooted(moments.covariance_estimate(1, 1, 1.0), half),
                "present": present_of(totals.records, missing, moments.errors[0, 0], totals),
            }
        )


def present_of(records: int, missing: float, noise_error: float, totals: query.Totals) -> Estimate:
    """How many values are not missing."""
    count = min(max(records - missing, 0.0), float(records))
    share = count / records if records else 0.0
    sampling = math.sqrt(records * share * (1 - share))
    alone = errors.smooth(count, noise_error, 0.0, totals.noise, 0.0, records).among_records
    both = errors.proportion(records - missing, records, noise_error, totals.noise)
    return Estimate(count, noise_error, sampling, both, alone)


def _rooted(variance: Estimate, scale: float) -> Estimate:
    """The square root of a variance, in units of `scale`."""
    root = math.sqrt(variance.estimate)

    def error(of_variance: float) -> float:
        """Near zero a root changes by no more than the root of what its square changes by."""
        return scale * min(of_variance / (2 * max(root, 1e-9)), math.sqrt(of_variance))

    ends = [Interval(scale * math.sqrt(each.lower), scale * math.sqrt(each.upper))
            for each in (variance.interval, variance.among_records)]  # fmt: skip
    return Estimate(
        scale * root, error(variance.noise_error), error(variance.sampling_error), *ends
    )


@final
@dataclass(frozen=True, slots=True)
class Counts:
    """How many records are in each category, or in each bin of a number; crossed with others.

    Args:
        of: the categories, texts, whole numbers or truth values, of which none equals another's
            kind; all other values, missing ones too, are counted together as `ELSE`.
        bins: in their place, increasing edges of bins of a number: each holds its lower edge, and
            the first and the last hold all values beyond.
        by: a column to cross with, or several: by name if another query of the table counts its
            categories, or with the categories themselves: `by={"sex": ["f", "m"]}`.
        column: by default the query's name.

    Labels are the categories, joined by ", " where columns are crossed, this query's own last.

    Example:
        >>> import randquant as rq
        >>> people = [{"sex": sex} for sex in "fm" * 2000]
        >>> table = rq.statistics(people, epsilon=1, queries={"sex": rq.Counts(["f", "m"])})
        >>> bool(abs(table["sex"]["f"].estimate - 2000) < 40)
        True
    """

    of: Sequence[Any] = ()
    bins: Sequence[float] = ()
    by: str | Sequence[str] | Mapping[str, Sequence[Any]] = ()
    column: str = ""

    def __post_init__(self) -> None:
        known = validate.listed("categories", self.of)
        if bool(known) == bool(validate.listed("bins", self.bins)):
            raise ValueError("Expected either categories or bins in Counts, got "
                             f"{'both' if known else 'neither'}.")  # fmt: skip
        if known:
            object.__setattr__(self, "of", query.checked_categories(known))
        else:
            edges = validate.array("bins", self.bins)
            if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
                raise ValueError("Expected two or more increasing edges of bins in Counts.")
            object.__setattr__(self, "bins", tuple(edges.tolist()))

    def named(self, name: str, queries: Mapping[str, query.Query]) -> Counts:
        """With its column, and the categories of those that it is crossed with."""
        by = self.by
        if not isinstance(by, Mapping):
            names = [by] if isinstance(by, str) else validate.listed("by", by)
            by = {each: _categories_of(each, queries) for each in names}
        crossed = {each: query.checked_categories(known) for each, known in by.items()}
        found = replace(self, column=self.column or name, by=crossed)
        cells = math.prod(map(len, crossed.values())) * max(len(self.of), len(self.bins) - 1)
        if cells > query.MOST_CELLS:
            raise ValueError(
                f"Expected at most {query.MOST_CELLS} crossed categories, got {cells} in {name!r}."
            )
        if len({*found.labels, ELSE}) <= cells:
            raise ValueError(
                f"Expected categories with different labels in {name!r}, none of them {ELSE!r}, "
                "got two that read the same."
            )
        return found

    @property
    def labels(self) -> list[str]:
        """Of all cells, in order."""
        assert isinstance(self.by, Mapping)
        own = list(map(str, self.of)) or [
            f"{low:.12g} to {high:.12g}" for low, high in itertools.pairwise(self.bins)
        ]
        return [", ".join(map(str, each)) for each in itertools.product(*self.by.values(), own)]

    def block(self) -> Cells:
        """One cell for each label."""
        return Cells(len(self.labels))

    def rows(self, columns: query.Columns) -> np.ndarray:
        """The number of the cell, or that after the last if any column is in no category."""
        assert isinstance(self.by, Mapping)
        values = columns[self.column]
        parts = [(query.categories(columns[name], known, name), len(known))
                 for name, known in self.by.items()]  # fmt: skip
        if self.of:
            parts.append((query.categories(values, self.of, self.column), len(self.of)))
        else:
            edges = np.array(self.bins)
            parts.append((query.places(query.numbers(values, self.column), edges), len(edges) - 1))
        cell, outside = np.zeros(len(values), np.int64), np.zeros(len(values), bool)
        for number, count in parts:
            cell, outside = cell * count + number, outside | (number == count)
        return np.where(outside, len(self.labels), cell)

    def answer(self, totals: query.Totals) -> Answer:
        """Each count by itself; they add up to the number of records."""
        block = self.block()
        counts, _ = block.counts(totals.values, totals.records, totals.amplitude, totals.norm)
        part = math.sqrt(1 - 1 / block.size) / totals.amplitude
        noise_error = totals.noise.deviation * part
        return Answer(
            {
                label: present_of(
                    totals.records, totals.records - float(count), noise_error, totals
                )
                for label, count in zip([*self.labels, ELSE], counts, strict=True)
            },
            unit="records",
        )


def _categories_of(name: str, queries: Mapping[str, query.Query]) -> Sequence[Any]:
    other = queries.get(name)
    if not isinstance(other, Counts) or not other.of:
        raise ValueError(
            f"Expected another query {name!r} with categories to cross with, got none: give them "
            f"here, as by={{{name!r}: [...]}}."
        )
    return other.of


@final
@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of the values of a column.

    Args:
        low, high: public bounds; what lies beyond counts as the nearer one.
        steps: into how many equal bins they are cut: no quantile is known more closely.
        at: which quantiles.
        column: by default the query's name.

    Example:
        >>> import numpy as np, randquant as rq
        >>> people = {"bmi": np.random.default_rng(0).normal(27, 4, 20000)}
        >>> bmi = {"bmi": rq.Quantiles(10, 70, at=[0.5])}
        >>> table = rq.statistics([people], epsilon=1, queries=bmi, trust="central", unit="example")
        >>> bool(abs(table["bmi"].estimate - 27) < 0.5)
        True
    """

    low: float
    high: float
    steps: int = 128
    at: Sequence[float] = (0.5, 0.25, 0.75, 0.05, 0.95)
    column: str = ""

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        query.bounds("quantiles'", self.low, self.high)
        validate.whole("steps", self.steps, low=2, high=1024)
        at = tuple(
            validate.real("each quantile", each, above=0, below=1)
            for each in validate.listed("at", self.at)
        )
        labels = {f"{each:.4g}" for each in at}
        if not at or len(labels) < len(at):
            raise ValueError("Expected one or more quantiles that differ in four digits, got "
                             f"{len(at)} of which {len(labels)} do.")  # fmt: skip
        object.__setattr__(self, "at", at)

    def named(self, name: str, queries: Mapping[str, query.Query]) -> Quantiles:
        """With the column of this name."""
        return replace(self, column=self.column or name)

    def block(self) -> Tree:
        """One cell for each bin."""
        return Tree(self.steps)

    @property
    def edges(self) -> np.ndarray:
        """Of the bins, (steps + 1,)."""
        return np.linspace(self.low, self.high, self.steps + 1)

    def rows(self, columns: query.Columns) -> np.ndarray:
        """The number of the bin."""
        return query.places(query.numbers(columns[self.column], self.column), self.edges)

    def answer(self, totals: query.Totals) -> Answer:
        """Where the monotone distribution function crosses, and where its bands might."""
        from scipy.optimize import isotonic_regression

        counts, mixing = self.block().counts(
            totals.values, totals.records, totals.amplitude, totals.norm
        )
        edges, noise = self.edges, totals.noise
        # Of each edge, how many values are below it, and how much of the noise is in that.
        below = np.append(0.0, np.cumsum(counts[:-1]))
        of_below = np.vstack([np.zeros(self.steps), np.cumsum(mixing[:-1], axis=0)])
        off = noise.deviation * np.linalg.norm(of_below[-1])
        least = max(below[-1], 1.0)
        shares = np.clip(isotonic_regression(below / least).x, 0.0, 1.0)
        shares[-1] = 1.0
        estimates = {}
        for at in self.at:
            # theory/statistics.md, Proposition 8: bins in which the quantile might lie.
            excess = below - at * below[-1]
            noisy = noise.deviation * np.linalg.norm(of_below - at * of_below[-1], axis=1)
            sampling = math.sqrt(at * (1 - at) * (least + off))
            alone = noise.tail * noisy
            both = np.hypot(alone, NORMAL * sampling) + 0.5
            bin_ = int(np.searchsorted(shares[1:], at))
            by_noise, by_sample = (
                _spread(shares, edges, at, each / least) for each in (noisy[bin_], sampling)
            )
            estimates[f"{at:.4g}"] = Estimate(
                float(_inverse(shares, edges, at)), by_noise, by_sample, _bins(excess, both, edges),
                _bins(excess, alone, edges),
            )  # fmt: skip
        return Answer(estimates, unit="values")


def _inverse(shares: np.ndarray, edges: np.ndarray, at: Any) -> Any:
    """Where a distribution function crosses levels between 0 and 1."""
    k = np.searchsorted(shares[1:-1], at)
    rise = np.maximum(shares[k + 1] - shares[k], 1e-300)
    return edges[k] + (edges[k + 1] - edges[k]) * np.clip((at - shares[k]) / rise, 0.0, 1.0)


def _spread(shares: np.ndarray, edges: np.ndarray, at: float, error: float) -> float:
    """How far a quantile moves if its level is off by a normal error: the root of its mean square.

    Between heaps of values it moves by much more than the slope at the level would tell.
    """
    levels = np.clip(at + error * NORMAL_PLACES, 0.0, 1.0)
    moved = _inverse(shares, edges, levels) - _inverse(shares, edges, at)
    return math.sqrt(float(np.mean(moved**2)))


def _bins(excess: np.ndarray, half: np.ndarray, edges: np.ndarray) -> Interval:
    """From the first to the last bin at whose edges the excess may change its sign."""
    # No value lies below the first edge, or above the last.
    possible = np.append(True, (excess - half)[1:-1] <= 0)
    possible &= np.append((excess + half)[1:-1] >= 0, True)
    found = np.flatnonzero(possible)
    if not len(found):
        return Interval(float(edges[0]), float(edges[-1]))
    return Interval(float(edges[found[0]]), float(edges[found[-1] + 1]))
