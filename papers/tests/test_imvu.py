"""Experiments of the I-MVU paper: tiny ones for real, verdicts on planted outcomes."""

import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from pages import check_charts
from small_mnist import pictures, small_mnist

from randquant_papers import frontiers
from randquant_papers.experiment import Setting
from randquant_papers.frontiers import Frontiers, Grid, Kind
from randquant_papers.imvu import training as figures
from randquant_papers.page import as_page
from randquant_papers.registry import reproduce
from randquant_papers.result import labels
from randquant_papers.saved import as_json, from_json

ONE, OTHER = Kind("one", "imvu"), Kind("other", "sign-sgd")


def write_femnist(folder):
    data = {}
    for writer in range(7):
        images, classes = pictures(6, writer)
        x = (images.reshape(6, -1) / 255).tolist()
        data[f"w{writer}"] = {"x": x, "y": classes.tolist()}
    content = {"users": list(data), "num_samples": [6] * 7, "user_data": data}
    (folder / "all_data_0.json").write_text(json.dumps(content))
    return str(folder)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(figures, "SAMPLE_COHORT", 20)
    monkeypatch.setattr(figures, "SAMPLE_QUICK_ROUNDS", 2)
    monkeypatch.setattr(figures, "FEMNIST_SIZE", {"population": 6, "cohort": 2})
    monkeypatch.setattr(figures, "FEMNIST_QUICK_ROUNDS", 2)
    monkeypatch.setattr(figures, "SAMPLE_QUICK", Grid((4.0,), (0.3,)))
    monkeypatch.setattr(figures, "FEMNIST_QUICK", Grid((4.0,), (0.03,)))


def sound(found, kinds):
    """What holds of every quick figure at one epsilon, 4."""
    assert found.scale == "quick"
    assert len(found.guarantees) == kinds
    assert all(3.9 < each.certified <= 4 for each in found.guarantees)
    assert [each.what.partition(", epsilon 4")[2] for each in found.guarantees] == [""] * kinds
    told = [claim for claim in found.claims if claim.verdict != "cannot be told"]
    assert all("noise" in claim.text and "computed" in claim.why for claim in told)
    assert from_json(json.loads(json.dumps(as_json(found, figures=True)))).figures == list(
        found.figures
    )
    (chart,) = check_charts(as_page(found))
    marks = [e for e in chart.iter("path") if e.get("aria-roledescription") == "point"]
    assert len(marks) == kinds


@pytest.mark.slow
def test_figure_2_trains_clients_of_one_sample(tmp_path, tiny, in_process):
    pytest.importorskip("kymatio")
    setting = Setting(str(small_mnist(tmp_path, 60)), quick=True, jobs=1, folder=tmp_path / "runs")
    found = reproduce("imvu-fig2", setting)
    sound(found, kinds=5)
    assert labels(found)[0] == ("Stand-in data: 60 training images of MNIST in place of 60,000")
    assert all("One client's whole run" in each.why for each in found.guarantees)
    assert all("zero out, local trust" in each.why for each in found.guarantees)
    (claim,) = (c for c in found.claims if c.text.startswith("I-MVU has less noise than MVU"))
    assert claim.verdict == "does not hold"
    noise = {row[0]: row[1] for row in found.tables[1].rows}
    assert noise["Gaussian, not compressed"] == 1
    assert math.isclose(noise["SignSGD, 1 bit"], math.sqrt(math.pi / 2), rel_tol=1e-3)
    for name in ("I-MVU, 1 bit", "MVU, 1 bit", "optimum, 1 bit (ours)"):
        # Gaussian noise is accounted exactly, one bit within some percent (theory/martingale.md).
        assert 1 < noise[name] < 1.02


@pytest.mark.slow
def test_figure_3_trains_writers(tmp_path, tiny, in_process):
    setting = Setting(write_femnist(tmp_path), quick=True, jobs=1, folder=tmp_path / "runs")
    found = reproduce("imvu-fig3", setting)
    sound(found, kinds=5)
    assert labels(found) == ["Quick run: smaller than in the paper, and no verdict on it"]
    assert all("One example's whole run" in each.why for each in found.guarantees)
    assert len(list((tmp_path / "runs").iterdir())) == 5
    start, _ = figures._femnist(setting)
    assert start.data.partition == "own"


