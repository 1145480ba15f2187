"""How good a model is for each client, not only on average."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randquant._internal import validate
from randquant.training.clients import client_set
from randquant.training.data.datasets import Dataset
from randquant.training.examples import Columns
from randquant.training.inputs import Features, called, in_float32, of_each
from randquant.training.trial import class_number


@dataclass(frozen=True, slots=True, eq=False)
class ClientScores:
    """A model's scores on each client's data.

    Figures of single clients are not private: publish them only of public data.

    Attributes:
        names: the clients' names.
        examples: (n,) int64, predictions that a client's scores are the mean of.
        loss: (n,) float64, each client's mean loss; in nats for cross entropy.
        accuracy: (n,) float64 in [0, 1]; None where the task is no classification.
    """

    names: tuple[str, ...]
    examples: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray | None

    @property
    def bits(self) -> np.ndarray:
        """Each client's loss in bits, (n,): bits per character for models of text."""
        return self.loss / math.log(2)

    def __repr__(self) -> str:
        shown = [f"{len(self.names)} clients", _spread("bits", self.bits)]
        if self.accuracy is not None:
            shown.insert(1, _spread("accuracy", self.accuracy))
        return f"ClientScores({', '.join(shown)})"


def evaluate(
    model: nn.Module,
    clients: Any,
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
    columns: Columns | None = None,
    batch: int = 256,
) -> ClientScores:
    """Evaluate a model on each client's data.

    Args:
        model: a module; it is put into evaluation mode and back.
        clients: a mapping or sequence of clients' data, as `randquant.train` takes them; of a
            built-in data set `clients_tested(...)`.
        loss: from (output, targets) to the mean loss over a batch.
        columns: names of the features' and the targets' column, where they have names.
        batch: examples that are evaluated at a time, at least 1.

    Raises:
        TypeError, ValueError: clients' data are in no known form, see `randquant.train`.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2))
        >>> evaluate(model, {"a": (torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))}).examples
        array([3])
    """
    validate.whole("batch", batch, low=1)
    found = client_set(clients, columns)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    training, model = model.training, in_float32(model)
    model.eval()
    try:
        with torch.inference_mode():
            rows = [
                _scores(model, loss, [found.take(client, part) for part in parts], device)
                for client, places in enumerate(found.places)
                for parts in [np.split(places, range(batch, len(places), batch))]
            ]
    finally:
        model.train(training)
    examples, losses, right = zip(*rows, strict=True)
    accuracy = None if None in right else np.array(right)
    return ClientScores(found.names, np.array(examples), np.array(losses), accuracy)


def clients_tested(dataset: Dataset) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The test data of a built-in set by its writer, or of all clients where none is known.

    Returns:
        From a writer's number to (features, labels), in the order of the numbers.
    """
    if dataset.test_writers is None:
        return {"all": (dataset.test_features, dataset.test_labels)}
    return {
        str(writer): (dataset.test_features[own], dataset.test_labels[own])
        for writer in np.unique(dataset.test_writers)
        for own in [dataset.test_writers == writer]
    }


def _scores(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: list[tuple[Features, Tensor]],
    device: torch.device,
) -> tuple[int, float, float | None]:
    """Predictions, mean loss and accuracy on one client's data."""
    count, total, right, classes = 0, 0.0, 0, None
    for features, on_cpu in batches:
        targets = on_cpu.to(device)
        output = called(model, of_each(lambda each: each.to(device), features))
        total += float(loss(output, targets)) * targets.numel()
        classes = class_number(output, targets)
        right += 0 if classes is None else int((output.argmax(dim=1) == targets).sum())
        count += targets.numel()
    return count, total / count, None if classes is None else right / count


def _spread(what: str, values: np.ndarray) -> str:
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return f"{what} {middle:.3f} ({low:.3f} to {high:.3f} from the 10th to the 90th percentile)"
