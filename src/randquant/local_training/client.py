"""A model and its clients' data: per-client updates and test accuracy."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn

from randquant.channels.keys import Key
from randquant.local_training.clients import MADE, named
from randquant.local_training.copies import Copies, called, copied, seeded
from randquant.local_training.curvature import gradients
from randquant.local_training.gathering import Gathering
from randquant.local_training.one_client import OneClient
from randquant.local_training.problem import Loss, Problem
from randquant.local_training.row_wise import Obstacle, read
from randquant.local_training.statistics import ServerStatistics
from randquant.local_training.together import (
    Together,
    fewer_and_fewer,
    is_linear,
    obstacle_of,
    width,
)
from randquant.local_training.trial import work_mode
from randquant.local_training.work import GRADIENT, Evaluation, Work

LIGHT_GROUP = 20
"""Most clients that are computed together on a CPU."""

LIGHT = 250_000
"""Numbers in a client's pass, trained ones included, below which calls of torch take longer than
the arithmetic: one vectorised pass over many clients is then faster than one pass per client, and
one thread faster than two that wait for each other (`benchmarks/cohort.py`)."""

GATHERED, GATHERED_ON_DEVICE = 2**23, 2**27
"""Most numbers that a pass over many clients keeps, unless one client's are more: 32 MiB on a CPU,
512 MiB on a GPU."""


class Learner:
    """Computes clients' updates: gradients of the mean loss over their local data.

    Clients are computed together by the rule that `Local` states; a step has little arithmetic if
    it is `LIGHT`. The others are computed client by client. Models are in training mode for
    clients, in evaluation mode for tests.

    Args:
        problem: the model, the clients' data and the loss; none of it is changed.
        work: what a client computes.
        device: where the data and the model are: `cpu`, or a GPU as torch names it (`cuda`).
        apart: compute every client by itself, so that not even who else takes part has an
            influence on its last bits.

    Attributes:
        obstacle: why clients are computed one by one; None where they are computed together.

    Guarantees:
        How clients are computed, in which groups and shapes, follows from the model, the settings
        and the shape of an example: neither a client's data nor how many they are have an influence
        on another's update, bit for bit.
        If training draws random numbers, as dropout does, a client's depend on its key only, and
        torch's own generator is as it was.

    Raises:
        ValueError: torch sees no such device, or clients cannot be computed together as was asked.
    """

    def __init__(
        self,
        problem: Problem,
        work: Work = GRADIENT,
        device: str = "cpu",
        *,
        apart: bool = False,
    ) -> None:
        self._device = _checked_device(device)
        self.on_gpu = _is_gpu(self._device)
        self.problem, self._work = problem, work
        reading = read(problem.model, problem.trial.still, problem.clients)
        in_a_pass = width(work) * reading.numbers + problem.dimension
        light = in_a_pass < LIGHT
        model, self._data = _laid_out(problem, self._device, light=light)
        self._copies = Copies(model, problem.parts)
        self._loss = _on_device(problem.loss, self._device)
        self._statistics = None
        if problem.statistics is not None:
            kept = self._copies.for_server()
            self._statistics = ServerStatistics(kept, problem.statistics, self._device)
            self._renew()
        linear, clipped = is_linear(problem, reading.operations), work.example_norm is not None
        self.obstacle = obstacle_of(problem, work, reading, apart=apart)
        if work.together is False:
            self.obstacle = Obstacle("together=False")
        elif work.together:
            self.obstacle = _overruled(self.obstacle)
        elif self.obstacle is None and not (clipped or self.on_gpu or linear or light):
            self.obstacle = Obstacle("steps that are faster one client a thread")
        self.together = self.obstacle is None
        held, by_vmap = (self._copies, self._data, self._loss), self.together and clipped
        watched = bool(work.together)
        guarded = watched or "embedding" in reading.operations
        self._together = None
        self._alone = OneClient(problem, work, *held, by_vmap=by_vmap, guarded=by_vmap and guarded)
        if self.together and not clipped:
            self._together = Together(*held, work, linear=linear, watched=watched, guarded=guarded)
        self.one_thread = problem.trial.draws or (light and self._together is None)
        room, most = (GATHERED_ON_DEVICE, 2**20) if self.on_gpu else (GATHERED, LIGHT_GROUP)
        self._group = max(1, min(most, int(room / in_a_pass)))
        if math.isinf(in_a_pass):  # a user knows better: it may be little
            self._group = LIGHT_GROUP

    @property
    def dimension(self) -> int:
        """Coordinates of an update: trained parameters of the model."""
        return sum(parameter.numel() for parameter in self._copies.trained().values())

    @property
    def examples(self) -> int:
        """The smallest number of examples that a client's update is the mean of."""
        fewest = int(self.problem.clients.sizes.min())
        return fewest if self._work.batch is None else min(fewest, self._work.batch)

    def parameters(self) -> np.ndarray:
        """The model's current trained weights as one vector, (d,) float32."""
        return self._copies.vector().cpu().numpy()

    def load(self, parameters: np.ndarray) -> None:
        """Set the model's trained weights from one vector, (d,) float32."""
        start = 0
        if self.on_gpu:
            flat = torch.from_numpy(parameters).to(self._device)
            with torch.no_grad():
                nn.utils.vector_to_parameters(flat, self._copies.trained().values())
        else:
            for parameter in self._copies.trained().values():
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
        model = copied(self.problem.model)
        self._copies.fill(model, self.problem.types)
        return model.eval()

    def groups(self, cohort: Sequence[int], workers: int) -> list[Sequence[int]]:
        """Split the cohort into groups, each of which one thread computes at a time.

        Vectorised groups do not depend on the number of threads, because the last bits of their
        sums depend on the grouping. Other clients are distributed a few at a time.
        """
        if self._together is None:
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
        if self._together is not None:
            steps = [self._alone.steps(client, key) for client in clients]
            updates, losses = self._together.updates(steps)
        else:
            each = []
            for client in clients:
                with named(self.problem.clients.names[client]):
                    each.append(self._alone.update(client, key))
            updates = torch.stack([update for update, _ in each])
            losses = np.array([loss for _, loss in each])
        return updates.cpu().numpy(), losses

    def check(self) -> None:
        """Refuse a model that cannot compute the smallest step that a client has.

        Raises:
            ValueError: it cannot, as batch norm cannot normalise one example by itself; or vmap
                cannot, which has no rule for it or is refused what depends on numbers.
        """
        sizes, batch = self.problem.clients.sizes, self._work.batch
        steps = np.minimum(sizes, batch or sizes)
        if self._work.example_norm is not None:
            steps = np.ones_like(sizes)
        elif self._work.learning_rate is not None:
            steps = (sizes - 1) % steps + 1  # the last of an epoch
        client = int(steps.argmin())
        places, name = self.problem.clients.places[client], self.problem.clients.names[client]
        smallest = [places[: steps[client]]]
        try:
            self._alone.of_steps(client, smallest, Key.from_seed(0))
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                f"Expected a model that learns from {steps[client]} of client {name}'s examples at "
                f"once, got {type(error).__name__}: {str(error).rstrip('.')}. Take another batch, "
                "or a layer that does not need the other examples."
            ) from error
        if self._together is None:
            return
        try:
            self._together.updates([smallest])
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                "Expected a model and a loss that torch.func.vmap computes of several clients, got "
                f"{type(error).__name__}: {str(error).partition(chr(10))[0]} Give "
                "Local(together=False)."
            ) from error

    def evaluate(self, client: int | None = None) -> Evaluation:
        """Accuracy and loss of the loaded weights on test data, or on all of a client's."""
        model, classes = self._copies.shared().eval(), self.problem.trial.classes
        binary = self.problem.binary
        right, labels, loss, count = 0, 0, 0.0, 0
        # Clients are on several threads, unless they draw random numbers.
        own = client is not None and not self.problem.trial.draws
        with torch.inference_mode(), nullcontext() if own else seeded(0, self._device):
            for features, targets in self._data.batches(client):
                output = called(model, features)
                if client is None and self.problem.raw is not None:
                    output = self.problem.raw(output)
                loss += float(self._loss(output, targets)) * len(targets)
                count += len(targets)
                if classes is not None or binary:
                    found = (
                        (output > 0) == (targets > 0.5) if binary else output.argmax(1) == targets
                    )
                    right += int(found.sum())
                    labels += targets.numel()
        work_mode(model, self.problem.trial.still)
        return Evaluation(right / labels if labels else None, loss / count if count else None)


