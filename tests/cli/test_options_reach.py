"""Every option of a command that calls a function or two: its value arrives, and moves no other."""

from __future__ import annotations

import functools
import inspect
from dataclasses import fields

import numpy as np
import pytest
from command_line import as_json, refused

from randquant.audit import attack
from randquant.channels import Key
from randquant.cli import all_commands, planning
from randquant.mechanisms import design as designing
from randquant.planning import compare as comparing
from randquant.rounds import helper_service
from randquant.statistics import table as asking

LEVELS, ORDER = {"values": None, "levels": 4}, {"constraint": "renyi"}
SUMMED = {"trust": "aggregate"}
COMMANDS = {  # command: (what it calls, usual options, {option: (more, another value)})
    "design": (designing, "optimal",
               {"clip": 1, "epsilon": 1, "values": "-3,-0.5,0.5,3"}, {
        "clip": ({}, 2), "values": ({}, "-4,0,4"), "epsilon": ({}, 2), "levels": (LEVELS, 5),
        "objective": ({}, "mse"), "constraint": ({}, "l2"), "order": (ORDER | {"order": 2}, 3),
        "inputs": ({}, 9), "density": ({}, "0,0.5,0.7"), "reach": (LEVELS, 4),
        "free": (LEVELS, True), "lattice": (LEVELS, True),
    }),
    "audit stochastic-rounding": (
        attack, "audit", {"clip": 1, "levels": 2, "margin": 1, "clip_norm": 1}, {
        "chosen": ({}, 2), "dimension": ({}, 3), "trust": ({}, "aggregate"), "cohort": (SUMMED, 3),
        "coordinates": ({"dimension": 8}, 2), "neighboring": ({}, "zero_out"), "x": ({}, 0.25),
        "other": ({}, 0.25), "audit_trials": ({}, 2000), "confidence": ({}, 0.9),
        "delta": ({}, 1e-3), "seed": ({}, 1),
    }),
    "plan": (planning, "plan",
             {"population": 20, "cohort": 5, "rounds": 3, "epsilon": 8, "dimension": 5}, {
        "dimension": ({}, 9), "mechanisms": ({}, "skellam"), "population": ({}, 30),
        "cohort": ({}, 4), "rounds": ({}, 7), "epsilon": ({}, 2), "delta": ({}, 1e-7),
        "trust": ({}, "model"), "mean_norm": ({}, 0.5), "bits": ({}, 3), "clip_norm": ({}, 0.25),
        "neighboring": ({}, "zero_out"), "sampling": ({}, "poisson"),
        "max_participations": ({}, 6), "coordinates": ({}, 2), "noise": ({}, "helper"),
    }),
    "compare": (comparing, "at_equal_epsilon", {"clip": 1, "bits": 2, "epsilon": 1}, {
        "clip": ({}, 2), "bits": ({}, 3), "epsilon": ({}, 2), "mechanisms": ({}, "rqm"),
        "objective": ({}, "mse"), "order": ({}, 4),
    }),
    "statistics": (asking, "statistics",
                   {"data": "a.csv", "queries": "q.toml", "epsilon": 1}, {
        "data": ({}, "b.csv"), "queries": ({}, "r.toml"), "weights": ({}, "w.toml"),
        "epsilon": ({}, 2), "delta": ({}, 1e-7),
        "trust": ({}, "local"), "unit": ({}, "example"), "noise": ({}, "helper"),
        "by_client": ({}, "ward"), "seed": ({}, 1),
    }),
    "helper serve journal": (
        helper_service, "configured_helper service",
        {"key": "a", "authority": "a", "certificate": "a", "private_key": "a"}, {
        "key": ({}, "b"), "listen": ({}, "b:1"), "authority": ({}, "b"), "certificate": ({}, "b"),
        "private_key": ({}, "b"), "directory": ({}, "b"), "least": ({}, 7), "most_sums": ({}, 8),
        "epsilon": ({}, 2.5), "delta": ({"epsilon": 2.5}, 1e-9), "examples": ({}, 40),
        "neighboring": ({"epsilon": 2.5}, "zero_out"), "clients": ({}, 50),
        "coordinates": ({}, 60), "masks": ({}, 70), "least_noise": ({}, 0.5), "workers": ({}, 3),
        "seconds": ({}, 9.5), "request_bytes": ({}, 4096),
    }),
}  # fmt: skip
MEAN = '[age]\nkind = "mean"\nlow = 0\nhigh = '
FILES = {
    "a.csv": "ward,age\nx,30\ny,40\n", "b.csv": "ward,age\nx,30\ny,41\n",
    "q.toml": f"{MEAN}100\n", "r.toml": f"{MEAN}90\n", "w.toml": f"{MEAN}100\nweight = 2\n",
}  # fmt: skip
SET_BY = {"chosen": "margin", "weights": "queries"}
"""Options that set what has another name: one of a mechanism's, and one of a file's fields."""

