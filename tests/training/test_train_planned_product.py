"""Every setting of `rq.train` beside every other, where its mechanism is planned.

What it is planned for is what the settings leave, and what is planned is what the run has.

Nothing is calibrated or trained: what planning is asked for is compared.
"""

from __future__ import annotations

import dataclasses
import inspect
import math

import figures
import pytest
import torch
from torch import nn

import randquant as rq
from randquant.channels import Key
from randquant.planning import Calibrated, Need
from randquant.privacy import Guarantee, HiddenCohorts
from randquant.privacy.accounting import accountant
from randquant.training import execution, federated, prepare

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")

FEATURES, FEWEST, MOST, SHARE = 3, 4, 5, 0.125
SPENT = {"epsilon": 0.25, "delta": 3e-6}
SETTINGS = {
    "trust": {"aggregate": "aggregate", "local": "local", "model": "model"},
    "clients": {"6": 6, "12": 12},
    "epsilon": {"50": 50.0, "30": 30.0},
    "delta": {"1e-5": 1e-5, "1e-3": 1e-3},
    "rounds": {"4": 4, "6": 6},
    "cohort": {"3": 3, "5": 5},
    "unit": {"client": "client", "example": "example"},
    "neighboring": {"replace_one": "replace_one", "zero_out": "zero_out"},
    "bits": {"auto": "auto", "1": 1},
    "clip_norm": {"1": 1.0, "0.5": 0.5},
    "coordinates": {"all": None, "3": 3},
    "sampling": {"fixed": "fixed", "poisson": "poisson"},
    "max_participations": {"even": None, "4": 4},
    "numbers": {"none": (), "two": ("loss:0:4", "num-examples:0:9")},
    "weighted_by": {"none": None, "examples": "num-examples"},
    "spent": {"none": None, "some": SPENT},
    "standardize": {"none": None, "some": (-3.0, 3.0)},
    "batch": {"all": None, "2": 2},
    "parts": {"all": None, "weight": "weight"},
    "noise": {"clients": "clients", "helper": "helper", "parties": "parties"},
}


def test_every_setting_of_privacy_and_every_part_of_a_need_is_here():
    assert {field.name for field in dataclasses.fields(rq.Privacy)} <= SETTINGS.keys()
    assert {field.name for field in dataclasses.fields(Need)} == {
        "dimension", "population", "cohort", "rounds", "epsilon", "delta", "trust", "privacy",
        "participations", "cohorts", "mean_norm",
    }  # fmt: skip
    assert {*inspect.signature(federated.choose).parameters} == {"need", "examples"}


def value(row, name):
    return SETTINGS[name][row[name]]


def allowed(row):
    models, example = row["trust"] == "model", row["unit"] == "example"
    poisson, capped = row["sampling"] == "poisson", row["max_participations"] != "even"
    return not (
        (models and (example or capped or row["standardize"] != "none"))
        or (example and row["numbers"] != "none")
        or (row["standardize"] != "none" and row["neighboring"] != "replace_one")
        or (row["weighted_by"] != "none" and row["numbers"] == "none")
        or (
            row["noise"] != "clients"
            and (row["trust"] != "aggregate" or row["standardize"] != "none")
        )
        or (poisson and (capped or row["trust"] == "aggregate"))
    )


class _Stop(Exception):
    pass


def planned(row, monkeypatch):
    """What planning is asked for, and what a run would be trained with."""
    needs, made = [], []

    def choose(need, *, examples=None):
        needs.append((need, examples))
        norm = need.privacy.clip_norm
        if need.trust == "model":  # the figure of bits takes seconds there
            noise = {"noise_multiplier": 10.0, "bits": 10, "clip_norm": norm}
            return Calibrated("skellam", noise, None)
        if need.privacy.noise != "clients":
            noise = {"noise_multiplier": 10.0, "bits": 13, "clip_norm": norm}
            noise["server_noise"] = need.privacy.noise == "parties"
            return Calibrated("helper-noise", noise, None)
        return Calibrated("stochastic-rounding", {"clip": 0.3, "levels": 2, "margin": 0.9}, norm)

    def create(home, config, inputs, *, overwrite, key):
        made.append((config, prepare(config, Key.from_seed(config.seed), inputs)))
        raise _Stop

    monkeypatch.setattr(
        accountant, "attacked_epsilon", lambda *_: 0.0, raising=False
    )  # it takes long
    monkeypatch.setattr(federated, "choose", choose)
    monkeypatch.setattr(execution, "create", create)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(value(row, "clients"), MOST, FEATURES, generator=draw)
    clients = [(part[: FEWEST if k == 1 else MOST], torch.arange(FEWEST if k == 1 else MOST) % 2)
               for k, part in enumerate(x)]  # fmt: skip
    names = ("unit", "neighboring", "bits", "clip_norm", "coordinates", "sampling",
             "max_participations", "numbers", "weighted_by", "noise")  # fmt: skip
    privacy = rq.Privacy(spent=spent_of(row), **{name: value(row, name) for name in names})
    bounds = value(row, "standardize")
    local = rq.Local(
        learning_rate=0.0, batch=value(row, "batch"), parts=value(row, "parts"),
        standardize=bounds and rq.Standardize(*bounds, share=SHARE),
    )  # fmt: skip
    given = {n: value(row, n) for n in ("epsilon", "delta", "rounds", "cohort", "trust")}

    def loss(output, targets):
        return nn.functional.cross_entropy(output, targets)

    with pytest.raises(_Stop):
        rq.train(nn.Linear(FEATURES, 2), clients, loss=loss, local=local, privacy=privacy, seed=0,
                 progress=False, **given)  # fmt: skip
    return needs[0], made[0]


