"""What is trained on in place of raw data: against kymatio itself, and against NumPy's SVD."""

import dataclasses
import sys

import numpy as np
import pytest

from randquant import datasets, features


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits")


@pytest.fixture(scope="module")
def grey():
    """Images of 16x12: the sides must not be mixed up."""
    return np.random.default_rng(0).random((7, 1, 16, 12), dtype=np.float32)


def test_scattering_is_kymatios_normalised_in_groups(grey):
    pytest.importorskip("kymatio")
    from kymatio.scattering2d.frontend.numpy_frontend import ScatteringNumPy2D

    found = features._scattering(grey)
    assert found.shape == (7, 81, 4, 3)
    assert found.dtype == np.float32
    raw = ScatteringNumPy2D(J=2, shape=(16, 12))(grey[:, 0].astype(np.float64))
    groups = raw.reshape(7, features.GROUPS, -1)
    mean, variance = (f(groups, axis=2, keepdims=True) for f in (np.mean, np.var))
    expected = ((groups - mean) / np.sqrt(variance + 1e-5)).reshape(raw.shape)
    assert np.abs(found - expected).max() < 2e-4
    by_group = found.reshape(7, features.GROUPS, -1)
    assert np.abs(by_group.mean(axis=2)).max() < 1e-5


def test_scattering_depends_on_one_image_only(grey, monkeypatch):
    pytest.importorskip("kymatio")
    whole = features._scattering(grey)
    assert np.array_equal(whole, features._scattering(grey))
    monkeypatch.setattr(features, "AT_ONCE", 3)  # the last part is a single image
    assert np.abs(features._scattering(grey) - whole).max() < 1e-5
    assert np.abs(features._scattering(grey[::-1].copy())[::-1] - whole).max() < 1e-5


def test_scattering_of_a_data_set(digits, monkeypatch):
    pytest.importorskip("kymatio")
    few = dataclasses.replace(
        digits, train_features=digits.train_features[:30], test_features=digits.test_features[:20]
    )
    monkeypatch.setattr(datasets, "load", lambda name, data_dir: few)
    found = features.load("few digits", features="scattering")
    assert np.array_equal(found.train_features, features._scattering(few.train_features))
    assert np.array_equal(found.test_features, features._scattering(few.test_features))
    assert found.test_features.shape == (20, 81, 2, 2)
    assert found.train_labels is digits.train_labels
    assert features.load("few digits", features="scattering") is found  # kept


def test_principal_components_are_those_of_the_svd(digits):
    found = features.load("digits", features="pca-12")
    train, test = (
        part.reshape(len(part), -1).astype(np.float64)
        for part in (digits.train_features, digits.test_features)
    )
    mean = train.mean(axis=0)
    turn = np.linalg.svd(train - mean, full_matrices=False)[2][:12].T
    for got, part in ((found.train_features, train), (found.test_features, test)):
        expected = (part - mean) @ turn
        signs = np.sign((got * expected).sum(axis=0))
        assert got.shape == expected.shape
        assert np.abs(got - signs * expected).max() < 1e-4
    assert np.array_equal(features.load("digits").train_features, digits.train_features)


@pytest.mark.parametrize(
    ("name", "word", "sentence"),
    [
        ("digits", "pca-65", "pca-K with K from 1 to 64, got pca-65"),
        ("digits", "pca-0", "K from 1 to 64"),
        ("digits", "pca-ten", "got pca-ten"),
        ("digits", "wavelets", "empty, scattering or pca-K such as pca-100, got 'wavelets'"),
        ("breast-cancer", "scattering", r"grey images of at least 8x8 .* shape \(30,\)"),
    ],
)
def test_what_cannot_be_computed_is_said(name, word, sentence):
    with pytest.raises(ValueError, match=sentence):
        features.load(name, features=word)


def test_colour_is_refused():
    with pytest.raises(ValueError, match=r"grey images .* shape \(3, 32, 32\)"):
        features._scattering(np.zeros((2, 3, 32, 32), dtype=np.float32))


def test_a_missing_kymatio_says_what_to_install(grey, monkeypatch):
    monkeypatch.setitem(sys.modules, "kymatio.scattering2d.frontend.torch_frontend", None)
    with pytest.raises(ImportError, match=r"experiments extra, pip install '\.\[experiments\]'"):
        features._scattering(grey)
