"""Pictures of plans and comparisons: each mark at its numbers, what is out of reach is named."""

import dataclasses
import json
import math

import pytest
from pages import Page

import randquant as rq
from randquant import cli
from randquant._internal.formatting import round_up
from randquant.planning import Candidate, DecodedError, Limit, compare
from randquant.privacy import MODEL_TERMS, HiddenCohorts, Interval
from randquant.reports import channels, plan

PLANNED = rq.plan(9, 100, 10, 5, 8.0, mechanisms=["skellam"], privacy=rq.Privacy(bits=16))


def entry(name, size, deviation):
    noise = None if deviation is None else DecodedError(deviation, None, 1.0, 1.0)
    return Candidate(name, {}, None, noise, bytes_up=size)


def test_a_plan_marks_who_is_not_beaten_and_names_who_is_missing():
    limit = Limit("Gaussian", DecodedError(0.04, None, 1.0, 1.0))
    found = [entry("a", 100, 0.1), entry("b", 200, 0.05), entry("c", 200, 0.2)]
    missing = [entry("d", 0, None), entry("e", 0, None)]
    (figure,) = plan.figures(
        dataclasses.replace(PLANNED, entries=[*found, *missing], limits=[limit])
    )
    marks = {series.label: series.marks[0] for series in figure.series}
    assert {name: (mark.x, mark.y, mark.best) for name, mark in marks.items()} == {
        "a": (100, 0.1, True), "b": (200, 0.05, True), "c": (200, 0.2, False),
    }  # fmt: skip
    assert figure.levels == (("Gaussian", 0.04),)
    assert "Out of reach: d, e." in figure.note
    (figure,) = plan.figures(dataclasses.replace(PLANNED, entries=found))
    assert "Out of reach" not in figure.note


def test_each_row_of_a_plan_states_both_figures_that_account_prints(capsys):
    (found,) = PLANNED.entries
    options = [f"--{name.replace('_', '-')}={value}" for name, value in found.parameters.items()]
    words = ["account", "skellam", *options, "--trust=aggregate", "--cohort=10", "--dimension=9",
             f"--rounds={PLANNED.need.participations}", "--json"]  # fmt: skip
    assert cli.main(words) == 0
    stated = json.loads(capsys.readouterr().out)
    other = stated["other_relation"]
    assert other["epsilon"] < stated["epsilon"] == found.guarantee.epsilon
    (row,) = plan.as_json(PLANNED)["entries"]
    assert row["other_relation"] == other
    both = [round_up(stated["epsilon"]), round_up(other["epsilon"])]
    (line,) = (line for line in plan.as_text(PLANNED) if line.startswith("skellam"))
    assert " ".join(both) in " ".join(line.split())
    table = [*plan.facts(PLANNED)[1:]]
    assert table[0][-2:] == ("ε ≤, replace_one", "ε ≤, zero_out")
    assert list(table[1][0][-2:]) == both
    assert " ".join(both) in Page(plan.page(PLANNED)).words


def measured(name, epsilon, mse):
    """A comparison's entry of four codes with these figures."""
    channel = rq.stochastic_rounding(clip=1.0, levels=4)
    found = compare.make_entry(name, channel)
    own = found.measured
    certificate = dataclasses.replace(own.certificate, epsilon=Interval(0.0, epsilon))
    moments = dataclasses.replace(own.moments, mse=mse)
    own = dataclasses.replace(own, certificate=certificate, moments=moments)
    return dataclasses.replace(found, measured=own)


def test_a_comparison_has_its_channels_full_and_its_curves_as_steps():
    found = [measured("a", 1.0000001, 0.5), measured("b", math.inf, 0.2)]
    curves = {(4, "a"): [(2.0, 0.3), (1.0, 0.5)]}
    (figure,) = channels.comparison_figures(rq.Comparison(found, 2.0, tradeoff=curves))
    first, other = figure.series
    assert [(mark.x, mark.best) for mark in first.marks] == [
        (1.0000001, True), (1.0, False), (2.0, False),
    ]  # fmt: skip
    assert first.frontier == ((1.0, 0.5), (2.0, 0.3))
    assert "ε ≤ 1.00001" in first.marks[0].text
    (level,) = other.marks
    assert level.x is None
    assert "no finite ε" in level.text


@pytest.mark.parametrize("draw", ["fixed", "poisson", None])
def test_a_plan_of_hidden_cohorts_names_the_terms_on_which_its_figures_hold(draw):
    """Somebody who looks at a sum, or learns who takes part, is promised far less."""
    need = PLANNED.need
    if draw is not None:
        need = dataclasses.replace(need, trust="model", cohorts=HiddenCohorts(draw, 100, 10, 5))
    planned = dataclasses.replace(PLANNED, need=need, entries=[])
    for said in ("\n".join(plan.as_text(planned)), Page(plan.page(planned)).words):
        said = " ".join(said.split())
        for term in ("nobody learns who takes part", MODEL_TERMS):
            assert (term in said) == (draw is not None)