def spent_of(row):
    if row["spent"] == "none":
        return None
    return Guarantee(SPENT["epsilon"], SPENT["delta"], row["neighboring"], row["trust"], math.inf,
                     7, unit=row["unit"])  # fmt: skip


ROWS = figures.rows({name: list(values) for name, values in SETTINGS.items()}, allowed)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: figures.changed(row, SETTINGS))
def test_a_run_is_planned_for_what_its_settings_leave(row, monkeypatch):
    (need, examples), (config, setup) = planned(row, monkeypatch)
    dimension = 2 * FEATURES + (2 if row["parts"] == "all" else 0) + len(value(row, "numbers"))
    for name in ("cohort", "rounds", "trust"):
        assert getattr(need, name) == value(row, name), name
    assert (need.dimension, need.population) == (dimension, value(row, "clients"))
    assert need.mean_norm is None
    _check_left(row, need, setup)
    _check_participations(row, need, setup)
    fewest = min(FEWEST, value(row, "batch") or FEWEST)
    assert examples == (fewest if row["unit"] == "example" else None)
    for name in ("unit", "neighboring", "bits", "clip_norm", "coordinates", "sampling", "numbers",
                 "weighted_by", "noise"):  # fmt: skip
        assert getattr(need.privacy, name) == value(row, name), name
    _check_mechanism(row, config, setup)


def _check_left(row, need, setup):
    """What was spent, and a table that is not yet asked for, are not spent again."""
    epsilon, delta = value(row, "epsilon"), value(row, "delta")
    if row["spent"] == "some":
        epsilon, delta = epsilon - SPENT["epsilon"], delta - SPENT["delta"]
    if row["standardize"] == "some":
        assert epsilon * (1 - SHARE) <= need.epsilon <= epsilon * (1 - SHARE * 0.9)
        epsilon, delta = need.epsilon, delta * (1 - SHARE)
    assert math.isclose(need.epsilon, epsilon, rel_tol=1e-12)
    assert math.isclose(need.delta, delta, rel_tol=1e-12)
    ledger = setup.schedule.ledger
    assert (ledger.spent is None) == (row["spent"] == row["standardize"] == "none")
    if ledger.spent is not None:
        total = ledger.spent.epsilon + need.epsilon, ledger.spent.delta + need.delta
        assert math.isclose(total[0], value(row, "epsilon"), rel_tol=1e-9)
        assert math.isclose(total[1], value(row, "delta"), rel_tol=1e-9)


def _check_participations(row, need, setup):
    population, cohort = value(row, "clients"), value(row, "cohort")
    rounds, even = value(row, "rounds"), -(-value(row, "rounds") * cohort // population)
    hidden = None
    if row["trust"] == "model":
        hidden = HiddenCohorts(value(row, "sampling"), population, cohort, rounds)
        assert need.participations == even
    elif row["sampling"] == "fixed" and row["max_participations"] == "even":
        assert need.participations == even
    else:  # drawn with the key: whoever is called most often
        assert even <= need.participations <= rounds
        assert need.participations == setup.schedule.declared()[1] or setup.schedule.epsilon(
            rounds, need.participations
        ) > value(row, "epsilon")
    assert need.cohorts == hidden


def _check_mechanism(row, config, setup):
    mechanism, everybody = setup.mechanism, row["sampling"] == "poisson"
    trust = value(row, "trust")
    summed = value(row, "clients") if everybody and trust == "model" else value(row, "cohort")
    assert mechanism.trust == ("local" if trust == "local" else "aggregate")
    helped = row["noise"] != "clients"
    assert mechanism.cohort == (1 if trust == "local" or helped else summed)
    assert mechanism.clip_norm == value(row, "clip_norm")
    assert mechanism.coordinates == value(row, "coordinates")
    if helped:
        assert (mechanism.clients, mechanism.bits) == (summed, 13)
        assert mechanism.server_noise == (row["noise"] == "parties")
    elif trust == "model":
        assert (mechanism.noise_multiplier, mechanism.bits) == (10.0, 10)
    else:
        assert (mechanism.channel.clip, mechanism.channel.levels) == (0.3, 2)
    assert config.privacy.spent == spent_of(row)
    joined = setup.preparation.scalars
    assert (joined is None) == (row["numbers"] == "none")
    if joined is not None:
        assert [each.name for each in joined.numbers] == ["loss", "num-examples"]
        assert (joined.weight, joined.clip_norm) == (value(row, "weighted_by"), mechanism.clip_norm)
