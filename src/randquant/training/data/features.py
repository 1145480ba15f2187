"""Features to train on instead of raw data: standardised, or principal components.

Means, deviations and components are fitted on data, and every feature depends on them. By default
they are fitted on examples that are declared public and held by no client; then no other example
has an influence on a client's features.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from randquant._internal import validate
from randquant._internal.extras import needed
from randquant.channels.keys import Key
from randquant.training.config import TrainConfig
from randquant.training.data import datasets
from randquant.training.data.datasets import Dataset
from randquant.training.records import RunSummary
from randquant.training.task import FITTED_ON, FittedOn

STANDARDISED = ("breast-cancer",)
"""Data sets whose features are always standardised first."""

PUBLIC = 10
"""One training example in PUBLIC is declared public if something is fitted."""

NOT_COVERED = "features were fitted on all clients' data, which no epsilon here covers"
"""Printed beside every epsilon of a run whose features depend on all clients' data."""


def load(
    name: str,
    data_dir: str | Path | None = None,
    features: str = "",
    fitted_on: FittedOn = "public",
) -> Dataset:
    """Load a data set like `datasets.load`, and compute features of its samples.

    - `pca-K`: K principal components, (K,).
    - breast-cancer is always standardised first.

    Components, means and deviations are fitted on the examples that `fitted_on` names: `public`,
    the training examples that `public_examples` draws, which then belong to no client; or `all`
    training examples, as in the papers, which no guarantee covers.

    Args:
        name, data_dir: as for `datasets.load`.
        features: empty for the samples as they are, or `pca-K`.
        fitted_on: `public` or `all`.

    Returns:
        A Dataset of float32 features without the public examples, with their number. The last
        result is cached: do not change it.

    Guarantees:
        With `public`, an example that is not public has no influence on any other example's
        features.

    Raises:
        ValueError: features is unknown, K is larger than the data allow, or a feature is constant
            over the examples that it is standardised with.
        ImportError: scikit-learn (pca) is not installed.
        FileNotFoundError: as `datasets.load`.

    Example:
        >>> dataset = load("digits", features="pca-10")
        >>> dataset.train_features.shape, dataset.public
        ((1293, 10), 144)
    """
    if features and not features.startswith("pca-"):
        raise ValueError(
            f"Expected features to be empty or pca-K such as pca-100, got {features!r}."
        )
    validate.choice("fitted_on", fitted_on, FITTED_ON)
    if not features and name not in STANDARDISED:
        return datasets.load(name, data_dir)
    return _computed(name, data_dir, features, fitted_on)


def is_fitted(config: TrainConfig) -> bool:
    """Whether the features of a run are fitted on data."""
    return config.task.dataset in STANDARDISED or config.task.features.startswith("pca-")


def statement(config: TrainConfig, summary: RunSummary | None = None) -> str:
    """What a run's features were fitted on, to be printed beside epsilon; empty if on nothing."""
    if not is_fitted(config):
        return ""
    if covered(config, summary):
        count = "" if summary is None else f"{summary.public_examples:,} "
        return f"features were fitted on {count}public training examples, which no client holds"
    return NOT_COVERED


def covered(config: TrainConfig, summary: RunSummary | None = None) -> bool:
    """Whether a client's features depend on no other client's data."""
    if not is_fitted(config):
        return True
    return config.task.fitted_on == "public" and (summary is None or summary.public_examples > 0)


def public_examples(count: int) -> np.ndarray:
    """Return the indices, out of `count`, of the public training examples: int64, increasing.

    One in PUBLIC, drawn by a fixed rule that depends on nothing but `count`.
    """
    order = Key.from_seed(0).fold_in("public examples").words(count).argsort(kind="stable")
    return np.sort(order[: -(-count // PUBLIC)])


@functools.lru_cache(maxsize=1)
def _computed(
    name: str, data_dir: str | Path | None, features: str, fitted_on: FittedOn
) -> Dataset:
    dataset = datasets.load(name, data_dir)
    public = public_examples(len(dataset.train_labels))
    fitting = public if fitted_on == "public" else np.arange(len(dataset.train_labels))
    if name in STANDARDISED:
        dataset = _mapped(dataset, _standardiser(dataset.train_features[fitting], fitted_on))
    if features:
        count = features.partition("-")[2]
        dataset = _mapped(dataset, _turn(dataset.train_features[fitting], count, fitted_on))
    return _without(dataset, public) if fitted_on == "public" else dataset


def _mapped(dataset: Dataset, work: Callable[[np.ndarray], np.ndarray]) -> Dataset:
    return replace(
        dataset,
        train_features=work(dataset.train_features),
        test_features=work(dataset.test_features),
    )


def _without(dataset: Dataset, public: np.ndarray) -> Dataset:
    """The data set of the clients: without public examples, and writers who have no others."""
    writers = dataset.writers
    if writers is not None:
        writers = np.unique(np.delete(writers, public), return_inverse=True)[1].astype(np.int64)
    return replace(
        dataset,
        train_features=np.delete(dataset.train_features, public, axis=0),
        train_labels=np.delete(dataset.train_labels, public),
        writers=writers,
        public=len(public),
    )


def _standardiser(samples: np.ndarray, fitted_on: FittedOn) -> Callable[[np.ndarray], np.ndarray]:
    """Return the map to mean 0 and deviation 1 over these samples (n, d)."""
    constant = np.flatnonzero(samples.min(axis=0) == samples.max(axis=0))
    if constant.size:
        raise ValueError(
            f"Expected features that vary over the {_shown(len(samples), fitted_on)} they are "
            f"standardised with, got one value of feature {constant[0]}: its deviation is zero."
        )
    exact = samples.astype(np.float64)
    mean, deviation = exact.mean(axis=0), exact.std(axis=0)
    return lambda part: ((part - mean) / deviation).astype(np.float32)


def _turn(
    samples: np.ndarray, count: str, fitted_on: FittedOn
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the map to the first principal components of these samples (n, *shape)."""
    with needed("principal components", "train"):
        from sklearn.decomposition import PCA
    flat = samples.reshape(len(samples), -1)
    if not count.isdecimal() or not 1 <= int(count) <= min(flat.shape):
        raise ValueError(
            f"Expected features pca-K with K from 1 to {min(flat.shape)}, got pca-{count}: "
            f"components are fitted on {_shown(len(samples), fitted_on)} of {flat.shape[1]} values."
        )
    turn = PCA(int(count), svd_solver="full" if min(flat.shape) < 500 else "covariance_eigh")
    turn.fit(flat)

    def work(part: np.ndarray) -> np.ndarray:
        turned = turn.transform(part.reshape(len(part), -1))
        return np.ascontiguousarray(turned, dtype=np.float32)

    return work


def _shown(count: int, fitted_on: FittedOn) -> str:
    return f"{count} {'public' if fitted_on == 'public' else 'training'} examples"
