"""How often intervals contain what they are said to contain, over many tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from randquant.channels import Key
from randquant.statistics import (
    LAPLACE_HALF_WIDTH,
    NORMAL_HALF_WIDTH,
    KaplanMeier,
    LogRank,
    Query,
    SumNoise,
    Totals,
)

FALSE_ALARM = 1e-6
AMPLITUDE = 2**30
HUGE = 2_000_000
"""Records of which a population's numbers are computed, if no formula gives them."""

Sample = Callable[[np.random.Generator, int], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Setting:
    """Which table is asked how often.

    Attributes:
        noise: deviation of each total's noise over the distance of two records; in L1, scale.
        norm: "l2" for normal noise, "l1" for Laplace's.
        truth: numbers of the population; of counts, shares of the records.
    """

    query: Query
    sample: Sample
    records: int
    noise: float
    norm: str = "l2"
    truth: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Misses:
    """How many intervals of so many tables missed, by label, and how wide they were."""

    runs: int
    population: Counter
    records: Counter
    width: Mapping[str, float]


def allowed(runs: int) -> int:
    """Most misses of intervals that hold in 95 of 100 tables, but for one test in a million."""
    return int(stats.binom.isf(FALSE_ALARM, runs, 0.05))


def rows_of(query: Query, sample) -> np.ndarray:
    """What is added up of each record: read once for all answers of a sample, for it takes long."""
    return query.named("q", {}).rows(sample)


def without_noise(query: Query, sample):
    """The answer from exact sums."""
    return exact_answer(query, rows_of(query, sample))


def exact_answer(query: Query, rows: np.ndarray, norm: str = "l2"):
    query = query.named("q", {})
    totals = query.block().total(rows, AMPLITUDE, norm, Key.from_seed(0))
    return query.answer(
        Totals(totals, len(rows), AMPLITUDE, norm, SumNoise(1e-9, NORMAL_HALF_WIDTH))
    )


def estimates_of(query: Query, rows: np.ndarray) -> dict[str, float]:
    """Estimates without noise."""
    return {label: each.estimate for label, each in exact_answer(query, rows).items()}


def curve_of(asked: KaplanMeier, sample) -> dict[str, float]:
    """Kaplan and Meier's estimate from records themselves."""
    times, happened = sample[asked.time], sample[asked.event] == 1
    at, events = np.unique(times[happened], return_counts=True)
    risk = len(times) - np.searchsorted(np.sort(times), at)
    curve = np.append(1.0, np.cumprod(1 - events / risk))
    edges = np.linspace(0, asked.until, asked.bins + 1)[1:]
    passed = np.searchsorted(at, edges + 1e-9 * asked.until, side="right")
    return {f"{edge:.6g}": s for edge, s in zip(edges, curve[passed], strict=True)}


def gap_of(asked: LogRank, sample) -> dict[str, float]:
    """Events of the first group until the end, less those expected, from records themselves."""
    times, happened = sample[asked.time], sample[asked.event] == 1
    first = np.array([group == asked.groups[0] for group in sample[asked.by]])
    at, events = np.unique(times[happened & (times <= asked.until)], return_counts=True)
    ranked, own = np.sort(times), np.sort(times[first])
    risk, first_risk = (len(each) - np.searchsorted(each, at) for each in (ranked, own))
    observed = np.sum(first & happened & (times <= asked.until))
    return {"observed - expected": float(observed - np.sum(events * first_risk / risk))}


PLAINLY = {KaplanMeier: curve_of, LogRank: gap_of}


def noisy_answer(setting: Setting, rows: np.ndarray, rng: np.random.Generator, key: Key):
    """The answer from noisy sums, which are made up: that the noise is drawn so has own tests."""
    query, norm = setting.query.named("q", {}), setting.norm
    block = query.block()
    apart = block.distance(AMPLITUDE, norm)
    totals = block.total(rows, AMPLITUDE, norm, key)
    if norm == "l1":
        deviation, tail = setting.noise * apart * math.sqrt(2), LAPLACE_HALF_WIDTH
        noise = rng.laplace(0, setting.noise * apart, totals.size)
    else:
        deviation, tail = setting.noise * math.sqrt(apart), NORMAL_HALF_WIDTH
        noise = rng.normal(0, deviation, totals.size)
    noisy = totals + np.rint(noise).astype(np.int64)
    return query.answer(Totals(noisy, len(rows), AMPLITUDE, norm, SumNoise(deviation, tail)))


def misses(setting: Setting, runs: int, seed: int = 1) -> Misses:
    """Ask a query of so many samples of a population."""
    query, truth = setting.query, dict(setting.truth or {})
    if not truth:
        truth = estimates_of(query, rows_of(query, setting.sample(np.random.default_rng(0), HUGE)))
    rng, key = np.random.default_rng(seed), Key.from_seed(seed)
    population, records, width = Counter(), Counter(), dict.fromkeys(truth, 0.0)
    for run in range(runs):
        sample = setting.sample(rng, setting.records)
        rows, plainly = rows_of(query, sample), PLAINLY.get(type(query))
        plain = plainly(query, sample) if plainly else estimates_of(query, rows)
        for label, each in noisy_answer(setting, rows, rng, key.fold_in(run)).items():
            if label in truth:
                slack = 1e-9 + 2e-3 * abs(truth[label]) * (not setting.truth)
                population[label] += not (
                    each.interval.lower - slack <= truth[label] <= each.interval.upper + slack
                )
                width[label] += (each.interval.upper - each.interval.lower) / runs
            if label in plain:
                slack = 1e-6 + 1e-6 * abs(plain[label])
                alone = each.among_records
                records[label] += not alone.lower - slack <= plain[label] <= alone.upper + slack
    return Misses(runs, population, records, width)
