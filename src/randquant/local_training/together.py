"""Several clients' local steps at once, and one linear layer's gradients by formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.func import grad, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from randquant.local_training.copies import Copies, Features, called
from randquant.local_training.curvature import (
    of_cross_entropy,
    of_squares,
    small_step,
    squares,
    step_length,
)
from randquant.local_training.gathering import Gathering
from randquant.local_training.problem import Problem
from randquant.local_training.row_wise import Obstacle, Reading, are_the_same, held_values
from randquant.local_training.trial import Loss
from randquant.local_training.work import Work


def each_loss(loss: Loss, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Each example's loss (s,), of outputs and targets (s, ...), whose mean is the batch's."""
    return vmap(lambda one, target: loss(one[None], target[None]))(output, targets)


def is_linear(problem: Problem, operations: Sequence[str]) -> bool:
    """Whether `linear_gradients` knows the loss, and all of one linear layer is trained.

    Features are flat, or the model flattens them; it does nothing else with them.
    """
    model, table = problem.model, problem.clients.table
    layers = list(model.children()) if type(model) is nn.Sequential else [model]
    flat = [type(layer) for layer in layers] == [nn.Flatten, nn.Linear]
    return (
        (flat or [type(layer) for layer in layers] == [nn.Linear])
        and list(operations) == ["flatten", "linear"][not flat :]
        and not any("forward" in vars(layer) for layer in (model, *layers))
        and (not flat or (layers[0].start_dim, layers[0].end_dim) == (1, -1))
        and layers[-1].bias is not None
        and len(problem.parts) == 2
        and table is not None
        and isinstance(table.features, torch.Tensor)
        and table.features.dtype == torch.float32
        and _has_formula(problem.loss, table.targets, problem.trial.outputs)
    )


def _has_formula(loss: Loss, targets: torch.Tensor, outputs: int) -> bool:
    """Whether it is the cross entropy of labels, or the mean of squares of all outputs."""
    if loss is nn.functional.mse_loss:
        return targets.dtype == torch.float32 and targets.shape[1:] == (outputs,)
    return (
        loss is nn.functional.cross_entropy and targets.dtype == torch.int64 and targets.ndim == 1
    )


def linear_gradients(
    weights: dict, features: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor, loss: Loss
) -> tuple[dict, torch.Tensor]:
    """One linear layer's gradients by formula: autograd would take longer than the arithmetic.

    Outputs come before samples, which makes both products and the softmax twice as fast.

    Args:
        weights: (c, f) and (c,), shared, or (n, c, f) and (n, c), of n clients.
        features: (n, s, f).
        targets: labels (n, s), or numbers (n, s, c).
        weight: (n, s), each sample's weight.
        loss: one that `each_loss` knows.
    """
    (matrix_name, matrix), (bias_name, bias) = weights.items()
    matrices = matrix.expand(len(features), *matrix.shape[-2:])
    outputs = torch.baddbmm(bias[..., None], matrices, features.mT)
    if loss is nn.functional.mse_loss:
        error = outputs - targets.mT
        losses = (error.square().mean(1) * weight).sum(1)
        error *= 2 / error.shape[1]
    else:
        logs, labels = torch.log_softmax(outputs, dim=1), targets[:, None]
        losses = -(logs.gather(1, labels)[:, 0] * weight).sum(1)
        error = logs.exp_().scatter_add_(1, labels, -torch.ones_like(labels, dtype=logs.dtype))
    error *= weight[:, None]
    return {matrix_name: torch.bmm(error, features), bias_name: error.sum(2)}, losses


def weighted_gradients(
    model: nn.Module,
    weights: dict,
    shared: int | None,
    features: Features,
    targets: torch.Tensor,
    weight: torch.Tensor,
    loss: Loss,
) -> tuple[dict, torch.Tensor]:
    """Gradients and losses where examples have weights, of n clients at once.

    Args:
        model: this thread's own.
        weights: each trained parameter (*shape), or (n, *shape) with `shared` 0 instead of None.
        features: (n, s, *shape), each of them.
        targets: (n, s, *shape).
        weight: (n, s), each example's weight.
        loss: the mean loss over a batch.
    """

    def loss_of(weights, features, targets, weight):
        output = called(model, features, weights)
        return (each_loss(loss, output, targets) * weight).sum()

    gradients_of = vmap(grad_and_value(loss_of), (shared, 0, 0, 0))
    return gradients_of(weights, features, targets, weight)


