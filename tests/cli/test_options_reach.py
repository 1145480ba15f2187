"""Every option of a command that calls one function: another value of it is another call."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from command_line import refused

from randquant.audit import pipeline
from randquant.channels import Key
from randquant.cli.commands import audit, compare, design, statistics
from randquant.mechanisms import design as designing
from randquant.planning import compare as comparing
from randquant.statistics import asking

LEVELS, ORDER = {"values": None, "levels": 4}, {"constraint": "renyi"}
SUMMED = {"trust": "aggregate"}
COMMANDS = {  # command: (its file, what it calls, usual options, {option: (more, another value)})
    "design": (design, designing, "optimal",
               {"clip": 1, "epsilon": 1, "values": "-3,-0.5,0.5,3"}, {
        "clip": ({}, 2), "values": ({}, "-4,0,4"), "epsilon": ({}, 2), "levels": (LEVELS, 5),
        "objective": ({}, "mse"), "constraint": ({}, "l2"), "order": (ORDER | {"order": 2}, 3),
        "inputs": ({}, 9), "density": ({}, "0,0.5,0.7"), "reach": (LEVELS, 4),
        "free": (LEVELS, True), "lattice": (LEVELS, True),
    }),
    "audit stochastic-rounding": (
        audit, pipeline, "audit", {"clip": 1, "levels": 2, "margin": 1, "clip_norm": 1}, {
        "chosen": ({}, 2), "dimension": ({}, 3), "trust": ({}, "aggregate"), "cohort": (SUMMED, 3),
        "coordinates": ({"dimension": 8}, 2), "neighboring": ({}, "zero_out"), "x": ({}, 0.25),
        "other": ({}, 0.25), "audit_trials": ({}, 2000), "confidence": ({}, 0.9),
        "delta": ({}, 1e-3), "seed": ({}, 1),
    }),
    "compare": (compare, comparing, "at_equal_epsilon", {"clip": 1, "bits": 2, "epsilon": 1}, {
        "clip": ({}, 2), "bits": ({}, 3), "epsilon": ({}, 2), "mechanisms": ({}, "rqm"),
        "objective": ({}, "mse"), "order": ({}, 4),
    }),
    "statistics": (statistics, asking, "statistics",
                   {"data": "a.csv", "queries": "q.toml", "epsilon": 1}, {
        "data": ({}, "b.csv"), "queries": ({}, "r.toml"), "weights": ({}, "w.toml"),
        "epsilon": ({}, 2), "delta": ({}, 1e-7),
        "trust": ({}, "local"), "unit": ({}, "example"), "noise": ({}, "helper"),
        "by_client": ({}, "ward"), "seed": ({}, 1),
    }),
}  # fmt: skip
MEAN = '[age]\nkind = "mean"\nlow = 0\nhigh = '
FILES = {
    "a.csv": "ward,age\nx,30\ny,40\n", "b.csv": "ward,age\nx,30\ny,41\n",
    "q.toml": f"{MEAN}100\n", "r.toml": f"{MEAN}90\n", "w.toml": f"{MEAN}100\nweight = 2\n",
}  # fmt: skip
SET_BY = {"chosen": "margin", "weights": "queries"}
"""Options that set what has another name: one of a mechanism's, and one of a file's fields."""

ELSEWHERE = {"output", "save", "certificate", "channel", "curves"}
"""What is done with the result, or is another call."""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_here(name):
    command, *_, options = COMMANDS[name]
    wanted = inspect.signature(command.run).parameters.keys() - ELSEWHERE
    assert wanted == options.keys() - {"weights"}


CASES = [(name, option) for name, each in COMMANDS.items() for option in each[-1]]


@pytest.mark.parametrize(("name", "option"), CASES)
def test_another_value_of_an_option_is_another_call(name, option, tmp_path, monkeypatch, capsys):
    _, module, called, usual, options = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    calls, signature = [], inspect.signature(getattr(module, called))

    def call(*values, **named):
        given = signature.bind(*values, **named).arguments
        calls.append({argument: facts(each) for argument, each in given.items()})
        raise ValueError("enough")

    monkeypatch.setattr(module, called, call)
    more, value = options[option]
    changed = {SET_BY.get(option, option): value}
    for settings in (usual | more, usual | more | changed):
        assert "enough" in refused(capsys, [*name.split(), *words(settings)])
    one, other = calls
    assert one != other
    if option in signature.parameters:  # whatever else follows from it
        assert one.get(option) != other.get(option)


def words(settings):
    return [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in settings.items() if value is not None
    ]  # fmt: skip


def facts(value):
    """What a call is given, as data that can be compared."""
    if isinstance(value, Key):
        return value.words(1).tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return facts([*value.items()])
    return [facts(each) for each in value] if isinstance(value, list | tuple) else repr(value)
