"""Local steps of a group of clients: of all at once, or of one after another, whatever the model.

One linear layer's gradients are computed by formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from randquant.aggregation.clipping import ClippedSum
from randquant.channels.keys import Key
from randquant.local_training.curvature import (
    cross_entropy_curvature,
    gradients,
    length_along,
    small_step,
    squared_error_curvature,
    squares,
    step_length,
)
from randquant.local_training.dry_run import Loss
from randquant.local_training.local import Work
from randquant.local_training.models import (
    ClientGuard,
    ClientMasks,
    Features,
    ModelReplicas,
    called,
    map_tensors,
    seeded,
    with_masks,
)
from randquant.local_training.problem import BatchReader, Problem
from randquant.local_training.row_wise import Obstacle, Reading, are_the_same, attribute_values


def each_loss(loss: Loss, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    # (s,) from outputs and targets (s, ...). Each example is a batch of one, so that a mean loss
    # over the batch becomes this example's own.
    return vmap(lambda one, target: loss(one[None], target[None]))(output, targets)


def is_linear(problem: Problem, operations: Sequence[str]) -> bool:
    """Return whether `linear_gradients` computes this problem's gradients.

    The model must be one linear layer, trained as a whole, on features that are flat or that the
    model only flattens; and the loss one of those that have a formula.
    """
    # By exact types and the operations that were read: a subclass, or a forward function of an
    # instance, may compute something else.
    model, example = problem.model, problem.clients.example
    layers = list(model.children()) if type(model) is nn.Sequential else [model]
    flat = [type(layer) for layer in layers] == [nn.Flatten, nn.Linear]
    return (
        (flat or [type(layer) for layer in layers] == [nn.Linear])
        and list(operations) == ["flatten", "linear"][not flat :]
        and not any("forward" in vars(layer) for layer in (model, *layers))
        and (not flat or (layers[0].start_dim, layers[0].end_dim) == (1, -1))
        and layers[-1].bias is not None
        and len(problem.parts) == 2
        and problem.clients.stored
        and isinstance(example.features, torch.Tensor)
        and example.features.dtype == torch.float32
        and _has_formula(problem.loss, example.targets, problem.dry_run.outputs)
    )


def _has_formula(loss: Loss, targets: torch.Tensor, outputs: int) -> bool:
    if loss is nn.functional.mse_loss:
        # Targets of another shape would be broadcast, which the formula does not do.
        return targets.dtype == torch.float32 and targets.shape[1:] == (outputs,)
    return (
        loss is nn.functional.cross_entropy and targets.dtype == torch.int64 and targets.ndim == 1
    )


def linear_gradients(
    weights: dict, features: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor, loss: Loss
) -> tuple[dict, torch.Tensor]:
    """Return a linear layer's gradients and losses (n,), by formula.

    Autograd would take longer than the arithmetic.

    Args:
        weights: (c, f) and (c,), shared, or (n, c, f) and (n, c), of n clients.
        features: (n, s, f).
        targets: labels (n, s), or numbers (n, s, c).
        weight: (n, s), each sample's weight.
        loss: cross_entropy or mse_loss.
    """
    # Outputs come before samples, (n, c, s): both products and the softmax are twice as fast.
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
    # The slope of the weighted loss in the outputs; both gradients are linear in it.
    error *= weight[:, None]
    return {matrix_name: torch.bmm(error, features), bias_name: error.sum(2)}, losses


def weighted_gradients(
    model: nn.Module,
    weights: dict,
    shared: int | None,
    features: Features,
    targets: torch.Tensor,
    weight: torch.Tensor,
    masks: list[torch.Tensor],
    loss: Loss,
) -> tuple[dict, torch.Tensor, torch.Tensor]:
    """Return gradients, losses (n,) and outputs (n, s, ...) of n clients at once.

    Args:
        model: this thread's writable replica.
        weights: each trained parameter (*shape), or (n, *shape) with `shared` 0 instead of None.
        features: (n, s, *shape), each of them.
        targets: (n, s, *shape).
        weight: (n, s), each example's weight.
        masks: (n, s, ...), of each call of dropout.
        loss: the mean loss over a batch.
    """

    def weighted_loss(weights, features, targets, weight, masks):
        with with_masks(model, masks):
            output = called(model, features, weights)
        return (each_loss(loss, output, targets) * weight).sum(), output.detach()

    # vmap keeps clients apart, but for look-ups beyond a table, which `ClientGuard` covers. A model
    # that branches on a number raises an error in it.
    clients_gradients = vmap(grad_and_value(weighted_loss, has_aux=True), (shared, 0, 0, 0, 0))
    parts, (losses, output) = clients_gradients(weights, features, targets, weight, masks)
    return parts, losses, output


def linear_changes(
    weights: dict, parts: dict, features: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a linear layer's outputs (n, s, c), and their change along the gradients `parts`."""

    def linear(parameters: dict) -> torch.Tensor:
        matrix, bias = parameters.values()
        return features @ matrix.mT + bias[..., None, :]

    # Outputs are linear in the weights, so that a step of one gradient shows the exact change.
    return linear(weights), linear(parts)


