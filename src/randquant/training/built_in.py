"""Built-in data sets and models in place of one's own: `rq.train("lstm", dataset)`."""

from __future__ import annotations

from typing import Any

from torch import nn

from randquant.training import models
from randquant.training.data import datasets
from randquant.training.data.datasets import Dataset


def by_name(model: nn.Module | str, clients: Any, test: Any) -> tuple[Any, Any, Any]:
    """Return a model, clients' data and test data, where some may be built in.

    Args:
        model: a module, which is returned as it is, or with a data set the name of one of
            `models.MODELS`.
        clients: clients' data, returned as they are, or a data set whose writers are known: each is
            a client with all of its training samples.
        test: test data; None for the data set's own, if there is one.

    Raises:
        TypeError: a name without a data set.
        ValueError: a name that is unknown, or of a model for other data; or a data set whose
            writers are unknown.
    """
    if not isinstance(clients, Dataset):
        if isinstance(model, str):
            raise TypeError(
                f"Expected model to be a torch nn.Module, got a str, {model!r}: names are for "
                "built-in data sets, such as randquant.training.data.datasets.load returns."
            )
        return model, clients, test
    dataset = clients
    if isinstance(model, str):
        model = models.build(model, dataset.train_features.shape[1:], dataset.classes, 0)
    writers = 0 if dataset.writers is None else int(dataset.writers.max()) + 1
    rows = datasets.split(dataset, max(1, writers), datasets.NATURAL)
    owned = [(dataset.train_features[own], dataset.train_labels[own]) for own in rows]
    return model, owned, (dataset.test_features, dataset.test_labels) if test is None else test
