"""Estimates without noise are those of well-kept packages, on awkward records; with it, see
test_estimate_coverage.py. A query without such a table is not offered."""

import math

import numpy as np
import oracle
import pytest
from covering import Setting, noisy_answer, rows_of, without_noise
from scipy import stats

import randquant as rq
from randquant.channels import Key
from randquant.statistics import KINDS

SEEDS = range(30)
WIDTHS = (1, 2, 5, 7, 12, 24, 37, 100, 120, 250, 500)


def tied(seed):
    """Times in whole units (also halves, twelfths and tens), of two groups unlike in their losses.

    With some at time zero, lost together at the end, or with times beyond it; of 3 to 250 people.
    """
    rng = np.random.default_rng(seed)
    n = int(rng.choice([3, 7, 20, 80, 250]))
    unit, until = [(1.0, 24.0), (1.0, 7.0), (0.5, 6.0), (1 / 12, 2.0), (1.0, 120.0),
                   (10.0, 200.0)][seed % 6]  # fmt: skip
    first = rng.random(n) < rng.choice([0.15, 0.5])
    event = np.ceil(rng.exponential(until * rng.choice([0.5, 1.0, 3.0]), n) / unit)
    seen = np.ceil(rng.exponential(until * np.where(first, 0.4, 1.5)) / unit)
    if seed % 3 == 0:
        seen = np.minimum(seen, round(until / unit))
    ticks = np.minimum(event, seen) - (seed % 5 == 0)
    data = {"days": ticks * unit, "event": (event <= seen) * 1,
            "arm": np.where(first, "a", "b").astype(object)}  # fmt: skip
    return data, until


@pytest.mark.parametrize("seed", SEEDS)
def test_a_curve_of_tied_times_is_kaplan_and_meiers_for_every_width_of_bins(seed):
    data, until = tied(seed)
    for bins in (WIDTHS[seed % len(WIDTHS)], WIDTHS[(seed + 5) % len(WIDTHS)]):
        query = rq.KaplanMeier("days", "event", until=until, bins=bins)
        answer = without_noise(query, data)
        places = [until * (k + 1) / bins + 1e-9 * until for k in range(bins)]
        curve = oracle.kaplan_meier(data["days"].tolist(), data["event"].tolist(), places)
        for each, true in zip(answer.values(), map(float, curve), strict=True):
            assert each.estimate == pytest.approx(true, abs=1e-7)
            assert each.among_records.lower - 1e-6 <= true <= each.among_records.upper + 1e-6


@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_rank_test_of_tied_times_is_the_exact_one_for_every_width_of_bins(seed):
    data, until = tied(seed)
    counted = np.where(data["days"] > until * (1 + 1e-9), 0, data["event"])
    first = [arm == "a" for arm in data["arm"]]
    gap, variance = map(float, oracle.log_rank(data["days"].tolist(), counted.tolist(), first))
    query = rq.LogRank("days", "event", "arm", ["a", "b"], until, WIDTHS[seed % len(WIDTHS)])
    answer = without_noise(query, data)
    assert answer["observed - expected"].estimate == pytest.approx(gap, abs=1e-7)
    z = gap / math.sqrt(variance) if variance else 0.0
    assert answer["z"].estimate == pytest.approx(z, abs=1e-4)


def test_times_in_float32_fall_into_the_same_steps():
    months = np.arange(1, 25) / 12
    query = rq.KaplanMeier("days", "event", until=2, bins=24)
    cells = [query.rows({"days": months.astype(kind), "event": np.ones(24)}).tolist()
             for kind in (np.float64, np.float32)]  # fmt: skip
    assert cells[0] == cells[1] == [round(240 / 24 * k) for k in range(1, 25)]


