"""Every setting of a table beside every other: its guarantee is what its vectors and noise cost."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math

import figures
import numpy as np
import pytest

import randquant as rq
from randquant.channels import Key
from randquant.mechanisms import DiscreteLaplace
from randquant.statistics import Survey, survey
from randquant.statistics import table as asking
from randquant.statistics.table import read_frames

SETTINGS = {
    "clients": {"records": "records", "columns": "columns"},
    "epsilon": {"1": 1.0, "6": 6.0},
    "delta": {"1e-6": 1e-6, "1e-3": 1e-3, "1e-30": 1e-30},
    "queries": {"age": ("age",), "many": ("age", "ward", "spread")},
    "trust": {"aggregate": "aggregate", "local": "local", "central": "central"},
    "unit": {"client": "client", "example": "example"},
    "noise": {"clients": "clients", "helper": "helper", "parties": "parties"},
    "weights": {"even": None, "age twice": {"age": 2.0}},
    "seed": {"3": 3, "secret": None},
}
QUERIES = {"age": rq.Mean(10, 90), "ward": rq.Counts(["a", "b", "c"]),
           "spread": rq.Quantiles(10, 90, 40, column="age")}  # fmt: skip
PEOPLE = [{"age": 20.0 + 5 * k, "ward": "abc"[k % 3]} for k in range(9)]
SIZES = (1, 4, 2)
HOSPITALS = [
    {"age": [20.0 + n + 9 * k for n in range(size)], "ward": ["abc"[n % 3] for n in range(size)]}
    for k, size in enumerate(SIZES)
]


def test_every_setting_has_a_row():
    assert {*inspect.signature(rq.statistics).parameters} == SETTINGS.keys()


def allowed(row):
    if row["noise"] != "clients" and row["trust"] != "aggregate":
        return False
    return row["unit"] == "client" or row["clients"] == "columns"


def value(row, name):
    return SETTINGS[name][row[name]]


def asked(row, monkeypatch):
    """A table, and its terms."""
    kept = []
    make = survey
    monkeypatch.setattr(asking, "survey", lambda *args: kept.append(make(*args)) or kept[-1])
    given = {name: value(row, name) for name in SETTINGS}
    given["clients"] = PEOPLE if row["clients"] == "records" else HOSPITALS
    given["queries"] = {name: QUERIES[name] for name in value(row, "queries")}
    if "age" not in given["queries"]:
        given["weights"] = None
    return rq.statistics(**given), kept[-1]


def farthest(terms, norm):
    """How far two records' vectors are apart, in the norm of the noise, over some records."""
    records = [
        {"age": age, "ward": ward} for age in (10.0, 30.0, 50.0, 70.0, 90.0, None) for ward in "abc"
    ]
    vectors = []
    for number, record in enumerate(records):
        (frame,), _ = read_frames([record])
        vectors.append(terms.vector(frame, Key.from_seed(number)).astype(float))
    gaps = [one - other for one, other in itertools.combinations(vectors, 2)]
    return max(np.abs(g).sum() if norm == "l1" else math.sqrt((g**2).sum()) for g in gaps)


ROWS = figures.rows({name: list(values) for name, values in SETTINGS.items()}, allowed)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: figures.changed(row, SETTINGS))
def test_a_table_says_what_its_vectors_and_its_noise_cost(row, monkeypatch):
    table, terms = asked(row, monkeypatch)
    found, target, delta = table.guarantee, value(row, "epsilon"), value(row, "delta")
    single = row["clients"] == "records"
    clients = len(PEOPLE) if single else len(HOSPITALS)
    example = row["unit"] == "example"
    records = len(PEOPLE) if single else sum(SIZES) if example else clients
    assert (table.clients, table.records) == (clients, records)
    shared = row["trust"] == "aggregate" and row["noise"] == "clients"
    assert terms.cohort == (clients if shared else 1)
    assert terms.most == (max(SIZES) if example else 1)
    assert (found.delta, found.trust, found.unit) == (delta, row["trust"], row["unit"])
    assert found.neighboring == "replace_one"
    assert found.releases == terms.dimension
    assert found.simulated == (row["seed"] == "3")
    assert target * 0.9 <= found.epsilon <= target
    law, shares = terms.law, terms.cohort
    if isinstance(law, DiscreteLaplace):
        exact = farthest(terms, "l1") / law.scale
    else:
        exact = figures.of_gaussian(farthest(terms, "l2") ** 2 / (law.variance * shares), delta)
    assert exact * 0.98 <= found.epsilon <= exact * 1.25
    assert table.release == terms.released(1, "replace_one", row["unit"])
    again = rq.account([table.release], delta)
    assert (again.epsilon, again.unit) == (found.epsilon, row["unit"])


@pytest.mark.parametrize(("queries", "law"), [("age", "DiscreteLaplace"), ("many", "Skellam")])
def test_both_kinds_of_noise_meet_the_target(queries, law, monkeypatch):
    row = {name: next(iter(values)) for name, values in SETTINGS.items()} | {"queries": queries}
    assert type(asked(row, monkeypatch)[1].law).__name__ == law
    monkeypatch.undo()
    test_a_table_says_what_its_vectors_and_its_noise_cost(row, monkeypatch)


def test_a_client_with_several_records_is_as_many_times_as_far_from_another():
    for epsilon, delta, field, times in (
        (0.5, 1e-3, "squared_distance", 16), (4.0, 1e-30, "l1_distance", 4),
    ):  # fmt: skip
        terms = survey(QUERIES, epsilon, delta, "aggregate", 3, 7, None, "example", 4)
        record, client = (terms.released(1, "replace_one", unit) for unit in ("example", "client"))
        assert getattr(client, field) == times * getattr(record, field)
    for relation, rounds in itertools.product(("replace_one", "zero_out"), (1, 5)):
        release = terms.released(rounds, relation, "client")
        assert (release.neighboring, release.rounds) == (relation, rounds)


def test_a_weight_shrinks_the_errors_of_its_query_only_relative_to_others():
    def errors(weights):
        table = rq.statistics(
            PEOPLE, 4.0, 1e-6, queries=QUERIES, trust="central", seed=0, weights=weights
        )
        return table["age"]["mean"].noise_error / table["ward"]["a"].noise_error

    terms = [
        survey(QUERIES, 4.0, 1e-6, "central", 9, 9, weights) for weights in (None, {"age": 2.0})
    ]
    ratio = [each.amplitudes["age"] / each.amplitudes["ward"] for each in terms]
    assert math.isclose(ratio[1] / ratio[0], 2.0, rel_tol=0.1)
    assert errors({"age": 2.0}) < errors(None) * 0.75


def test_every_field_of_a_survey_has_a_value_in_a_row():
    assert {field.name for field in dataclasses.fields(Survey)} == {
        "queries", "amplitudes", "law", "cohort", "trust", "delta", "unit", "most", "bits",
        "noise",
    }  # fmt: skip
