"""Every option of `randquant account` beside every other: its figure is what they cost."""

from __future__ import annotations

import inspect
import math

import figures
import pytest
from command_line import as_json, refused

from randquant.cli import all_commands

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
