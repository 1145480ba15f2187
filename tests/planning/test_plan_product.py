"""Every setting of a plan beside every other: its noise is what the settings ask for, no less."""

from __future__ import annotations

import dataclasses
import inspect
import math

import figures
import pytest

import randquant as rq

SETTINGS = {
    "trust": {"aggregate": "aggregate", "local": "local", "model": "model"},
    "dimension": {"5": 5, "11": 11},
    "population": {"24": 24, "60": 60},
    "cohort": {"8": 8, "12": 12},
    "rounds": {"6": 6, "10": 10},
    "epsilon": {"2": 2.0, "0.5": 0.5},
    "delta": {"1e-5": 1e-5, "1e-3": 1e-3},
    "neighboring": {"replace_one": "replace_one", "zero_out": "zero_out"},
    "clip_norm": {"1": 1.0, "0.25": 0.25},
    "coordinates": {"all": None, "3": 3},
    "numbers": {"none": (), "two": ("loss:0:4", "accuracy")},
    "max_participations": {"even": None, "6": 6},
    "bits": {"13": 13, "14": 14},
    "sampling": {"fixed": "fixed", "poisson": "poisson"},
    "mean_norm": {"none": None, "0.125": 0.125},
    "noise": {"clients": "clients", "helper": "helper", "parties": "parties"},
}
APART = {
    "privacy": "its fields are here", "mechanisms": "by the trust", "unit": "refused below",
    "spent": "refused below", "weighted_by": "weights change no cost, and no coordinate",
}  # fmt: skip


def test_every_setting_has_a_row_or_a_reason():
    named = {*inspect.signature(rq.plan).parameters}
    named |= {field.name for field in dataclasses.fields(rq.Privacy)}
    assert not SETTINGS.keys() & APART.keys()
    assert SETTINGS.keys() | APART.keys() == named


def allowed(row):
    local, models = row["trust"] == "local", row["trust"] == "model"
    return not (
        (row["noise"] != "clients" and row["trust"] != "aggregate")
        or (models and row["max_participations"] != "even")
        or (not models and row["sampling"] != "fixed")
        or (local and (row["coordinates"] != "all" or row["bits"] != "13"))
    )


def value(row, name):
    return SETTINGS[name][row[name]]


def planned(row, **others):
    privacy = rq.Privacy(**{n: value(row, n) for n in SETTINGS.keys() & {
        field.name for field in dataclasses.fields(rq.Privacy)}})  # fmt: skip
    given = {n: value(row, n) for n in SETTINGS.keys() & {*inspect.signature(rq.plan).parameters}}
    name = "local-gaussian" if row["trust"] == "local" else "skellam"
    name = name if row["noise"] == "clients" else "helper-noise"
    return rq.plan(**{**given, "privacy": privacy, "mechanisms": [name], **others})


def sent(row):
    dimension = value(row, "dimension") + len(value(row, "numbers"))
    if row["trust"] == "local":
        return dimension, 1.0
    padded = 1 << (dimension - 1).bit_length()
    size = value(row, "coordinates") or padded
    return size, size / padded


def exact(row, noise):
    """Epsilon of sums with noise of so many clip norms."""
    delta, neighboring = value(row, "delta"), row["neighboring"]
    if row["trust"] != "model":
        square = participations(row) * (figures.radii(neighboring) / noise) ** 2
        return figures.of_gaussian(square, delta)
    reach = 1 / noise
    worlds = {
        ("replace_one", "fixed"): ((2 * reach, 0.0), (0.0, 0.0)),
        ("replace_one", "poisson"): ((reach, 0.0), (-reach, 0.0)),
        ("zero_out", "fixed"): ((2 * reach, 0.0), (reach, 0.0)),
        ("zero_out", "poisson"): ((reach, 0.0), (0.0, 0.0)),
    }[neighboring, row["sampling"]]
    rate = value(row, "cohort") / value(row, "population")
    return figures.of_mixture(*worlds, rate, value(row, "rounds"), delta)


