"""The experiments of the OPTM and QMGeo papers, tiny and for real, and what is equal in them."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy import stats
from small_mnist import small_mnist

import randquant as rq
from randquant.mechanisms import designed
from randquant.training import load_parameters, train_run
from randquant_papers import equal
from randquant_papers.configuration import PaperConfig, read
from randquant_papers.data import fitted
from randquant_papers.experiment import Setting
from randquant_papers.optm import training as optm_training
from randquant_papers.optm import vectors as optm_vectors
from randquant_papers.optm.vectors import BALL, UNIFORM, VectorErrors
from randquant_papers.problems import create
from randquant_papers.qmgeo import training as qmgeo
from randquant_papers.result import as_text
from randquant_papers.saved import as_json

CANCER = PaperConfig.of(
    fitted.BREAST_CANCER, "softmax", "optm",
    {"clip": 0.1, "bins": [-0.22, -0.04, 0.04, 0.22], "epsilon": 1.0},
    population=455, cohort=100, rounds=9, max_participations=2, evaluate_every=9, threads=1,
)  # fmt: skip


# Channels of an equal guarantee.


def trained(config, folder):
    return train_run(folder, create(folder, config))


def certified(config, folder):
    """Of a real run, by full accounting for the client that was called most often."""
    return trained(config, folder).summary.guarantee.epsilon


@pytest.mark.parametrize(
    ("mechanism", "parameters", "values"),
    [
        ("optm", CANCER.parameters, None),
        pytest.param("optm", CANCER.parameters, [-0.25, -0.015, 0.015, 0.25],
                     marks=pytest.mark.slow),
        pytest.param("rqm", {"clip": 0.1, "margin": 0.1, "levels": 8, "keep": 0.42}, None,
                     marks=pytest.mark.slow),
        pytest.param("qmgeo", {"clip": 0.1, "levels": 4, "p": 0.5, "mixing": 0.05},
                     [-0.12, -0.04, 0.04, 0.12], marks=pytest.mark.slow),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_the_optimum_costs_a_whole_run_as_much_and_never_more(
    mechanism, parameters, values, tmp_path
):
    reference = equal.with_mechanism(CANCER, mechanism, parameters)
    found = equal.optimum(reference, values)
    assert found.mechanism == "optimal"
    limit = certified(reference, tmp_path / "reference")
    ours = certified(found, tmp_path / "optimum")
    assert 0.97 * limit < ours <= limit
    error, theirs = (rq.moments(equal.channel(config)) for config in (found, reference))
    assert error.bias_max < 1e-8
    if values is None:  # as unbiased, on the same levels
        assert error.mse <= theirs.mse


def test_nothing_equals_infinity_and_levels_that_cost_too_much_are_refused():
    published = equal.with_mechanism(CANCER, "qmgeo", {"clip": 0.1, "levels": 4, "p": 0.5})
    with pytest.raises(ValueError, match="Expected a reference with a finite guarantee"):
        equal.optimum(published, [-0.2, -0.1, 0.1, 0.2])
    with pytest.raises(ValueError, match="move the outermost values outward"):
        equal.optimum(CANCER, [-0.11, -0.05, 0.05, 0.11])


# Errors of vectors.


@functools.cache
def few(epsilon: float, kind) -> dict:
    """Channels that are made fast."""
    return {
        "OPTM": rq.optm(1.0, [-3, -0.5, 0.5, 3], epsilon),
        "RQM": rq.rqm(1.0, 2.0, 4, optm_vectors.keep(epsilon)),
        "MVU": designed(1.0, optm_vectors.PUBLISHED[1.0], epsilon, objective="mse", inputs=9),
        "optimum": designed(1.0, (-2.5, -0.15, 0.15, 2.5), epsilon, objective="mse", inputs=9),
    }


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(optm_vectors, "channels", few)
    monkeypatch.setattr(optm_vectors, "free_levels", lambda epsilon: few(epsilon, None)["optimum"])


@pytest.mark.parametrize("kind", [UNIFORM, BALL], ids=["uniform", "ball"])
def test_measured_errors_are_those_of_the_exact_second_moment(kind, fast):
    """Normal limit at 1e-6 for each; the error of a channel with moved levels is told from it."""
    found = optm_vectors.measure(kind, (1.0,), 3000)
    assert [m.name for m in found] == list(few(1.0, kind))
    vectors = kind.draw(3000, np.random.default_rng(0))
    assert np.abs(vectors).max() <= 1
    assert vectors.shape == (3000, kind.dimension)
    for m in found:
        # A square's deviation is at most that of the error times twice the largest error.
        spread = 2 * (m.mean + 6 * m.deviation) * m.deviation
        allowed = stats.norm.isf(5e-7) * spread / math.sqrt(m.count)
        assert abs(m.root**2 - m.exact**2) <= allowed
        assert m.root**2 == pytest.approx(m.mean**2 + m.deviation**2, rel=1e-3)
        assert 1 - 1e-6 < m.certified <= 1 + 1e-12
        channel = few(1.0, kind)[m.name]
        moved = dataclasses.replace(channel, values=1.2 * channel.values)
        wrong = rq.moments(moved).mse_at(vectors).sum(axis=1).mean()
        assert abs(m.root**2 - wrong) > allowed
    text = optm_vectors.table(kind, found)
    assert len(text.rows) == 4
    assert kind.title in optm_vectors.chart(kind, found).title


def test_points_of_the_ball_are_uniform():
    """Radii to the power 100 are uniform, and coordinates have the density that is designed for."""
    points = optm_vectors.ball(20_000, np.random.default_rng(2))
    radii = np.linalg.norm(points, axis=1)
    assert radii.max() <= 1
    assert stats.kstest(radii**100, "uniform").pvalue > 1e-6
    assert stats.kstest(radii**80, "uniform").pvalue < 1e-6
    assert BALL.density is not None
    assert stats.ks_2samp(points[:, 0], np.repeat(BALL.density, 50)).pvalue > 1e-6


@pytest.mark.parametrize("epsilon", [0.75, 1.0, 3.0])
def test_rqm_keeps_as_much_as_its_epsilon_allows(epsilon):
    keep = optm_vectors.keep(epsilon)
    assert rq.certify(rq.rqm(1.0, 2.0, 4, keep)).epsilon.upper <= epsilon
    assert rq.certify(rq.rqm(1.0, 2.0, 4, keep + 1e-5)).epsilon.lower > epsilon


@pytest.mark.parametrize(
    ("differences", "quick", "verdict"),
    [
        ((-0.2, -0.3), False, "holds"),
        ((-0.2, 0.3), False, "does not hold"),  # it says at every epsilon
        ((-0.2, 0.01), False, "cannot be told"),
        ((-0.2, -0.3), True, "cannot be told"),
    ],
)
def test_errors_are_told_apart_beyond_chance(differences, quick, verdict):
    # 10,000 errors with deviation 1: a standard error of a difference is 0.0141.
    found = [
        VectorErrors(epsilon, name, epsilon, 10_000, 5.0 + shift, 1.0, 0.0, 0.0)
        for epsilon, shift in zip((1.0, 2.0), differences, strict=True)
        for name, shift in (("OPTM", shift), ("MVU", 0.0))
    ]
    claim = optm_vectors.lower(UNIFORM, found, "OPTM", "MVU", quick)
    assert claim.verdict == verdict
    assert claim.ours == "4.800 against 5.000"
    assert "of 2 values" in claim.why


# Whole figures, tiny.


@pytest.mark.slow
def test_optms_figure_4_runs(fast, monkeypatch, tmp_path, in_process):
    for name, every in (("BREAST_CANCER", 1), ("MNIST", 1)):
        task = getattr(optm_training, name)
        monkeypatch.setattr(optm_training, name, dataclasses.replace(task, rounds=2, every=every))
    monkeypatch.setattr(optm_vectors, "COUNT", 200)
    monkeypatch.setattr(optm_vectors, "EPSILONS", (1.0,))
    setting = Setting(stand_in="digits", folder=tmp_path)
    result = optm_training.figure_4(setting)
    assert result.stand_in == "digits in place of MNIST"
    assert len(list(tmp_path.iterdir())) == 2 * 2 * 5
    assert len(result.figures) == 2 + 4
    titles = [table.title for table in result.tables]
    assert len(titles) == len(set(titles)) == 2 + 4 + 1
    of_training = result.tables[-1].rows
    assert len(of_training) == 20
    assert all(0 < row[2] <= 100 for row in of_training)
    trained = [claim for claim in result.claims if "against" in claim.ours and "%" in claim.ours]
    assert len(trained) == 2 * (4 + 3)
    assert {claim.verdict for claim in trained} == {"cannot be told"}  # one seed
    by_name = {stated.what: stated for stated in result.guarantees}
    assert len(by_name) == len(result.guarantees) == 2 * 2 * 4
    for part in ("breast cancer, examples", "MNIST, batch means"):
        ours, optimum = (by_name[f"{n}; {part}"] for n in ("OPTM", "optimum, equal guarantee"))
        assert ours.paper == "epsilon 1 for each coordinate, once"
        assert optimum.paper is None
        assert 0.97 * ours.certified < optimum.certified <= ours.certified
    assert ("whole training set" in by_name["OPTM; MNIST, batch means"].why) is True
    assert as_json(result)["name"] == "optm-fig4"
    assert not [line for line in as_text(result) if len(line) >= 140]


def test_accuracy_on_training_data_is_that_of_the_final_model(tmp_path):
    config = CANCER.changed(mechanism="clipped-sgd", parameters={"clip": 1.0})
    trained(config, tmp_path / "run")
    data = fitted.breast_cancer()
    weights = load_parameters(tmp_path / "run")
    matrix, bias = weights[:60].reshape(2, 30), weights[60:]
    right = (data.train_features @ matrix.T + bias).argmax(axis=1) == data.train_labels
    found = optm_training.training_accuracy(read(tmp_path / "run", config))
    assert found == pytest.approx(right.mean(), abs=1 / len(right) + 1e-9)
    assert found > 0.9


@pytest.mark.slow
def test_qmgeos_figure_6_runs(monkeypatch, tmp_path, in_process):
    (tmp_path / "data").mkdir()
    folder = small_mnist(tmp_path / "data", 120)
    start = qmgeo._start
    monkeypatch.setattr(qmgeo, "_start", lambda s: {**start(s), "rounds": 2, "evaluate_every": 1})
    monkeypatch.setattr(qmgeo, "REACHES", (1.0, 1.01))  # the first is no channel's: it is left out
    result = qmgeo.figure_6(Setting(data_dir=str(folder), folder=tmp_path / "runs"))
    assert len(list((tmp_path / "runs").iterdir())) == 7
    guarantees = [(stated.paper, stated.certified) for stated in result.guarantees]
    said = [paper for paper, _ in guarantees]
    assert said == ["1.807 a round, order 2", None, None, "3.673 a round, order 2", None, None]
    for published, repaired, optimum in (guarantees[:3], guarantees[3:]):
        assert published[1] == math.inf
        assert optimum[1] <= repaired[1] < math.inf
    assert [claim.paper for claim in result.claims if claim.paper] == ["1.807", "3.673"]
    assert {c.verdict for c in result.claims if not c.paper} == {"cannot be told"}  # one seed
    (sixteen,) = (each for each in result.claims if each.text.startswith("16 levels end"))
    assert "no quantisation" in sixteen.text
    assert result.stand_in == "120 training images of MNIST in place of 60,000"