def test_times_are_read_to_a_step_and_no_further():
    """In continuous time the estimate is a little high, and the intervals say by how much."""
    rng = np.random.default_rng(1)
    event, seen = rng.exponential(1.0, 50_000), rng.exponential(1.0, 50_000)
    data = {"days": np.minimum(event, seen), "event": (event <= seen) * 1}
    for bins in (1, 4, 120):
        query = rq.KaplanMeier("days", "event", until=1.5, bins=bins)
        last = list(without_noise(query, data).values())[-1]
        at, risk = np.sort(data["days"][data["event"] == 1]), np.sort(data["days"])
        true = np.prod(1 - 1 / (len(risk) - np.searchsorted(risk, at[at <= 1.5])))
        assert last.among_records.lower < true < last.estimate < true * (1 + 0.012)


COLUMNS = {
    "tied": (np.repeat([1.0, 2.0, 3.0, 3.0, 5.0], [7, 1, 9, 3, 2]), (0, 10)),
    "heaped": (np.repeat([90.0, 110.0, 120.0, 130.0, 140.0, 180.0], [3, 20, 41, 30, 11, 2]),
               (60, 220)),
    "dated": (18262.0 + np.arange(0, 366, 3), (17000, 20000)),
    "missing": (np.where(np.arange(200) % 10 < 9, math.nan, np.arange(200.0)), (0, 200)),
    "unbalanced": (np.append(np.zeros(399), 1.0), (0, 1)),
    "constant": (np.full(50, 0.3), (0, 1)),
    "at a bound": (np.full(50, 1.0), (0, 1)),
    "beyond": (np.array([-math.inf, -5.0, 2.0, 30.0]), (0, 10)),
    "tiny": (np.array([4.0, 7.0]), (0, 10)),
    "alone": (np.array([4.0]), (0, 10)),
}  # fmt: skip
EACH_COLUMN = pytest.mark.parametrize("column", COLUMNS)


def values_of(column):
    values, ends = COLUMNS[column]
    return values, ends, np.clip(values[~np.isnan(values)], *ends)


@EACH_COLUMN
def test_means_and_deviations_are_numpys(column):
    values, (low, high), known = values_of(column)
    answer = without_noise(rq.Mean(low, high), {"q": values})
    half = (high - low) / 2
    assert answer["mean"].estimate == pytest.approx(known.mean(), abs=1e-7 * half)
    assert answer["deviation"].estimate ** 2 == pytest.approx(known.var(), abs=1e-7 * half**2)
    assert answer["present"].estimate == pytest.approx(len(known), abs=1e-6)


@EACH_COLUMN
def test_quantiles_are_in_the_bins_of_numpys(column):
    values, (low, high), known = values_of(column)
    levels = [0.011, 0.093, 0.251, 0.503, 0.747, 0.9003, 0.997]
    for steps in (2, 10, 128, 1000):
        answer = without_noise(rq.Quantiles(low, high, steps=steps, at=levels), {"q": values})
        true = np.quantile(known, levels, method="inverted_cdf")
        for each, value in zip(answer.values(), true, strict=True):
            edges = np.linspace(low, high, steps + 1)  # a bin holds its lower edge
            k = min(int(np.searchsorted(edges, value, side="right")) - 1, steps - 1)
            ends = edges[[k, k + 1]]
            assert ends[0] - 1e-6 <= each.estimate <= ends[1] + 1e-6
            assert each.among_records.lower - 1e-6 <= value <= each.among_records.upper + 1e-6


@EACH_COLUMN
def test_counts_are_numpys(column):
    values, (low, high), known = values_of(column)
    edges = np.linspace(low, high, 8)
    counts, _ = np.histogram(known, edges)
    # numpy's last bin holds its upper edge, as ours.
    answer = without_noise(rq.Counts(bins=edges), {"q": values})
    *bins, other = (each.estimate for each in answer.values())
    np.testing.assert_allclose(bins, counts, atol=1e-6)
    assert other == pytest.approx(len(values) - len(known), abs=1e-6)


def test_crossed_counts_are_those_of_each_pair():
    rng = np.random.default_rng(2)
    ward = rng.choice(np.array(["a", "b", "c", None], object), 300, p=[0.9, 0.09, 0.005, 0.005])
    sex = rng.choice(np.array(["f", "m", math.nan], object), 300)
    query = rq.Counts(["a", "b"], by={"sex": ["f", "m"]})
    answer = without_noise(query, {"q": ward, "sex": sex})
    for s in "fm":
        for w in "ab":
            assert answer[f"{s}, {w}"].estimate == pytest.approx(
                sum((ward == w) & (sex == s)), abs=1e-6
            )


