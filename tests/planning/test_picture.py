"""Pictures of plans and comparisons: each mark at its numbers, what is out of reach is named."""

import math

from randquant.planning.compare.picture import Point, error_against_epsilon
from randquant.planning.plan.picture import Placed, error_against_bytes


def test_a_plan_marks_who_is_not_beaten_and_names_who_is_missing():
    found = [Placed("a", 100, 0.1), Placed("b", 200, 0.05), Placed("c", 200, 0.2)]
    figure = error_against_bytes(found, [("Gaussian", 0.04)], ["d", "e"])
    marks = {series.label: series.marks[0] for series in figure.series}
    assert {name: (mark.x, mark.y, mark.best) for name, mark in marks.items()} == {
        "a": (100, 0.1, True), "b": (200, 0.05, True), "c": (200, 0.2, False),
    }  # fmt: skip
    assert figure.levels == (("Gaussian", 0.04),)
    assert "Out of reach: d, e." in figure.note
    assert "Out of reach" not in error_against_bytes(found, [], []).note


def test_a_comparison_has_its_channels_full_and_its_curves_as_steps():
    found = [Point("a, 2 bits", 1.0000001, 0.5), Point("b, 2 bits", math.inf, 0.2)]
    figure = error_against_epsilon(found, {"a, 2 bits": [(2.0, 0.3), (1.0, 0.5)]})
    first, other = figure.series
    assert [(mark.x, mark.best) for mark in first.marks] == [
        (1.0000001, True), (1.0, False), (2.0, False),
    ]  # fmt: skip
    assert first.frontier == ((1.0, 0.5), (2.0, 0.3))
    assert "ε ≤ 1.00001" in first.marks[0].text
    (level,) = other.marks
    assert level.x is None
    assert "no finite ε" in level.text
