"""How good a model is for each client, not only on average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

Examples = tuple[np.ndarray | Tensor, np.ndarray | Tensor]
"""A client's features and targets."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientScores:
    """A classifier's scores on each client's data.

    Figures of single clients are not private: publish them only of public data.

    Attributes:
        examples: (n,) int64, predictions that a client's scores are the mean of.
        loss: (n,) float64, each client's mean cross entropy in nats.
        accuracy: (n,) float64 in [0, 1].
    """

    examples: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray

    @property
    def bits(self) -> np.ndarray:
        """Each client's loss in bits, (n,): bits per character for models of text."""
        return self.loss / math.log(2)


def evaluate(model: nn.Module, clients: Sequence[Examples], *, batch: int = 256) -> ClientScores:
    """Evaluate a classifier on each client's data.

    Args:
        model: a module; it is put into evaluation mode and back.
        clients: each client's features (n, ...) and labels (n,) or (n, length).
        batch: examples that are evaluated at a time, at least 1.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2))
        >>> evaluate(model, [(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))]).examples
        array([3])
    """
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            rows = [
                _scores(model, *(torch.as_tensor(each).split(batch) for each in pair))
                for pair in clients
            ]
    finally:
        model.train(training)
    examples, losses, right = (np.array(each) for each in zip(*rows, strict=True))
    return ClientScores(examples, losses, right)


def _scores(
    model: nn.Module, features: Sequence[Tensor], labels: Sequence[Tensor]
) -> tuple[int, float, float]:
    """Predictions, mean loss and accuracy on one client's data."""
    count, total, right = 0, 0.0, 0
    for some, wanted in zip(features, labels, strict=True):
        output = model(some)
        total += float(nn.functional.cross_entropy(output, wanted)) * wanted.numel()
        right += int((output.argmax(dim=1) == wanted).sum())
        count += wanted.numel()
    return count, total / count, right / count