ARRIVES = {
    ("design", "epsilon"): "constraint", ("design", "order"): "constraint",
    ("design", "free"): "symmetric", ("audit", "chosen"): "channel",
    ("audit", "dimension"): "update other others", ("audit", "trust"): "trust cohort",
    ("audit", "cohort"): "cohort others", ("audit", "coordinates"): "coordinates subset_seed",
    ("audit", "neighboring"): "neighboring other others", ("audit", "x"): "update",
    ("audit", "other"): "other others", ("audit", "audit_trials"): "trials",
    ("audit", "seed"): "key", ("statistics", "data"): "clients",
    ("statistics", "by_client"): "clients", ("helper", "listen"): "address",
}  # fmt: skip
"""What options are, where it is not an argument of their name."""

ELSEWHERE = {"output", "save", "certificate", "channel", "curves", "action", "path", "host"}
"""What is done with the result, or of another call."""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_here(name):
    options = COMMANDS[name][-1]
    command = all_commands()[name.split()[0]]
    known = inspect.signature(command.run).parameters.keys()
    if command.settings is not None:
        known = known - {"target"} | {each.name for each in command.settings(())}
    assert known - (ELSEWHERE - options.keys()) == options.keys() - {"weights"}


CASES = [(name, option) for name, each in COMMANDS.items() for option in each[-1]]


@pytest.mark.parametrize(("name", "option"), CASES)
def test_another_value_of_an_option_arrives_where_it_must_and_nowhere_else(
    name, option, tmp_path, monkeypatch, capsys
):
    module, called, usual, options = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    calls, (*_, last) = [], called.split()

    def stand_in(function):
        @functools.wraps(real := getattr(module, function))
        def call(*values, **named):
            for name, each in inspect.signature(real).bind(*values, **named).arguments.items():
                calls[-1] |= parts(name, each)
            if function == last:
                raise ValueError("enough")

        return call

    for each in called.split():
        monkeypatch.setattr(module, each, stand_in(each))
    more, value = options[option]
    changed = {SET_BY.get(option, option): value}
    for settings in (usual | more, usual | more | changed):
        calls.append({})
        assert "enough" in refused(capsys, [*name.split(), *words(settings)])
    one, other = calls
    arrived = {each for each in one.keys() | other.keys() if one.get(each) != other.get(each)}
    assert arrived == {*ARRIVES.get((name.split()[0], option), option).split()}


def test_curves_are_those_of_the_same_mechanisms_and_bits_if_they_are_asked_for(capsys):
    line = "compare --clip 0.3 --bits 1 --epsilon 1 --mechanisms stochastic-rounding"
    assert as_json(capsys, line)["tradeoff"] == []
    [curve] = as_json(capsys, f"{line} --curves")["tradeoff"]
    assert (curve["levels"], curve["mechanism"]) == (2, "stochastic-rounding")
    found = comparing.tradeoffs(0.3, [1], ["stochastic-rounding"])[2, "stochastic-rounding"]
    assert [(each["epsilon"], each["mse"]) for each in curve["points"]] == sorted(found)


def words(settings):
    return [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in settings.items() if value is not None
    ]  # fmt: skip


def parts(name, value):
    """An argument by its name; of one that holds settings each by its own."""
    values = {name: value}
    if name in ("mechanism", "privacy", "limits", "tls"):
        held = value if isinstance(value, dict) else None
        values = held or {each.name: getattr(value, each.name) for each in fields(value)}
    return {name: facts(value) for name, value in values.items()}


def facts(value):
    """What a call is given, as data that can be compared."""
    if isinstance(value, Key):
        return value.words(1).tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return facts([*value.items()])
    return [facts(each) for each in value] if isinstance(value, list | tuple) else repr(value)
