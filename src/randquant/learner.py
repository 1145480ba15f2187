"""A model and its clients' data: per-client updates and test accuracy."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from randquant.aggregate.gaussian import clip_to_norm
from randquant.datasets import Dataset
from randquant.keys import Key

LIGHT_GROUP, HEAVY_GROUP = 20, 5
"""Clients handed to a worker at a time."""

SMALL = 32_000
"""Numbers in a client's step below which a pass over many clients is faster than one after the
other: gathering their data then costs less than calling torch for each."""

EXAMPLES_AT_ONCE = 64
"""Gradients of single examples that are computed in one vectorised pass."""


@dataclass(frozen=True, slots=True)
class Local:
    """What a client computes in a round.

    Attributes:
        batch: samples of a step, drawn without repeats; None for all of the client's.
        epochs: passes over its data, with learning_rate only.
        learning_rate: step size of local SGD, whose way is the update; None for one gradient.
        example_norm: L2 threshold that each example's gradient is clipped to before their mean is
            taken; None to clip none. Not with learning_rate.
    """

    batch: int | None = None
    epochs: int = 1
    learning_rate: float | None = None
    example_norm: float | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Accuracy in [0, 1] and mean cross-entropy in nats, on test data."""

    accuracy: float
    loss: float


class Learner:
    """Computes clients' updates: gradients of the mean cross-entropy over their local data.

    Models made of linear layers run vectorised over a group of clients where each has little data;
    others run client by client, which is faster for them (`benchmarks/cohort.py`).

    Args:
        model: the model; its own weights are overwritten by each call.
        dataset: the data.
        clients: each client's training sample indices, at least one each.
        local: what a client computes.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset,
        clients: Sequence[np.ndarray],
        local: Local = Local(),
    ) -> None:
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
        samples = len(order) / len(clients) if local.batch is None else local.batch
        self._together = not convolutional and samples * self._features[0].numel() < SMALL
        self._model, self._local = model, local
        kinds = [type(layer) for layer in model.children()]
        self._linear = kinds == [nn.Flatten, nn.Linear]
        self._parameters = list(model.parameters())
        # functional_call puts weights into a model while it runs: each thread needs its own.
        self._threads = threading.local()
        # Where a client takes less than a millisecond, threads would wait for each other.
        self.group = LIGHT_GROUP if self._together or self._linear else HEAVY_GROUP

    @property
    def dimension(self) -> int:
        """Coordinates of an update: parameters of the model."""
        return sum(parameter.numel() for parameter in self._parameters)

    @property
    def examples(self) -> int:
        """How many examples an update is the mean over, at least."""
        fewest = int(np.diff(self._ends, prepend=0).min())
        return fewest if self._local.batch is None else min(fewest, self._local.batch)

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

    def updates(
        self, clients: Sequence[int], key: Key | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """What each client makes of the loaded weights, and the mean loss of its first step there.

        Args:
            clients: who.
            key: of the round, where batches are drawn: they follow from it and from the client.

        Returns:
            updates (n, d) float32, to be stepped against, and losses (n,) float64, in the order of
            `clients`.
        """
        steps = [self._steps(client, key) for client in clients]
        if self._local.example_norm is not None:
            found = [self._clipped(each[0], self._local.example_norm) for each in steps]
        elif self._together:
            return self._vectorised(steps)
        else:
            found = [self._alone(each) for each in steps]
        return np.stack([update for update, _ in found]), np.array([loss for _, loss in found])

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

    def _steps(self, client: int, key: Key | None) -> list[slice | np.ndarray]:
        """The samples of each local step: a slice where they are all of the client's."""
        start, stop = int(self._ends[client - 1]) if client else 0, int(self._ends[client])
        local = self._local
        if local.batch is None or (local.batch >= stop - start and local.learning_rate is None):
            return [slice(start, stop)] * local.epochs
        assert key is not None
        words = key.fold_in("batches", client).words(2)
        generator = np.random.Generator(np.random.Philox(key=words))
        if local.learning_rate is None:
            return [start + np.sort(generator.choice(stop - start, local.batch, replace=False))]
        orders = [start + generator.permutation(stop - start) for _ in range(local.epochs)]
        return [order[at : at + local.batch] for order in orders
                for at in range(0, len(order), local.batch)]  # fmt: skip

    def _alone(self, steps: Sequence[slice | np.ndarray]) -> tuple[np.ndarray, float]:
        if self._local.learning_rate is not None:
            return self._walk(steps)
        return self._by_formula(steps[0]) if self._linear else self._gradient(steps)

    @torch.no_grad()
    def _by_formula(self, samples: slice | np.ndarray) -> tuple[np.ndarray, float]:
        """Softmax regression's gradient: autograd would take longer than the arithmetic."""
        weight, bias = self._parameters
        features, labels = self._features[samples].flatten(1), self._labels[samples][:, None]
        logs = torch.log_softmax(torch.addmm(bias, features, weight.T), dim=1)
        loss = -float(logs.gather(1, labels).mean())
        error = logs.exp_().scatter_add_(1, labels, -torch.ones_like(labels, dtype=logs.dtype))
        error /= len(labels)
        update = np.empty(self.dimension, dtype=np.float32)
        flat = torch.from_numpy(update)
        torch.mm(error.T, features, out=flat[: weight.numel()].view(weight.shape))
        torch.sum(error, dim=0, out=flat[weight.numel() :])
        return update, loss

    def _gradient(self, steps: Sequence[slice | np.ndarray]) -> tuple[np.ndarray, float]:
        parts, loss = self._backward(self._model, self._parameters, steps[0])
        return torch.cat([part.reshape(-1) for part in parts]).numpy(), loss

    def _walk(self, steps: Sequence[slice | np.ndarray]) -> tuple[np.ndarray, float]:
        """Local SGD, one step after the other; the way from the loaded weights, backwards."""
        rate, model, losses = self._local.learning_rate, self._own_model(), []
        assert rate is not None
        weights = list(model.parameters())
        with torch.no_grad():
            for weight, start in zip(weights, self._parameters, strict=True):
                weight.copy_(start)
        for samples in steps:
            parts, loss = self._backward(model, weights, samples)
            losses.append(loss)
            with torch.no_grad():
                for weight, part in zip(weights, parts, strict=True):
                    weight -= rate * part
        way = [a.detach() - w.detach() for a, w in zip(self._parameters, weights, strict=True)]
        return torch.cat([part.reshape(-1) for part in way]).numpy(), losses[0]

    def _backward(self, model: nn.Module, weights: list, samples: slice | np.ndarray):
        logits = model(self._features[samples])
        loss = nn.functional.cross_entropy(logits, self._labels[samples])
        return torch.autograd.grad(loss, weights), float(loss.detach())

    def _clipped(self, samples: slice | np.ndarray, norm: float) -> tuple[np.ndarray, float]:
        """The mean of examples' gradients, each clipped; it is never longer than they may be."""
        weights, model = self._weights(), self._own_model()

        def loss_of(weights, features, label):
            logits = functional_call(model, weights, (features[None],))
            return nn.functional.cross_entropy(logits, label[None])

        each = vmap(grad_and_value(loss_of), (None, 0, 0), chunk_size=EXAMPLES_AT_ONCE)
        parts, losses = each(weights, self._features[samples], self._labels[samples])
        rows = torch.cat([parts[name].flatten(1) for name in weights], dim=1).numpy()
        total = np.zeros(rows.shape[1])
        for row in rows:
            total += clip_to_norm(row, norm)
        return (total / len(rows)).astype(np.float32), float(losses.double().mean())

    def _vectorised(self, steps: Sequence[list[slice | np.ndarray]]):
        """Every client's local steps at once; clients with fewer stand still in the last ones."""
        rate, start = self._local.learning_rate, self._weights()
        if rate is None:
            update, losses = self._each_gradient(start, None, [each[0] for each in steps])
        else:
            weights, shared, losses = start, None, torch.empty(0)
            for number in range(max(map(len, steps))):
                taken = [each[number] if number < len(each) else _NONE for each in steps]
                parts, found = self._each_gradient(weights, shared, taken)
                weights = {name: weights[name] - rate * part for name, part in parts.items()}
                shared, losses = 0, losses if number else found
            update = {name: start[name] - weights[name] for name in start}
        flat = [update[name].reshape(len(steps), -1) for name in start]
        return torch.cat(flat, dim=1).numpy(), losses.double().numpy()

    def _each_gradient(self, weights: dict, shared: int | None, taken: Sequence):
        """Each client's gradient on the samples it takes, at weights of its own or shared ones."""
        rows = [_indices(samples) for samples in taken]
        sizes = np.array([len(samples) for samples in rows])
        # Shorter clients repeat some sample, with weight zero.
        real = np.arange(sizes.max()) < sizes[:, None]
        index = np.zeros(real.shape, dtype=np.int64)
        index[real] = np.concatenate(rows)
        weight = torch.from_numpy((real / np.maximum(sizes, 1)[:, None]).astype(np.float32))
        places, model = torch.from_numpy(index), self._own_model()

        def loss_of(weights, features, labels, weight):
            logits = functional_call(model, weights, (features,))
            return (nn.functional.cross_entropy(logits, labels, reduction="none") * weight).sum()

        each = vmap(grad_and_value(loss_of), (shared, 0, 0, 0))
        return each(weights, self._features[places], self._labels[places], weight)

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in self._model.named_parameters()}

    def _own_model(self) -> nn.Module:
        """This thread's model, whose weights are nobody else's."""
        if not hasattr(self._threads, "model"):
            self._threads.model = copy.deepcopy(self._model)
        return self._threads.model


_NONE = np.empty(0, dtype=np.int64)


def _indices(samples: slice | np.ndarray) -> np.ndarray:
    return np.arange(samples.start, samples.stop) if isinstance(samples, slice) else samples
