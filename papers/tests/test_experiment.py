"""Experiments that train: what is trained again and what is not, on what data, and how a claim is
judged; and the command around them."""

import dataclasses
import json
import re
from pathlib import Path

import made_runs
import numpy as np
import pytest
from made_runs import measured
from small_mnist import small_mnist

from randquant.privacy import Interval
from randquant_papers import cli, experiment
from randquant_papers.configuration import PaperConfig
from randquant_papers.experiment import Curve, Setting, Trained
from randquant_papers.registry import ENTRIES, EXPERIMENTS

CONFIG = PaperConfig.of(
    "digits", "softmax", "clipped-sgd", {"clip": 0.1}, population=20, cohort=5, rounds=6,
    evaluate_every=2, checkpoint_every=2, threads=1,
)  # fmt: skip
PRIVATE = CONFIG.changed(
    mechanism="rqm", parameters={"clip": 0.1, "margin": 0.1, "levels": 8, "keep": 0.4}
)


def planted(seeds: list[list[float]], label: str = "planted") -> Trained:
    """A curve whose runs have these accuracies, one a round."""
    runs = [
        made_runs.finished(
            Path(f"run-{seed}"), CONFIG, None, *(measured(n + 1, a) for n, a in enumerate(row))
        )
        for seed, row in enumerate(seeds)
    ]
    return Trained(Curve(label, "c1", CONFIG), tuple(runs))


def flat(*accuracies: float) -> Trained:
    return planted([[accuracy] * 20 for accuracy in accuracies])


def watched(folder: Path):
    """A setting of two seeds, and what its callbacks are told."""
    begun, rounds, ended = [], [], []
    setting = Setting(
        folder=folder,
        seeds=2,
        on_begin=lambda *counts: begun.append(counts),
        on_round=lambda *round: rounds.append(round),
        on_end=ended.append,
    )
    return setting, begun, rounds, ended


def test_runs_are_trained_once_and_used_again(tmp_path, in_process):
    curves = [
        Curve("free", "c1", CONFIG), Curve("RQM", "c2", PRIVATE, "epsilon 1", "Says the paper."),
        Curve("free again", "c3", CONFIG),
    ]  # fmt: skip
    setting, begun, rounds, ended = watched(tmp_path)
    first = experiment.train(curves, setting)
    assert begun == [(4, 0)]
    assert (len(rounds), len(ended)) == (4 * 6, 4)
    assert [run.config.seed for each in first for run in each.runs] == [0, 1] * 3
    assert first[0].runs == first[2].runs
    assert {run.state for each in first for run in each.runs} == {"finished"}
    setting, begun, rounds, _ = watched(tmp_path)
    assert experiment.train(curves, setting) == first
    assert (begun, rounds) == ([(4, 4)], [])

    free, private, _ = first
    assert free.epsilon is None
    assert private.epsilon == max(run.guarantee.epsilon for run in private.runs)
    (stated,) = experiment.stated(first)
    assert (stated.what, stated.paper, stated.certified) == ("RQM", "epsilon 1", private.epsilon)
    assert stated.why.startswith("Says the paper. One client's whole run: 650 coordinates, ")
    table = experiment.table(first, "digits")
    assert table.title.startswith("Final models, digits, 2 seeds;")
    mean = np.mean([[m.accuracy for m in run.metrics][-1] for run in free.runs])
    assert table.rows[0][1] == pytest.approx(100 * mean)
    # Intervals are printed by their upper ends, rounded up.
    assert [row[-1] for row in table.rows] == [None, Interval(0.0, private.epsilon), None]
    _, points, _ = free.line("accuracy", 100.0)
    assert [round for round, _ in points] == [2, 4, 6]
    assert points[-1][1] == pytest.approx(100 * mean)


def test_data_are_the_papers_or_a_stand_in_that_is_named(tmp_path):
    here = Setting(data_dir=str(small_mnist(tmp_path, 30)))
    assert here.source("mnist") == {"dataset": "mnist", "data_dir": str(tmp_path)}
    assert here.stands_in("mnist") == "30 training images of MNIST in place of 60,000"
    assert here.stands_in("digits") == ""
    other = dataclasses.replace(here, stand_in="digits")
    assert other.source("mnist")["dataset"] == "mnist"  # the paper's own come first
    assert other.source("cifar-100") == {"dataset": "digits", "data_dir": str(tmp_path)}
    assert other.stands_in("cifar-100") == "digits in place of CIFAR-100"


