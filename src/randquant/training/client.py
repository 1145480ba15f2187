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

from randquant.aggregation.clipping import clip_to_norm
from randquant.channels.keys import Key
from randquant.training.data.datasets import Dataset

LIGHT_GROUP, HEAVY_GROUP = 20, 5
"""Most clients that a worker gets at a time: many if each takes less than a millisecond, so that
threads do not wait for each other."""

SMALL = 32_000
"""Numbers in a client's step below which one vectorised pass over many clients is faster than
one pass per client: gathering their data then costs less than a call of torch for each."""

GATHERED, GATHERED_ON_DEVICE = 2**23, 2**27
"""Most numbers that a pass over many clients gathers, unless one client has more: 32 MiB on a
CPU, 512 MiB on a GPU, where activations take several times that."""

EXAMPLES_AT_ONCE = 64
"""Gradients of single examples that are computed in one vectorised pass."""


@dataclass(frozen=True, slots=True)
class Local:
    """What a client computes in a round.

    Attributes:
        batch: samples of a step, drawn without repeats; None for all of the client's.
        epochs: passes over its data, with learning_rate only.
        learning_rate: step size of local SGD; the update is the model difference after it. None
            to send one gradient.
        example_norm: L2 threshold that each example's gradient is clipped to before the mean is
            taken; None for no clipping. Not with learning_rate.
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

    Softmax regression is vectorised over a group of clients. So are, on a CPU, models of linear
    layers whose clients have little data, and on a GPU all models. The others run client by
    client, which is faster for them (`benchmarks/cohort.py`).

    Args:
        model: the model; its own weights are overwritten by each call.
        dataset: the data.
        clients: each client's training sample indices, at least one each.
        local: what a client computes.
        device: where the data and the model are: `cpu`, or a GPU as torch names it (`cuda`).

    Raises:
        ValueError: torch sees no such device.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset,
        clients: Sequence[np.ndarray],
        local: Local = Local(),
        device: str = "cpu",
    ) -> None:
        self._device = _checked_device(device)
        self.on_gpu = _is_gpu(self._device)
        self._clients = [np.asarray(samples, dtype=np.int64) for samples in clients]
        self._sizes = np.array([len(samples) for samples in clients])
        # No copy of the data: each client's samples are gathered when needed and then dropped.
        self._features = torch.from_numpy(dataset.train_features).to(self._device)
        self._labels = torch.from_numpy(dataset.train_labels).to(self._device)
        self._test_features = torch.from_numpy(dataset.test_features).to(self._device)
        self._test_labels = torch.from_numpy(dataset.test_labels).to(self._device)
        convolutional = any(isinstance(layer, nn.Conv2d) for layer in model.modules())
        # Convolutions on a CPU are fastest in this layout.
        here = convolutional and not self.on_gpu
        self._layout = torch.channels_last if here else torch.contiguous_format
        model = model.to(self._device, memory_format=self._layout)  # type: ignore[call-overload]
        kinds = [type(layer) for layer in model.children()]
        self._linear = kinds == [nn.Flatten, nn.Linear]
        samples = self._sizes.mean() if local.batch is None else local.batch
        small = samples * self._features[0].numel() < SMALL
        self._together = self.on_gpu or self._linear or (small and not convolutional)
        self._model, self._local = model, local
        self._parameters = list(model.parameters())
        # functional_call puts weights into a model while it runs: each thread needs its own.
        self._threads = threading.local()
        largest = min(int(self._sizes.max()), local.batch or len(self._labels))
        room, most = (GATHERED_ON_DEVICE, 2**20) if self.on_gpu else (GATHERED, LIGHT_GROUP)
        self._group = max(1, min(most, room // (largest * self._features[0].numel())))

    @property
    def dimension(self) -> int:
        """Coordinates of an update: parameters of the model."""
        return sum(parameter.numel() for parameter in self._parameters)

    @property
    def examples(self) -> int:
        """The smallest number of examples that a client's update is the mean of."""
        fewest = int(self._sizes.min())
        return fewest if self._local.batch is None else min(fewest, self._local.batch)

    def parameters(self) -> np.ndarray:
        """The model's current weights as one vector, (d,) float32."""
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])
        return flat.cpu().numpy()

    def load(self, parameters: np.ndarray) -> None:
        """Set the model's weights from one vector, (d,) float32."""
        start = 0
        if self.on_gpu:
            flat = torch.from_numpy(parameters).to(self._device)
            with torch.no_grad():
                nn.utils.vector_to_parameters(flat, self._parameters)
            return
        for parameter in self._parameters:
            # Through NumPy: torch's own threads would keep spinning beside the workers'.
            weights = parameter.detach().numpy()
            weights[...] = parameters[start : start + weights.size].reshape(weights.shape)
            start += weights.size

    def groups(self, cohort: Sequence[int], workers: int) -> list[Sequence[int]]:
        """Split the cohort into groups, each of which one thread computes at a time.

        Vectorised groups do not depend on the number of threads, because the last bits of their
        sums depend on the grouping. Other clients are distributed evenly, a few at a time.
        """
        few = -(-len(cohort) // (2 * workers)) or 1
        size = self._group if self._together else min(HEAVY_GROUP, few)
        return [cohort[start : start + size] for start in range(0, len(cohort), size)]

    def updates(
        self, clients: Sequence[int], key: Key | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute each client's update from the loaded weights, and its first step's mean loss.

        Args:
            clients: which clients.
            key: of the round, needed where batches are drawn; they depend on it and the client.

        Returns:
            updates (n, d) float32, which the server's step subtracts, and losses (n,) float64, in
            the order of `clients`.
        """
        updates, losses = self.tensors(clients, key)
        return updates.cpu().numpy(), losses

    def tensors(
        self, clients: Sequence[int], key: Key | None = None
    ) -> tuple[torch.Tensor, np.ndarray]:
        """Like `updates`, but the result stays on the device that computed it."""
        steps = [self._steps(client, key) for client in clients]
        if self._local.example_norm is not None:
            results = [self._clipped(samples, self._local.example_norm) for samples, *_ in steps]
        elif self._together:
            return self._vectorised(steps)
        else:
            results = [self._alone(client_steps) for client_steps in steps]
        updates, losses = zip(*results, strict=True)
        return torch.stack(updates), np.array(losses)

    def evaluate(self) -> Evaluation:
        """Accuracy and loss of the loaded weights on test data."""
        right, loss = 0, 0.0
        with torch.inference_mode():
            for start in range(0, len(self._test_labels), 1000):
                labels = self._test_labels[start : start + 1000]
                features = self._test_features[start : start + 1000]
                logits = self._model(features.contiguous(memory_format=self._layout))
                right += int((logits.argmax(dim=1) == labels).sum())
                loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        return Evaluation(right / len(self._test_labels), loss / len(self._test_labels))

    def _steps(self, client: int, key: Key | None) -> list[np.ndarray]:
        """The samples of each local step."""
        samples, local = self._clients[client], self._local
        if local.batch is None or (local.batch >= len(samples) and local.learning_rate is None):
            return [samples] * local.epochs
        assert key is not None
        words = key.fold_in("batches", client).words(2)
        generator = np.random.Generator(np.random.Philox(key=words))
        if local.learning_rate is None:
            return [samples[np.sort(generator.choice(len(samples), local.batch, replace=False))]]
        orders = [samples[generator.permutation(len(samples))] for _ in range(local.epochs)]
        return [order[at : at + local.batch] for order in orders
                for at in range(0, len(order), local.batch)]  # fmt: skip

    def _gather(self, samples: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Features and labels of an array of samples, until this thread gathers again."""
        count = samples.size * self._features[0].numel()
        # New room each time would cost page faults.
        if not hasattr(self._threads, "room") or self._threads.room.numel() < count:
            self._threads.room = torch.empty(count, device=self._device)
        features = self._threads.room[:count].view(samples.size, *self._features.shape[1:])
        places = torch.from_numpy(samples).to(self._device)
        # Three times as fast as by indexing.
        torch.index_select(self._features, 0, places.view(-1), out=features)
        features = features.contiguous(memory_format=self._layout)
        return features.unflatten(0, samples.shape), self._labels[places]

    def _alone(self, steps: Sequence[np.ndarray]) -> tuple[torch.Tensor, float]:
        if self._local.learning_rate is not None:
            return self._walk(steps)
        return self._gradient(steps)

    def _gradient(self, steps: Sequence[np.ndarray]) -> tuple[torch.Tensor, float]:
        parts, loss = self._backward(self._model, self._parameters, steps[0])
        return torch.cat([part.reshape(-1) for part in parts]), loss

    def _walk(self, steps: Sequence[np.ndarray]) -> tuple[torch.Tensor, float]:
        """Local SGD: the loaded weights minus those after the last step, and the first loss."""
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
        difference = [
            start.detach() - end.detach()
            for start, end in zip(self._parameters, weights, strict=True)
        ]
        return torch.cat([part.reshape(-1) for part in difference]), losses[0]

    def _backward(self, model: nn.Module, weights: list, samples: np.ndarray):
        features, labels = self._gather(samples)
        loss = nn.functional.cross_entropy(model(features), labels)
        return torch.autograd.grad(loss, weights), float(loss.detach())

    def _clipped(self, samples: np.ndarray, norm: float) -> tuple[torch.Tensor, float]:
        """The mean of clipped gradients of single examples; its norm is at most `norm`."""
        weights, model = self._weights(), self._own_model()

        def loss_of(weights, features, label):
            logits = functional_call(model, weights, (features[None],))
            return nn.functional.cross_entropy(logits, label[None])

        gradients_of = vmap(grad_and_value(loss_of), (None, 0, 0), chunk_size=EXAMPLES_AT_ONCE)
        parts, losses = gradients_of(weights, *self._gather(samples))
        rows = torch.cat([parts[name].flatten(1) for name in weights], dim=1).cpu().numpy()
        total = np.zeros(rows.shape[1])
        for row in rows:
            total += clip_to_norm(row, norm)
        mean = torch.from_numpy((total / len(rows)).astype(np.float32))
        return mean.to(self._device), float(losses.double().mean())

    def _vectorised(self, steps: Sequence[list[np.ndarray]]):
        """All clients' local steps at once; clients with fewer steps do nothing in the last."""
        rate, start = self._local.learning_rate, self._weights()
        if rate is None:
            batches = [samples for samples, *_ in steps]
            update, losses = self._each_gradient(start, None, batches)
        else:
            weights, shared, losses = start, None, torch.empty(0)
            for number in range(max(map(len, steps))):
                batches = [
                    client_steps[number] if number < len(client_steps) else _NONE
                    for client_steps in steps
                ]
                parts, step_losses = self._each_gradient(weights, shared, batches)
                weights = {name: weights[name] - rate * part for name, part in parts.items()}
                shared, losses = 0, losses if number else step_losses
            update = {name: start[name] - weights[name] for name in start}
        flat = [update[name].reshape(len(steps), -1) for name in start]
        return torch.cat(flat, dim=1), losses.double().cpu().numpy()

    def _each_gradient(self, weights: dict, shared: int | None, batches: Sequence):
        """Each client's gradient on its batch, at its own weights or at shared ones."""
        sizes = np.array([len(samples) for samples in batches])
        # Clients with fewer samples are padded with some sample of weight zero.
        real = np.arange(sizes.max()) < sizes[:, None]
        index = np.zeros(real.shape, dtype=np.int64)
        index[real] = np.concatenate(batches)
        share = (real / np.maximum(sizes, 1)[:, None]).astype(np.float32)
        weight = torch.from_numpy(share).to(self._device)
        features, labels = self._gather(index)
        if self._linear:
            return _softmax_gradients(weights, features.flatten(2), labels[:, None], weight)
        model = self._own_model()

        def loss_of(weights, features, labels, weight):
            logits = functional_call(model, weights, (features,))
            return (nn.functional.cross_entropy(logits, labels, reduction="none") * weight).sum()

        gradients_of = vmap(grad_and_value(loss_of), (shared, 0, 0, 0))
        return gradients_of(weights, features, labels, weight)

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in self._model.named_parameters()}

    def _own_model(self) -> nn.Module:
        """This thread's own copy of the model."""
        if not hasattr(self._threads, "model"):
            self._threads.model = copy.deepcopy(self._model)
        return self._threads.model


_NONE = np.empty(0, dtype=np.int64)


def _checked_device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"Expected a device that torch sees, got {name!r} where it sees "
            f"{torch.cuda.device_count()} CUDA devices: leave device out to train on the CPU, or "
            "install a CUDA build of torch."
        )
    return device


def _is_gpu(device: torch.device) -> bool:
    return device.type != "cpu"


def _softmax_gradients(
    weights: dict, features: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor
) -> tuple[dict, torch.Tensor]:
    """Softmax regression's gradients by formula: autograd would take longer than the arithmetic.

    Classes come before samples, which makes both products and the softmax twice as fast.

    Args:
        weights: (c, f) and (c,), shared, or (n, c, f) and (n, c), of n clients.
        features: (n, s, f); labels: (n, 1, s); weight: (n, s), each sample's weight.
    """
    (matrix_name, matrix), (bias_name, bias) = weights.items()
    matrices = matrix.expand(len(features), *matrix.shape[-2:])
    logits = torch.baddbmm(bias[..., None], matrices, features.mT)
    logs = torch.log_softmax(logits, dim=1)
    losses = -(logs.gather(1, labels)[:, 0] * weight).sum(1)
    error = logs.exp_().scatter_add_(1, labels, -torch.ones_like(labels, dtype=logs.dtype))
    error *= weight[:, None]
    return {matrix_name: torch.bmm(error, features), bias_name: error.sum(2)}, losses
