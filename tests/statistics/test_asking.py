"""A whole table: what is certified is what is sent, whatever the records are."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import randquant as rq
from randquant.channels import Key
from randquant.mechanisms import DiscreteLaplace
from randquant.privacy import LaplaceRelease
from randquant.statistics import Survey, read_frames, survey
from randquant.statistics.table import noisy_answers

QUERIES = {
    "age": rq.Mean(18, 100),
    "sex": rq.Counts(["f", "m"], by={"ward": [1, 2, 3]}),
    "dose": rq.Counts(bins=[0, 1, 2.5, 8]),
    "bmi": rq.Quantiles(10, 70, 12),
    "alive": rq.KaplanMeier("days", "event", until=100, bins=5),
    "alike": rq.LogRank("days", "event", "sex", ["f", "m"], until=100, bins=3),
    "both": rq.Covariance({"age": (18, 100), "bmi": (10, 70), "dose": (0, 8)}),
    "line": rq.LinearRegression({"bmi": (10, 70)}, {"age": (18, 100)}),
}
ODD = [None, math.nan, math.inf, -math.inf, 0, -1e300, 10**400, True, 18, 100, 59]
NUMBER = st.sampled_from(ODD) | st.floats() | st.integers() | st.floats(0, 100)
EVENT = st.sampled_from([0, 1, None, True, False, math.nan])
TEXT = st.sampled_from(["f", "m", "x", None, 1, 2, 3, b"f", ("f",), ["f"]]) | st.text(max_size=2)
RECORD = st.fixed_dictionaries(
    {"age": NUMBER, "bmi": NUMBER, "dose": NUMBER, "days": NUMBER, "event": EVENT, "sex": TEXT,
     "ward": TEXT}
)  # fmt: skip


@functools.cache
def surveys():
    """Terms of tables, of both kinds of noise and under two trusts."""
    return (
        survey(QUERIES, 8.0, 1e-30, "central", 1, 10, {}),
        survey(QUERIES, 1.0, 1e-6, "central", 1, 10, {"age": 3}),
        survey(QUERIES, 1.0, 1e-6, "aggregate", 40, 40, {}),
    )


def charged(release) -> int:
    return (release.l1_distance if isinstance(release, LaplaceRelease)
            else release.squared_distance)  # fmt: skip


def certified(terms) -> int:
    return charged(terms.release)


def apart(one: np.ndarray, other: np.ndarray, norm: str) -> int:
    gaps = np.abs(one - other)
    assert gaps.max() < 2**25  # so that int64 holds the squares' sum
    return int(gaps.sum() if norm == "l1" else (gaps**2).sum())


def vector(terms, frame, seed: int) -> np.ndarray:
    return terms.vector(frame, Key.from_seed(seed))


def frames(*records) -> list:
    """Each record's columns, read once for all terms."""
    return [read_frames([record])[0][0] for record in records]


@settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(one=RECORD, other=RECORD, seed=st.integers(0, 2**32))
def test_no_two_records_are_further_apart_than_is_certified(one, other, seed):
    one, other = frames(one, other)
    for terms in surveys():
        ends = vector(terms, one, seed), vector(terms, other, seed + 1)
        assert apart(*ends, terms.norm) <= certified(terms)


@functools.cache
def of_clients():
    """Terms of clients with three records each, by norm, and their releases."""
    terms = {
        norm: survey(QUERIES, epsilon, delta, "aggregate", 40, 120, unit="example", most=3)
        for norm, epsilon, delta in (("l1", 8.0, 1e-30), ("l2", 1.0, 1e-6))
    }
    releases = {
        (norm, unit, relation): each.released(1, relation, unit)
        for norm, each in terms.items()
        for unit in ("client", "example")
        for relation in ("replace_one", "zero_out")
    }
    return terms, releases


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_two_clients_are_further_apart_than_is_charged(data):
    """All records of a client replaced, or left out, and one of them; in both relations."""
    by_norm, releases = of_clients()
    for norm, terms in by_norm.items():
        assert terms.norm == norm
        one, other = (
            frames(*data.draw(st.lists(RECORD, min_size=3, max_size=3))) for _ in range(2)
        )
        for unit, neighbour in (("client", other), ("example", [other[0], *one[1:]])):
            sums = [
                sum(vector(terms, record, seed) for seed, record in enumerate(records))
                for records in (one, neighbour)
            ]
            for relation, far in (("replace_one", sums[1]), ("zero_out", 0 * sums[1])):
                if (unit, relation) == ("example", "zero_out"):
                    sums[0], far = vector(terms, one[0], 0), 0 * sums[0]
                release = releases[norm, unit, relation]
                assert release.unit == unit
                assert apart(sums[0], far, norm) <= charged(release)


def test_the_certified_distance_is_nearly_reached():
    """So a distance that is too small would be found by the test above, or here."""
    records = [
        {"age": age, "bmi": bmi, "dose": dose, "days": days, "event": event, "sex": sex, "ward": 1}
        for age, bmi, dose, days, event, sex in itertools.product(
            [18, 100, None], [10, 39, 70, None], [0, 8], [1, 99, None], [0, 1], ["f", "m", None]
        )
    ]
    (frame,), _ = read_frames(records)
    for terms in surveys():
        one = {name: column[:1] for name, column in frame.items()}
        first = terms.vector(one, Key.from_seed(1))
        others = ({n: c[k : k + 1] for n, c in frame.items()} for k in range(len(records)))
        largest = max(
            apart(first, terms.vector(other, Key.from_seed(2)), terms.norm) for other in others
        )
        assert 0.6 * certified(terms) < largest <= certified(terms)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("trust", ["central", "aggregate", "local"])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
