"""Features that are fitted on all clients' data: against NumPy, and what is said of them."""

from pathlib import Path

import numpy as np
import pytest
from sklearn import datasets
from sklearn.model_selection import train_test_split
from small_mnist import small_mnist

from randquant.training import RunStatus
from randquant_papers.configuration import PaperConfig
from randquant_papers.data import fitted, sets


def test_principal_components_are_those_of_the_svd(tmp_path):
    folder = small_mnist(tmp_path, 120)
    plain, found = (sets.load(f"mnist{end}", folder) for end in ("", fitted.PCA))
    train, test = (
        part.reshape(len(part), -1).astype(np.float64)
        for part in (plain.train_features, plain.test_features)
    )
    mean = train.mean(axis=0)
    turn = np.linalg.svd(train - mean, full_matrices=False)[2][:100].T
    for got, part in ((found.train_features, train), (found.test_features, test)):
        expected = (part - mean) @ turn
        signs = np.sign((got * expected).sum(axis=0))
        assert (got.shape, got.dtype) == (expected.shape, np.float32)
        assert np.abs(got - signs * expected).max() < 5e-3  # float32, close singular values
    assert found.name == f"mnist{fitted.PCA}"
    assert np.array_equal(found.train_labels, plain.train_labels)


def test_breast_cancer_is_standardised_by_all_of_its_training_data():
    samples, labels = datasets.load_breast_cancer(return_X_y=True)
    train, test, *truth = train_test_split(
        samples, labels, test_size=0.2, stratify=labels, random_state=0
    )
    found = sets.load(fitted.BREAST_CANCER)
    assert (found.name, len(found.train_labels)) == (fitted.BREAST_CANCER, 455)
    for got, part in ((found.train_features, train), (found.test_features, test)):
        assert np.abs(got - (part - train.mean(axis=0)) / train.std(axis=0)).max() < 1e-5
    for got, part in zip((found.train_labels, found.test_labels), truth, strict=True):
        assert np.array_equal(got, part)


@pytest.mark.parametrize("name", [fitted.BREAST_CANCER, f"digits{fitted.PCA}"])
def test_what_is_said_beside_an_epsilon(name):
    config = PaperConfig.of(name, "softmax", "rqm")
    assert fitted.statement(RunStatus(Path("a"), "unfinished", config)) == fitted.NOT_COVERED
    assert fitted.spent(2.0, config) == "2 (without features)"
    assert fitted.spent(None, config) == ""
    public = config.changed(dataset="breast-cancer")
    assert fitted.statement(RunStatus(Path("a"), "unfinished", public)) == ""
    assert fitted.spent(2.0, public) == "2"
