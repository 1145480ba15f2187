"""Problems of built-in data sets and models."""

import numpy as np
import pytest
from torch import nn
from torch.nn import functional

from randquant.training import functions
from randquant.training.config import TrainConfig
from randquant.training.data import datasets
from randquant.training.named import named_problem

BUILT_IN = TrainConfig.of("digits", "mlp", "rqm", population=12, cohort=4, seed=7)


def changed(config, **changes):
    return config.changed(**changes)


def test_built_in_names():
    problem = named_problem(BUILT_IN)
    digits = datasets.load("digits")
    rows = datasets.split(digits, 12, "iid", seed=7)
    features, targets = problem.clients.take(5, problem.clients.places[5])
    assert np.array_equal(features, digits.train_features[rows[5]])
    assert np.array_equal(targets, digits.train_labels[rows[5]])
    assert (problem.trial.classes, len(problem.test), problem.trial.draws) == (10, 360, False)
    assert problem.parts == ("1.weight", "1.bias", "3.weight", "3.bias")
    assert problem.digest == named_problem(BUILT_IN).digest
    assert problem.digest != named_problem(changed(BUILT_IN, seed=8)).digest
    assert named_problem(changed(BUILT_IN, parts=("3.*",))).parts == problem.parts[2:]
    assert named_problem(changed(BUILT_IN, frozen=("3.*",))).parts == problem.parts[:2]


def test_a_model_and_a_loss_of_ones_own():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(0.5))
    problem = named_problem(BUILT_IN, model, functional.multi_margin_loss)
    assert (problem.dimension, problem.trial.classes, problem.trial.draws) == (650, 10, True)
    assert problem.loss is functional.multi_margin_loss
    with pytest.raises(ValueError, match="a model that takes features"):
        named_problem(BUILT_IN, nn.Linear(3, 2))
    with pytest.raises(ValueError, match="without running statistics"):
        named_problem(BUILT_IN, nn.Sequential(*model, nn.BatchNorm1d(10)))


def test_public_examples_are_counted_whatever_is_trained():
    """Without the number, a report would say that no guarantee covers the features."""
    config = TrainConfig.of("breast-cancer", "softmax", "rqm", population=12, cohort=4)
    assert named_problem(config).public == 46
    assert named_problem(changed(config, parts=("*.bias",))).public == 46
    assert functions.problem_by_function(changed(config, parts=("*.bias",))).public == 46
