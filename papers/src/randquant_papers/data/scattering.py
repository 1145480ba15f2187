"""Scattering features of images, as in Tramèr and Boneh 2021; they are fitted on no data."""

from __future__ import annotations

import dataclasses

import numpy as np

from randquant_papers.data.datasets import Dataset

GROUPS = 27
"""Groups of channels in which scattering features are normalised."""

AT_ONCE = 500
"""Images per scattering transform: about 160 MB."""


def with_features(images: Dataset, name: str) -> Dataset:
    """Return a data set of images with their scattering features as samples, under a new name.

    Raises:
        ValueError: samples are not images.
    """
    return dataclasses.replace(
        images,
        name=name,
        train_features=scattering(images.train_features),
        test_features=scattering(images.test_features),
    )


def scattering(images: np.ndarray) -> np.ndarray:
    """Map (N, C, H, W) to (N, 81 C, H/4, W/4), where C is 1 or 3: order 2, scale 4.

    The transform of each colour is normalised in GROUPS groups of channels.

    References:
        Tramèr and Boneh 2021 (linear models on scattering features, group normalisation); Bruna
        and Mallat 2013; Andreux et al. 2020 (kymatio).
    """
    if images.ndim != 4 or images.shape[1] not in (1, 3) or min(images.shape[2:]) < 8:
        raise ValueError(
            "Expected images (1 or 3 colours) of at least 8x8 for scattering features, got samples "
            f"of shape {images.shape[1:]}."
        )
    import torch

    # Not from kymatio.torch, which needs a function that SciPy has removed.
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    transform = ScatteringTorch2D(J=2, shape=tuple(images.shape[2:]))
    parts = []
    for start in range(0, len(images), AT_ONCE):
        part = transform(torch.from_numpy(images[start : start + AT_ONCE])).flatten(1, 2)
        parts.append(torch.nn.functional.group_norm(part, GROUPS).numpy())
    return np.concatenate(parts)
