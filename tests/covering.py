"""How often intervals contain what they are said to contain, over many tables."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from randquant.channels.keys import Key
from randquant.statistics.estimate import SumNoise
from randquant.statistics.query import Query, Totals
from randquant.statistics.surveys import survey
from randquant.statistics.survival import KaplanMeier

FALSE_ALARM = 1e-6
HUGE = 2_000_000
"""Records of which a population's numbers are computed, if no formula gives them."""

Sample = Callable[[np.random.Generator, int], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Setting:
    """Which table is asked how often."""

    query: Query
    sample: Sample
    records: int
    epsilon: float
    delta: float = 1e-6
    trust: str = "central"
    clients: int = 1
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


def exact(terms, name, totals, records):
    """The answers of totals without noise."""
    part = Totals(totals, records, terms.amplitudes[name], terms.norm, SumNoise(1e-9, 2.0))
    return {k: each.estimate for k, each in terms.queries[name].answer(part).items()}


def counted(label: str) -> bool:
    """Whether a number grows with the number of records."""
    return label == "present" or label.startswith("#")


def life_table(asked: KaplanMeier, sample) -> dict[str, float]:
    """A curve from records themselves; NaN from where nobody is at risk."""
    edges, alive = np.linspace(0, asked.until, asked.bins + 1), 1.0
    times, happened = sample[asked.time], sample[asked.event] == 1
    curve = {}
    for start, end in itertools.pairwise(edges):
        events = np.sum(happened & (times > start) & (times <= end))
        events += np.sum(happened & (times <= 0)) * (start == 0)
        lost = np.sum(~happened & (times >= start) & (times < end))
        risk = np.sum(happened & (times > start)) + np.sum(~happened & (times >= start)) - lost / 2
        risk += np.sum(happened & (times <= 0)) * (start == 0)
        alive *= 1 - events / risk if risk else np.nan
        curve[f"{end:.6g}"] = alive
    return curve


def misses(setting: Setting, runs: int, seed: int = 1) -> Misses:
    """Ask a query of so many samples of a population."""
    name, n = "q", setting.records
    terms = survey({name: setting.query}, setting.epsilon, setting.delta, setting.trust,
                   setting.clients, n, {})  # fmt: skip
    truth = dict(setting.truth or {})
    if not truth:
        big = setting.sample(np.random.default_rng(0), HUGE)
        found = exact(terms, name, terms.vector(big, Key.from_seed(0)), HUGE)
        counts = type(setting.query).__name__ == "Counts"
        truth = {k: v * n / HUGE if counts or k == "present" else v for k, v in found.items()}
    curve = isinstance(setting.query, KaplanMeier)
    plainly = (lambda sample: life_table(setting.query, sample)) if curve else None
    rng, key = np.random.default_rng(seed), Key.from_seed(seed)
    population, records, width = Counter(), Counter(), dict.fromkeys(truth, 0.0)
    for run in range(runs):
        sample = setting.sample(rng, n)
        totals = terms.vector(sample, key.fold_in("data", run))
        plain = exact(terms, name, totals, n) if plainly is None else plainly(sample)
        plain.pop("z", None)  # which is in units of the noise
        shares = 1 if setting.trust == "central" else setting.clients
        noise = sum(terms.share(key.fold_in(run, k)) for k in range(shares))
        for label, each in terms.read(totals + noise, n, shares)[name].items():
            if label in truth:
                slack = 1e-9 + 2e-3 * abs(truth[label]) * (not setting.truth)
                population[label] += not (
                    each.interval.lower - slack <= truth[label] <= each.interval.upper + slack
                )
                width[label] += (each.interval.upper - each.interval.lower) / runs
            if not np.isfinite(plain.get(label, np.nan)):
                continue
            slack = 1e-6 + 1e-6 * abs(plain[label])
            alone = each.among_records
            records[label] += not alone.lower - slack <= plain[label] <= alone.upper + slack
    return Misses(runs, population, records, width)