def pair(kind):
    """Two columns and their bounds."""
    rng = np.random.default_rng(4)
    x, y, ends = {
        "tied": lambda: (rng.integers(0, 3, 60) * 1.0, rng.integers(0, 3, 60) * 1.0, (0, 2)),
        "heaped": lambda: (rng.integers(9, 15, 90) * 10.0, rng.integers(6, 12, 90) * 10.0,
                           (40, 200)),
        "dated": lambda: (18262.0 + np.arange(200), 18262.0 + np.arange(200) % 31, (18000, 19000)),
        "missing": lambda: (np.where(np.arange(90) % 3, rng.normal(size=90), math.nan),
                            np.where(np.arange(90) % 4, rng.normal(size=90), math.nan), (-5, 5)),
        "unbalanced": lambda: (np.append(np.zeros(199), 1.0), rng.random(200), (0, 1)),
        "tiny": lambda: (np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0, 2.0]), (0, 5)),
    }[kind]()  # fmt: skip
    known = ~np.isnan(x) & ~np.isnan(y)
    return {"x": x, "y": y}, ends, (x[known], y[known])


PAIRS = pytest.mark.parametrize(
    "kind", ["tied", "heaped", "dated", "missing", "unbalanced", "tiny"]
)


@PAIRS
def test_covariances_are_numpys(kind):
    data, ends, known = pair(kind)
    answer = without_noise(rq.Covariance({"x": ends, "y": ends}), data)
    true = np.cov(*known, ddof=0)
    half = (ends[1] - ends[0]) / 2
    for label, value in (("x", true[0, 0]), ("x, y", true[0, 1]), ("y", true[1, 1])):
        assert answer[label].estimate == pytest.approx(value, abs=1e-7 * half**2)


@PAIRS
def test_regressions_are_scipys(kind):
    data, ends, (x, y) = pair(kind)
    answer = without_noise(rq.LinearRegression({"y": ends}, {"x": ends}), data)
    true = stats.linregress(x, y)
    assert answer["x"].estimate == pytest.approx(true.slope, abs=1e-5)
    assert answer["constant"].estimate == pytest.approx(true.intercept, rel=1e-4, abs=1e-4)
    # Ours has two degrees of freedom less, in place of Student's law.
    freedom = len(x) - 2
    stated = answer["x"].sampling_error * math.sqrt(max(freedom - 2, 1) / freedom)
    assert stated == pytest.approx(true.stderr, rel=1e-3)


def test_every_kind_of_query_has_its_table():
    checked = {rq.Mean, rq.Counts, rq.Quantiles, rq.KaplanMeier, rq.LogRank, rq.Covariance,
               rq.LinearRegression}  # fmt: skip
    assert set(KINDS.values()) == checked


@pytest.mark.parametrize("noise", [7.0, 14.0])
def test_the_stated_error_of_a_quantile_of_heaped_values_is_what_the_noise_does(noise):
    """In the mean square: half of the values are far from the other half, so noise moves a median
    by nothing or by all of the way. By the slope in its bin, the error was a tenth of that.

    Within a factor of 2 of the squares; the bound is normal, with the deviation of 250 tables.
    """
    query, rng, off = rq.Quantiles(60, 220, steps=64, at=[0.5]), np.random.default_rng(6), []
    asked = Setting(query, lambda *_: {}, 2000, noise)
    for _ in range(250):
        data = {"q": np.where(rng.random(2000) < 0.5, 110.0, 150.0)}
        exact = without_noise(query, data)
        noisy = noisy_answer(asked, rows_of(query, data), rng, Key.from_seed(0))
        moved = noisy.estimate - exact.estimate
        off.append(moved**2 - 2 * noisy["0.5"].noise_error ** 2)
    assert np.mean(off) <= 4.9 * np.std(off) / math.sqrt(len(off))