def test_the_noise_that_is_drawn_is_the_noise_that_is_accounted(trust, epsilon):
    terms = survey(QUERIES, epsilon, 1e-6, trust, 12, 100, {})
    release = terms.release
    assert rq.account([release], 1e-6).epsilon <= epsilon
    assert release.trust == trust
    assert release.dimension == terms.dimension
    assert release.cohort == (12 if trust == "aggregate" else 1)
    law = terms.law if isinstance(terms.law, DiscreteLaplace) else release.noise
    assert law == terms.law
    # Every client draws a share for every coordinate.
    assert release.distance >= terms.dimension * terms.law.distance(release.cohort)
    draws = np.concatenate([terms.share(Key.from_seed(k)) for k in range(25)])
    ratio = draws.var() / terms.law.variance
    kurtosis = 6.0 + 30 / release.cohort
    assert abs(ratio - 1) < 5 * math.sqrt(kurtosis / len(draws))


@pytest.mark.slow
def test_a_little_more_would_be_beyond_the_target():
    for epsilon, delta in ((1.0, 1e-6), (0.2, 1e-6), (1.0, 1e-30), (8.0, 1e-6)):
        release = survey(QUERIES, epsilon, delta, "central", 1, 100, {}).release
        assert 0.98 * epsilon < rq.account([release], delta).epsilon <= epsilon


PEOPLE = [{"age": 20 + k % 60, "sex": "fm"[k % 2]} for k in range(60)]
ASKED = {"age": rq.Mean(18, 100), "sex": rq.Counts(["f", "m"])}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("trust", ["central", "aggregate", "local"])
def test_a_seed_gives_the_same_table_and_a_secret_key_another(trust):
    def table(seed):
        return rq.statistics(PEOPLE, 1, queries=ASKED, trust=trust, seed=seed)

    one, same, other = table(3), table(3), table(4)
    assert str(one) == str(same) != str(other)
    assert one.guarantee.simulated
    assert "simulation" in str(one)
    secret = [table(None) for _ in range(2)]
    assert str(secret[0]) != str(secret[1])
    assert not secret[0].guarantee.simulated


def test_clients_draw_their_records_independently():
    """Of 2000 clients with a 0 and a 1 each, half send the 1: within 6 deviations."""
    clients = [{"won": [0.0, 1.0]}] * 2000
    table = rq.statistics(clients, epsilon=60, queries={"won": rq.Mean(0, 1)}, seed=3)
    assert abs(table["won"].estimate - 0.5) < 6 * 0.5 / math.sqrt(2000)


def test_clients_round_independently(monkeypatch):
    """Of 900 values halfway between two integers about half go up: their errors do not add up."""
    monkeypatch.setattr(Survey, "share", lambda self, key: np.zeros(self.dimension, np.int64))
    terms = survey({"x": rq.Mean(-1, 1)}, 8.0, 1e-6, "central", 900, 900, {})
    step = 1 / terms.amplitudes["x"]
    frames = [{"x": np.array([3.5 * step])}] * 900
    found = noisy_answers(terms, frames, Key.from_seed(3))["x"].estimate
    assert abs(found - 3.5 * step) < 6 * 0.5 * step / math.sqrt(900)


def test_every_client_adds_noise_of_its_own(monkeypatch):
    """A key used for two shares would be twice the same noise."""
    drawn = []
    monkeypatch.setattr(
        DiscreteLaplace, "draw", lambda self, count, key: drawn.append(key.words(2).tobytes())
        or np.zeros(count, np.int64),
    )  # fmt: skip
    rq.statistics(PEOPLE, 1, queries=ASKED, trust="local", seed=1)
    assert len(drawn) == len(set(drawn)) == 60


def test_a_table_says_what_it_protects_and_composes_with_the_same_only():
    ward = [{"age": [30, 50, 70], "sex": ["f", "m", "m"]}] * 2
    patients = rq.statistics(ward, 1, queries=ASKED, unit="example", seed=1)
    clients = rq.statistics(ward, 1, queries=ASKED, seed=1)
    assert (patients.guarantee.unit, patients.records, clients.records) == ("example", 6, 2)
    assert patients.release.unit == "example"
    assert clients.release.unit == "client"
    both = rq.account([patients.release, patients.release], 1e-6)
    assert both.unit == "example"
    assert patients.guarantee.epsilon < both.epsilon <= 2
    with pytest.raises(ValueError, match=r"^Expected releases under one unit"):
        rq.account([patients.release, clients.release], 1e-6)


WRONG = {
    "epsilon of nobody": {"epsilon": 65},
    "no epsilon": {"epsilon": 0},
    "no delta": {"delta": 0},
    "delta of nothing": {"delta": 0.5},
    "trust": {"trust": "nobody"},
    "unit": {"unit": "ward"},
    "no queries": {"queries": {}},
    "a list": {"queries": [rq.Mean(0, 1)]},
    "a type": {"queries": {"age": rq.Mean}},
    "weights": {"weights": {"none": 1}},
    "listed weights": {"weights": [1]},
    "a weight": {"weights": {"age": 1000}},
    "seed": {"seed": -1},
    "crossed with nothing": {"queries": {"sex": rq.Counts(["f"], by="ward")}},
}


@pytest.mark.parametrize("changed", WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused_in_one_sentence(changed):
    right = {"clients": PEOPLE, "epsilon": 1.0, "queries": ASKED}
    with pytest.raises((ValueError, TypeError), match=r"^Expected"):
        rq.statistics(**right | changed)
