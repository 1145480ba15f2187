"""What is trained on in place of raw data: against NumPy's SVD."""

import dataclasses

import numpy as np
import pytest

from randquant.training.config import TrainConfig
from randquant.training.data import datasets, features
from randquant.training.records import RunSummary


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits")


def split_up(data):
    """The examples that are public, and those that clients hold."""
    public = features.public_examples(len(data.train_labels))
    return data.train_features[public], np.delete(data.train_features, public, axis=0)


@pytest.mark.parametrize("fitted_on", ["public", "all"])
def test_principal_components_are_those_of_the_svd(digits, fitted_on):
    found = features.load("digits", features="pca-12", fitted_on=fitted_on)
    public, held = split_up(digits)
    fitting = public if fitted_on == "public" else digits.train_features
    train = held if fitted_on == "public" else digits.train_features
    fitting, train, test = (
        part.reshape(len(part), -1).astype(np.float64)
        for part in (fitting, train, digits.test_features)
    )
    mean = fitting.mean(axis=0)
    turn = np.linalg.svd(fitting - mean, full_matrices=False)[2][:12].T
    for got, part in ((found.train_features, train), (found.test_features, test)):
        expected = (part - mean) @ turn
        signs = np.sign((got * expected).sum(axis=0))
        assert got.shape == expected.shape
        assert np.abs(got - signs * expected).max() < 1e-4
    assert np.array_equal(features.load("digits").train_features, digits.train_features)


@pytest.mark.parametrize(
    ("name", "word", "sentence"),
    [
        ("digits", "pca-65", "K from 1 to 64, got pca-65: .* on 144 public examples of 64 values"),
        ("breast-cancer", "pca-31", "K from 1 to 30, got pca-31: .* on 46 public examples"),
        ("digits", "pca-0", "K from 1 to 64"),
        ("digits", "pca-ten", "got pca-ten"),
        ("digits", "wavelets", "empty or pca-K such as pca-100, got 'wavelets'"),
    ],
)
def test_what_cannot_be_computed_is_said(name, word, sentence):
    with pytest.raises(ValueError, match=sentence):
        features.load(name, features=word)


def test_breast_cancer_is_standardised_by_its_public_examples():
    raw = datasets.load("breast-cancer")
    public, held = (part.astype(np.float64) for part in split_up(raw))
    found = features.load("breast-cancer")
    expected = (held - public.mean(axis=0)) / public.std(axis=0)
    assert np.abs(found.train_features - expected).max() < 1e-5
    assert (found.public, len(found.train_labels)) == (46, 455 - 46)
    assert np.array_equal(
        found.train_labels, np.delete(raw.train_labels, features.public_examples(455))
    )
    # As the papers do it: by all of them, and nothing is held back.
    whole = features.load("breast-cancer", fitted_on="all")
    assert (whole.public, len(whole.train_labels)) == (0, 455)
    assert np.abs(whole.train_features.mean(axis=0, dtype=np.float64)).max() < 1e-6
    assert np.abs(whole.train_features.std(axis=0, dtype=np.float64) - 1).max() < 1e-6


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


def made_up(name, count=60):
    rng = np.random.default_rng(0)
    parts = []
    for size in (count, 2):
        samples = rng.random((size, *SHAPES.get(name, (1, 28, 28))), dtype=np.float32)
        parts += [samples, rng.integers(0, 2, size)]
    writers = rng.integers(0, 9, count) if name == "emnist" else None
    return datasets.Dataset(name, *parts, 2, writers)


def differing(name, kind, fitted_on, monkeypatch, count, changed):
    """Which of the examples that clients hold have other features once some of them have."""
    shown = []
    for factor in (1.0, -1e4):
        data = made_up(name, count)
        data.train_features[changed] *= factor
        monkeypatch.setattr(datasets, "load", lambda name, data_dir, data=data: data)
        features._computed.cache_clear()
        shown.append(features.load(name, None, kind, fitted_on).train_features)
    features._computed.cache_clear()
    first, other = (part.reshape(len(part), -1).view(np.uint32) for part in shown)
    return np.flatnonzero((first != other).any(axis=1)).tolist()


@pytest.mark.parametrize("kind", ["", "pca-3"])
@pytest.mark.parametrize("name", datasets.DATASETS)
def test_no_example_changes_the_features_of_another(name, kind, monkeypatch):
    """What an example is made of changes what its own client trains on, and nothing else."""
    fitted = kind.startswith("pca") or name == "breast-cancer"
    held = np.delete(np.arange(60), features.public_examples(60) if fitted else [])
    for place in (0, len(held) // 2):
        found = differing(name, kind, "public", monkeypatch, 60, held[place])
        assert found == [place]


@pytest.mark.parametrize("name", datasets.DATASETS)
def test_fitting_on_all_shows_every_client_to_every_other(name, monkeypatch):
    """The planted error, which the test above must catch: one example changes all."""
    found = differing(name, "pca-3", "all", monkeypatch, 60, 0)
    assert len(found) == 60


def test_features_that_cannot_be_standardised_are_refused(monkeypatch):
    data = made_up("breast-cancer")
    public = features.public_examples(60)
    data.train_features[public, 4] = 0.5
    monkeypatch.setattr(datasets, "load", lambda name, data_dir: data)
    features._computed.cache_clear()
    sentence = "vary over the 6 public examples .* got one value of feature 4: its deviation"
    with pytest.raises(ValueError, match=sentence):
        features.load("breast-cancer")
    whole = features.load("breast-cancer", fitted_on="all")  # elsewhere the feature differs
    features._computed.cache_clear()
    assert np.isfinite(whole.train_features).all()


def test_another_word_for_what_to_fit_on_is_refused():
    with pytest.raises(ValueError, match="fitted_on"):
        features.load("digits", features="pca-3", fitted_on="clients")


def test_what_is_said_beside_an_epsilon():
    config = TrainConfig.of("breast-cancer", "softmax", "rqm")
    summary = RunSummary(0.9, 0.1, 62, 100, 8.0, 1, None, 1.0, 1, public_examples=1234)
    said = "features were fitted on 1,234 public training examples, which no client holds"
    assert features.statement(config, summary) == said
    assert "public training examples" in features.statement(config)
    everything = config.changed(fitted_on="all")
    assert features.statement(everything, summary) == features.NOT_COVERED
    # A run of an earlier version has no public examples: it fitted on all.
    earlier = dataclasses.replace(summary, public_examples=0)
    assert features.statement(config, earlier) == features.NOT_COVERED
    assert not features.covered(config, earlier)
    nothing = everything.changed(dataset="digits", features="")
    assert features.statement(nothing, earlier) == ""
    assert features.covered(nothing, earlier)
    assert features.is_fitted(config.changed(dataset="digits", features="pca-3"))
