"""Scattering features, against kymatio itself."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from kymatio.scattering2d.frontend.numpy_frontend import ScatteringNumPy2D

from randquant.training import RunStatus
from randquant_papers.configuration import PaperConfig
from randquant_papers.data import datasets, fitted, scattering, sets


@pytest.fixture(scope="module")
def grey():
    """Images of 16x12: the sides must not be mixed up."""
    return np.random.default_rng(0).random((7, 1, 16, 12), dtype=np.float32)


@pytest.mark.parametrize("colours", [1, 3])
def test_scattering_is_kymatios_normalised_in_groups(grey, colours):
    """9 of 243 channels are a group, those of one colour, as 3 of 81 are of a grey image."""
    images = np.concatenate([grey, grey**2, 1 - grey][:colours], axis=1)
    found = scattering.scattering(images)
    assert found.dtype == np.float32
    transform = ScatteringNumPy2D(J=2, shape=(16, 12))
    raw = [transform(images[:, colour].astype(np.float64)) for colour in range(colours)]
    groups = np.concatenate(raw, axis=1).reshape(7, 27, -1)
    mean, variance = (f(groups, axis=2, keepdims=True) for f in (np.mean, np.var))
    expected = (groups - mean) / np.sqrt(variance + 1e-5)
    assert np.abs(found - expected.reshape(7, 81 * colours, 4, 3)).max() < 2e-4


def test_scattering_depends_on_one_image_only(grey, monkeypatch):
    whole = scattering.scattering(grey)
    assert np.array_equal(whole, scattering.scattering(grey))
    monkeypatch.setattr(scattering, "AT_ONCE", 3)  # the last part is a single image
    assert np.abs(scattering.scattering(grey) - whole).max() < 1e-5
    assert np.abs(scattering.scattering(grey[::-1].copy())[::-1] - whole).max() < 1e-5


def test_scattering_of_a_data_set(monkeypatch):
    digits = sets.load("digits")
    few = dataclasses.replace(
        digits, train_features=digits.train_features[:30], test_features=digits.test_features[:20]
    )
    monkeypatch.setattr(datasets, "load", lambda name, data_dir: few)
    sets._features.cache_clear()
    found = sets.load("digits-scattering")
    assert found.name == "digits-scattering"
    assert np.array_equal(found.train_features, scattering.scattering(few.train_features))
    assert np.array_equal(found.test_features, scattering.scattering(few.test_features))
    assert found.test_features.shape == (20, 81, 2, 2)
    assert found.train_labels is digits.train_labels
    assert sets.load("digits-scattering") is found  # kept
    sets._features.cache_clear()


def test_nothing_is_fitted():
    """No epsilon has to be marked: an example's features depend on no other example."""
    run = RunStatus(Path("a"), "unfinished", PaperConfig.of("mnist-scattering", "softmax", "rqm"))
    assert (fitted.statement(run), fitted.mark(run.config)) == ("", "")


@pytest.mark.parametrize("shape", [(3, 2, 32, 32), (3, 30), (3, 1, 7, 9)])
def test_what_is_no_image_of_one_or_three_colours_is_refused(shape):
    with pytest.raises(ValueError, match=r"1 or 3 colours.* shape \("):
        scattering.scattering(np.zeros(shape, np.float32))
