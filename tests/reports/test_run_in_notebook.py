"""A run in a notebook: accuracy (or else loss), epsilon, and a table that rounds no bound down."""

import math
from pathlib import Path

import problems
from made_runs import measured, promise
from torch import nn

from randquant.reports import run as pictures
from randquant.training import Run, RunRecord, RunSummary

CONFIG = problems.config_of("digits", "softmax", "rqm", {"clip": 1.5}, rounds=3)


def run_of(accuracy, loss, guarantee, epsilon) -> Run:
    metrics = [
        measured(at, accuracy, loss=loss, epsilon=epsilon and epsilon * at) for at in (1, 2, 3)
    ]
    summary = RunSummary(accuracy, loss, 650, 365, 3, guarantee, 3)
    return Run(nn.Identity(), RunRecord(CONFIG, metrics, summary), Path("run"), declared=3)


def test_accuracy_and_epsilon_are_drawn_and_said():
    run = run_of(0.9, 0.4, promise(7.9000001), 2.6000001)
    accuracy, epsilon = pictures.figures(run)
    assert [y for _, y in accuracy.lines[0].points] == [90, 90, 90]
    for (_, drawn), metric in zip(epsilon.lines[0].points, run.history, strict=True):
        assert metric.epsilon <= drawn <= metric.epsilon * 1.00001
    facts = dict(pictures.facts(run)[2])
    assert facts["accuracy, %"] == "90.00"
    assert float(facts["ε ≤"]) >= 7.9000001


def test_what_was_not_measured_is_left_out():
    run = run_of(None, 0.4, None, None)
    (loss,) = pictures.figures(run)
    assert loss.title == "Loss on test data, per round"
    facts = dict(pictures.facts(run)[2])
    assert facts["ε ≤"] == "no privacy"
    assert "accuracy, %" not in facts
    blind = run_of(None, None, promise(math.inf), math.inf)
    assert [chart.title for chart in pictures.figures(blind)] == [loss.title]
    assert dict(pictures.facts(blind)[2])["ε ≤"] == "∞"
