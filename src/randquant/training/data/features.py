"""Data sets as clients train on them: breast-cancer is standardised.

Means and deviations are fitted on examples that are declared public and held by no client. So no
other example has an influence on a client's features.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from randquant.channels.keys import Key
from randquant.training.config import TrainConfig
from randquant.training.data import datasets
from randquant.training.data.datasets import Dataset
from randquant.training.records import RunSummary

STANDARDISED = "breast-cancer"
"""The data set whose features are standardised."""

PUBLIC = 10
"""One training example in PUBLIC is declared public if something is fitted."""


def load(name: str, data_dir: str | Path | None = None) -> Dataset:
    """Load a data set like `datasets.load`; breast-cancer is standardised.

    Its means and deviations are fitted on the training examples that `public_examples` draws, which
    then belong to no client.

    Args:
        name, data_dir: as for `datasets.load`.

    Returns:
        A Dataset of float32 features without the public examples, with their number.

    Guarantees:
        An example that is not public has no influence on any other example's features.

    Raises:
        ValueError, ImportError, FileNotFoundError: as `datasets.load`.

    Example:
        >>> dataset = load("breast-cancer")
        >>> dataset.train_features.shape, dataset.public
        ((409, 30), 46)
    """
    dataset = datasets.load(name, data_dir)
    return _standardised(dataset) if name == STANDARDISED else dataset


def statement(config: TrainConfig, summary: RunSummary | None = None) -> str:
    """What a run's features were fitted on, to be printed beside epsilon; empty if on nothing."""
    if config.task.dataset != STANDARDISED:
        return ""
    count = "" if summary is None else f"{summary.public_examples:,} "
    return f"features were fitted on {count}public training examples, which no client holds"


def public_examples(count: int) -> np.ndarray:
    """Return the indices, out of `count`, of the public training examples: int64, increasing.

    One in PUBLIC, drawn by a fixed rule that depends on nothing but `count`.
    """
    order = Key.from_seed(0).fold_in("public examples").words(count).argsort(kind="stable")
    return np.sort(order[: -(-count // PUBLIC)])


def _standardised(dataset: Dataset) -> Dataset:
    """Features of mean 0 and deviation 1 over the public examples, which are left out."""
    public = public_examples(len(dataset.train_labels))
    fitting = dataset.train_features[public].astype(np.float64)
    mean, deviation = fitting.mean(axis=0), fitting.std(axis=0)
    train, test = (
        ((part - mean) / deviation).astype(np.float32)
        for part in (dataset.train_features, dataset.test_features)
    )
    return replace(
        dataset,
        train_features=np.delete(train, public, axis=0),
        train_labels=np.delete(dataset.train_labels, public),
        test_features=test,
        public=len(public),
    )
