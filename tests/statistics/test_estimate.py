"""Intervals against every outcome of small samples: exact coverage, no simulation."""

import math

import numpy as np
import pytest
from scipy import stats

import randquant as rq
from randquant.privacy import Interval
from randquant.statistics import (
    LAPLACE_HALF_WIDTH,
    NORMAL_HALF_WIDTH,
    SumNoise,
    Totals,
    proportion,
    ratio,
)

CHANCES = np.concatenate([np.geomspace(1e-4, 0.1, 60), np.linspace(0.1, 0.9, 81)])


def coverage(interval_of, records: int, value) -> np.ndarray:
    """Of each of CHANCES: probability that the interval of a binomial count holds value(p)."""
    ends = [interval_of(k) for k in range(records + 1)]
    held = np.array([[e.lower - 1e-9 <= value(p) <= e.upper + 1e-9 for e in ends] for p in CHANCES])
    return (stats.binom.pmf(np.arange(records + 1), records, CHANCES[:, None]) * held).sum(axis=1)


def test_tails_hold_96_of_100():
    assert stats.norm.cdf(NORMAL_HALF_WIDTH) - stats.norm.cdf(-NORMAL_HALF_WIDTH) >= 0.959
    assert 1 - math.exp(-math.sqrt(2) * LAPLACE_HALF_WIDTH) >= 0.96


@pytest.mark.parametrize("records", [1, 2, 5, 30, 200])
def test_a_count_is_within_its_interval_for_every_probability(records):
    noise = SumNoise(1e-9, NORMAL_HALF_WIDTH)
    held = coverage(lambda k: proportion(k, records, 0.0, noise), records, lambda p: records * p)
    assert held.min() >= 0.95


@pytest.mark.parametrize("value", [-0.9, 0.9])
def test_noise_in_how_many_values_there_are_widens_the_interval_of_their_mean(value):
    """Half of the values are missing: the mean is a ratio of two noisy numbers."""
    query, amplitude, present = rq.Mean(-1, 1), 2**12, 200
    sums = present * np.array([value, value**2 - 0.5, 1.0])
    totals = np.rint(sums * query.block().scales(amplitude, "l2")).astype(np.int64)
    noise = SumNoise(4.0 * amplitude, NORMAL_HALF_WIDTH)
    mean = query.answer(Totals(totals, 2 * present, amplitude, "l2", noise))["mean"]
    assert mean.estimate == pytest.approx(value, abs=1e-3)
    assert mean.noise_error > 1.1 * 4 / present
    assert mean.among_records.width >= 2 * NORMAL_HALF_WIDTH * mean.noise_error


@pytest.mark.parametrize("records", [3, 8, 20, 50, 200, 600])
def test_a_mean_of_zeros_and_ones_is_within_its_interval_for_every_probability(records):
    query, amplitude = rq.Mean(0, 1), 2**20
    scales = query.block().scales(amplitude, "l2")

    def answer(k):
        sums = np.array([2 * k - records, records / 2, 0.0]) * scales
        return query.answer(
            Totals(sums, records, amplitude, "l2", SumNoise(1e-9, NORMAL_HALF_WIDTH))
        )

    found = [answer(k) for k in range(records + 1)]
    mean = coverage(lambda k: found[k]["mean"].interval, records, lambda p: p)
    spread = coverage(
        lambda k: found[k]["deviation"].interval, records, lambda p: math.sqrt(p * (1 - p))
    )
    assert mean.min() >= 0.95
    assert spread.min() >= 0.95


@pytest.mark.parametrize("seed", range(40))
def test_a_ratio_has_just_the_solutions(seed):
    rng = np.random.default_rng(seed)
    x, n = rng.normal(0, 5), rng.uniform(0, 10)
    a, c = rng.uniform(0, 4, 2)
    b = rng.uniform(-1, 1) * math.sqrt(a * c)
    found = ratio(x, n, (a, b, c), -1.0, 1.0)
    t = np.linspace(-1, 1, 4001)
    solved = t[(x - n * t) ** 2 <= a + b * t + c * t**2]
    assert (
        not len(solved) or found.lower <= solved.min() + 1e-9 <= solved.max() <= found.upper + 1e-9
    )
    if n**2 > c + 0.1 and len(solved):
        assert found.upper - found.lower <= np.ptp(solved) + 1e-3
    if n**2 <= c or n < 0.5:
        assert found == Interval(-1.0, 1.0)
