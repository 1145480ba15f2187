"""Queries that are answered by counts of records: categories, quantiles, survival.

Survival analysis is the Kaplan-Meier curve and the log-rank test, from counts per step of time.
"""

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
from randquant.statistics.query import (
    NORMAL_HALF_WIDTH,
    Answer,
    Cells,
    Estimate,
    SumNoise,
    Tree,
    count_estimate,
)

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


# Survival, from counts per step of time.

STEPS = 255
"""Largest number of steps that time is cut into, unless the curve is given at more times. The tree
of events and losses then has 512 cells; twice as many steps halve the unknown order within a step,
for one more level of noise."""

SMOOTHING_STEPS = 16
"""Steps over which losses are averaged, to bound how many precede events of the same step: losses
in whole units, such as months, fall into one step of many."""

UNSEEN_EVENT_COUNT = 1.5
"""Events that the variance of a curve without events allows for: the interval then ends at
exp(-3/n), and 3 expected events are all unseen in 5 of 100 samples."""

MIN_RISK_DEVIATIONS = 6.0
"""Smallest number at risk, in standard deviations of its noise, up to which the curve's interval is
computed; at least 3 whatever the noise. Below, logarithms of noisy numbers are too far
from linear; the estimate itself goes on to half as many (theory/statistics.md, Proposition 9)."""


@final
@dataclass(frozen=True, slots=True)
class KaplanMeier:
    """The Kaplan-Meier curve: the probability of no event until each of several times.

    Args:
        time: the column with the time of a record's event, or at which it was last seen, from 0.
        event: the column that says which: 1 or True for an event, 0 or False if last seen.
        until: the last time of the curve.
        bins: number of bins of equal width until then, at whose ends the curve is given. Time is
            counted in finer steps, 128 to 255 of them, or in the bins if there are more.

    Labels are the bins' ends. A record with a missing time or event is left out. As usual, a record
    last seen at the time of an event was at risk of it. The order within a step is unknown, and
    losses count as after events: this is Kaplan and Meier's estimate if no step holds two different
    times (24 months, 7 years), and otherwise slightly higher, which the intervals cover.

    Example:
        >>> import numpy as np, randquant as rq
        >>> rng = np.random.default_rng(0)
        >>> ward = {"days": rng.exponential(500, 20000), "event": np.ones(20000)}
        >>> curve = {"survival": rq.KaplanMeier("days", "event", until=1000, bins=10)}
        >>> table = rq.statistics([ward], epsilon=1, queries=curve, trust="central", unit="example")
        >>> bool(abs(table["survival"]["500"].estimate - np.exp(-1)) < 0.03)
        True
    """

    time: str
    event: str
    until: float
    bins: int = 120

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.real("until", self.until, above=0)
        validate.whole("bins", self.bins, low=1, high=500)

    def named(self, name: str, queries: Mapping[str, query.Query]) -> KaplanMeier:
        return self

    def block(self) -> Tree:
        # A cell for the events of each step, and of time zero; then likewise for losses.
        return Tree(2 * (_steps(self.bins) + 1))

    def rows(self, columns: query.Columns) -> np.ndarray:
        return _cells(columns, self.time, self.event, self.until, _steps(self.bins))

    def answer(self, totals: query.Totals) -> Answer:
        """Estimate the curve at the ends of the bins; Greenwood's variance, and the noise's."""
        counts, mixing = self.block().counts(
            totals.values, totals.records, totals.amplitude, totals.norm
        )
        edges = np.linspace(0.0, self.until, self.bins + 1)[1:].tolist()
        step = _steps(self.bins) // self.bins
        curve = _curve(counts[:-1], mixing[:-1], totals.noise)[step::step]
        estimates = {f"{edge:.6g}": each for edge, each in zip(edges, curve, strict=True)}
        return Answer(estimates, tuple(edges), unit="probability")


