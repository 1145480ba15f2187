"""What a process registers before it trains a run of the papers: data sets by name."""

from __future__ import annotations

import functools
from pathlib import Path

from randquant.training import Dataset, register_dataset
from randquant_papers.data import cifar, leaf, scattering

IMAGES = ("digits", "mnist", "fashion-mnist", "emnist", *cifar.KINDS, "femnist")
"""Data sets of images: NAME-scattering has their scattering features."""


def register() -> None:
    """Make the papers' data sets known to `randquant.training` in this process."""
    for name in cifar.KINDS:
        register_dataset(name, functools.partial(_cifar, name))
    register_dataset("femnist", _femnist)
    for name in IMAGES:
        register_dataset(f"{name}-scattering", functools.partial(scattering.load, name))


def _cifar(name: str, data_dir: str | Path | None) -> Dataset:
    return Dataset(name, *cifar.load(name, data_dir), classes=cifar.KINDS[name].classes)


def _femnist(data_dir: str | Path | None) -> Dataset:
    train, test = leaf.load(data_dir)
    own = (train.pixels, train.labels, test.pixels, test.labels)
    return Dataset("femnist", *own, classes=leaf.CLASSES, writers=train.writers)
