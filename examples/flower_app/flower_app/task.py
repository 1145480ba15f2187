"""The model, the data and the mechanism, from the run's configuration.

In this example every client has the whole data set, and uses only its own part.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from randquant.aggregation import UpdateMechanism
    from randquant.local_training import Learner

TRAINED = 1500
"""Examples that the clients share; the others are test data."""


def mechanism(config: Mapping[str, Any]) -> UpdateMechanism:
    """Stochastic rounding of a clipped and rotated update."""
    from randquant.aggregation import update_mechanism

    return update_mechanism(
        "stochastic-rounding",
        {name: config[name] for name in ("clip", "levels", "margin")},
        trust=config["trust"],
        cohort=config["cohort"],
        clip_norm=config["clip-norm"] or None,
    )


def build(config: Mapping[str, Any], client: int) -> tuple[nn.Module, Learner]:
    """Return the model with its initial weights, and a learner for one client's data.

    Args:
        config: the run's configuration.
        client: which part of the data, from 0.
    """
    import torch

    from randquant.local_training import Learner
    from randquant.training import make_problem

    population, seed = config["num-partitions"], config["seed"]
    if not 0 <= client < population:
        raise ValueError(f"Expected partition-id from 0 to {population - 1}, got {client}.")
    x, y = _digits()
    own = torch.arange(client, TRAINED, population)
    torch.manual_seed(seed)
    model = torch.nn.Linear(64, 10)
    return model, Learner(make_problem(model, [(x[own], y[own])], test=(x[TRAINED:], y[TRAINED:])))


def weights(model: nn.Module) -> np.ndarray:
    """The model's weights as a learner loads them."""
    from torch import nn

    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


@functools.lru_cache(maxsize=1)  # one process of a simulation computes many clients
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    import torch
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16).float(), torch.tensor(labels)
