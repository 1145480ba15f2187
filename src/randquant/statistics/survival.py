"""Survival: the Kaplan-Meier curve and the log-rank test, from counts per bin of time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from randquant._internal import validate
from randquant.privacy.guarantee import Interval
from randquant.statistics import query
from randquant.statistics.encodings import Tree
from randquant.statistics.estimate import NORMAL, Answer, Estimate, SumNoise

STEPS = 255
"""Steps that time is cut into, or more where a curve is given at more places."""

SMOOTHED = 16
"""Steps over which losses are averaged, to tell how many share a step with later events."""

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
        bins: of equal width until then, at whose ends the curve is given. To count, time is cut
            further, into 128 to 255 steps, or into the bins if there are more.

    Labels are the bins' ends. A record with a missing time or event is left out. As usual, whoever
    was last seen at the time of an event was at risk of it. The order within a step is unknown, and
    losses count as after events: this is Kaplan and Meier's estimate if no step holds two different
    times (24 months, 7 years), and otherwise higher by a little, which the intervals contain.

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
        """Events in each step, and losses likewise."""
        return Tree(2 * (_steps(self.bins) + 1))

    def rows(self, columns: query.Columns) -> np.ndarray:
        """The number of the cell."""
        return _cells(columns, self.time, self.event, self.until, _steps(self.bins))

    def answer(self, totals: query.Totals) -> Answer:
        """The curve at the ends of the bins, with Greenwood's variance and the noise's."""
        counts, mixing = self.block().counts(
            totals.values, totals.records, totals.amplitude, totals.norm
        )
        edges = np.linspace(0.0, self.until, self.bins + 1)[1:].tolist()
        step = _steps(self.bins) // self.bins
        curve = _curve(counts[:-1], mixing[:-1], totals.noise)[step::step]
        estimates = {f"{edge:.6g}": each for edge, each in zip(edges, curve, strict=True)}
        return Answer(estimates, tuple(edges), unit="probability")


def _curve(counts: np.ndarray, mixing: np.ndarray, noise: SumNoise) -> list[Estimate]:
    """Estimates after each step."""
    (e, n), (of_e, of_n) = _events_and_risk(counts), _events_and_risk(mixing)
    through, of_through = n - e, of_n - of_e
    by_n, by_through = (noise.deviation**2 * _squares(each) for each in (of_n, of_through))
    # Of those who are at risk in a step, some must be known to come through.
    least = LIKELY * np.sqrt(np.maximum(np.maximum(by_n, by_through), 0.25))
    k = slice(_first_not(np.minimum(n, through) > least))
    moved = (of_e[k] - (e[k] / n[k])[:, None] * of_n[k]) / through[k][:, None]
    noisy = noise.deviation * np.sqrt(_squares(np.cumsum(moved, axis=0)))
    # theory/statistics.md, Proposition 9: what noise moves logarithms by is put back.
    lowered = (by_through[k] / through[k] ** 2 - by_n[k] / n[k] ** 2) / 2
    log = np.cumsum(np.log(through[k] / n[k]) + lowered)
    hazards = _hazards(e[k], n[k])
    greenwood = np.cumsum(hazards / ((1 - np.minimum(hazards, 0.9)) * n[k]))
    sampling = np.sqrt(greenwood + (UNSEEN / n[k]) ** 2)
    order = np.cumsum(hazards * np.maximum(_smoothed(_losses(e, n)[k]), 0.0) / n[k])

    def padded(values: np.ndarray, rest: float) -> list[float]:
        return [*values.tolist(), *[rest] * (len(n) - len(values))]

    def ends(half: np.ndarray) -> list[Interval]:
        """Where nobody is known to be at risk, the curve only falls."""
        lower, upper = np.exp(log - half - order), np.minimum(np.exp(log + half), 1.0)
        rest = float(upper[-1]) if len(upper) else 1.0
        return list(map(Interval, padded(np.minimum(lower, 1.0), 0.0), padded(upper, rest)))

    later = n > np.maximum(LIKELY / 2 * np.sqrt(by_n), 0.5)
    later[k] = True
    rest = slice(len(log), _first_not(later))
    less_sure = np.cumprod(np.clip(through[rest] / n[rest], 0.0, 1.0))
    last = math.exp(log[-1]) if len(log) else 1.0
    curve = -_increasing(-np.minimum(np.append(np.exp(log), last * less_sure), 1.0))
    alone, errors = noise.tail * noisy, (curve[: len(log)] * each for each in (noisy, sampling))
    columns = zip(
        padded(curve, float(curve[-1]) if len(curve) else 1.0),
        *(padded(each, math.inf) for each in errors),
        ends(np.hypot(alone, NORMAL * sampling)), ends(alone), strict=True,
    )  # fmt: skip
    return [
        Estimate(min(max(s, both.lower), both.upper), by_noise, by_sample, both, records)
        for s, by_noise, by_sample, both, records in columns
    ]


def _first_not(true: np.ndarray) -> int:
    """The first place that is not true, or the end."""
    return len(true) if true.all() else int(np.argmin(true))


def _squares(rows: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", rows, rows)


def _increasing(values: np.ndarray) -> np.ndarray:
    """The nearest sequence that never falls."""
    from scipy.optimize import isotonic_regression

    return isotonic_regression(values).x if len(values) else values


def _hazards(e: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Within 0 and 1, so that cumulative events never fall."""
    events = np.diff(np.maximum(_increasing(np.cumsum(e)), 0.0), prepend=0.0)
    return np.minimum(events / n, 1.0)


