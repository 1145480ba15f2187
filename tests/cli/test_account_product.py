"""Every option of a command: its figure is what the options cost, and each reaches its function."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math

import figures
import numpy as np
import pytest
from command_line import as_json, refused

import randquant as rq
from randquant import cli
from randquant.audit import attack
from randquant.cli import all_commands, planning
from randquant.statistics import table as asking

NOISE, BITS = 3.5, 14

SETTINGS = {
    "mechanism": {"local": "local-gaussian", "sums": "skellam", "server": "gaussian"},
    "dimension": {"5": 5, "11": 11},
    "rounds": {"2": 2, "5": 5},
    "delta": {"1e-5": 1e-5, "1e-3": 1e-3},
    "cohort": {"none": None, "3": 3},
    "trust": {"of the mechanism": None, "model": "model"},
    "coordinates": {"all": None, "3": 3},
    "neighboring": {"replace_one": "replace_one", "zero_out": "zero_out"},
    "participation": {"seen": "seen", "poisson": "poisson", "fixed": "fixed"},
    "of_rounds": {"none": None, "13": 13},
    "everybody_sends": {"no": False, "yes": True},
    "examples": {"none": None, "6": 6},
    "clip_norm": {"1": 1.0, "0.5": 0.5},
}


def allowed(row):
    """The other combinations are refused, see below."""
    seen, sums = row["participation"] == "seen", row["mechanism"] == "sums"
    by_clients = row["mechanism"] == "local"
    return not (
        sums == (row["cohort"] == "none")
        or (row["coordinates"] != "all" and not sums)
        or seen != (row["of_rounds"] == "none")
        or (seen and (row["trust"] == "model" or row["everybody_sends"] == "yes"))
        or (sums and not seen)
        or (not seen and row["examples"] != "none")
        or (row["participation"] == "fixed" and row["everybody_sends"] == "yes")
        or (by_clients and not seen and row["everybody_sends"] == "no")
        or (row["everybody_sends"] == "yes" and not by_clients)
        or (by_clients and row["participation"] == "fixed")
    )


def full(row):
    """The same, with what a value needs beside it."""
    row = dict(row)
    if row["mechanism"] == "sums":
        row["cohort"] = "3"
    elif row["cohort"] != "none":
        row["mechanism"] = "sums"
    return row


REFUSED = {
    "examples of hidden cohorts": "--participation poisson --of-rounds 13 --examples 6",
    "rounds of a run that is seen": "--of-rounds 13",
    "sending where all is seen": "--everybody-sends",
    "models where all is seen": "--trust model",
    "more rounds than the run has": "--participation poisson --of-rounds 1",
    "hidden cohorts of no run": "--participation fixed",
    "all send in cohorts of one size": "--participation fixed --of-rounds 13 --everybody-sends",
}


def value(row, name):
    return SETTINGS[name][row[name]]


def line(row):
    words = ["account", value(row, "mechanism"), "--noise-multiplier", NOISE]
    if row["mechanism"] == "sums":
        words += ["--bits", BITS]
    for name in SETTINGS:
        given = value(row, name)
        if name == "mechanism" or given is None or given is False:
            continue
        words += [f"--{name.replace('_', '-')}"] + ([] if given is True else [given])
    return words


def exact(row, examples=None):
    if row["participation"] != "seen":
        reach = 1 / NOISE
        worlds = {
            ("replace_one", "fixed"): ((2 * reach, 0.0), (0.0, 0.0)),
            ("replace_one", "poisson"): ((reach, 0.0), (-reach, 0.0)),
            ("zero_out", "fixed"): ((2 * reach, 0.0), (reach, 0.0)),
            ("zero_out", "poisson"): ((reach, 0.0), (0.0, 0.0)),
        }[row["neighboring"], row["participation"]]
        rounds = value(row, "of_rounds")
        rate = value(row, "rounds") / rounds
        return figures.of_mixture(*worlds, rate, rounds, value(row, "delta"))
    padded = 1 << (value(row, "dimension") - 1).bit_length()
    some = value(row, "coordinates")
    share = 1.0 if some is None else math.sqrt(some / padded)
    distance = min(
        figures.apart(1.0, row["neighboring"], examples), figures.apart(share, row["neighboring"])
    )
    square = (distance / (NOISE * share)) ** 2
    return figures.of_gaussian(value(row, "rounds") * square, value(row, "delta"))


def rows():
    names = {name: list(values) for name, values in SETTINGS.items()}
    # A mechanism needs a cohort or none, and hidden cohorts a number of rounds: both vary together.
    together = {
        name: values for name, values in names.items() if name not in ("cohort", "of_rounds")
    }

    def whole(row):
        hidden = row["participation"] != "seen"
        return {**row, "cohort": "3" if row["mechanism"] == "sums" else "none",
                "of_rounds": "13" if hidden else "none"}  # fmt: skip

    return [whole(row) for row in figures.rows(together, lambda row: allowed(whole(row)))]


ROWS = rows()


def test_every_option_has_a_row():
    own = {*inspect.signature(all_commands()["account"].run).parameters} - {"chosen"}
    own -= {"certificate"}  # where a file is: `test_statement.py`
    assert own | {"mechanism", "clip_norm"} == SETTINGS.keys()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: figures.changed(row, SETTINGS))
def test_a_command_prints_what_its_options_cost(row, capsys):
    found = as_json(capsys, line(row))
    known, hidden = exact(row), row["participation"] != "seen"
    assert known * 0.999 <= found["epsilon"] <= known * (1.1 if hidden else 1.02)
    rounds = value(row, "of_rounds") if hidden else value(row, "rounds")
    size = value(row, "dimension")
    if row["mechanism"] == "sums":
        size = value(row, "coordinates") or 1 << (size - 1).bit_length()
    trust = {"local": "local", "sums": "aggregate", "server": "central"}[row["mechanism"]]
    wanted = {name: value(row, name) for name in (
        "dimension", "rounds", "delta", "cohort", "coordinates", "neighboring", "participation",
        "of_rounds", "mechanism")}  # fmt: skip
    wanted |= {"trust": value(row, "trust") or trust, "hidden": hidden, "unit": "client",
               "releases": size * rounds, "simulated": False}  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    assert ("one_example" in found) == (row["examples"] != "none")
    if examples := value(row, "examples"):
        one, known = found["one_example"], exact(row, examples)
        assert (
            known * 0.999
            <= one["epsilon"]
            <= known * (1.2 if row["mechanism"] == "sums" else 1 + 1e-9)
        )
        wanted |= {"unit": "example"}
        assert {n: one[n] for n in wanted.keys() & one.keys()} == {
            n: wanted[n] for n in wanted.keys() & one.keys()
        }


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED)
def test_options_that_do_not_go_together_are_refused_in_one_sentence(options, capsys):
    words = (
        f"account gaussian --clip-norm 1 --noise-multiplier 4 --dimension 5 --rounds 2 {options}"
    )
    assert ": Expected " in ": " + refused(capsys, words)


# Options of the other commands reach the function that they are for, one by one.


class _Called(Exception):
    pass


def caught(monkeypatch, module, name):
    calls = []

    def call(*args, **kwargs):
        calls.append((args, kwargs))
        raise _Called

    monkeypatch.setattr(module, name, call)
    return calls


def of_command(calls, run, *args):
    with pytest.raises(_Called):
        run(*args)
    return calls.pop()


PLANNED = {  # option: (a value, where it must arrive)
    "population": 30, "cohort": 4, "rounds": 7, "epsilon": 2.0, "delta": 1e-7, "trust": "model",
    "mean_norm": 0.5, "dimension": 9, "mechanisms": ["skellam"], "bits": 3, "clip_norm": 0.25,
    "neighboring": "zero_out", "sampling": "poisson", "max_participations": 6, "coordinates": 2,
    "noise": "helper",
}  # fmt: skip


def test_every_option_of_a_plan_reaches_it(monkeypatch):
    calls = caught(monkeypatch, planning, "plan")
    fields = {field.name for field in dataclasses.fields(rq.Privacy)}
    beside_a_plan = {"unit", "numbers", "weighted_by", "spent"}
    assert fields - beside_a_plan == set(planning.PRIVACY_FIELDS)
    called = {*inspect.signature(rq.plan).parameters} - {"privacy"}
    assert called | set(planning.PRIVACY_FIELDS) == PLANNED.keys()
    usual = {"population": 20, "cohort": 5, "rounds": 3, "epsilon": 8.0}

    def planned(**given):
        own = {name: given.pop(name) for name in ("dimension", "mechanisms") if name in given}

        def run():
            planning.run_plan({**usual, **given}, **{"dimension": 5, "mechanisms": None, **own})

        (dimension,), options = of_command(calls, run)
        privacy = options.pop("privacy")
        return {"dimension": dimension, **options,
                **{n: getattr(privacy, n) for n in fields}}  # fmt: skip

    before = planned()
    for name, other in PLANNED.items():
        assert planned(**{name: other}) == {**before, name: other} != before, name


def test_every_option_of_an_audit_reaches_it(monkeypatch, capsys):
    calls = caught(monkeypatch, attack, "audit")
    usual = {"clip_norm": 1, "noise_multiplier": 4, "bits": 16, "cohort": 3, "dimension": 2}
    other = {
        "dimension": 3, "cohort": 4, "coordinates": 1, "neighboring": "zero_out", "x": 0.5,
        "other": 0.25, "audit_trials": 99, "confidence": 0.9, "delta": 1e-3, "seed": 7,
        "trust": "aggregate",
    }  # fmt: skip
    own = {*inspect.signature(all_commands()["audit"].run).parameters}
    assert own - {"chosen"} == other.keys()

    def attacked(option=None):
        given = usual if option is None else {**usual, option: other[option]}
        words = [each for name, value in given.items()
                 for each in (f"--{name.replace('_', '-')}", str(value))]  # fmt: skip
        with pytest.raises(_Called):
            cli.main(["audit", "skellam", *words])
        (mechanism, update, against), options = calls.pop()
        key = options.pop("key").fold_in("same").words(2).tolist()
        others = options.pop("others")
        return {
            **options, "key": key, "dimension": update.size, "cohort": len(others) + 1,
            "mechanism": mechanism.cohort, "x": float(update[0]), "other": float(against[0]),
            "others": float(others[0, 0]), "coordinates": mechanism.coordinates,
            "seed": mechanism.subset_seed,
        }  # fmt: skip

    before = attacked()
    changes = {
        "dimension": {"dimension": 3}, "cohort": {"cohort": 4, "mechanism": 4},
        "coordinates": {"coordinates": 1, "seed": 0}, "x": {"x": 0.5},
        "neighboring": {"neighboring": "zero_out", "other": 0.0, "others": 0.0},
        "other": {"other": 0.25, "others": 0.25}, "audit_trials": {"trials": 99},
        "confidence": {"confidence": 0.9}, "delta": {"delta": 1e-3}, "trust": {},
        "seed": {"key": rq.Key.from_seed(7).fold_in("same").words(2).tolist()},
    }  # fmt: skip
    assert changes.keys() == other.keys()
    for option, change in changes.items():
        found = attacked(option)
        if option == "neighboring":  # both are far beyond the clip
            assert found["x"] >= 1 < -before["other"]
            found["x"] = before["x"]
        assert found == {**before, **change}, option


def test_every_option_of_a_table_reaches_it(monkeypatch, tmp_path):
    calls = caught(monkeypatch, asking, "statistics")
    data, queries = tmp_path / "a.csv", tmp_path / "q.toml"
    data.write_text("age,ward\n30,a\n40,b\n50,a\n")
    (tmp_path / "b.csv").write_text("age,ward\n31,a\n41,b\n51,a\n")
    queries.write_text('[age]\nkind = "mean"\nlow = 0\nhigh = 100\nweight = 2\n')
    (tmp_path / "r.toml").write_text('[age]\nkind = "mean"\nlow = 0\nhigh = 90\nweight = 3\n')
    other = {
        "data": str(tmp_path / "b.csv"), "queries": str(tmp_path / "r.toml"), "epsilon": 2.0,
        "delta": 1e-8, "trust": "local", "unit": "example", "noise": "helper",
        "by_client": "ward", "seed": 9, "output": None, "certificate": None,
    }  # fmt: skip
    assert {*inspect.signature(all_commands()["statistics"].run).parameters} == other.keys()
    usual = {"data": str(data), "queries": str(queries), "epsilon": 1.0}

    def asked(**given):
        call = lambda: all_commands()["statistics"].run(**{**usual, **given})  # noqa: E731
        (clients, epsilon, delta), options = of_command(calls, call)
        return {"clients": json.loads(json.dumps(clients, default=_plain)), "epsilon": epsilon,
                "delta": delta, **options}  # fmt: skip

    before = asked()
    changes = {
        "data": {"clients"}, "queries": {"queries", "weights"}, "epsilon": {"epsilon"},
        "delta": {"delta"}, "trust": {"trust"}, "unit": {"unit"}, "noise": {"noise"},
        "by_client": {"clients"}, "seed": {"seed"},
    }  # fmt: skip
    assert changes.keys() | {"output", "certificate"} == other.keys()
    for name, changed in changes.items():
        after = asked(**{name: other[name]})
        assert {each for each in before if before[each] != after[each]} == changed, name
        if name in after:
            assert name in ("queries",) or after[name] == other[name]


def _plain(each):
    return each.tolist() if isinstance(each, np.ndarray | np.generic) else dict(each)