def test_a_stand_in_is_split_evenly_and_said(tmp_path, tiny):
    setting = Setting(str(small_mnist(tmp_path, 60)), stand_in="mnist", quick=True)
    start, _ = figures._femnist(setting)
    assert (start.data.dataset, start.data.partition) == ("mnist", "iid")
    assert setting.stands_in("femnist") == "MNIST in place of FEMNIST"
    assert setting.command("imvu-fig3").endswith("--data-dir DIR --stand-in mnist --quick")


def planted(gaps, spread=0.001, kinds=(ONE, OTHER), noise=(1.0, 1.0)):
    """Frontiers whose first lies above the others by so many points, at epsilon 1, 2, ...

    Two seeds, `spread` apart; a beaten run at each epsilon shows that frontiers take the best.
    """
    epsilons = [float(k + 1) for k in range(len(gaps))]

    def runs(points, sign):
        found = []
        for epsilon, gap in zip(epsilons, points, strict=True):
            for lower in (0.0, 0.2):
                middle = 0.5 + 0.1 * epsilon + gap / 100 - lower
                seeds = [middle - sign * spread / 2, middle + sign * spread / 2]
                run = SimpleNamespace(accuracy=middle, accuracies=seeds, epsilon=epsilon * 0.9995)
                run.averages = lambda since, run=run: run.accuracies
                found.append(run)
        return found

    first, *others = kinds
    return Frontiers(
        epsilons,
        {first: runs(gaps, 1), **{kind: runs([0.0] * len(gaps), -1) for kind in others}},
        {kind: [ratio] * len(gaps) for kind, ratio in zip(kinds, noise, strict=False)},
    )


FULL = Setting(seeds=2)


@pytest.mark.parametrize(
    ("gaps", "spread", "alike", "better"),
    [
        ([3, 2, 4], 0.0005, "holds", "holds"),
        ([0.4, 0.5, 0.4], 0.0005, "holds", "holds"),
        ([0, 0, 0], 0.0005, "holds", "does not hold"),  # nowhere better by a point
        ([3, -0.5, 4], 0.0005, "holds", "does not hold"),  # worse somewhere, by less than a point
        ([3, -3, 4], 0.0005, "does not hold", "does not hold"),
        ([3, 0.02, 4], 0.0005, "holds", "cannot be told"),
        ([0, 0, 0], 0.03, "cannot be told", "cannot be told"),
        ([-3, 2, 2], 0.03, "cannot be told", "cannot be told"),
        ([-40, 2, 2], 0.03, "does not hold", "does not hold"),
        ([30, 20, 20], 0.03, "holds", "holds"),
    ],
)
def test_verdicts_on_planted_outcomes(gaps, spread, alike, better):
    found = planted(gaps, spread)
    assert np.allclose(found.gaps(ONE, OTHER), gaps, atol=1e-12)
    # A paired t-test at 99 %, three degrees of freedom: 5.841.
    assert found.error(ONE, OTHER) == pytest.approx(100 * 5.8409 * spread, rel=1e-4)
    assert frontiers.alike("", ONE, OTHER, found, FULL).verdict == alike
    assert frontiers.better("", ONE, OTHER, found, FULL).verdict == better


def test_quick_runs_and_single_seeds_have_no_verdict():
    found = planted([30, 30])
    for setting, why in ((Setting(quick=True, seeds=2), "quick run"), (Setting(), "--seeds 3")):
        for judge in (frontiers.alike, frontiers.better):
            claim = judge("", ONE, OTHER, found, setting)
            assert (claim.verdict, why in claim.why) == ("cannot be told", True)


@pytest.mark.parametrize(
    ("noise", "verdict"),
    [((0.8, 1.0), "holds"), ((1.0, 1.0), "does not hold"), ((1.2, 1.0), "does not hold")],
)
def test_less_noise_is_computed(noise, verdict):
    found = planted([0, 0], noise=noise)
    assert frontiers.less_noise("", ONE, OTHER, found, "").verdict == verdict
    mixed = dataclasses.replace(found, noise={ONE: [0.8, 1.2], OTHER: [1.0, 1.0]})
    assert frontiers.less_noise("", ONE, OTHER, mixed, "").verdict == "cannot be told"
