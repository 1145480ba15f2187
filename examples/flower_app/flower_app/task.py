"""The model, the data and the mechanism, from the run's configuration.

In this example every client has the whole data set, and uses only its own part.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from randquant.aggregation import UpdateMechanism
    from randquant.local_training import Learner


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


def build(config: Mapping[str, Any], client: int, data_dir: str = "") -> tuple[nn.Module, Learner]:
    """Return the model with its initial weights, and a learner for one client's data.

    Args:
        config: the run's configuration.
        client: which part of the data, from 0.
        data_dir: folder of the data on this machine, if it differs from the run's.
    """
    from randquant.local_training import Learner
    from randquant.training import models, of_dataset

    population, seed = config["num-partitions"], config["seed"]
    if not 0 <= client < population:
        raise ValueError(f"Expected partition-id from 0 to {population - 1}, got {client}.")
    dataset, clients = _data(config["dataset"], data_dir or config["data-dir"], population, seed)
    shape = dataset.train_features.shape[1:]
    model = models.build(config["model"], shape, dataset.classes, seed)
    return model, Learner(of_dataset(model, dataset, [clients[client]]))


def weights(model: nn.Module) -> np.ndarray:
    """The model's weights as a learner loads them."""
    from torch import nn

    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


@functools.lru_cache(maxsize=1)  # one process of a simulation computes many clients
def _data(name: str, data_dir: str, population: int, seed: int):
    from randquant.training import load_dataset, partition_dataset

    dataset = load_dataset(name, data_dir or None)
    return dataset, partition_dataset(dataset.train_labels, population, "iid", seed=seed)