def _curve(counts: np.ndarray, mixing: np.ndarray, noise: SumNoise) -> list[Estimate]:
    """Estimate the curve after each step.

    e, n and n - e are the events, the numbers at risk and the survivors of each step; names that
    end in `_mixing` are their weights of the noise.
    """
    (e, n), (e_mixing, n_mixing) = _events_and_risk(counts), _events_and_risk(mixing)
    survivors = n - e
    n_variance, survivors_variance = (
        noise.deviation**2 * _row_squares(weights) for weights in (n_mixing, n_mixing - e_mixing)
    )
    # Logarithms are taken while both numbers are clearly above zero.
    floor = MIN_RISK_DEVIATIONS * np.sqrt(
        np.maximum(np.maximum(n_variance, survivors_variance), 0.25)
    )
    k = slice(_first_false(np.minimum(n, survivors) > floor))
    gradient = (e_mixing[k] - (e[k] / n[k])[:, None] * n_mixing[k]) / survivors[k][:, None]
    noise_errors = noise.deviation * np.sqrt(_row_squares(np.cumsum(gradient, axis=0)))
    # theory/statistics.md, Proposition 9: noise shifts the mean of a logarithm; put it back.
    log_bias = (survivors_variance[k] / survivors[k] ** 2 - n_variance[k] / n[k] ** 2) / 2
    log = np.cumsum(np.log(survivors[k] / n[k]) + log_bias)
    hazards = _hazards(e[k], n[k])
    greenwood = np.cumsum(hazards / ((1 - np.minimum(hazards, 0.9)) * n[k]))
    sampling = np.sqrt(greenwood + (UNSEEN_EVENT_COUNT / n[k]) ** 2)
    # Losses of a step may have come before its events, which lowers the curve by at most this.
    order = np.cumsum(hazards * np.maximum(_smoothed(_losses(e, n)[k]), 0.0) / n[k])

    def padded(values: np.ndarray, rest: float) -> list[float]:
        return [*values.tolist(), *[rest] * (len(n) - len(values))]

    def ends(half: np.ndarray) -> list[Interval]:
        # Once the number at risk is unknown, it is only known that the curve falls: from 0 to the
        # last upper end.
        lower, upper = np.exp(log - half - order), np.minimum(np.exp(log + half), 1.0)
        rest = float(upper[-1]) if len(upper) else 1.0
        return list(map(Interval, padded(np.minimum(lower, 1.0), 0.0), padded(upper, rest)))

    # The estimate goes on for a while without errors, clipped, then stays constant.
    usable = n > np.maximum(MIN_RISK_DEVIATIONS / 2 * np.sqrt(n_variance), 0.5)
    usable[k] = True
    rest = slice(len(log), _first_false(usable))
    continuation = np.cumprod(np.clip(survivors[rest] / n[rest], 0.0, 1.0))
    last = math.exp(log[-1]) if len(log) else 1.0
    curve = -_increasing(-np.minimum(np.append(np.exp(log), last * continuation), 1.0))
    noise_half = noise.tail * noise_errors
    errors = (curve[: len(log)] * each for each in (noise_errors, sampling))
    columns = zip(
        padded(curve, float(curve[-1]) if len(curve) else 1.0),
        *(padded(each, math.inf) for each in errors),
        ends(np.hypot(noise_half, NORMAL_HALF_WIDTH * sampling)), ends(noise_half), strict=True,
    )  # fmt: skip
    return [
        Estimate(min(max(s, both.lower), both.upper), noise_error, sampling_error, both, noise_only)
        for s, noise_error, sampling_error, both, noise_only in columns
    ]


def _first_false(values: np.ndarray) -> int:
    # The end if all are true.
    return len(values) if values.all() else int(np.argmin(values))