# Claims on planted accuracies, three seeds each: noise of half a point or so.

HIGH, SAME, LOW = flat(0.905, 0.900, 0.910), flat(0.904, 0.909, 0.901), flat(0.805, 0.80, 0.81)
FULL, QUICK = Setting(seeds=3), Setting(seeds=3, quick=True)


@pytest.mark.parametrize(
    ("first", "other", "setting", "verdict"),
    [
        (HIGH, LOW, FULL, "holds"),
        (LOW, HIGH, FULL, "does not hold"),
        (HIGH, SAME, FULL, "cannot be told"),
        (HIGH, LOW, QUICK, "cannot be told"),
        (flat(0.9), flat(0.8), Setting(), "cannot be told"),
    ],
)
def test_one_curve_is_told_above_another(first, other, setting, verdict):
    claim = experiment.better("above", first, other, [first, other], setting, "87.1 %")
    assert (claim.text, claim.paper, claim.verdict) == ("above", "87.1 %", verdict)
    assert claim.ours == f"{100 * first.accuracy:.2f} against {100 * other.accuracy:.2f} %"
    if setting.quick:
        assert "quick" in claim.why
    elif setting.seeds == 1:
        assert "--seeds 3" in claim.why
    else:  # a paired t-test at 99 %, two degrees of freedom: 9.925
        apart = np.subtract(first.accuracies, other.accuracies)
        error = 9.9248 * 100 * np.std(apart, ddof=1) / np.sqrt(3)
        assert f"within {error:.2f}." in claim.why


@pytest.mark.parametrize(
    ("other", "setting", "verdict"),
    [
        (flat(0.9051, 0.9049, 0.9050), FULL, "holds"),
        (flat(0.9051, 0.9049, 0.9050), QUICK, "cannot be told"),
        (flat(0.8951, 0.8949, 0.8950), FULL, "cannot be told"),  # a point below: at the edge
        (flat(0.8851, 0.8849, 0.8850), FULL, "does not hold"),
        (flat(0.9251, 0.9249, 0.9250), FULL, "does not hold"),
        (flat(0.80, 0.95, 0.96), FULL, "cannot be told"),  # near, but it may be by chance
    ],
)
def test_two_curves_are_told_to_be_equal(other, setting, verdict):
    first = flat(0.9052, 0.9048, 0.9050)
    claim = experiment.equal("equal", first, other, [first, other], setting)
    assert claim.verdict == verdict
    assert claim.why.endswith("Equal means within 1 point.")


# The command.


def test_all_goes_on_after_an_entry_that_fails(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli, "ENTRIES", {"rqm-fig8": ENTRIES["rqm-fig8"]})
    monkeypatch.setattr(cli, "EXPERIMENTS", {"rqm-fig5": EXPERIMENTS["rqm-fig5"]})
    site, runs = tmp_path / "site", tmp_path / "runs"
    given = ["reproduce", "--all", "--gallery", str(site), "--runs", str(runs), "--json"]
    assert cli.main(given) == 1
    printed = capsys.readouterr()
    found = json.loads(printed.out)["entries"]
    assert found["rqm-fig8"]["verdicts"]["holds"] >= 1
    assert "emnist" in found["rqm-fig5"]["error"]
    assert printed.err.splitlines() == ["reproducing rqm-fig8", "reproducing rqm-fig5"]
    assert (site / "rqm-fig8.html").exists()
    assert not (site / "rqm-fig5.html").exists()
    assert not runs.exists()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "one of NAME, --list and --all"),
        (["rqm-fig8", "--list"], "one of NAME, --list and --all"),
        (["--list", "--all"], "one of NAME, --list and --all"),
        (["--all", "--output", "page.html"], "--gallery FOLDER with --all"),
        (["rqm-fig99"], "did you mean rqm-fig9?"),
        (["rqm-fig5"], "--stand-in NAME"),
        (["rqm-fig5", "--stand-in", "imagenet"], "imagenet"),
        (["rqm-fig5", "--stand-in", "digits", "--seeds", "0"], "seeds"),
    ],
)
def test_wrong_options_are_one_sentence(given, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["reproduce", *given]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert re.search(re.escape(sentence), line)
    assert not list(tmp_path.iterdir())
