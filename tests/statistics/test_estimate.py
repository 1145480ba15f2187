"""Intervals against every outcome of small samples: exact coverage, no simulation."""

import math

import numpy as np
import pytest
from scipy import stats

import randquant as rq
from randquant.channels import Key
from randquant.privacy import Interval
from randquant.statistics import (
    LAPLACE_HALF_WIDTH,
    NORMAL_HALF_WIDTH,
    SumNoise,
    Totals,
    proportion,
    ratio,
)
from randquant.statistics.moments import NoisyMoments

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


@pytest.mark.parametrize("value", [-0.9, 0.2])
def test_noise_in_how_many_values_there_are_moves_a_variance_as_is_stated(value):
    """One more or less of 200 of deviation 0.1: squares are sent less a half of each."""

    def variance(off):
        sums = np.diag([200.0 + off, 200 * (value**2 + 0.01) + off / 2])
        sums[0, 1] = sums[1, 0] = 200 * value
        return NoisyMoments(sums, np.diag([1.0, 0.0]), NORMAL_HALF_WIDTH)

    more, less = (variance(off).covariance_estimate(1, 1, 1.0).estimate for off in (1, -1))
    stated = variance(0).covariance_estimate(1, 1, 1.0).noise_error
    assert stated == pytest.approx(abs(more - less) / 2, rel=1e-3)


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


@pytest.mark.parametrize("at", [0.5, 0.1])
@pytest.mark.parametrize("records", [2, 5, 30, 200])
def test_a_quantile_is_within_its_interval_for_every_probability(records, at):
    """Of values in two neighbouring bins, of which the lower one has a probability."""
    query, amplitude = rq.Quantiles(0, 8, steps=8, at=[at]), 2**20
    block, noise = query.block(), SumNoise(1e-9, NORMAL_HALF_WIDTH)

    def interval(k):
        rows = np.repeat([3, 4], [k, records - k])
        sums = block.total(rows, amplitude, "l2", rq.Key.from_seed(0))
        return query.answer(Totals(sums, records, amplitude, "l2", noise))[f"{at:g}"].interval

    quantile = lambda p: 3 + at / p if p >= at else 4 + (at - p) / (1 - p)  # noqa: E731
    assert coverage(interval, records, quantile).min() >= 0.95


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


def test_the_rounding_of_many_records_is_in_the_error_that_is_stated():
    """Of very many records it is most of the error."""
    terms = rq.survey({"x": rq.Mean(0, 1)}, 1.0, 1e-6, "central", 1, 100, unit="example")
    block, amplitude = terms.queries["x"].block(), terms.amplitudes["x"]
    # What rounding does, where it does most: a number half a step from two integers.
    halfway = {"x": np.full(4000, (1 + 0.5 / amplitude) / 2)}
    drawn = np.array([terms.vector(halfway, Key.from_seed(k))[0] for k in range(40)])
    share = drawn.var() / 4000
    assert 0.1 < share < 0.45  # of 40 draws around 1/4
    for records in (100, 10**9):
        present = terms.read(np.zeros(block.size, np.int64), records)["x"]["present"]
        noise = present.noise_error * block.scales(amplitude, terms.norm)[-1]
        assert noise**2 == pytest.approx(terms.law.variance + records / 4, rel=1e-9, abs=0)


def test_a_quantile_allows_for_values_that_the_noise_has_hidden():
    """There may be more of them than are seen, by the noise in their number: they vary more."""
    query, amplitude, count = rq.Quantiles(0, 16, steps=16, at=[0.5]), 2**12, 64
    block = query.block()
    sums = block.total(np.repeat(np.arange(16), count // 16), amplitude, "l2", Key.from_seed(0))

    def stated(deviation):
        noise = SumNoise(deviation, NORMAL_HALF_WIDTH)
        return query.answer(Totals(sums, count, amplitude, "l2", noise))["0.5"].sampling_error

    mixing = block.counts(sums, count, amplitude, "l2")[1]
    hidden = 8.0  # the deviation of the number of values
    deviation = hidden / np.linalg.norm(mixing[:-1].sum(axis=0))
    assert stated(deviation) == pytest.approx(
        stated(1e-9) * math.sqrt(1 + hidden / count), rel=1e-6, abs=0
    )
