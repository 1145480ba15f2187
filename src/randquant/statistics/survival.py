"""Survival: the Kaplan-Meier curve and the log-rank test, from counts per bin of time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from randquant._internal import validate
from randquant.privacy.guarantee import Interval
from randquant.statistics import query
from randquant.statistics.encodings import Tree
from randquant.statistics.estimate import NORMAL, Answer, Estimate, SumNoise, error, smooth

UNSEEN = 1.5
"""Events whose absence a curve's variance reckons with: none of an expected 3 is seen in 5 %."""

LIKELY = 6.0
"""Numbers at risk are known while they are more than this many of their errors, and 3."""


@final
@dataclass(frozen=True, slots=True)
class KaplanMeier:
    """The probability to have had no event until each of several times.

    Args:
        time: the column of the time of a record's event, or of when it was last seen, from 0.
        event: the column that says which: 1 or True for an event, 0 or False if last seen.
        until: the last time of the curve.
        bins: of equal width until then. Whoever was last seen within a bin counts as half at risk
            in it (a life table, which is Kaplan and Meier's estimate where bins are narrow).

    Labels are the bins' ends. A record with a missing time or event is left out.

    Example:
        >>> import numpy as np, randquant as rq
        >>> rng = np.random.default_rng(0)
        >>> ward = {"days": rng.exponential(500, 20000), "event": np.ones(20000)}
        >>> asked = {"survival": rq.KaplanMeier("days", "event", until=1000, bins=10)}
        >>> table = rq.statistics([ward], epsilon=1, queries=asked, trust="central", unit="example")
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
        """As it is."""
        return self

    def block(self) -> Tree:
        """Events in each bin, no event until the end, last seen in each bin."""
        return Tree(2 * self.bins + 1)

    def rows(self, columns: query.Columns) -> np.ndarray:
        """The number of the cell."""
        return _cells(columns, self.time, self.event, self.until, self.bins)

    def answer(self, totals: query.Totals) -> Answer:
        """The curve at the ends of the bins, with Greenwood's variance and the noise's."""
        counts, mixing = self.block().counts(
            totals.values, totals.records, totals.amplitude, totals.norm
        )
        edges = np.linspace(0.0, self.until, self.bins + 1)[1:]
        events, risk = _events_and_risk(self.bins)
        e, n = events @ counts[:-1], risk @ counts[:-1]
        of_events, of_risk = events @ mixing[:-1], risk @ mixing[:-1]
        # Of those who are at risk in a bin, some must be known to come through.
        through, noisy = np.minimum(n, n - e), np.maximum(
            np.linalg.norm(of_risk, axis=1), np.linalg.norm(of_risk - of_events, axis=1)
        )  # fmt: skip
        certain = through > LIKELY * np.maximum(noisy * totals.noise.deviation, 0.5)
        known = int(np.argmin(certain)) if not certain.all() else self.bins
        k = slice(known)
        return _curve(e[k], n[k], of_events[k], of_risk[k], edges, totals.noise)


def _curve(
    e: np.ndarray,
    n: np.ndarray,
    of_events: np.ndarray,
    of_risk: np.ndarray,
    edges: np.ndarray,
    noise: SumNoise,
) -> Answer:
    """Estimates at all edges from events and numbers at risk, which are known in the first bins."""
    hazard = e / n
    steps = (of_events - hazard[:, None] * of_risk) / (n * (1 - hazard))[:, None]
    noisy = noise.deviation * np.linalg.norm(np.cumsum(steps, axis=0), axis=1)
    # theory/statistics.md, Proposition 9: what noise lowers a logarithm by is put back.
    lowered = (noise.deviation * np.linalg.norm(steps, axis=1)) ** 2 / 2
    log = np.cumsum(np.log1p(-hazard) + lowered)
    curve, repaired = _repaired(e, n)
    greenwood = np.cumsum(repaired / ((1 - np.minimum(repaired, 0.9)) * n))
    sampling = np.sqrt(greenwood + (UNSEEN / n) ** 2)

    def padded(values: np.ndarray, rest: float) -> np.ndarray:
        return np.append(values, np.full(len(edges) - len(e), rest))

    def ends(half: np.ndarray) -> list[Interval]:
        """Where nobody is known to be at risk, the curve only falls."""
        lower, upper = (np.minimum(np.exp(log + sign * half), 1.0) for sign in (-1, 1))
        rest = float(upper[-1]) if len(e) else 1.0
        return list(map(Interval, padded(lower, 0.0).tolist(), padded(upper, rest).tolist()))

    alone = noise.tail * noisy
    errors = zip(
        padded(curve, curve[-1] if len(e) else 1.0), padded(curve * noisy, math.inf),
        padded(curve * sampling, math.inf), ends(np.hypot(alone, NORMAL * sampling)), ends(alone),
        strict=True,
    )  # fmt: skip
    estimates = {
        f"{edge:.6g}": Estimate(min(max(float(s), both.lower), both.upper), float(by_noise),
                                float(by_sample), both, records)
        for edge, (s, by_noise, by_sample, both, records) in zip(edges, errors, strict=True)
    }  # fmt: skip
    return Answer(estimates, tuple(edges.tolist()), alike=True)


def _repaired(e: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A curve that only falls, and its hazards: cumulative events are made monotone."""
    from scipy.optimize import isotonic_regression

    if not len(e):
        return np.zeros(0), np.zeros(0)
    cumulative = np.maximum(isotonic_regression(np.cumsum(e)).x, 0.0)
    hazards = np.clip(np.diff(cumulative, prepend=0.0) / n, 0.0, 1.0)
    return np.cumprod(1 - hazards), hazards


