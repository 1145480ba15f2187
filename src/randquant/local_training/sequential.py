"""Updates of clients that are computed one after another, whatever the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from randquant.aggregation.clipping import ClippedSum
from randquant.channels.keys import Key
from randquant.local_training.batches import BatchReader
from randquant.local_training.curvature import gradients, length_along
from randquant.local_training.local import Work
from randquant.local_training.models import Features, ModelReplicas, called, map_tensors, seeded
from randquant.local_training.problem import Loss, Problem
from randquant.local_training.row_wise import are_the_same, attribute_values
from randquant.local_training.vectorized import ClientGuard

MAX_CLIPPED_EXAMPLES, MAX_CLIPPED_NUMBERS = 64, 2**26
"""Most examples whose gradients are computed, and clipped, in one vectorised pass, and most numbers
in these gradients, 256 MiB, unless one gradient has more. Twice as many examples gain little speed,
twice as many numbers need twice the memory."""


class SequentialClients:
    """Computes one client's update at a time, from the loaded weights.

    Args:
        problem: the model, the clients' data and the loss.
        work: what a client computes.
        copies: replicas of the model, with the loaded weights, on the device.
        data: the problem's, on the device.
        loss: the problem's, on the device.
        by_vmap: compute the gradients of several examples at once where each is clipped.
        guarded: keep these examples apart where an operation fails, as that of an index out of
            range.
    """

    def __init__(
        self,
        problem: Problem,
        work: Work,
        copies: ModelReplicas,
        data: BatchReader,
        loss: Loss,
        *,
        by_vmap: bool = False,
        guarded: bool = False,
    ) -> None:
        self._stored, self._draws = problem.clients.stored, problem.dry_run.draws
        self._work, self._copies, self._data, self._loss = work, copies, data, loss
        self._parameters = list(copies.trained().values())
        self._device = self._parameters[0].device
        self._by_vmap, self._guarded = by_vmap, guarded

    def steps(self, client: int, key: Key | None) -> list[np.ndarray]:
        """Return the samples of each local step; random ones follow from the key and the client."""
        # A batch of all of a client's examples needs no drawing, and no key.
        samples, work = np.arange(len(self._data.source(client))), self._work
        if work.batch is None or (work.batch >= len(samples) and work.learning_rate is None):
            return [samples] * work.epochs
        assert key is not None
        # By the round's key and the client: batches do not depend on who else takes part, and are
        # the same when a round is repeated after a kill.
        words = key.fold_in("batches", client).words(2)
        generator = np.random.Generator(np.random.Philox(key=words))
        if work.learning_rate is None:
            return [samples[np.sort(generator.choice(len(samples), work.batch, replace=False))]]
        orders = [samples[generator.permutation(len(samples))] for _ in range(work.epochs)]
        return [order[at : at + work.batch] for order in orders
                for at in range(0, len(order), work.batch)]  # fmt: skip

    def update(self, client: int, key: Key | None) -> tuple[Tensor, float]:
        return self.update_from_steps(client, self.steps(client, key), key)

    def update_from_steps(
        self, client: int, steps: Sequence[np.ndarray], key: Key | None
    ) -> tuple[Tensor, float]:
        """Compute a client's update (d,) and first mean loss from the samples of each step."""
        if self._work.example_norm is not None:
            result = self._clipped(client, steps[0], self._work.example_norm, key)
        elif self._work.learning_rate is not None:
            result = self._local_steps(client, steps, key)
        else:
            result = self._gradient(client, steps, key)
        # Before the update leaves this thread: the next client must not start from changed buffers.
        self._copies.check()
        return result

    def _batch(
        self, client: int, samples: np.ndarray, key: Key | None, number: int = 0
    ) -> tuple[Features, Tensor]:
        if self._stored or key is None:
            return self._data.client_rows(client, samples)
        # A Dataset may augment at random: its numbers follow from the client's key and the step.
        seed = int(key.fold_in("reading", client, number).words(1)[0])
        return self._data.client_rows(client, samples, seed)

    def _random_numbers(self, key: Key | None, *labels: int) -> AbstractContextManager[None]:
        # A training step that draws, as dropout does, must not depend on which thread runs it when.
        if not self._draws:
            return nullcontext()
        assert key is not None
        return seeded(int(key.fold_in("draws", *labels).words(1)[0]), self._device)

    def _gradient(
        self, client: int, steps: Sequence[np.ndarray], key: Key | None
    ) -> tuple[Tensor, float]:
        # One gradient moves no weights, so that the replica with the loaded ones suffices.
        model = self._copies.shared()
        batch = self._batch(client, steps[0], key)
        with self._random_numbers(key, client):
            slope = gradients(model, self._parameters, batch, self._loss)
        return torch.cat([part.reshape(-1) for part in slope.parts]), float(slope.loss)

    def _local_steps(
        self, client: int, steps: Sequence[np.ndarray], key: Key | None
    ) -> tuple[Tensor, float]:
        rate, model, losses = self._work.learning_rate, self._copies.writable(), []
        assert rate is not None
        weights = list(self._copies.trained(model).values())
        # The last client on this thread has left its own weights here.
        with torch.no_grad():
            for weight, start in zip(weights, self._parameters, strict=True):
                weight.copy_(start)
        for number, samples in enumerate(steps):
            batch = self._batch(client, samples, key, number)
            with self._random_numbers(key, client, number):
                slope = gradients(model, weights, batch, self._loss)
            losses.append(float(slope.loss))
            if rate != "auto":
                length = rate
            else:
                # The same random numbers again: another dropout mask would change outputs as well.
                with self._random_numbers(key, client, number):
                    length = length_along(model, weights, batch, self._loss, slope)
            with torch.no_grad():
                for weight, part in zip(weights, slope.parts, strict=True):
                    weight -= length * part
        # Before minus after, because the server subtracts the mean of updates.
        difference = [
            start.detach() - end.detach()
            for start, end in zip(self._parameters, weights, strict=True)
        ]
        return torch.cat([part.reshape(-1) for part in difference]), losses[0]

    def _clipped(
        self, client: int, samples: np.ndarray, norm: float, key: Key | None
    ) -> tuple[Tensor, float]:
        # Each summand has norm at most `norm`, so one example moves the sum by at most 2 norm: the
        # sensitivity that is charged, over the number by which the sum is divided.
        total, losses = ClippedSum(sum(each.numel() for each in self._parameters), norm), []
        before = self._attributes()
        for row, loss in self._each_example(client, samples, key):
            # On a device the failure would be seen: one example's overflow counts as no gradient.
            if not self._work.summed or np.isfinite(row).all():
                total.add(row)
            losses.append(loss)
        # What one example leaves behind changes the gradients of the next ones, and the bound for
        # one example holds only if those of all others are the same bits (vector.md, Prop. 16).
        if not are_the_same(before, self._attributes()):
            raise ValueError(
                "Expected a module and a loss that keep nothing of an example where one example is "
                "protected, got one with another attribute than before: the next examples would "
                "see it. Keep it in no attribute."
            )
        count = 1 if self._work.summed else len(losses)
        update = torch.from_numpy((total.value() / count).astype(np.float32))
        return update.to(self._device), float(np.mean(losses))

    def _attributes(self) -> list[object]:
        models = (self._copies.writable(), self._copies.shared())
        return [value for model in models for value in attribute_values(model, self._loss)]

    def _each_example(
        self, client: int, samples: np.ndarray, key: Key | None
    ) -> Iterator[tuple[np.ndarray, float]]:
        """Yield the gradient (d,) and the loss of each example.

        Each example has random numbers of its own: the draws of one must not change the gradient of
        another, or clipping would not bound the influence of one example.
        """
        if self._by_vmap:
            size = sum(each.numel() for each in self._parameters)
            at_once = max(1, min(MAX_CLIPPED_EXAMPLES, MAX_CLIPPED_NUMBERS // size))
            for start in range(0, len(samples), at_once):
                some = samples[start : start + at_once]
                yield from self._by_example(self._batch(client, some, key))
            return
        model = self._copies.shared()
        # One by one where a module has no rule in vmap, or draws random numbers.
        for number in range(len(samples)):
            batch = self._batch(client, samples[number : number + 1], key)
            with self._random_numbers(key, client, number):
                slope = gradients(model, self._parameters, batch, self._loss)
            flat = torch.cat([part.reshape(-1) for part in slope.parts])
            yield flat.cpu().numpy(), float(slope.loss)

    def _by_example(self, batch: tuple[Features, Tensor]) -> list[tuple[np.ndarray, float]]:
        weights, model = self._copies.weights(), self._copies.writable()

        def example_loss(weights: dict, features: Features, target: Tensor) -> Tensor:
            batch_of_one = map_tensors(lambda tensor: tensor[None], features)
            return self._loss(called(model, batch_of_one, weights), target[None])

        example_gradients = vmap(grad_and_value(example_loss), (None, 0, 0))
        with ClientGuard() if self._guarded else nullcontext():
            parts, losses = example_gradients(weights, *batch)
        rows = [parts[name].reshape(len(losses), -1) for name in weights]
        return list(zip(torch.cat(rows, dim=1).cpu().numpy(), losses.tolist(), strict=True))