def linear_changes(
    weights: dict, parts: dict, features: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One linear layer's outputs (n, s, c), and their change along these gradients."""

    def linear(of: dict) -> torch.Tensor:
        matrix, bias = of.values()
        return features @ matrix.mT + bias[..., None, :]

    return linear(weights), linear(parts)


def changes(
    model: nn.Module,
    weights: dict,
    shared: int | None,
    parts: dict,
    near: torch.Tensor,
    features: Features,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (n, s, ...) of n clients at once, and their change per length of these gradients.

    Args:
        model: this thread's own.
        weights: as for `weighted_gradients`.
        shared: as there.
        parts: each client's gradient by parameter, (n, *shape).
        near: (n,) how many gradients long a small step is.
        features: (n, s, *shape), each of them.
    """

    def output_of(weights, features):
        return called(model, features, weights)

    moved = _moved(weights, parts, near)
    with torch.no_grad():
        output = vmap(output_of, (shared, 0))(weights, features)
        there = vmap(output_of, (0, 0))(moved, features)
    return output, (output - there) / near.view(-1, *[1] * (output.ndim - 1))


def bend(
    loss: Loss,
    output: torch.Tensor,
    change: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor,
) -> torch.Tensor:
    """Each client's second derivative of its weighted losses, along a change of outputs, (n,).

    Args:
        loss: the mean loss over a batch.
        output, change: (n, s, ...).
        targets: (n, s, ...).
        weight: (n, s), each example's weight.
    """
    if loss is nn.functional.cross_entropy and output.ndim == 3 and targets.ndim == 2:
        return of_cross_entropy(output, change, weight)
    if loss is nn.functional.mse_loss:
        return of_squares(change.reshape(*weight.shape, -1), weight)

    def of_one(output, change, targets, weight):
        def total(output):
            return (each_loss(loss, output, targets) * weight).sum()

        def slope(output):
            return (grad(total)(output) * change).sum()

        return (grad(slope)(output) * change).sum()

    return vmap(of_one)(output, change, targets, weight)


def _moved(weights: dict, parts: dict, lengths: torch.Tensor) -> dict:
    """Each client's weights after a step of so many of its gradients, (n,)."""
    return {
        name: weights[name] - lengths.view(-1, *[1] * (part.ndim - 1)) * part
        for name, part in parts.items()
    }


class _Pass(NamedTuple):
    """Examples of n clients, s of each, with their weights: features, targets and weight (n, s)."""

    features: Features
    targets: torch.Tensor
    weight: torch.Tensor

    def own(self, values: torch.Tensor) -> torch.Tensor:
        """Values (n, ...) of the clients that have an example here, and zeros."""
        here = self.weight.any(1)
        return values.where(here.view(-1, *[1] * (values.ndim - 1)), 0)


WIDTH = 32
"""Most examples of a client in a pass over several clients."""


def width(work: Work) -> int:
    """Examples of each client in a pass over several; those that it lacks have no weight."""
    return min(work.batch or WIDTH, WIDTH)


class Guard(TorchFunctionMode):
    """Keeps clients apart where a client's numbers may make an operation fail.

    Attributes:
        kind: of an error that an operation has raised, also if the model catches it; else empty.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kind = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        try:
            if func is nn.functional.embedding:
                return _embedded(*args, **options)
            if func in TABLE_LOOKUPS:
                return _looked_up(*args, **options)
            return func(*args, **options)
        except Exception as error:
            self.kind = type(error).__name__
            raise


TABLE_LOOKUPS = (
    torch.embedding, torch.ops.aten.embedding, torch.ops.aten.embedding.default,
)  # fmt: skip
"""Functions beneath `nn.functional.embedding`, which take the table first."""


def _embedded(
    input: torch.Tensor, weight: torch.Tensor, *args: Any, **options: Any
) -> torch.Tensor:
    # torch 2.13 lays the clients' tables behind each other and does not check an index against its
    # own: beyond the last row there is the next client's. Here it is no number, which is refused as
    # this client's.
    rows = weight.shape[0]
    vectors = nn.functional.embedding(input.clamp(0, rows - 1), weight, *args, **options)
    return torch.where(((input >= 0) & (input < rows))[..., None], vectors, math.nan)


def _looked_up(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    padding = None if padding_idx < 0 else padding_idx
    options = {"scale_grad_by_freq": scale_grad_by_freq, "sparse": sparse}
    return _embedded(indices, weight, padding, **options)


class Together:
    """Computes the local steps of several clients at once.

    A pass has one shape, whoever has how many examples: another shape may round others' gradients
    otherwise. A client with more examples than its width takes part in several.

    Args:
        copies: the model, with the loaded weights.
        data: the clients' examples.
        loss: the mean loss over a batch.
        work: what a client computes.
        linear: whether the model is one linear layer with a loss that has a formula.
        watched: look whether a module or the loss keeps something of each call; a user said that
            they do not.
        guarded: keep clients apart where an operation fails, as that of an index out of range.

    Raises:
        ValueError: by `updates`, a module has kept something, or caught such an error.
    """

    def __init__(
        self,
        copies: Copies,
        data: Gathering,
        loss: Loss,
        work: Work,
        *,
        linear: bool,
        watched: bool = False,
        guarded: bool = False,
    ) -> None:
        self._copies, self._data, self._loss = copies, data, loss
        self._watched, self._guarded = watched, guarded
        self._rate, self._width, self._linear = work.learning_rate, width(work), linear

    def updates(self, steps: Sequence[list[np.ndarray]]) -> tuple[torch.Tensor, np.ndarray]:
        """Return updates (n, d) and first losses (n,) of clients with these samples of each step.

        Clients with fewer steps do nothing in the last.
        """
        start, firsts = self._copies.weights(), np.array([samples[0] for samples, *_ in steps])
        before = self._held()
        with Guard() if self._guarded else nullcontext() as guard:
            if self._rate is None:
                own = [samples for samples, *_ in steps]
                update, losses, _ = self._step(start, None, own, firsts)
            else:
                weights, shared, losses = start, None, torch.empty(0)
                for number in range(max(map(len, steps))):
                    batches = [own[number] if number < len(own) else _NONE for own in steps]
                    parts, step_losses, lengths = self._step(weights, shared, batches, firsts)
                    weights = _moved(weights, parts, lengths)
                    shared, losses = 0, losses if number else step_losses
                update = {name: start[name] - weights[name] for name in start}
        self._copies.check()
        if guard is not None and guard.kind:
            raise ValueError(
                f"Expected operations that succeed for all clients, got {guard.kind}, which the "
                "model has caught: one client's numbers would decide how the others are computed. "
                "Give Local(together=False)."
            )
        if not are_the_same(before, self._held()):
            raise ValueError(
                "Expected modules that keep nothing of a call with together=True, got one with "
                "another attribute than before: the next clients would see it; leave together out."
            )
        flat = [update[name].reshape(len(steps), -1) for name in start]
        return torch.cat(flat, dim=1), losses.double().cpu().numpy()

    def _held(self) -> list[object]:
        return held_values(self._copies.own(), self._loss) if self._watched else []

    def _step(
        self,
        weights: dict,
        shared: int | None,
        batches: Sequence[np.ndarray],
        firsts: np.ndarray,
    ) -> tuple[dict, torch.Tensor, torch.Tensor]:
        """Each client's gradient on its batch, at its own weights or at shared ones.

        Also its loss, and how many gradients long its step is.
        """
        starts = range(0, max(map(len, batches)), self._width)
        only = self._pass(batches, firsts, 0) if len(starts) == 1 else None
        parts: dict[str, Any] = dict.fromkeys(weights, 0.0)
        losses: Any = 0.0
        for start in starts:
            some = only or self._pass(batches, firsts, start)
            more, theirs = self._gradients(weights, shared, some)
            # Who has no example here is not moved, even by what overflows.
            parts = {name: each + some.own(more[name]) for name, each in parts.items()}
            losses = losses + some.own(theirs)
        if not isinstance(self._rate, str):
            return parts, losses, torch.full_like(losses, self._rate or 0.0)
        square = squares(parts.values())
        bent: Any = 0.0
        for start in starts:
            some = only or self._pass(batches, firsts, start)
            output, change = self._changes(weights, shared, parts, square, some.features)
            bent = bent + some.own(bend(self._loss, output, change, some.targets, some.weight))
        return parts, losses, step_length(square, bent, losses)

    def _pass(self, batches: Sequence[np.ndarray], firsts: np.ndarray, start: int) -> _Pass:
        """Each client's examples from `start` of its batch on, as many as are wide."""
        some = [samples[start : start + self._width] for samples in batches]
        real = np.arange(self._width) < np.array([[len(samples)] for samples in some])
        # Clients with fewer samples are padded with one of their own, of weight zero: infinity
        # times zero is no number, and nobody else's sample may be what overflows.
        own = [[*samples[:1], first][0] for samples, first in zip(some, firsts, strict=True)]
        index = np.repeat(np.array(own)[:, None], self._width, axis=1)
        index[real] = np.concatenate(some)
        sizes = np.array([[max(1, len(samples))] for samples in batches])
        features, targets = self._data.rows(index)
        if self._linear:
            features = features.flatten(2)
        weight = torch.from_numpy((real / sizes).astype(np.float32)).to(targets.device)
        return _Pass(features, targets, weight)

    def _gradients(
        self, weights: dict, shared: int | None, some: _Pass
    ) -> tuple[dict, torch.Tensor]:
        if self._linear:
            assert isinstance(some.features, torch.Tensor)
            return linear_gradients(weights, some.features, some.targets, some.weight, self._loss)
        model = self._copies.own()
        return weighted_gradients(model, weights, shared, *some, self._loss)

    def _changes(
        self,
        weights: dict,
        shared: int | None,
        parts: dict,
        square: torch.Tensor,
        features: Features,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs, and their change per length of the gradients, of squared norm (n,)."""
        if self._linear:
            assert isinstance(features, torch.Tensor)
            return linear_changes(weights, parts, features)
        own = weights.values()
        held = squares(own if shared == 0 else [each[None] for each in own])
        near = small_step(square, held)
        return changes(self._copies.own(), weights, shared, parts, near, features)


_NONE = np.empty(0, dtype=np.int64)


HEAVY_GROUP = 5
"""Most clients of which each takes long that a worker gets at a time."""


def fewer_and_fewer(cohort: Sequence[int], workers: int) -> list[Sequence[int]]:
    """Split a cohort so that no worker waits long for the last group.

    Example:
        >>> fewer_and_fewer(range(10), 2)
        [range(0, 3), range(3, 5), range(5, 7), range(7, 8), range(8, 9), range(9, 10)]
    """
    groups, start = [], 0
    while left := len(cohort) - start:
        size = min(HEAVY_GROUP, -(-left // (2 * workers)))
        groups.append(cohort[start : start + size])
        start += size
    return groups


# Whether several clients may be computed in one vectorised pass.

KNOWN_ATTENTION = partial(sdpa_kernel, SDPBackend.MATH)
"""Attention that vmap has rules for, while in force; it is a setting of the whole process."""

BY_EXAMPLE = (
    nn.functional.cross_entropy,
    nn.functional.mse_loss,
    nn.functional.l1_loss,
    nn.functional.smooth_l1_loss,
    nn.functional.huber_loss,
    nn.functional.binary_cross_entropy_with_logits,
)
"""Losses that average over examples independently: a problem's labels are checked
where it is the cross entropy. Others may leave examples out, weigh them or compare them."""


def obstacle_of(problem: Problem, work: Work, reading: Reading, *, apart: bool) -> Obstacle | None:
    """Return why several clients may not be computed in one pass, or several clipped examples.

    Args:
        problem: the model, the clients' data and the loss.
        work: what a client computes.
        reading: what the model does with its examples.
        apart: whether nobody may see who else takes part.
    """
    loss, clipped = problem.loss, work.example_norm is not None
    if problem.trial.draws:
        return Obstacle("a training step that draws random numbers, or may", certain=True)
    if _is_hooked(problem.model):
        return Obstacle("a model with hooks, which would run for several at once", certain=True)
    if not clipped and problem.clients.table is None:
        return Obstacle("examples that are read when they are needed", certain=True)
    if not clipped and apart:
        return Obstacle("cohorts that nobody sees, which must not show in rounding", certain=True)
    if loss not in BY_EXAMPLE and not (clipped and type(loss) in LOSS_MODULES):
        theirs = getattr(loss, "__module__", "").startswith("torch.")
        words = "leave out or weigh examples" if theirs else "compare examples"
        return Obstacle(f"a loss that may {words}", certain=theirs and not clipped)
    return reading.obstacle


LOSS_MODULES = (
    nn.CrossEntropyLoss,
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCEWithLogitsLoss,
)
"""Losses that vmap computes of single examples, whatever their options."""


def _is_hooked(model: nn.Module) -> bool:
    """Whether a function of the user's own runs with a forward or backward pass."""
    return any(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        for layer in model.modules()
    )