def _losses(e: np.ndarray, n: np.ndarray) -> np.ndarray:
    return n - e - np.append(n[1:], 0.0)


def _smoothed(losses: np.ndarray) -> np.ndarray:
    from scipy.ndimage import uniform_filter1d

    return uniform_filter1d(losses, SMOOTHED, mode="nearest")


def _steps(bins: int) -> int:
    """Steps that so many bins are cut into."""
    return max(STEPS // bins, 1) * bins


def _cells(columns: query.Columns, time: str, event: str, until: float, steps: int) -> np.ndarray:
    """Cells of records: of events from time zero on, then of losses; the last of all others.

    A step holds its end: whoever has an event or was last seen there was at risk until then.
    """
    times = query.numbers(columns[time], time)
    happened = query.numbers(columns[event], event)
    for bad in happened[~np.isnan(happened) & (happened != 0) & (happened != 1)][:1]:
        raise ValueError(
            f"Expected 0 or 1 in column {event!r}, got {bad:g}: 1 for an event, 0 if last seen."
        )
    # Less than any step, and more than what float32 has times of whole units off.
    slack = 1e-4
    place = np.ceil(np.clip(times, 0.0, until) / until * steps - slack)
    lost = (happened == 0) | (times > until * (1 + slack / steps))
    cell = np.where(times > until * (1 + slack / steps), steps, place) + (steps + 1) * lost
    missing = np.isnan(times) | np.isnan(happened)
    return np.where(missing, 2 * (steps + 1), cell).astype(np.int64)


def _events_and_risk(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What happens in each step and how many are at risk in it, from (cells, ...)."""
    events, losses = np.split(cells, 2)
    return events, np.cumsum((events + losses)[::-1], axis=0)[::-1]


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
    are alike, so that the p-value is 2 · Φ(-|z|). Late times, at which noise hides how many are at
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
        return Tree(4 * (_steps(self.bins) + 1))

    def rows(self, columns: query.Columns) -> np.ndarray:
        """The number of the cell."""
        cells = 2 * (_steps(self.bins) + 1)
        cell = _cells(columns, self.time, self.event, self.until, _steps(self.bins))
        group = query.categories(columns[self.by], self.groups, self.by)
        missing = (cell == cells) | (group == 2)
        return np.where(missing, 2 * cells, group * cells + cell)

    def answer(self, totals: query.Totals) -> Answer:
        """Observed less expected events, by the delta method."""
        counts, mixing = self.block().counts(
            totals.values, totals.records, totals.amplitude, totals.norm
        )
        noise = totals.noise
        (e_one, n_one), (e_two, n_two) = map(_events_and_risk, np.split(counts[:-1], 2))
        of_one, of_two = map(_events_and_risk, np.split(mixing[:-1], 2))
        e, n = e_one + e_two, n_one + n_two
        of_e, of_n = of_one[0] + of_two[0], of_one[1] + of_two[1]
        floor = noise.deviation * np.sqrt(_squares(of_n))
        last = _first_not(n > np.maximum(LIKELY / 2 * floor, 1.5))
        k, later = slice(last), 0.0
        if last < len(n):  # theory/statistics.md, Proposition 9: what is left out is no more
            later = max(n[last] + noise.tail * floor[last], 0.0) / math.e
        e, n, of_e, of_n = e[k], n[k], of_e[k], of_n[k]
        share, hazard = np.clip(n_one[k] / n, 0.0, 1.0), np.clip(e / n, 0.0, 1.0)
        of_share = of_one[1][k] - share[:, None] * of_n  # times the number at risk
        of_gap = of_one[0][k] - share[:, None] * of_e - hazard[:, None] * of_share
        gap = float(np.sum(e_one[k] - share * e))
        # What the product of both noises, in shares and in events, takes from it.
        of_hazard = of_e - hazard[:, None] * of_n
        gap += noise.deviation**2 * float(np.sum(np.sum(of_share * of_hazard, axis=1) / n))
        noisy = noise.deviation * float(np.linalg.norm(of_gap.sum(axis=0)))
        hazards = _hazards(e, n)
        weights = share * (1 - share) * (1 - hazards) * n / (n - 1)
        # The variance with what noise may have taken from it.
        variance = max(float(weights @ e), 0.0) + noise.deviation * float(
            np.linalg.norm(weights @ of_e)
        )
        sampling = math.sqrt(max(variance, 1e-12))
        lost_one, lost_two = (_losses(*each)[k] for each in ((e_one, n_one), (e_two, n_two)))
        order = float(hazards @ _smoothed((1 - share) * lost_one - share * lost_two))

        def within(half: float, more: float) -> Interval:
            return Interval(
                gap - half - more + min(order, 0.0), gap + half + more + max(order, 0.0)
            )

        alone, spread = noise.tail * noisy, math.hypot(noisy, sampling)
        both = math.hypot(alone, NORMAL * sampling) + 0.5  # events come in steps
        ends = within(both, 0.0)
        of_z = Interval(ends.lower / spread, ends.upper / spread)
        return Answer(
            {
                "observed - expected": Estimate(
                    gap, noisy, sampling, within(both, later), within(alone, later)
                ),
                # There is no z without the noise, which its unit is made of.
                "z": Estimate(gap / spread, noisy / spread, sampling / spread, of_z, of_z),
            }
        )