def changes(
    model: nn.Module,
    weights: dict,
    output: torch.Tensor,
    parts: dict,
    length: torch.Tensor,
    features: Features,
    masks: list[torch.Tensor],
) -> torch.Tensor:
    """Return the change (n, s, ...) of n clients' outputs along the gradients.

    Args:
        model: this thread's writable replica.
        weights: as for `weighted_gradients`.
        output: (n, s, ...) with these weights.
        parts: each client's gradient by parameter, (n, *shape).
        length: (n,) of the step that shows the change, in gradients; see `small_step`.
        features: (n, s, *shape), each of them.
        masks: (n, s, ...), of each call of dropout.
    """

    def client_output(weights, features, masks):
        with with_masks(model, masks):
            return called(model, features, weights)

    # By the difference of two passes: not all models have derivatives in forward mode.
    moved = _stepped(weights, parts, length)
    with torch.no_grad():
        moved_output = vmap(client_output)(moved, features, masks)
    return (output - moved_output) / length.view(-1, *[1] * (output.ndim - 1))


def weighted_curvature(
    loss: Loss,
    output: torch.Tensor,
    change: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor,
) -> torch.Tensor:
    """Return the second derivative (n,) of each client's weighted loss, along a change of outputs.

    Args:
        loss: the mean loss over a batch.
        output, change: (n, s, ...).
        targets: (n, s, ...).
        weight: (n, s), each example's weight.
    """
    # The two most common losses by formula, which is faster than differentiating twice.
    if loss is nn.functional.cross_entropy and output.ndim == 3 and targets.ndim == 2:
        return cross_entropy_curvature(output, change, weight)
    if loss is nn.functional.mse_loss:
        return squared_error_curvature(change.reshape(*weight.shape, -1), weight)

    def client_curvature(output, change, targets, weight):
        def total(output):
            return (each_loss(loss, output, targets) * weight).sum()

        # Differentiated twice along `change`: the matrix of second derivatives is never built.
        def slope(output):
            return (grad(total)(output) * change).sum()

        return (grad(slope)(output) * change).sum()

    return vmap(client_curvature)(output, change, targets, weight)


def _stepped(weights: dict, parts: dict, lengths: torch.Tensor) -> dict:
    # Each client's weights after a step of `lengths` (n,) times its gradient.
    return {
        name: weights[name] - lengths.view(-1, *[1] * (part.ndim - 1)) * part
        for name, part in parts.items()
    }


class _Pass(NamedTuple):
    """Examples of n clients, s of each, with their weights (n, s); padding has weight zero."""

    features: Features
    targets: torch.Tensor
    weight: torch.Tensor

    def without_absent(self, values: torch.Tensor) -> torch.Tensor:
        """Set values (n, ...) of clients without an example in this pass to zero."""
        present = self.weight.any(1)
        # Not a product with zero: an absent client's padding may overflow to infinity.
        return values.where(present.view(-1, *[1] * (values.ndim - 1)), 0)