def _row_squares(rows: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", rows, rows)


def _increasing(values: np.ndarray) -> np.ndarray:
    # The nearest non-decreasing sequence, in least squares.
    from scipy.optimize import isotonic_regression

    return isotonic_regression(values).x if len(values) else values


def _hazards(e: np.ndarray, n: np.ndarray) -> np.ndarray:
    # Noise can make events negative: cumulative events are made non-decreasing first.
    events = np.diff(np.maximum(_increasing(np.cumsum(e)), 0.0), prepend=0.0)
    return np.minimum(events / n, 1.0)


def _losses(e: np.ndarray, n: np.ndarray) -> np.ndarray:
    return n - e - np.append(n[1:], 0.0)


def _smoothed(losses: np.ndarray) -> np.ndarray:
    from scipy.ndimage import uniform_filter1d

    return uniform_filter1d(losses, SMOOTHING_STEPS, mode="nearest")


def _steps(bins: int) -> int:
    # A whole number of steps per bin, so that the curve is known at the ends of bins.
    return max(STEPS // bins, 1) * bins


def _cells(columns: query.Columns, time: str, event: str, until: float, steps: int) -> np.ndarray:
    """Return records' cells: events by step, from time zero on, then losses; the last for missing.

    A step includes its end: a record with an event, or last seen, at the end was at risk until
    then. A record seen after `until` is lost in the last step.
    """
    times = query.numbers(columns[time], time)
    happened = query.numbers(columns[event], event)
    for bad in happened[~np.isnan(happened) & (happened != 0) & (happened != 1)][:1]:
        raise ValueError(
            f"Expected 0 or 1 in column {event!r}, got {bad:g}: 1 for an event, 0 if last seen."
        )
    # In steps: times in whole units are off by less in float32, and no step is shorter.
    slack = 1e-4
    place = np.ceil(np.clip(times, 0.0, until) / until * steps - slack)
    lost = (happened == 0) | (times > until * (1 + slack / steps))
    cell = np.where(times > until * (1 + slack / steps), steps, place) + (steps + 1) * lost
    missing = np.isnan(times) | np.isnan(happened)
    return np.where(missing, 2 * (steps + 1), cell).astype(np.int64)


def _events_and_risk(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Of each step, from the cells of counts, or from rows of a mixing matrix. At risk in a step are
    # all whose event or loss is in it or later.
    events, losses = np.split(cells, 2)
    return events, np.cumsum((events + losses)[::-1], axis=0)[::-1]


@final
@dataclass(frozen=True, slots=True)
class LogRank:
    """The log-rank test of equal survival in two groups.

    Args:
        time, event, until, bins: as for `KaplanMeier`.
        by: the column of the group.
        groups: its two values; records with other values are left out.

    Labels: `observed - expected`, the events of the first group less those expected if both groups
    survive equally; and `z`, the same in its standard deviations, noise included: about normal if
    they do, so the p-value is 2 · Φ(-|z|). Late times, at which noise hides the number at risk, are
    left out of both; the interval of the first covers them too.
    """

    time: str
    event: str
    by: str
    groups: Sequence[Any]
    until: float
    bins: int = 32

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        KaplanMeier(self.time, self.event, self.until, self.bins)  # checks the rest
        groups = query.checked_categories(self.groups)
        if len(groups) != 2:
            raise ValueError(f"Expected two groups in a log-rank test, got {len(groups)}.")
        object.__setattr__(self, "groups", groups)

    def named(self, name: str, queries: Mapping[str, query.Query]) -> LogRank:
        return self

    def block(self) -> Tree:
        # The cells of one curve for each of the two groups.
        return Tree(4 * (_steps(self.bins) + 1))

    def rows(self, columns: query.Columns) -> np.ndarray:
        cells = 2 * (_steps(self.bins) + 1)
        cell = _cells(columns, self.time, self.event, self.until, _steps(self.bins))
        group = query.categories(columns[self.by], self.groups, self.by)
        missing = (cell == cells) | (group == 2)
        return np.where(missing, 2 * cells, group * cells + cell)

    def answer(self, totals: query.Totals) -> Answer:
        """Estimate observed less expected events, with errors by the delta method."""
        # e and n: events and numbers at risk, of both groups or of one; `_mixing`: their weights of
        # the noise.
        counts, mixing = self.block().counts(
            totals.values, totals.records, totals.amplitude, totals.norm
        )
        noise = totals.noise
        (e_1, n_1), (e_2, n_2) = map(_events_and_risk, np.split(counts[:-1], 2))
        mixing_1, mixing_2 = map(_events_and_risk, np.split(mixing[:-1], 2))
        e, n = e_1 + e_2, n_1 + n_2
        e_mixing, n_mixing = mixing_1[0] + mixing_2[0], mixing_1[1] + mixing_2[1]
        n_error = noise.deviation * np.sqrt(_row_squares(n_mixing))
        last = _first_false(n > np.maximum(MIN_RISK_DEVIATIONS / 2 * n_error, 1.5))
        k, later = slice(last), 0.0
        if last < len(n):  # theory/statistics.md, Proposition 9: a bound of all later steps
            later = max(n[last] + noise.tail * n_error[last], 0.0) / math.e
        e, n, e_mixing, n_mixing = e[k], n[k], e_mixing[k], n_mixing[k]
        share, hazard = np.clip(n_1[k] / n, 0.0, 1.0), np.clip(e / n, 0.0, 1.0)
        share_mixing = mixing_1[1][k] - share[:, None] * n_mixing  # times the number at risk
        gradient = mixing_1[0][k] - share[:, None] * e_mixing - hazard[:, None] * share_mixing
        gap = float(np.sum(e_1[k] - share * e))
        # The noises of shares and of hazards are correlated: the mean of their product is put back.
        hazard_mixing = e_mixing - hazard[:, None] * n_mixing
        gap += noise.deviation**2 * float(np.sum(np.sum(share_mixing * hazard_mixing, axis=1) / n))
        noise_error = noise.deviation * float(np.linalg.norm(gradient.sum(axis=0)))
        hazards = _hazards(e, n)
        weights = share * (1 - share) * (1 - hazards) * n / (n - 1)
        # The noise may have made the variance smaller than it is, by its deviation.
        variance = max(float(weights @ e), 0.0) + noise.deviation * float(
            np.linalg.norm(weights @ e_mixing)
        )
        sampling = math.sqrt(max(variance, 1e-12))
        losses_1, losses_2 = (_losses(*group)[k] for group in ((e_1, n_1), (e_2, n_2)))
        # The largest effect of losses that came before the events of their step.
        order = float(hazards @ _smoothed((1 - share) * losses_1 - share * losses_2))

        def interval(half: float, more: float) -> Interval:
            return Interval(
                gap - half - more + min(order, 0.0), gap + half + more + max(order, 0.0)
            )

        noise_half, deviation = noise.tail * noise_error, math.hypot(noise_error, sampling)
        # Half an event more, as a continuity correction.
        full_half = math.hypot(noise_half, NORMAL_HALF_WIDTH * sampling) + 0.5
        ends = interval(full_half, 0.0)
        z_ends = Interval(ends.lower / deviation, ends.upper / deviation)
        z_errors = noise_error / deviation, sampling / deviation
        return Answer(
            {
                "observed - expected": Estimate(
                    gap, noise_error, sampling, interval(full_half, later),
                    interval(noise_half, later),
                ),
                # z is in units of a deviation that includes the noise, so it has one interval only.
                "z": Estimate(gap / deviation, *z_errors, z_ends, z_ends),
            }
        )  # fmt: skip
