"""What is trained on in place of raw data: principal components, or scattering features."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from randquant import datasets
from randquant.datasets import Dataset

GROUPS = 27
"""Groups of channels that scattering features are normalised in."""

AT_ONCE = 500
"""Images that are scattered at a time: about 160 MB."""


def load(name: str, data_dir: str | Path | None = None, features: str = "") -> Dataset:
    """Load a data set as `datasets.load` does, and turn its samples into features.

    - `scattering`: the scattering transform of order 2 at scale 4 of grey images, its
      channels normalised in 27 groups of each image: (81, H/4, W/4). It depends on no data.
    - `pca-K`: the K principal components of the training data, (K,); components and mean come from
      that data, which are thereby treated as public: no guarantee covers them.

    Args:
        name, data_dir: as for `datasets.load`.
        features: empty for the samples as they are, `scattering`, or `pca-K`.

    Returns:
        A Dataset of float32 features. The last that were computed are kept: do not change them.

    Raises:
        ValueError: features is another word, K is larger than the data allow, or images are not
            grey.
        ImportError: kymatio (scattering) or scikit-learn (pca) is not installed.
        FileNotFoundError: as `datasets.load`.

    References:
        Tramèr and Boneh 2021 (linear models on scattering features, group normalisation); Bruna
        and Mallat 2013; Andreux et al. 2020 (kymatio).

    Example:
        >>> load("digits", features="pca-10").train_features.shape
        (1437, 10)
    """
    if features and features.partition("-")[0] not in ("scattering", "pca"):
        raise ValueError(
            f"Expected features to be empty, scattering or pca-K such as pca-100, got {features!r}."
        )
    return _computed(name, data_dir, features) if features else datasets.load(name, data_dir)


@functools.lru_cache(maxsize=1)
def _computed(name: str, data_dir: str | Path | None, features: str) -> Dataset:
    kind, _, count = features.partition("-")
    dataset = datasets.load(name, data_dir)
    if kind == "pca":
        return _pca(dataset, count)
    return replace(
        dataset,
        train_features=_scattering(dataset.train_features),
        test_features=_scattering(dataset.test_features),
    )


def _pca(dataset: Dataset, count: str) -> Dataset:
    try:
        from sklearn.decomposition import PCA
    except ImportError as error:
        raise ImportError(
            "Expected scikit-learn for principal components, found none: install randquant with "
            "its train extra, pip install '.[train]'."
        ) from error
    train, test = (
        samples.reshape(len(samples), -1)
        for samples in (dataset.train_features, dataset.test_features)
    )
    if not count.isdecimal() or not 1 <= int(count) <= min(train.shape):
        raise ValueError(
            f"Expected features pca-K with K from 1 to {min(train.shape)}, got pca-{count}."
        )
    turn = PCA(int(count), svd_solver="full" if min(train.shape) < 500 else "covariance_eigh")
    turned = turn.fit(train).transform(train), turn.transform(test)
    first, second = (np.ascontiguousarray(part, dtype=np.float32) for part in turned)
    return replace(dataset, train_features=first, test_features=second)


def _scattering(images: np.ndarray) -> np.ndarray:
    """(N, 1, H, W) to (N, 81, H/4, W/4)."""
    if images.ndim != 4 or images.shape[1] != 1 or min(images.shape[2:]) < 8:
        raise ValueError(
            "Expected grey images of at least 8x8 for scattering features, got samples of shape "
            f"{images.shape[1:]}."
        )
    torch, transform = _kymatio(images.shape[2:])
    parts = []
    for start in range(0, len(images), AT_ONCE):
        part = transform(torch.from_numpy(images[start : start + AT_ONCE]))[:, 0]
        parts.append(torch.nn.functional.group_norm(part, GROUPS).numpy())
    return np.concatenate(parts)


def _kymatio(shape: tuple[int, ...]) -> tuple[Any, Any]:
    try:
        import torch

        # Not from kymatio.torch: that needs a function that SciPy has removed.
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
    except ImportError as error:
        raise ImportError(
            "Expected kymatio for scattering features, found none: install randquant with its "
            "scattering extra, pip install '.[scattering]'."
        ) from error
    return torch, ScatteringTorch2D(J=2, shape=tuple(shape))
