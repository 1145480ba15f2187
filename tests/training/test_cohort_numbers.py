"""Clients' metrics and counts beside their updates: measured, accounted, resumed, refused."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import interrupted
import numpy as np
import problems
import pytest
import torch
from by_name import train
from torch import nn

from randquant.aggregation import AuxiliaryNumbers, ClippedSGD, LocalGaussian, Number
from randquant.channels import Key
from randquant.local_training import Learner, make_problem
from randquant.privacy import HiddenCohorts
from randquant.reports import run as page
from randquant.rounds import UpdatePreparation
from randquant.training import RoundCollector, prepare

NUMBERS = (Number("accuracy"), Number("num-examples", 0, 40, 0.1), Number("loss", 0, 5, 0.1))
CHANNEL = {"clip": 0.1, "margin": 0.1, "levels": 16, "keep": 0.4}
TEXTS = tuple(number.text for number in NUMBERS)
NOISY = problems.config_of(
    "breast-cancer", "softmax", "local-gaussian", {"clip_norm": 0.05, "noise_multiplier": 4.0},
    population=20, cohort=8, rounds=4, numbers=TEXTS, weighted_by="num-examples",
    checkpoint_every=1, threads=1,
)  # fmt: skip


def a_problem(dropout=0.0):
    torch.manual_seed(0)
    features = torch.randn(8, 60, 5)
    sizes = 3, 60, 17, 40, 1, 8, 25, 33
    clients = [(x[:n], (x[:n, 0] > 0).long()) for x, n in zip(features, sizes, strict=True)]
    return make_problem(nn.Sequential(nn.Linear(5, 2), nn.Dropout(dropout)), clients)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_without_noise_the_numbers_are_those_of_the_clients_and_the_update_is_weighted(dropout):
    problem, state = a_problem(dropout), torch.get_rng_state()
    learner, key, cohort = Learner(problem), Key.from_seed(0), range(8)
    learner.load(learner.parameters())
    with ThreadPoolExecutor(2) as pool:
        beside = UpdatePreparation(scalars=AuxiliaryNumbers(100.0, NUMBERS, weight="num-examples"))
        found = RoundCollector(learner, ClippedSGD(clip_norm=100.0), pool, 2, None, beside)(
            cohort, key, 0
        )
    model, sets = learner.trained_model().eval(), problem.clients
    counts, wanted = np.minimum(sets.sizes, 40), {"accuracy": [], "loss": []}
    for client in cohort:
        features, labels = sets.take(client, np.arange(sets.sizes[client]))
        output = model(features).detach()
        wanted["accuracy"].append(float((output.argmax(1) == labels).float().mean()))
        wanted["loss"].append(float(nn.functional.cross_entropy(output, labels)))
    for name, each in {**wanted, "num-examples": counts}.items():
        assert found.numbers[name] == pytest.approx(np.mean(each), rel=1e-5)
        assert found.numbers[f"{name}_deviation"] == 0
    updates, _ = learner.updates(cohort, key)
    np.testing.assert_allclose(found.mean, counts @ updates / counts.sum(), rtol=1e-4, atol=1e-6)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("cohort", [[], [0, 3]])
def test_noise_of_absent_clients_is_in_the_stated_deviation(cohort):
    # Eight clients' noise in a sum that is divided by two; 200 means, bounds as above.
    mechanism, hidden = LocalGaussian(1.0, 4.0), HiddenCohorts("poisson", 8, 2, 200)
    learner = Learner(a_problem())
    beside = UpdatePreparation(scalars=AuxiliaryNumbers(1.0, NUMBERS[1:2]))
    learner.load(learner.parameters())
    with ThreadPoolExecutor(1) as pool:
        collect = RoundCollector(learner, mechanism, pool, 1, hidden, beside)
        rounds = [collect(cohort, Key.from_seed(n), 0).numbers for n in range(200)]
    stated = rounds[0]["num-examples_deviation"]
    assert 0.5 < np.var([found["num-examples"] for found in rounds]) / stated**2 < 1.7


def test_the_front_door_accounts_for_the_numbers_and_has_them_in_its_history():
    clients = [(x, (x[:, 0] > 0).long()) for x in torch.randn(30, 10, 5)]
    run = train(
        nn.Linear(5, 2), clients, mechanism=LocalGaussian(1.0, 4.0), rounds=3, numbers=NUMBERS,
        weighted_by="num-examples", seed=0, progress=False,
    )  # fmt: skip
    assert run.guarantee.releases == 3 * (12 + 3)
    for metrics in run.history:
        assert metrics.numbers.keys() == {
            n for number in NUMBERS for n in (number.name, f"{number.name}_deviation")
        }
        miss = (metrics.numbers["num-examples"] - 10) / metrics.numbers["num-examples_deviation"]
        assert 0 < abs(miss) < 6  # a normal variable is not, with probability 2e-9


def test_numbers_are_in_the_account_and_on_the_page(tmp_path):
    prepared = prepare(NOISY, Key.from_seed(0), problems.inputs_of(NOISY))
    assert prepared.dimension == prepared.learner.dimension + 3 == 62 + 3
    assert prepared.schedule.ledger.release(4).releases == 4 * (62 + 3)
    whole = interrupted.whole(tmp_path / "whole", NOISY)
    assert len({str(m.numbers) for m in whole.metrics}) == 4
    assert "62 coordinates and 3 numbers beside them in each" in page.render(
        whole, None, None, None
    )
    charts = {chart.title: chart for chart in page.training_charts(whole, None)}
    points = charts["Clients' num-examples, per round"].lines[0].points
    released = [m.numbers["num-examples"] for m in whole.metrics]
    assert [y for _, y in points] == pytest.approx(released, rel=1e-2)


def test_other_numbers_of_a_round_that_was_sent_are_refused(tmp_path, monkeypatch):
    config = NOISY.changed(checkpoint_every=50, weighted_by=None)
    interrupted.begin(tmp_path / "run", config, 2)
    right = Learner.evaluate

    def wrong(self, client=None):
        return dataclasses.replace(right(self, client), accuracy=0.0)

    monkeypatch.setattr(Learner, "evaluate", wrong)
    with pytest.raises(ValueError, match="second release"):
        problems.train_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"numbers": ("precision",)}, "one of accuracy, loss, num-examples"),
        ({"numbers": ("accuracy:1:0",)}, "Expected high"),
        ({"numbers": ("num-examples",)}, "where every client has 1"),
        ({"numbers": ("accuracy:one",)}, "as NAME:LOW:HIGH"),
        ({"unit": "example"}, "Expected unit=client with numbers"),
        ({"mechanism": "rqm", "parameters": CHANNEL}, "Expected a clip_norm with numbers"),
        ({"numbers": ("accuracy", "accuracy")}, "Expected each number once"),
        ({"numbers": ("accuracy:0:1:0.9", "loss:0:5:0.9")}, "nothing is left"),
        ({"weighted_by": "precision"}, "name a number from 0 up"),
        ({"numbers": ("num-examples:1:9",)}, "name a number from 0 up"),
        ({"numbers": None}, "name a number from 0 up"),
        ({"rounds": 1, "stop_at_epsilon": 1e-6}, "stop_at_epsilon"),
    ],
)
def test_what_cannot_be_sent_soundly_is_refused_before_anything_is_written(tmp_path, change, says):
    config = NOISY.changed(**change)
    with pytest.raises(ValueError, match=says):
        problems.create_run(tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


def test_accuracy_of_a_regression_and_other_objects_are_refused():
    clients, given = [(x, x[:, :1]) for x in torch.randn(4, 6, 5)], {"rounds": 1}
    given |= {"loss": nn.functional.mse_loss, "mechanism": LocalGaussian(1.0, 4.0)}
    with pytest.raises(ValueError, match="Expected a classification"):
        train(nn.Linear(5, 1), clients, numbers=[Number("accuracy")], **given)
    with pytest.raises(TypeError, match="Expected numbers to be a Number"):
        train(nn.Linear(5, 1), clients, numbers=[3], **given)
    with pytest.raises(TypeError, match="numbers to be a list"):
        train(nn.Linear(5, 1), clients, numbers=Number("loss"), **given)


def test_numbers_may_be_of_more_examples_than_a_local_step_takes():
    """What is measured is gathered in inference mode, and the next round's batches after it."""

    def loss(output, targets):  # clients are computed one by one: nothing is known of it
        return nn.functional.cross_entropy(output, targets)

    clients = [(x, (x[:, 0] > 0).long()) for x in torch.randn(4, 6, 3)]
    run = train(
        nn.Linear(3, 2), clients, mechanism=LocalGaussian(1.0, 2.0), rounds=2, numbers=["loss:0:9"],
        seed=0, progress=False, local_learning_rate=0.1, local_epochs=1, batch=2, loss=loss,
    )  # fmt: skip
    assert all("loss" in (metrics.numbers or {}) for metrics in run.history)
