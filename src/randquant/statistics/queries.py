"""Counts of categories, and quantiles."""

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
from randquant.statistics import query
from randquant.statistics.estimate import NORMAL_HALF_WIDTH, Answer, Estimate, count_estimate
from randquant.statistics.query import Cells, Tree

NORMAL_QUANTILES = np.array([NormalDist().inv_cdf((k + 0.5) / 200) for k in range(200)])
"""Equally likely values of a standard normal variable."""

ELSE = "other or missing"
"""Label of records outside all categories."""


@final
@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of records in each category, or in each bin of a number; crossed with other columns.

    Args:
        of: the categories: texts, whole numbers or truth values; a text never equals a number, nor
            True the number 1. All other values, missing ones too, are counted together as `ELSE`.
        bins: instead of `of`, increasing edges of bins of a number: each holds its lower edge, and
            the first and the last hold all values beyond.
        by: a column to cross with, or several: by name if another query of the table counts its
            categories, or with the categories themselves: `by={"sex": ["f", "m"]}`.
        column: by default the query's name.

    Labels are the categories, joined by ", " where columns are crossed, this query's category last.

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
        known, bins = validate.listed("categories", self.of), validate.listed("bins", self.bins)
        if bool(known) == bool(bins):
            raise ValueError(
                "Expected either categories or bins in Counts, got "
                f"of={validate.shown(self.of)} and bins={validate.shown(self.bins)}."
            )
        if known:
            object.__setattr__(self, "of", query.checked_categories(known))
        else:
            edges = validate.array("bins", self.bins)
            if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
                raise ValueError(
                    "Expected two or more increasing edges of bins in Counts, got "
                    f"{validate.shown(self.bins)}."
                )
            object.__setattr__(self, "bins", tuple(edges.tolist()))

    def named(self, name: str, queries: Mapping[str, query.Query]) -> Counts:
        """Fill in the column, and the categories of the columns that it is crossed with."""
        by = self.by
        if not isinstance(by, Mapping):
            names = [by] if isinstance(by, str) else validate.listed("by", by)
            by = {column: _categories_in(column, queries) for column in names}
        crossed = {column: query.checked_categories(known) for column, known in by.items()}
        completed = replace(self, column=self.column or name, by=crossed)
        cells = math.prod(map(len, crossed.values())) * max(len(self.of), len(self.bins) - 1)
        if cells > query.MAX_CELLS:
            raise ValueError(
                f"Expected at most {query.MAX_CELLS} crossed categories, got {cells} in {name!r}."
            )
        labels = [*completed.labels, ELSE]
        if len(set(labels)) <= cells:
            twice = next(label for label in labels if labels.count(label) > 1)
            raise ValueError(
                f"Expected categories with different labels in {name!r}, none of them {ELSE!r}, "
                f"got {twice!r} twice."
            )
        return completed

    @property
    def labels(self) -> list[str]:
        """Labels of all cells, in order; `ELSE` is not one of them."""
        assert isinstance(self.by, Mapping)
        categories = list(map(str, self.of)) or [
            f"{low:.12g} to {high:.12g}" for low, high in itertools.pairwise(self.bins)
        ]
        cells = itertools.product(*self.by.values(), categories)
        return [", ".join(map(str, cell)) for cell in cells]

    def block(self) -> Cells:
        return Cells(len(self.labels))

    def rows(self, columns: query.Columns) -> np.ndarray:
        """Return each record's cell, or the one after the last if a value is in no category."""
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
        # Mixed radix: the last column's category changes fastest, as in `labels`.
        for category, count in parts:
            cell, outside = cell * count + category, outside | (category == count)
        return np.where(outside, len(self.labels), cell)

    def answer(self, totals: query.Totals) -> Answer:
        """Estimate every count; before they are cut to possible values, they add up to records."""
        block = self.block()
        counts, _ = block.counts(totals.values, totals.records, totals.amplitude, totals.norm)
        # theory/statistics.md, Proposition 6: the projection takes 1/size of the variance.
        noise_error = totals.noise.deviation * math.sqrt(1 - 1 / block.size) / totals.amplitude
        return Answer(
            {
                label: count_estimate(float(count), noise_error, totals.records, totals.noise)
                for label, count in zip([*self.labels, ELSE], counts, strict=True)
            },
            unit="records",
        )