def _cells(columns: query.Columns, time: str, event: str, until: float, bins: int) -> np.ndarray:
    """Numbers of the cells of `KaplanMeier.block`."""
    times = query.numbers(columns[time], time)
    happened = query.numbers(columns[event], event)
    for bad in happened[~np.isnan(happened) & (happened != 0) & (happened != 1)][:1]:
        raise ValueError(
            f"Expected 0 or 1 in column {event!r}, got {bad:g}: 1 for an event, 0 if last seen."
        )
    edges = np.linspace(0.0, until, bins + 1)
    # A bin holds its upper end: whoever has an event there has had it until then.
    place = np.clip(np.searchsorted(edges, times, side="left") - 1, 0, bins - 1)
    seen = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, bins - 1)
    cell = np.where(happened == 1, place, bins + 1 + seen)
    beyond = (times > until) | ((times == until) & (happened == 0))
    cell = np.where(beyond, bins, cell)
    return np.where(np.isnan(times) | np.isnan(happened), 2 * bins + 1, cell).astype(np.int64)


def _events_and_risk(bins: int) -> tuple[np.ndarray, np.ndarray]:
    """What events and numbers at risk in each bin are, as sums of cells: (bins, 2 · bins + 1)."""
    events = np.eye(bins, 2 * bins + 1)
    later = np.triu(np.ones((bins, bins)))
    risk = np.hstack([later, np.ones((bins, 1)), later - 0.5 * np.eye(bins)])
    return events, risk


@final
@dataclass(frozen=True, slots=True)
class LogRank:
    """Whether two groups survive alike: the log-rank test.

    Args:
        time, event, until, bins: as for `KaplanMeier`.
        by: the column of the group.
        groups: its two values; records of others are left out.

    Labels: `observed - expected`, the events of the first group less those to be expected if both
    were alike; and `z`, the same in its standard deviations, noise included: about normal if both
    are alike, so that the p-value is 2 · Φ(-|z|). Late bins, in which noise hides how many are at
    risk, are left out of both; the interval of the first holds with them.
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
        """As it is."""
        return self

    def block(self) -> Tree:
        """The cells of a curve for each group."""
        return Tree(2 * (2 * self.bins + 1))

    def rows(self, columns: query.Columns) -> np.ndarray:
        """The number of the cell."""
        cells = 2 * self.bins + 1
        cell = _cells(columns, self.time, self.event, self.until, self.bins)
        group = query.categories(columns[self.by], self.groups)
        missing = (cell == cells) | (group == 2)
        return np.where(missing, 2 * cells, group * cells + cell)

    def answer(self, totals: query.Totals) -> Answer:
        """Observed less expected events, by the delta method."""
        counts, mixing = self.block().counts(
            totals.values, totals.records, totals.amplitude, totals.norm
        )
        events, risk = _events_and_risk(self.bins)
        zero = np.zeros_like(events)
        own_events, own_risk = np.hstack([events, zero]), np.hstack([risk, zero])
        all_events, all_risk = np.hstack([events, events]), np.hstack([risk, risk])
        e_one, n_one = own_events @ counts[:-1], own_risk @ counts[:-1]
        e, n = all_events @ counts[:-1], all_risk @ counts[:-1]
        floor = totals.noise.deviation * np.linalg.norm(all_risk @ mixing[:-1], axis=1)
        known = np.cumprod(n > np.maximum(LIKELY / 2 * floor, 1.0)).astype(bool)
        # Later events are left out: no more than there are at risk, and half of what counts twice.
        last = int(np.argmin(known))
        later = 0.0 if known.all() else max(n[last], 0.0) + totals.noise.tail * floor[last] + 1
        n = np.where(known, n, np.inf)
        share, hazard = np.clip(n_one / n, 0.0, 1.0), np.clip(e / n, 0.0, 1.0)
        gap = float(np.sum((e_one - share * e)[known]))
        weights = known[:, None]
        gradient = np.sum(
            weights * (own_events - share[:, None] * all_events)
            - hazard[:, None] * weights * (own_risk - share[:, None] * all_risk),
            axis=0,
        )
        noisy = error(mixing[:-1], gradient, totals.noise)
        variance = float(np.sum((share * (1 - share) * np.maximum(e, 0.0) * (1 - hazard))[known]))
        sampling = math.sqrt(max(variance, 1.0))
        spread = math.hypot(noisy, sampling)
        z = smooth(gap / spread, noisy / spread, sampling / spread, totals.noise)
        both = smooth(gap, noisy, sampling, totals.noise)
        ends = [Interval(each.lower - later, each.upper + later)
                for each in (both.interval, both.among_records)]  # fmt: skip
        return Answer(
            {
                "observed - expected": Estimate(gap, noisy, sampling, *ends),
                # There is no z without the noise, which its unit is made of.
                "z": replace(z, among_records=z.interval),
            }
        )