MAX_PASS_WIDTH = 32
"""Most examples of a client in a pass over several clients. Twice as many would pad small clients
to twice their work; half as many would take large ones through twice as many passes."""


def pass_width(work: Work) -> int:
    # By the settings alone: a width by the clients' sizes would let one client's number of examples
    # change how another's gradients are rounded.
    return min(work.batch or MAX_PASS_WIDTH, MAX_PASS_WIDTH)


class VectorizedClients:
    """Computes the local steps of several clients at once.

    All passes have one shape, whatever the clients' numbers of examples, because another shape may
    change how gradients are rounded. A client with more examples than the width of a pass takes
    part in several.

    Args:
        copies: the model, with the loaded weights.
        data: the clients' examples.
        loss: the mean loss over a batch.
        work: what a client computes.
        linear: whether `linear_gradients` applies.
        watched: check that modules and the loss store nothing during a call; needed where a user
            vouches for them.
        guarded: keep clients apart where an operation fails for one of them, for example because
            an index is out of range.

    Raises:
        ValueError: by `updates`, where a module has stored something, or caught such a failure.
    """

    def __init__(
        self,
        copies: ModelReplicas,
        data: BatchReader,
        loss: Loss,
        work: Work,
        *,
        linear: bool,
        watched: bool = False,
        guarded: bool = False,
    ) -> None:
        self._copies, self._data, self._loss = copies, data, loss
        self._watched, self._guarded = watched, guarded
        self._rate, self._width, self._linear = work.learning_rate, pass_width(work), linear

    def updates(
        self,
        clients: Sequence[int],
        steps: Sequence[list[np.ndarray]],
        keys: Sequence[Key] = (),
    ) -> tuple[torch.Tensor, np.ndarray]:
        """Return updates (n, d) and first losses (n,).

        Args:
            clients: numbers of the clients.
            steps: each client's samples of each of its steps. A client with fewer steps than
                others stays where it is in the last ones.
            keys: of each client's dropout, where the model has some.
        """
        masks = ClientMasks(self._copies.writable(), keys, self._data.device)
        start, firsts = self._copies.weights(), [samples[0] for samples, *_ in steps]
        owners = list(zip(clients, firsts, strict=True))
        # Compared after the steps: what a module stores of these clients would reach the next ones.
        before = self._attributes()
        with ClientGuard() if self._guarded else nullcontext() as guard:
            if self._rate is None:
                batches = [samples for samples, *_ in steps]
                update, losses, _ = self._step(
                    start, None, batches, owners, partial(masks.draw, number=0)
                )
            else:
                weights, shared, losses = start, None, torch.empty(0)
                for number in range(max(map(len, steps))):
                    batches = [
                        each[number] if number < len(each) else _NO_SAMPLES for each in steps
                    ]
                    parts, step_losses, lengths = self._step(
                        weights, shared, batches, owners, partial(masks.draw, number=number)
                    )
                    weights = _stepped(weights, parts, lengths)
                    # All begin at one set of weights; after a step each client has its own.
                    shared, losses = 0, losses if number else step_losses
                update = {name: start[name] - weights[name] for name in start}
        # All checks come before the updates are returned: none leaves if any of them fails.
        self._copies.check()
        if guard is not None and guard.kind:
            raise ValueError(
                f"Expected operations that succeed for all clients, got {guard.kind}, which the "
                "model has caught: one client's numbers would decide how the others are computed. "
                "Give Local(together=False)."
            )
        if not are_the_same(before, self._attributes()):
            raise ValueError(
                "Expected modules that store nothing during a call with together=True, got a "
                "changed attribute: the next clients would see it; leave together out."
            )
        # In the order of the trained parameters, as `Learner.parameters` has them.
        flat = [update[name].reshape(len(steps), -1) for name in start]
        return torch.cat(flat, dim=1), losses.double().cpu().numpy()

    def _attributes(self) -> list[object]:
        return attribute_values(self._copies.writable(), self._loss) if self._watched else []

    def _step(
        self,
        weights: dict,
        shared: int | None,
        batches: Sequence[np.ndarray],
        owners: Sequence[tuple[int, int]],
        draw: Callable[..., list[torch.Tensor]],
    ) -> tuple[dict, torch.Tensor, torch.Tensor]:
        """Return each client's gradient on its batch, its loss, and its step's length in gradients.

        Args:
            weights: each client's (n, *shape), or shared ones (*shape).
            shared: 0 for each client's, None for shared ones, as vmap's `in_dims`.
            batches: each client's samples; empty for a client without a step.
            owners: each client, and one of its samples, which pads its batch.
            draw: the masks of dropout, for a pass of this step.
        """
        starts = range(0, max(map(len, batches)), self._width)
        # A single pass is gathered once for both loops; several would need too much memory to keep.
        only = self._pass(batches, owners, 0) if len(starts) == 1 else None
        parts: dict[str, Any] = dict.fromkeys(weights, 0.0)
        losses: Any = 0.0
        outputs, drawn = [], []
        for start in starts:
            some = only or self._pass(batches, owners, start)
            drawn.append(draw(some.features, start=start))
            pass_parts, pass_losses, output = self._gradients(weights, shared, some, drawn[-1])
            outputs.append(output)
            # A client without an example in this pass is not moved, even if its padding overflows.
            parts = {name: each + some.without_absent(pass_parts[name])
                     for name, each in parts.items()}  # fmt: skip
            losses = losses + some.without_absent(pass_losses)
        if not isinstance(self._rate, str):
            # A given rate is every client's step length; without steps the gradient itself is sent.
            return parts, losses, torch.full_like(losses, self._rate or 0.0)
        square = squares(parts.values())
        curvature: Any = 0.0
        # In a second loop, because the direction of the step is known after the last pass only.
        for start, output, again in zip(starts, outputs, drawn, strict=True):
            some = only or self._pass(batches, owners, start)
            output, change = self._changes(
                weights, shared, output, parts, square, some.features, again
            )
            pass_curvature = weighted_curvature(
                self._loss, output, change, some.targets, some.weight
            )
            curvature = curvature + some.without_absent(pass_curvature)
        return parts, losses, step_length(square, curvature, losses)

    def _pass(
        self, batches: Sequence[np.ndarray], owners: Sequence[tuple[int, int]], start: int
    ) -> _Pass:
        some = [samples[start : start + self._width] for samples in batches]
        real = np.arange(self._width) < np.array([[len(samples)] for samples in some])
        # Clients with fewer samples are padded with one of their own, of weight zero: infinity
        # times zero is NaN, and no other client's sample may cause that.
        clients, firsts = zip(*owners, strict=True)
        padding = [[*samples[:1], first][0] for samples, first in zip(some, firsts, strict=True)]
        index = np.repeat(np.array(padding)[:, None], self._width, axis=1)
        index[real] = np.concatenate(some)
        # Weights are shares of the whole batch, so that the passes' gradients add up to its mean.
        sizes = np.array([[max(1, len(samples))] for samples in batches])
        features, targets = self._data.rows(clients, index)
        if self._linear:
            # The model may have a Flatten layer, which the formula skips.
            features = features.flatten(2)
        # In float64 until the division is done, so that each weight is rounded once.
        weight = torch.from_numpy((real / sizes).astype(np.float32)).to(targets.device)
        return _Pass(features, targets, weight)

    def _gradients(
        self, weights: dict, shared: int | None, some: _Pass, masks: list[torch.Tensor]
    ) -> tuple[dict, torch.Tensor, torch.Tensor | None]:
        if self._linear:
            assert isinstance(some.features, torch.Tensor)
            pair = linear_gradients(weights, some.features, some.targets, some.weight, self._loss)
            return *pair, None
        model = self._copies.writable()
        return weighted_gradients(model, weights, shared, *some, masks, self._loss)

    def _changes(
        self,
        weights: dict,
        shared: int | None,
        output: torch.Tensor | None,
        parts: dict,
        square: torch.Tensor,
        features: Features,
        masks: list[torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if output is None:
            assert isinstance(features, torch.Tensor)
            return linear_changes(weights, parts, features)
        each_weight = weights.values()
        norms = squares(each_weight if shared == 0 else [each[None] for each in each_weight])
        # Relative to each client's own weights: a fixed step would vanish beside large ones.
        length = small_step(square, norms)
        model = self._copies.writable()
        return output, changes(model, weights, output, parts, length, features, masks)


_NO_SAMPLES = np.empty(0, dtype=np.int64)


MAX_GROUP_CLIENTS = 5
"""Most clients that a worker takes at once where each is computed by itself. Twice as many would
let workers wait longer for the last group; fewer would ask for groups more often."""


def shrinking_groups(cohort: Sequence[int], workers: int) -> list[Sequence[int]]:
    """Split a cohort so that no worker waits long for the last group.

    Example:
        >>> shrinking_groups(range(10), 2)
        [range(0, 3), range(3, 5), range(5, 7), range(7, 8), range(8, 9), range(9, 10)]
    """
    groups, start = [], 0
    # A group is at most half of a worker's share of what is left, so that the last ones are single.
    while left := len(cohort) - start:
        size = min(MAX_GROUP_CLIENTS, -(-left // (2 * workers)))
        groups.append(cohort[start : start + size])
        start += size
    return groups


# Whether several clients may be computed in one vectorised pass.

KNOWN_ATTENTION = partial(sdpa_kernel, SDPBackend.MATH)
"""Context in which torch computes attention by operations that vmap has rules for.

It is a setting of the whole process."""

MEAN_LOSS_FUNCTIONS = (
    nn.functional.cross_entropy,
    nn.functional.mse_loss,
    nn.functional.l1_loss,
    nn.functional.smooth_l1_loss,
    nn.functional.huber_loss,
    nn.functional.binary_cross_entropy_with_logits,
)
"""Losses that average over examples independently, with their default options.

Cross entropy ignores some labels, which `check_labels` refuses. Other losses may leave examples
out, weigh them or compare them."""


def find_obstacle(
    problem: Problem, work: Work, reading: Reading, *, draws: bool, apart: bool
) -> Obstacle | None:
    """Return why several clients may not be computed in one pass, or several clipped examples.

    Args:
        problem: the model, the clients' data and the loss.
        work: what a client computes.
        reading: what the model does with its examples.
        draws: whether a step draws random numbers, other than what `written_out` draws by client.
        apart: whether a client's update must not depend on who else takes part, even in rounding.
    """
    loss, clipped = problem.loss, work.example_norm is not None
    # Clipped examples are computed together within one client only, so that rules about other
    # clients do not apply to them.
    if draws:
        return Obstacle("a training step that draws random numbers, or may", certain=True)
    if _is_hooked(problem.model):
        return Obstacle("a model with hooks, which would run for several at once", certain=True)
    if not clipped and not problem.clients.stored:
        return Obstacle("examples that are read when they are needed", certain=True)
    if not clipped and apart:
        return Obstacle("cohorts that nobody sees, which must not show in rounding", certain=True)
    if loss not in MEAN_LOSS_FUNCTIONS and not (clipped and type(loss) in MEAN_LOSS_TYPES):
        # For a loss of one's own a user may vouch; what torch's other losses do is known.
        by_torch = getattr(loss, "__module__", "").startswith("torch.")
        words = "leave out or weigh examples" if by_torch else "compare examples"
        return Obstacle(f"a loss that may {words}", certain=by_torch and not clipped)
    return reading.obstacle


MEAN_LOSS_TYPES = (
    nn.CrossEntropyLoss,
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCEWithLogitsLoss,
)
"""Losses that vmap computes example by example, whatever their options."""


def _is_hooked(model: nn.Module) -> bool:
    return any(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        for layer in model.modules()
    )


# Updates of clients that are computed one after another, whatever the model.

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
        # A device's sum is divided by the public number that is charged (`rounds.member`).
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