def _overruled(obstacle: Obstacle | None) -> None:
    """Refuse together=True where it cannot be, whatever a user knows."""
    if obstacle is not None and obstacle.certain:
        raise ValueError(
            "Expected clients that can be computed together with together=True, got "
            f"{obstacle.reason}: leave together out, and they are computed one by one."
        )


def _checked_device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"Expected a device that torch sees, got {name!r} where it sees "
            f"{torch.cuda.device_count()} CUDA devices: leave device out to train on the CPU, or "
            "install a CUDA build of torch."
        )
    return device


def _laid_out(
    problem: Problem, device: torch.device, *, light: bool
) -> tuple[nn.Module, Gathering]:
    """A copy of the model, and the data, in the memory format that it is fastest in."""
    convolutional = any(isinstance(layer, nn.Conv2d) for layer in problem.model.modules())
    layout = torch.contiguous_format
    if convolutional and not light and not _is_gpu(device) and _takes_channels_last(problem):
        layout = torch.channels_last
    model = copied(problem.model)
    model = model.to(device, memory_format=layout)  # type: ignore[call-overload]
    work_mode(model, problem.trial.still)
    return model, Gathering(problem, device, layout)


ALIKE = 5e-3
"""Relative difference of two gradients below which they are the same but for rounding."""


def _takes_channels_last(problem: Problem) -> bool:
    """Whether its gradients are the same in it.

    A model or a loss that views what a convolution gives as rows does not take it.
    """
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        model = copied(problem.model).to(memory_format=layout)  # type: ignore[call-overload]
        work_mode(model, problem.trial.still)
        weights = list(Copies(model, problem.parts).trained().values())
        data = Gathering(problem, torch.device("cpu"), layout)
        data = data.instead(problem.clients.made_up(problem.trial.classes))
        try:
            with seeded(0):
                batch = data.rows(np.arange(MADE))
                parts = gradients(model, weights, batch, problem.loss).parts
                found.append(torch.cat([part.reshape(-1) for part in parts]))
                called(model.eval(), batch[0])
        except Exception:  # of the user's own model or loss
            return False
    return bool((found[1] - found[0]).norm() <= ALIKE * found[0].norm())


def _is_gpu(device: torch.device) -> bool:
    return device.type != "cpu"


def _on_device(loss: Loss, device: torch.device) -> Loss:
    """The loss; if it is a module, a copy with its own tensors there."""
    return copy.deepcopy(loss).to(device) if isinstance(loss, nn.Module) else loss