def participations(row):
    even = -(-value(row, "rounds") * value(row, "cohort") // value(row, "population"))
    return value(row, "max_participations") or even


ROWS = figures.rows({name: list(values) for name, values in SETTINGS.items()}, allowed)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: figures.changed(row, SETTINGS))
def test_a_plan_has_the_noise_that_its_settings_ask_for(row):
    plan, target = planned(row), value(row, "epsilon")
    entry = next(each for each in plan.entries if each.coordinates == value(row, "coordinates"))
    noise, found = entry.parameters["noise_multiplier"], entry.guarantee
    models = row["trust"] == "model"
    count = value(row, "rounds") if models else participations(row)
    assert exact(row, noise) * 0.999 <= found.epsilon <= target
    assert target <= exact(row, noise) * (1.15 if models else 1.03)
    size, share = sent(row)
    wanted = {
        "delta": value(row, "delta"), "neighboring": row["neighboring"], "trust": row["trust"],
        "hidden": models, "unit": "client", "releases": size * count, "simulated": False,
    }  # fmt: skip
    assert {name: getattr(found, name) for name in wanted} == wanted
    assert entry.parameters["clip_norm"] == value(row, "clip_norm")
    _check_bytes(row, entry, size)
    deviation = entry.noise.deviation
    clients = value(row, "cohort") if row["trust"] != "local" else math.sqrt(value(row, "cohort"))
    alone = noise * value(row, "clip_norm") / clients
    alone *= math.sqrt(2) if row["noise"] == "parties" else 1
    # Of a subset also what is not sent, and rounding to the grid.
    assert alone * 0.99 <= deviation
    assert share < 1 or deviation <= alone * 1.05
    need = plan.need
    assert need.dimension == value(row, "dimension") + len(value(row, "numbers"))
    for name in ("population", "cohort", "rounds", "epsilon", "delta", "trust", "mean_norm"):
        assert getattr(need, name) == value(row, name)


def _check_bytes(row, entry, size):
    everybody = row["trust"] == "model" and row["sampling"] == "poisson"
    senders = value(row, "population") if everybody else value(row, "cohort")
    assert entry.bytes_run == entry.bytes_up * senders * value(row, "rounds")
    if row["trust"] == "local":
        assert entry.bytes_up == 4 * size
        return
    bits = entry.parameters["bits"]
    assert bits == value(row, "bits")
    assert entry.bytes_up == 40 + math.ceil(size * bits / 8)


def test_a_length_of_means_chooses_how_many_coordinates_are_sent():
    usual = {name: next(iter(values)) for name, values in SETTINGS.items()}
    row = {**usual, "dimension": "11"}
    assert not planned(row).parts
    assert planned({**row, "mean_norm": "0.125"}).parts


SPENT = rq.Guarantee(0.5, 1e-6, "replace_one", "aggregate", math.inf, 3)
WRONG = {
    "cap under models": {"trust": "model", "max_participations": "6"},
    "poisson that is seen": {"sampling": "poisson"},
    "a helper's noise on each update": {"trust": "local", "noise": "helper"},
    "a helper's noise on models": {"trust": "model", "noise": "parties"},
    "too few participations": {"max_participations": "1"},
}


@pytest.mark.parametrize("name", [*WRONG, "unit", "spent", "cohort"])
def test_settings_that_do_not_go_together_are_refused_in_one_sentence(name, monkeypatch):
    monkeypatch.setitem(SETTINGS["max_participations"], "1", 1)
    row = {each: next(iter(values)) for each, values in SETTINGS.items()} | WRONG.get(name, {})
    others = {
        "unit": {"privacy": rq.Privacy(unit="example")},
        "spent": {"privacy": rq.Privacy(spent=SPENT)}, "cohort": {"cohort": 25},
    }.get(name, {})  # fmt: skip
    with pytest.raises(ValueError, match=r"^Expected [^\n]*[.:] ?[^\n]*$"):
        planned(row, **others)
