"""What is trained and how updates are protected, by the run's configuration.

It is that of `randquant train`: with equal settings, equal data for each client, equal first
weights, and the same mechanism. For the sake of the example every place holds the whole data set,
and uses its own part alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from randquant.aggregate import UpdateMechanism
    from randquant.learner import Learner


def mechanism(config: Mapping[str, Any]) -> UpdateMechanism:
    """Stochastic rounding of a clipped and rotated update."""
    from randquant.aggregate import update_mechanism

    return update_mechanism(
        "stochastic-rounding",
        {name: config[name] for name in ("clip", "levels", "margin")},
        trust=config["trust"],
        cohort=config["cohort"],
        clip_norm=config["clip-norm"] or None,
    )


def build(config: Mapping[str, Any], client: int, data_dir: str = "") -> tuple[nn.Module, Learner]:
    """The model with its first weights, and a learner of it on one client's data.

    Args:
        config: of the run.
        client: from 0; which part of the data.
        data_dir: where the data is at this place, if not where the run says.
    """
    from randquant import models
    from randquant.learner import Learner

    population, seed = config["num-partitions"], config["seed"]
    if not 0 <= client < population:
        raise ValueError(f"Expected partition-id from 0 to {population - 1}, got {client}.")
    dataset, clients = _data(config["dataset"], data_dir or config["data-dir"], population, seed)
    shape = dataset.train_features.shape[1:]
    model = models.build(config["model"], shape, dataset.classes, seed)
    return model, Learner(model, dataset, [clients[client]])


@functools.lru_cache(maxsize=1)  # a simulation's processes take many clients' turns
def _data(name: str, data_dir: str, population: int, seed: int):
    from randquant import datasets, features

    dataset = features.load(name, data_dir or None)
    return dataset, datasets.partition(dataset.train_labels, population, "iid", seed=seed)
