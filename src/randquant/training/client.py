"""A model and its clients' data: per-client updates and test accuracy."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from randquant.aggregation.clipping import add_clipped
from randquant.channels.keys import Key
from randquant.training.copies import Copies
from randquant.training.curvature import gradients, length_along, scaled
from randquant.training.gathering import Gathering
from randquant.training.generators import seeded
from randquant.training.inputs import Features, called, of_each
from randquant.training.problem import Loss, Problem
from randquant.training.statistics import ServerStatistics
from randquant.training.together import (
    Together,
    fewer_and_fewer,
    is_softmax_regression,
    may_be_together,
)
from randquant.training.trial import work_mode
from randquant.training.work import GRADIENT, Evaluation, Work

LIGHT_GROUP = 20
"""Most clients that a worker gets at a time if each takes less than a millisecond."""

SMALL = 32_000
"""Numbers in a client's step below which one vectorised pass over many clients is faster than
one pass per client: gathering their data then costs less than a call of torch for each."""

GATHERED, GATHERED_ON_DEVICE = 2**23, 2**27
"""Most numbers that a pass over many clients gathers, unless one client has more: 32 MiB on a
CPU, 512 MiB on a GPU, where activations take several times that."""

EXAMPLES_AT_ONCE = 64
"""Gradients of single examples that are computed in one vectorised pass."""


class Learner:
    """Computes clients' updates: gradients of the mean loss over their local data.

    Softmax regression is vectorised over a group of clients. So are, on a CPU, sequences of linear
    layers whose clients have little data, and on a GPU all sequences of known layers
    (`together.INDEPENDENT`). The others run client by client, which is faster for them on a CPU
    (`benchmarks/cohort.py`). Models are in training mode for clients, in evaluation mode for tests.

    Args:
        problem: the model, the clients' data and the loss; none of it is changed.
        work: what a client computes.
        device: where the data and the model are: `cpu`, or a GPU as torch names it (`cuda`).

    Guarantees:
        If training draws random numbers, as dropout does, a client's depend on its key only, and
        torch's own generator is as it was.

    Raises:
        ValueError: torch sees no such device.
    """

    def __init__(self, problem: Problem, work: Work = GRADIENT, device: str = "cpu") -> None:
        self._device = _checked_device(device)
        self.on_gpu = _is_gpu(self._device)
        self.problem, self._work = problem, work
        self._places, self._sizes = problem.clients.places, problem.clients.sizes
        known = may_be_together(problem)
        convolutional = any(isinstance(layer, nn.Conv2d) for layer in problem.model.modules())
        # Convolutions on a CPU are fastest in this layout; models of unknown layers may need the
        # other one.
        here = convolutional and known and not self.on_gpu
        self._layout = torch.channels_last if here else torch.contiguous_format
        model = copy.deepcopy(problem.model)
        model = model.to(self._device, memory_format=self._layout)  # type: ignore[call-overload]
        work_mode(model, problem.still)
        self._copies = Copies(model, problem.parts)
        self._loss = _on_device(problem.loss, self._device)
        self._parameters = list(self._copies.trained().values())
        self._statistics = None
        if problem.statistics is not None:
            kept = self._copies.for_server()
            self._statistics = ServerStatistics(kept, problem.statistics, self._device)
            self._renew()
        self._data = Gathering(problem, self._device, self._layout)
        linear = known and is_softmax_regression(model)
        samples = self._sizes.mean() if work.batch is None else work.batch
        small = samples * self._data.numbers < SMALL and not convolutional
        self._batched = known and (self.on_gpu or linear or small)
        self._together = Together(self._copies, self._data, work.learning_rate, linear)
        largest = min(int(self._sizes.max()), work.batch or int(self._sizes.sum()))
        room, most = (GATHERED_ON_DEVICE, 2**20) if self.on_gpu else (GATHERED, LIGHT_GROUP)
        self._group = max(1, min(most, room // (largest * self._data.numbers)))
        self._by_vmap = work.example_norm is not None and self._vmap_works()

    @property
    def dimension(self) -> int:
        """Coordinates of an update: trained parameters of the model."""
        return sum(parameter.numel() for parameter in self._parameters)

    @property
    def examples(self) -> int:
        """The smallest number of examples that a client's update is the mean of."""
        fewest = int(self._sizes.min())
        return fewest if self._work.batch is None else min(fewest, self._work.batch)

    @property
    def one_thread(self) -> bool:
        """Whether clients must be computed on one thread: they use torch's own generator."""
        return self.problem.draws

    def parameters(self) -> np.ndarray:
        """The model's current trained weights as one vector, (d,) float32."""
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])
        return flat.cpu().numpy()

    def load(self, parameters: np.ndarray) -> None:
        """Set the model's trained weights from one vector, (d,) float32."""
        start = 0
        if self.on_gpu:
            flat = torch.from_numpy(parameters).to(self._device)
            with torch.no_grad():
                nn.utils.vector_to_parameters(flat, self._parameters)
        else:
            for parameter in self._parameters:
                # Through NumPy: torch's own threads would keep spinning beside the workers'.
                weights = parameter.detach().numpy()
                weights[...] = parameters[start : start + weights.size].reshape(weights.shape)
                start += weights.size
        self._renew()

    def _renew(self) -> None:
        """The server's running statistics at the loaded weights."""
        if self._statistics is not None:
            self._statistics.refresh()
            self._copies.settle()

    def trained_model(self) -> nn.Module:
        """A copy of the problem's model with the loaded weights, in evaluation mode.

        Its parameters and buffers have the types that they were given in.
        """
        model = copy.deepcopy(self.problem.model)
        self._copies.fill(model, self.problem.types)
        return model.eval()

    def groups(self, cohort: Sequence[int], workers: int) -> list[Sequence[int]]:
        """Split the cohort into groups, each of which one thread computes at a time.

        Vectorised groups do not depend on the number of threads, because the last bits of their
        sums depend on the grouping. Other clients are distributed a few at a time.
        """
        if not self._batched:
            return fewer_and_fewer(cohort, workers)
        return [cohort[start : start + self._group] for start in range(0, len(cohort), self._group)]

    def updates(
        self, clients: Sequence[int], key: Key | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute each client's update from the loaded weights, and its first step's mean loss.

        Args:
            clients: which clients.
            key: of the round, needed where batches or other random numbers are drawn; they depend
                on it and the client.

        Returns:
            updates (n, d) float32, which the server's step subtracts, and losses (n,) float64, in
            the order of `clients`.
        """
        if self._batched and self._work.example_norm is None:
            steps = [self._steps(client, key) for client in clients]
            updates, losses = self._together.updates(steps)
        else:
            each = [self._one_client(client, key) for client in clients]
            updates = torch.stack([update for update, _ in each])
            losses = np.array([loss for _, loss in each])
        if self._work.length is not None:
            updates = scaled(updates, self._work.length)
        return updates.cpu().numpy(), losses

    def evaluate(self, client: int | None = None) -> Evaluation:
        """Accuracy and loss of the loaded weights on test data, or on all of a client's."""
        model, classes = self._copies.shared().eval(), self.problem.classes
        right, labels, loss, count = 0, 0, 0.0, 0
        # Clients are on several threads, unless they draw random numbers.
        own = client is not None and not self.problem.draws
        with torch.inference_mode(), nullcontext() if own else seeded(0, self._device):
            for features, targets in self._data.batches(client):
                output = called(model, features)
                if client is None and self.problem.raw is not None:
                    output = self.problem.raw(output)
                loss += float(self._loss(output, targets)) * len(targets)
                count += len(targets)
                if classes is not None:
                    right += int((output.argmax(dim=1) == targets).sum())
                    labels += targets.numel()
        work_mode(model, self.problem.still)
        return Evaluation(right / labels if labels else None, loss / count if count else None)

    def _steps(self, client: int, key: Key | None) -> list[np.ndarray]:
        """The samples of each local step."""
        samples, work = self._places[client], self._work
        if work.batch is None or (work.batch >= len(samples) and work.learning_rate is None):
            return [samples] * work.epochs
        assert key is not None
        words = key.fold_in("batches", client).words(2)
        generator = np.random.Generator(np.random.Philox(key=words))
        if work.learning_rate is None:
            return [samples[np.sort(generator.choice(len(samples), work.batch, replace=False))]]
        orders = [samples[generator.permutation(len(samples))] for _ in range(work.epochs)]
        return [order[at : at + work.batch] for order in orders
                for at in range(0, len(order), work.batch)]  # fmt: skip

    def _one_client(self, client: int, key: Key | None) -> tuple[Tensor, float]:
        """Compute one client's update and first loss, whatever the model."""
        steps = self._steps(client, key)
        if self._work.example_norm is not None:
            result = self._clipped(client, steps[0], self._work.example_norm, key)
        else:
            local = self._work.learning_rate is not None
            way = self._local_steps if local else self._gradient
            result = way(client, steps, key)
        self._copies.check()
        return result

    def _random_numbers(self, key: Key | None, *labels: int) -> AbstractContextManager[None]:
        """Take the random numbers of a client's training step from its key."""
        if not self.problem.draws:
            return nullcontext()
        assert key is not None
        return seeded(int(key.fold_in("draws", *labels).words(1)[0]), self._device)

    def _gradient(
        self, client: int, steps: Sequence[np.ndarray], key: Key | None
    ) -> tuple[Tensor, float]:
        model = self._copies.shared()
        with self._random_numbers(key, client):
            batch = self._data.of_client(client, steps[0])
            found = gradients(model, self._parameters, batch, self._loss)
        return torch.cat([part.reshape(-1) for part in found.parts]), float(found.loss)

    def _local_steps(
        self, client: int, steps: Sequence[np.ndarray], key: Key | None
    ) -> tuple[Tensor, float]:
        """Run local steps: the loaded weights minus those after the last, and the first loss."""
        rate, model, losses = self._work.learning_rate, self._copies.own(), []
        assert rate is not None
        weights = list(self._copies.trained(model).values())
        with torch.no_grad():
            for weight, start in zip(weights, self._parameters, strict=True):
                weight.copy_(start)
        for number, samples in enumerate(steps):
            with self._random_numbers(key, client, number):
                batch = self._data.of_client(client, samples)
                found = gradients(model, weights, batch, self._loss)
            losses.append(float(found.loss))
            if rate != "auto":
                length = rate
            else:
                with self._random_numbers(key, client, number):  # the same, for the same outputs
                    if self.problem.draws:
                        batch = self._data.of_client(client, samples)
                    length = length_along(model, weights, batch, self._loss, found)
            with torch.no_grad():
                for weight, part in zip(weights, found.parts, strict=True):
                    weight -= length * part
        difference = [
            start.detach() - end.detach()
            for start, end in zip(self._parameters, weights, strict=True)
        ]
        return torch.cat([part.reshape(-1) for part in difference]), losses[0]

    def _clipped(
        self, client: int, samples: np.ndarray, norm: float, key: Key | None
    ) -> tuple[Tensor, float]:
        """The mean of clipped gradients of single examples; its norm is at most `norm`."""
        total, losses = np.zeros(self.dimension), []
        for row, loss in self._each_example(client, samples, key):
            add_clipped(total, row, norm)
            losses.append(loss)
        mean = torch.from_numpy((total / len(losses)).astype(np.float32))
        return mean.to(self._device), float(np.mean(losses))

    def _each_example(
        self, client: int, samples: np.ndarray, key: Key | None
    ) -> Iterator[tuple[np.ndarray, float]]:
        """Gradient (d,) and loss of each example.

        An example's random numbers are its own: what one example draws must not change what
        another one gives.
        """
        if self._by_vmap:
            for start in range(0, len(samples), EXAMPLES_AT_ONCE):
                yield from self._by_example(client, samples[start : start + EXAMPLES_AT_ONCE])
            return
        model = self._copies.shared()
        for number in range(len(samples)):
            with self._random_numbers(key, client, number):
                batch = self._data.of_client(client, samples[number : number + 1])
                found = gradients(model, self._parameters, batch, self._loss)
            flat = torch.cat([part.reshape(-1) for part in found.parts])
            yield flat.cpu().numpy(), float(found.loss)

    def _by_example(self, client: int, samples: np.ndarray) -> list[tuple[np.ndarray, float]]:
        """Gradients and losses of some examples in one vectorised pass."""
        weights, model = self._copies.weights(), self._copies.own()

        def loss_of(weights: dict, features: Features, target: Tensor) -> Tensor:
            alone = of_each(lambda tensor: tensor[None], features)
            return self._loss(called(model, alone, weights), target[None])

        gradients_of = vmap(grad_and_value(loss_of), (None, 0, 0))
        parts, losses = gradients_of(weights, *self._data.of_client(client, samples))
        rows = [parts[name].reshape(len(samples), -1) for name in weights]
        return list(zip(torch.cat(rows, dim=1).cpu().numpy(), losses.tolist(), strict=True))

    def _vmap_works(self) -> bool:
        """Whether vmap computes single examples' gradients of this model.

        It refuses what depends on the numbers (`if x.sum() > 0`), and for some operations there is
        no rule: then it would loop itself, with a warning.
        """
        if self.problem.draws:
            return False
        with seeded(0, self._device), warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                self._by_example(0, self._places[0][:2])
            except (RuntimeError, ValueError, TypeError, NotImplementedError, UserWarning):
                return False
        return True


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


def _on_device(loss: Loss, device: torch.device) -> Loss:
    """The loss; if it is a module, a copy with its own tensors there."""
    return copy.deepcopy(loss).to(device) if isinstance(loss, nn.Module) else loss
