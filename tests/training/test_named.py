"""Problems by name: built in, or functions of one's own modules."""

import dataclasses
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional

from randquant.training.client import Learner
from randquant.training.config import TrainConfig
from randquant.training.data import datasets
from randquant.training.named import named_problem

BUILT_IN = TrainConfig("digits", "mlp", "rqm", population=12, cohort=4, seed=7)

SOURCE = """
import numpy as np, torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))

def batch_norm():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

def clients():
    rng = np.random.default_rng(0)
    sizes = {"a": 4, "b": 5, "c": 3}
    return {name: (rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for name, n in sizes.items()}

def with_test():
    return clients(), clients()["a"]

def images():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def smoothed(output, targets):
    return nn.functional.cross_entropy(output, targets, label_smoothing=0.1)

class Inside:
    net = staticmethod(net)

number = 3
"""
OWN = TrainConfig("mine:with_test", "mine:net", "rqm", population=3, cohort=2, seed=7)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.chdir(tmp_path)
    yield
    for name in ("mine", "broken"):
        sys.modules.pop(name, None)


def changed(config, **changes):
    return dataclasses.replace(config, **changes)


def test_built_in_names():
    problem = named_problem(BUILT_IN)
    digits = datasets.load("digits")
    rows = datasets.split(digits, 12, "iid", seed=7)
    features, targets = problem.clients.take(5, problem.clients.places[5])
    assert np.array_equal(features, digits.train_features[rows[5]])
    assert np.array_equal(targets, digits.train_labels[rows[5]])
    assert (problem.classes, len(problem.test), problem.draws) == (10, 360, False)
    assert problem.parts == ("1.weight", "1.bias", "3.weight", "3.bias")
    assert problem.digest == named_problem(BUILT_IN).digest
    assert problem.digest != named_problem(changed(BUILT_IN, seed=8)).digest
    assert named_problem(changed(BUILT_IN, parts=("3.*",))).parts == problem.parts[2:]
    assert named_problem(changed(BUILT_IN, frozen=("3.*",))).parts == problem.parts[:2]
    loss = named_problem(changed(BUILT_IN, loss="multi_margin_loss")).loss
    assert loss is functional.multi_margin_loss


def test_own_functions():
    state = torch.get_rng_state()
    problem = named_problem(OWN)
    assert torch.equal(torch.get_rng_state(), state)
    assert problem.clients.names == ("a", "b", "c")
    assert problem.clients.sizes.tolist() == [4, 5, 3]
    assert (problem.classes, len(problem.test), problem.draws) == (3, 4, True)
    assert Learner(problem).evaluate().accuracy is not None
    assert str(sys.path).count("pytest-of") == 0  # the path is as it was
    # A run that goes on, in another process, begins with the same weights.
    assert problem.digest == named_problem(OWN).digest
    assert problem.digest != named_problem(changed(OWN, seed=1)).digest
    assert named_problem(changed(OWN, dataset="mine:clients")).test is None
    nested = named_problem(changed(OWN, model="mine:Inside.net", seed=None))
    assert nested.digest == named_problem(changed(OWN, seed=0)).digest
    assert named_problem(changed(OWN, loss="mine:smoothed")).loss.__name__ == "smoothed"
    frozen = named_problem(changed(OWN, model="mine:batch_norm", buffers="frozen"))
    assert frozen.still == ("1",)
    mixed = named_problem(changed(BUILT_IN, model="mine:images"))
    assert (mixed.dimension, mixed.classes) == (650, 10)


BAD = {
    "population": ({"population": 4}, ValueError, "population=3, the number of clients"),
    "module": ({"model": "nowhere:net"}, ValueError, "a Python module 'nowhere' .* found none"),
    "function": ({"model": "mine:nothing"}, ValueError, "'nothing' in module mine, found none"),
    "number": ({"model": "mine:number"}, TypeError, "mine:number to be a function, got 3"),
    "no model": ({"model": "mine:clients"}, TypeError, "return a torch nn.Module, got {"),
    "built-in model": ({"model": "mlp"}, ValueError, "model module:function with data of one's"),
    "loss": ({"loss": "cross_entropie"}, ValueError, "a loss of torch.nn.functional"),
    "batch norm": ({"model": "mine:batch_norm"}, ValueError, "without running statistics"),
    "own loss": ({"loss": "mine:number"}, TypeError, "Expected loss to be a function, got a int"),
    "its import": ({"model": "broken:net"}, ModuleNotFoundError, "nowhere_to_be_found"),
    "model": ({"dataset": "digits", "model": "nothing"}, ValueError, "softmax, mlp"),
    "shape": ({"dataset": "digits"}, ValueError, "a model that takes features"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_names(name):
    changes, kind, sentence = BAD[name]
    with pytest.raises(kind, match=sentence):
        named_problem(changed(OWN, **changes))
