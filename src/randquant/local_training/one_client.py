"""One client's update, whatever the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from randquant.aggregation.clipping import add_clipped
from randquant.channels.keys import Key
from randquant.local_training.copies import Copies, Features, called, of_each, seeded
from randquant.local_training.curvature import gradients, length_along
from randquant.local_training.gathering import Gathering
from randquant.local_training.problem import Loss, Problem
from randquant.local_training.row_wise import are_the_same, held_values
from randquant.local_training.together import Guard
from randquant.local_training.work import Work

EXAMPLES_AT_ONCE, NUMBERS_AT_ONCE = 64, 2**26
"""Most gradients of single examples in one vectorised pass, and most numbers in them, unless one
gradient has more: 256 MiB. Twice as many examples gain little speed, twice as many numbers need
twice the memory."""


class OneClient:
    """Computes one client's update at a time, from the loaded weights.

    Args:
        problem: the model, the clients' data and the loss.
        work: what a client computes.
        copies: of the model, with the loaded weights, on the device.
        data: the problem's, on the device.
        loss: the problem's, on the device.
        by_vmap: whether gradients of several examples are computed at once where each is clipped.
        guarded: keep these examples apart where an operation fails, as that of an index out of
            range.
    """

    def __init__(
        self,
        problem: Problem,
        work: Work,
        copies: Copies,
        data: Gathering,
        loss: Loss,
        *,
        by_vmap: bool = False,
        guarded: bool = False,
    ) -> None:
        self._places, self._draws = problem.clients.places, problem.trial.draws
        self._work, self._copies, self._data, self._loss = work, copies, data, loss
        self._parameters = list(copies.trained().values())
        self._device = self._parameters[0].device
        self._by_vmap, self._guarded = by_vmap, guarded

    def steps(self, client: int, key: Key | None) -> list[np.ndarray]:
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

    def update(self, client: int, key: Key | None) -> tuple[Tensor, float]:
        """Compute a client's update (d,) and its first step's mean loss."""
        return self.of_steps(client, self.steps(client, key), key)

    def of_steps(
        self, client: int, steps: Sequence[np.ndarray], key: Key | None
    ) -> tuple[Tensor, float]:
        """Compute the same of these samples of each step."""
        if self._work.example_norm is not None:
            result = self._clipped(client, steps[0], self._work.example_norm, key)
        else:
            local = self._work.learning_rate is not None
            way = self._local_steps if local else self._gradient
            result = way(client, steps, key)
        self._copies.check()
        return result

    def _batch(
        self, client: int, samples: np.ndarray, key: Key | None, number: int = 0
    ) -> tuple[Features, Tensor]:
        """The samples of a client's step; what reading them draws comes from its key."""
        if self._data.table is not None or key is None:
            return self._data.of_client(client, samples)
        seed = int(key.fold_in("reading", client, number).words(1)[0])
        return self._data.of_client(client, samples, seed)

    def _random_numbers(self, key: Key | None, *labels: int) -> AbstractContextManager[None]:
        """Take the random numbers of a client's training step from its key."""
        if not self._draws:
            return nullcontext()
        assert key is not None
        return seeded(int(key.fold_in("draws", *labels).words(1)[0]), self._device)

    def _gradient(
        self, client: int, steps: Sequence[np.ndarray], key: Key | None
    ) -> tuple[Tensor, float]:
        model = self._copies.shared()
        batch = self._batch(client, steps[0], key)
        with self._random_numbers(key, client):
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
            batch = self._batch(client, samples, key, number)
            with self._random_numbers(key, client, number):
                found = gradients(model, weights, batch, self._loss)
            losses.append(float(found.loss))
            if rate != "auto":
                length = rate
            else:
                with self._random_numbers(key, client, number):  # the same, for the same outputs
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
        """The sum of clipped gradients of single examples over their number, or `divisor`."""
        total, losses = np.zeros(sum(each.numel() for each in self._parameters)), []
        before = self._held()
        for row, loss in self._each_example(client, samples, key):
            # On a device the failure would be seen: one example's overflow counts as no gradient.
            if self._work.divisor is None or np.isfinite(row).all():
                add_clipped(total, row, norm)
            losses.append(loss)
        # What one example leaves behind changes the gradients of the next ones, and the bound for
        # one example holds only if those of all others are the same bits (vector.md, Prop. 16).
        if not are_the_same(before, self._held()):
            raise ValueError(
                "Expected a module and a loss that keep nothing of an example where one example is "
                "protected, got one with another attribute than before: the next examples would "
                "see it. Keep it in no attribute."
            )
        divisor = self._work.divisor or len(losses)
        update = torch.from_numpy((total / divisor).astype(np.float32))
        return update.to(self._device), float(np.mean(losses))

    def _held(self) -> list[object]:
        models = (self._copies.own(), self._copies.shared())
        return [value for model in models for value in held_values(model, self._loss)]

    def _each_example(
        self, client: int, samples: np.ndarray, key: Key | None
    ) -> Iterator[tuple[np.ndarray, float]]:
        """Gradient (d,) and loss of each example.

        An example's random numbers are its own: what one example draws must not change what
        another one gives.
        """
        if self._by_vmap:
            size = sum(each.numel() for each in self._parameters)
            at_once = max(1, min(EXAMPLES_AT_ONCE, NUMBERS_AT_ONCE // size))
            for start in range(0, len(samples), at_once):
                some = samples[start : start + at_once]
                yield from self._by_example(self._batch(client, some, key))
            return
        model = self._copies.shared()
        for number in range(len(samples)):
            batch = self._batch(client, samples[number : number + 1], key)
            with self._random_numbers(key, client, number):
                found = gradients(model, self._parameters, batch, self._loss)
            flat = torch.cat([part.reshape(-1) for part in found.parts])
            yield flat.cpu().numpy(), float(found.loss)

    def _by_example(self, batch: tuple[Features, Tensor]) -> list[tuple[np.ndarray, float]]:
        """Gradients and losses of some examples in one vectorised pass."""
        weights, model = self._copies.weights(), self._copies.own()

        def loss_of(weights: dict, features: Features, target: Tensor) -> Tensor:
            alone = of_each(lambda tensor: tensor[None], features)
            return self._loss(called(model, alone, weights), target[None])

        gradients_of = vmap(grad_and_value(loss_of), (None, 0, 0))
        with Guard() if self._guarded else nullcontext():
            parts, losses = gradients_of(weights, *batch)
        rows = [parts[name].reshape(len(losses), -1) for name in weights]
        return list(zip(torch.cat(rows, dim=1).cpu().numpy(), losses.tolist(), strict=True))
