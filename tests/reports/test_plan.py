"""Pictures of plans and comparisons: each mark at its numbers, what is out of reach is named."""

import dataclasses
import math

import randquant as rq
from randquant.planning import Candidate, DecodedError, Limit, compare
from randquant.privacy import Interval
from randquant.reports import comparison, plan

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
    (figure,) = comparison.figures(rq.Comparison(found, 2.0, tradeoff=curves))
    first, other = figure.series
    assert [(mark.x, mark.best) for mark in first.marks] == [
        (1.0000001, True), (1.0, False), (2.0, False),
    ]  # fmt: skip
    assert first.frontier == ((1.0, 0.5), (2.0, 0.3))
    assert "ε ≤ 1.00001" in first.marks[0].text
    (level,) = other.marks
    assert level.x is None
    assert "no finite ε" in level.text
