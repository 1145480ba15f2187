"""Features that are fitted on all clients' data, as in the papers: no epsilon covers that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from randquant.reports import formatting
from randquant.training import RunStatus, TrainConfig, notes_on_runs
from randquant_papers.configuration import PaperConfig
from randquant_papers.data.datasets import Dataset

SUFFIX = "-fitted-on-all"
"""How the names of these data sets end."""

PCA = f"-pca-100{SUFFIX}"
"""NAME and this is the data set of 100 principal components of NAME."""

BREAST_CANCER = f"breast-cancer{SUFFIX}"
"""All of breast-cancer's training data, standardised by themselves."""

NOT_COVERED = "features were fitted on all clients' data, which no epsilon here covers"
"""Printed once beside every epsilon of a run whose features depend on all clients' data."""


def mark(config: TrainConfig | None) -> str:
    """What to print after an epsilon that does not cover the data of a run's features."""
    fitted = isinstance(config, PaperConfig) and config.data.dataset.endswith(SUFFIX)
    return " (without features)" * fitted


def spent(epsilon: float | None, config: TrainConfig | None) -> str:
    """An upper bound of epsilon as a table cell, with its `mark`; empty without privacy."""
    return "" if epsilon is None else formatting.spent(epsilon) + mark(config)


def statement(run: RunStatus) -> str:
    """What a run's features were fitted on, to be printed beside epsilon; empty if on nothing."""
    return NOT_COVERED if mark(run.config) else ""


def notes(runs: Sequence[RunStatus]) -> list[str]:
    """Notes below a list of runs, with the one on features that were fitted on all data."""
    marked = {run.folder.name for run in runs if run.epsilon is not None and mark(run.config)}
    of_these = [f"{', '.join(sorted(marked))}: {NOT_COVERED}"] if marked else []
    return [*notes_on_runs(runs), *of_these]


def components(dataset: Dataset) -> Dataset:
    """Return a data set with 100 principal components of its training samples as features.

    Returns:
        A Dataset named NAME-pca-100-fitted-on-all.

    Raises:
        ValueError: there are fewer than 100 samples, or values in one.
    """
    from sklearn import decomposition

    flat = dataset.train_features.reshape(len(dataset.train_features), -1)
    solver = "full" if min(flat.shape) < 500 else "covariance_eigh"
    turn = decomposition.PCA(100, svd_solver=solver).fit(flat)
    name = dataset.name + PCA
    return _mapped(dataset, name, lambda part: turn.transform(part.reshape(len(part), -1)))


def breast_cancer() -> Dataset:
    """Load breast-cancer with all 455 training examples, standardised by them."""
    from sklearn import datasets, model_selection

    samples, labels = map(np.asarray, datasets.load_breast_cancer(return_X_y=True))
    split = model_selection.train_test_split(  # as `datasets.load` splits it
        samples, labels.astype(np.int64), test_size=0.2, stratify=labels, random_state=0
    )
    train, test, *truth = map(np.asarray, split)
    train, test = train.astype(np.float32), test.astype(np.float32)
    exact = train.astype(np.float64)
    mean, deviation = exact.mean(axis=0), exact.std(axis=0)
    measured = Dataset("breast-cancer", train, truth[0], test, truth[1], classes=2)
    return _mapped(measured, BREAST_CANCER, lambda part: (part - mean) / deviation)


def _mapped(dataset: Dataset, name: str, work: Callable[[np.ndarray], np.ndarray]) -> Dataset:
    train, test = (
        np.ascontiguousarray(work(part), dtype=np.float32)
        for part in (dataset.train_features, dataset.test_features)
    )
    return dataclasses.replace(dataset, name=name, train_features=train, test_features=test)
