"""What a process registers before it trains a run of the papers: data sets by name."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from randquant.training import Dataset, register_dataset
from randquant_papers.data import cifar, emnist, fitted, leaf, scattering

IMAGES = ("digits", "mnist", "fashion-mnist", "emnist", *cifar.KINDS, "femnist")
"""Data sets of images: NAME-scattering has their scattering features, and NAME with `fitted.PCA`
their principal components."""


def register() -> None:
    """Make the papers' data sets known to `randquant.training` in this process."""
    for name in cifar.KINDS:
        register_dataset(name, functools.partial(_cifar, name))
    register_dataset("emnist", _emnist)
    register_dataset("femnist", _femnist)
    register_dataset(fitted.BREAST_CANCER, fitted.breast_cancer)
    for name in IMAGES:
        register_dataset(f"{name}-scattering", functools.partial(scattering.load, name))
        register_dataset(name + fitted.PCA, functools.partial(fitted.components, name))


def _cifar(name: str, data_dir: str | Path | None) -> Dataset:
    return Dataset(name, *cifar.load(name, data_dir), classes=cifar.KINDS[name].classes)


def _emnist(data_dir: str | Path | None) -> Dataset:
    return Dataset("emnist", *emnist.load(data_dir), classes=emnist.CLASSES)


def _femnist(data_dir: str | Path | None) -> Dataset:
    train, test = leaf.load(data_dir)
    own = (train.pixels, train.labels, test.pixels, test.labels)
    clients = np.split(np.arange(len(train.labels)), np.cumsum(np.bincount(train.writers))[:-1])
    return Dataset("femnist", *own, classes=leaf.CLASSES, clients=clients)