def _categories_in(name: str, queries: Mapping[str, query.Query]) -> Sequence[Any]:
    crossed = queries.get(name)
    if not isinstance(crossed, Counts) or not crossed.of:
        value = f"queries {', '.join(queries)}" if crossed is None else validate.shown(crossed)
        raise ValueError(
            f"Expected another query {name!r} with categories to cross with, got {value}: give the "
            f"categories here, as by={{{name!r}: [...]}}."
        )
    return crossed.of


@final
@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of the values of a column.

    Args:
        low, high: public bounds. A value beyond them counts as the nearer one.
        steps: number of equal bins between them: no interval is shorter than one bin.
        at: the levels, between 0 and 1.
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
        return replace(self, column=self.column or name)

    def block(self) -> Tree:
        return Tree(self.steps)

    @property
    def edges(self) -> np.ndarray:
        return np.linspace(self.low, self.high, self.steps + 1)

    def rows(self, columns: query.Columns) -> np.ndarray:
        return query.places(query.numbers(columns[self.column], self.column), self.edges)

    def answer(self, totals: query.Totals) -> Answer:
        """Invert the monotone distribution function, and tests of each edge of a bin."""
        from scipy.optimize import isotonic_regression

        counts, mixing = self.block().counts(
            totals.values, totals.records, totals.amplitude, totals.norm
        )
        edges, noise = self.edges, totals.noise
        # The number of values below each edge, and its weights of the noise.
        below = np.append(0.0, np.cumsum(counts[:-1]))
        below_mixing = np.vstack([np.zeros(self.steps), np.cumsum(mixing[:-1], axis=0)])
        present_error = noise.deviation * np.linalg.norm(below_mixing[-1])
        present = max(below[-1], 1.0)
        # Least squares: a running maximum would be too high in bins without values.
        shares = np.clip(isotonic_regression(below / present).x, 0.0, 1.0)
        shares[-1] = 1.0
        estimates = {}
        for at in self.at:
            # theory/statistics.md, Proposition 8: linear in the noise, so no ratio's law is needed.
            excess = below - at * below[-1]
            mixed = below_mixing - at * below_mixing[-1]
            noise_errors = noise.deviation * np.linalg.norm(mixed, axis=1)
            sampling = math.sqrt(at * (1 - at) * (present + present_error))
            noise_half = noise.tail * noise_errors
            full_half = np.hypot(noise_half, NORMAL_HALF_WIDTH * sampling) + 0.5
            bin_ = int(np.searchsorted(shares[1:], at))
            noise_error, sampling_error = (
                _quantile_error(shares, edges, at, each / present)
                for each in (noise_errors[bin_], sampling)
            )
            estimates[f"{at:.4g}"] = Estimate(
                float(_inverse(shares, edges, at)), noise_error, sampling_error,
                _possible_bins(excess, full_half, edges), _possible_bins(excess, noise_half, edges),
            )  # fmt: skip
        return Answer(estimates, unit="values")


def _inverse(shares: np.ndarray, edges: np.ndarray, at: Any) -> Any:
    # The distribution function is linear between edges; `at` has levels between 0 and 1. A bin
    # without values rises by nothing: 1e-300 keeps the division finite.
    k = np.searchsorted(shares[1:-1], at)
    rise = np.maximum(shares[k + 1] - shares[k], 1e-300)
    return edges[k] + (edges[k + 1] - edges[k]) * np.clip((at - shares[k]) / rise, 0.0, 1.0)


def _quantile_error(shares: np.ndarray, edges: np.ndarray, at: float, error: float) -> float:
    """Return the root mean square of a quantile's change if its level has a normal error.

    Between heaps of values (blood pressures in tens) it changes by much more than the slope of the
    distribution function at the level suggests.
    """
    levels = np.clip(at + error * NORMAL_QUANTILES, 0.0, 1.0)
    changes = _inverse(shares, edges, levels) - _inverse(shares, edges, at)
    return math.sqrt(float(np.mean(changes**2)))


def _possible_bins(excess: np.ndarray, half: np.ndarray, edges: np.ndarray) -> Interval:
    """Return the interval from the first to the last bin that neither of its edges excludes.

    A lower edge excludes its bin if the excess is positive by more than `half`, an upper edge if it
    is negative by more than that.
    """
    # All values lie above the first edge and below the last one: these two exclude nothing.
    possible = np.append(True, (excess - half)[1:-1] <= 0)
    possible &= np.append((excess + half)[1:-1] >= 0, True)
    bins = np.flatnonzero(possible)
    if not len(bins):
        return Interval(float(edges[0]), float(edges[-1]))
    return Interval(float(edges[bins[0]]), float(edges[bins[-1] + 1]))
