"""Breast-cancer as clients train on it: standardised by examples that no client holds."""

import numpy as np
import pytest

from randquant.training.config import TrainConfig
from randquant.training.data import datasets, features
from randquant.training.records import RunSummary


def test_breast_cancer_is_standardised_by_its_public_examples():
    raw, drawn = datasets.load("breast-cancer"), features.public_examples(455)
    public = raw.train_features[drawn].astype(np.float64)
    held = np.delete(raw.train_features, drawn, axis=0).astype(np.float64)
    found = features.load("breast-cancer")
    for got, part in ((found.train_features, held), (found.test_features, raw.test_features)):
        assert np.abs(got - (part - public.mean(axis=0)) / public.std(axis=0)).max() < 1e-5
    assert (found.public, len(found.train_labels)) == (46, 455 - 46)
    assert np.array_equal(found.train_labels, np.delete(raw.train_labels, drawn))


def test_public_examples_are_drawn_without_looking():
    for count in (1, 9, 10, 455, 10_000):
        found = features.public_examples(count)
        assert len(found) == -(-count // 10)
        assert np.array_equal(found, np.unique(found))
        assert found.min() >= 0
        assert found.max() < count
    assert features.public_examples(20).tolist() == PINNED  # as other machines draw them


PINNED = [0, 9]
"""Another draw would make runs of different versions incomparable."""


SHAPES = {"digits": (1, 8, 8), "breast-cancer": (30,)}
"""Of data sets whose samples are not 28x28 grey images."""


def made_up(name):
    rng = np.random.default_rng(0)
    parts = []
    for size in (60, 2):
        samples = rng.random((size, *SHAPES.get(name, (1, 28, 28))), dtype=np.float32)
        parts += [samples, rng.integers(0, 2, size)]
    return datasets.Dataset(name, *parts, 2)


def differing(name, monkeypatch, changed):
    """Which of the examples that clients hold have other features once one example has."""
    shown = []
    for factor in (1.0, -1e4):
        data = made_up(name)
        data.train_features[changed] *= factor
        monkeypatch.setattr(datasets, "load", lambda name, data_dir, data=data: data)
        shown.append(features.load(name).train_features)
    first, other = (part.reshape(len(part), -1).view(np.uint32) for part in shown)
    return np.flatnonzero((first != other).any(axis=1)).tolist()


@pytest.mark.parametrize("name", datasets.DATASETS)
def test_no_example_changes_the_features_of_another(name, monkeypatch):
    """What an example is made of changes what its own client trains on, and nothing else."""
    public = features.public_examples(60) if name == "breast-cancer" else []
    held = np.delete(np.arange(60), public)
    for place in (0, len(held) // 2):
        assert differing(name, monkeypatch, held[place]) == [place]


def test_a_public_example_changes_the_features_of_all(monkeypatch):
    """The planted error, which the test above must catch: one example changes all."""
    found = differing("breast-cancer", monkeypatch, features.public_examples(60)[0])
    assert len(found) == 54


def test_what_is_said_beside_an_epsilon():
    config = TrainConfig.of("breast-cancer", "softmax", "rqm")
    summary = RunSummary(0.9, 0.1, 62, 100, 8.0, 1, None, 1.0, 1, public_examples=1234)
    said = "features were fitted on 1,234 public training examples, which no client holds"
    assert features.statement(config, summary) == said
    assert "public training examples" in features.statement(config)
    assert features.statement(config.changed(dataset="digits"), summary) == ""
