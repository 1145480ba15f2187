"""All data sets of the papers' experiments, by their names."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from randquant_papers.data import cifar, datasets, emnist, fitted, leaf, scattering
from randquant_papers.data.datasets import Dataset

IMAGES = ("digits", "mnist", "fashion-mnist", "emnist", *cifar.KINDS, "femnist")
"""Data sets of images: NAME-scattering has their scattering features, and NAME with `fitted.PCA`
their principal components."""

SCATTERING = "-scattering"
"""NAME and this is the data set of the scattering features of NAME."""

NAMES = (
    *datasets.DATASETS, *cifar.KINDS, "emnist", "femnist", fitted.BREAST_CANCER,
    *(name + suffix for name in IMAGES for suffix in (SCATTERING, fitted.PCA)),
)  # fmt: skip
"""The names that `load` accepts."""


def load(name: str, data_dir: str | Path | None = None) -> Dataset:
    """Load a data set by name, with its fixed training and test split.

    Args:
        name: one of NAMES.
        data_dir: the folder of its files, `--data-dir` on the command line; those of scikit-learn
            need none.

    Raises:
        FileNotFoundError: files are missing, or data_dir is not given.
        ValueError: the name is unknown, or a file is damaged or of another kind.

    Example:
        >>> load("digits")
        Dataset('digits', train=1437, test=360, shape=(1, 8, 8), classes=10)
    """
    datasets.choice("dataset", name, NAMES)
    if name in datasets.DATASETS:
        return datasets.load(name, data_dir)
    if name in cifar.KINDS:
        return Dataset(name, *cifar.load(name, data_dir), classes=cifar.KINDS[name].classes)
    if name == "emnist":
        return Dataset("emnist", *emnist.load(data_dir), classes=emnist.CLASSES)
    return _femnist(data_dir) if name == "femnist" else _features(name, data_dir)


@functools.lru_cache(maxsize=1)
def _features(name: str, data_dir: str | Path | None) -> Dataset:
    """Features that are computed from a data set; the last result is kept: do not change it."""
    if name == fitted.BREAST_CANCER:
        return fitted.breast_cancer()
    if name.endswith(SCATTERING):
        images = load(name.removesuffix(SCATTERING), data_dir)
        return scattering.with_features(images, name)
    return fitted.components(load(name.removesuffix(fitted.PCA), data_dir))


def _femnist(data_dir: str | Path | None) -> Dataset:
    train, test = leaf.load(data_dir)
    own = (train.pixels, train.labels, test.pixels, test.labels)
    clients = np.split(np.arange(len(train.labels)), np.cumsum(np.bincount(train.writers))[:-1])
    return Dataset("femnist", *own, classes=leaf.CLASSES, clients=clients)
