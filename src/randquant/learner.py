"""A model and its clients' data: per-client gradients and test accuracy."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from randquant.datasets import Dataset

VECTORISED_GROUP, CONVOLUTION_GROUP = 20, 5
"""Clients handed to a worker at a time: in one vectorised pass, or one after the other."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Accuracy in [0, 1] and mean cross-entropy in nats, on test data."""

    accuracy: float
    loss: float


class Learner:
    """Computes clients' gradients of the mean cross-entropy over their local data.

    Models made of linear layers run vectorised over a group of clients; models with convolutions
    run client by client, which is faster for them (`benchmarks/cohort.py`).

    Args:
        model: the model; its own weights are overwritten by each call.
        dataset: the data.
        clients: each client's training sample indices, at least one each.
    """

    def __init__(self, model: nn.Module, dataset: Dataset, clients: Sequence[np.ndarray]) -> None:
        # Sorted by client once, so that a client's data is a slice: no gathering in a round.
        order = np.concatenate(clients)
        self._ends = np.cumsum([len(samples) for samples in clients])
        self._features = torch.from_numpy(dataset.train_features[order])
        self._labels = torch.from_numpy(dataset.train_labels[order])
        self._test_features = torch.from_numpy(dataset.test_features)
        self._test_labels = torch.from_numpy(dataset.test_labels)
        convolutional = any(isinstance(layer, nn.Conv2d) for layer in model.modules())
        if convolutional:  # the layout that convolutions on a CPU are fastest in
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._features = self._features.contiguous(memory_format=torch.channels_last)
            self._test_features = self._test_features.contiguous(memory_format=torch.channels_last)
        self._model, self._convolutional = model, convolutional
        self._parameters = list(model.parameters())
        # functional_call puts weights into a model while it runs: each thread needs its own.
        self._threads = threading.local()
        self.group = CONVOLUTION_GROUP if convolutional else VECTORISED_GROUP

    @property
    def dimension(self) -> int:
        """Coordinates of an update: parameters of the model."""
        return sum(parameter.numel() for parameter in self._parameters)

    def parameters(self) -> np.ndarray:
        """The model's current weights as one vector, (d,) float32."""
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])
        return flat.numpy()

    def load(self, parameters: np.ndarray) -> None:
        """Set the model's weights from one vector, (d,) float32."""
        start = 0
        for parameter in self._parameters:
            # Through NumPy: torch's own threads would keep spinning beside the workers'.
            weights = parameter.detach().numpy()
            weights[...] = parameters[start : start + weights.size].reshape(weights.shape)
            start += weights.size

    def gradients(self, clients: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Gradient of each client's mean loss at the loaded weights.

        Returns:
            gradients (n, d) float32 and losses (n,) float64, in the order of `clients`.
        """
        if self._convolutional:
            pairs = [self._gradient(client) for client in clients]
            return np.stack([g for g, _ in pairs]), np.array([loss for _, loss in pairs])
        return self._vectorised(clients)

    def evaluate(self) -> Evaluation:
        """Accuracy and loss of the loaded weights on test data."""
        right, loss = 0, 0.0
        with torch.inference_mode():
            for start in range(0, len(self._test_labels), 1000):
                labels = self._test_labels[start : start + 1000]
                logits = self._model(self._test_features[start : start + 1000])
                right += int((logits.argmax(dim=1) == labels).sum())
                loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        return Evaluation(right / len(self._test_labels), loss / len(self._test_labels))

    def _slice(self, client: int) -> slice:
        return slice(int(self._ends[client - 1]) if client else 0, int(self._ends[client]))

    def _gradient(self, client: int) -> tuple[np.ndarray, float]:
        samples = self._slice(client)
        loss = nn.functional.cross_entropy(
            self._model(self._features[samples]), self._labels[samples]
        )
        parts = torch.autograd.grad(loss, self._parameters)
        return torch.cat([part.reshape(-1) for part in parts]).numpy(), float(loss.detach())

    def _vectorised(self, clients: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        slices = [self._slice(client) for client in clients]
        sizes = torch.tensor([s.stop - s.start for s in slices])
        # Shorter clients repeat their first sample, with weight zero.
        offset = torch.arange(int(sizes.max()))[None, :]
        real = offset < sizes[:, None]
        index = torch.tensor([s.start for s in slices])[:, None] + torch.where(real, offset, 0)
        weight = real / sizes[:, None]
        if not hasattr(self._threads, "model"):
            self._threads.model = copy.deepcopy(self._model).requires_grad_(False)
        weights = {name: p.detach() for name, p in self._model.named_parameters()}
        per_client = vmap(grad_and_value(self._weighted_loss), in_dims=(None, 0, 0, 0))
        parts, losses = per_client(weights, self._features[index], self._labels[index], weight)
        flat = [parts[name].reshape(len(slices), -1) for name in weights]
        return torch.cat(flat, dim=1).numpy(), losses.double().numpy()

    def _weighted_loss(self, weights, features, labels, weight) -> torch.Tensor:
        logits = functional_call(self._threads.model, weights, (features,))
        return (nn.functional.cross_entropy(logits, labels, reduction="none") * weight).sum()
