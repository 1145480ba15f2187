"""How long a client's step is, by the curvature of its own loss along its own gradient.

A client's data never leave it, so that its steps may depend on them as they like: what it sends is
clipped like any other update (`docs/theory/untuned.md`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from randquant._internal import validate
from randquant.local_training.dry_run import Loss, uniform_loss
from randquant.local_training.local import LOCAL_EPOCHS
from randquant.local_training.models import Features, called, seeded

DAMPING = 1e-3
"""Curvature that is added to the loss's, so that no step is longer than 1000 gradients. Twice as
much halves the steps on a flat loss; half as much doubles them."""

MIN_SQUARED_NORM = 1e-36
"""Squared norm below which a gradient counts as zero: divisions by it would overflow float32."""

PROBE_STEP_LENGTH = 1e-3
"""Length of the step that measures how outputs change, as a share of the weights' norm. Float32
rounds to 1e-7 of the norm, so a much shorter step would measure rounding, and a much longer one
the bend of the outputs instead of their slope."""


def squares(parts: Iterable[Tensor]) -> Tensor:
    """Return the squared norms (n,) of n clients' vectors, given as parts (n, *shape)."""
    each = (part.detach().reshape(len(part), -1).square() for part in parts)
    return torch.stack([part.sum(1, dtype=torch.float64) for part in each]).sum(0)


def small_step(square: Tensor, weights: Tensor) -> Tensor:
    """Return the length, in gradients, of a step that shows how outputs change.

    Args:
        square: squared norm of the gradient.
        weights: squared norm of the weights.

    Example:
        >>> small_step(torch.tensor(4.0), torch.tensor(100.0))
        tensor(0.0050)
    """
    # A gradient that counts as zero moves next to nothing: 1 only keeps the division finite.
    shortest = torch.where(square > MIN_SQUARED_NORM, square, 1.0)
    return (PROBE_STEP_LENGTH * torch.sqrt(weights.clamp_min(1) / shortest)).float()


def step_length(square: Tensor, curvature: Tensor, loss: Tensor) -> Tensor:
    """Return a step's length, in gradients: it ends at the lowest point of the loss along it.

    Args:
        square: squared norm of the gradient g.
        curvature: g'Hg, with H the Gauss-Newton matrix: that of the loss if outputs were linear in
            the weights.
        loss: the loss before the step. It caps the length at 2 loss / |g|^2, where a parabola
            whose lowest value is zero has that value.

    Returns:
        |g|^2 / (g'Hg + DAMPING |g|^2), at most 2 loss / |g|^2 if the loss is positive. Zero for a
        gradient of zero.

    Example:
        >>> step_length(torch.tensor(4.0), torch.tensor(8.0), torch.tensor(3.0))
        tensor(0.4998)
    """
    # In float64: DAMPING times the smallest square that counts is a denormal of float32.
    exact, high = square.double(), loss.double()
    # A curvature beyond float32 gives a step of zero.
    bounded = torch.where(curvature.isnan(), math.inf, curvature.double()).clamp_min(0)
    length = exact / (bounded + DAMPING * exact)
    # A loss of the user's own may be negative: then no parabola that ends at zero bounds the step.
    length = torch.where(high > 0, torch.minimum(length, 2 * high / exact), length)
    return torch.where(exact > MIN_SQUARED_NORM, length, 0.0).float()


def curvature_along(loss: Loss, output: Tensor, targets: Tensor, change: Tensor) -> Tensor:
    """Return the second derivative of a loss in its outputs, along a change of them.

    Args:
        loss: the mean loss over a batch.
        output: of the model for the batch.
        targets: of the batch.
        change: of the output, in the same shape.

    Returns:
        One number; zero for a loss whose gradient cannot be differentiated, or need not be.

    Example:
        >>> square = torch.nn.functional.mse_loss
        >>> curvature_along(square, torch.zeros(2), torch.ones(2), torch.tensor([1.0, 3.0]))
        tensor(10.)
    """
    if loss is nn.functional.cross_entropy and output.ndim == 2 and targets.ndim == 1:
        weight = torch.full((1, len(output)), 1 / len(output), device=output.device)
        return cross_entropy_curvature(output[None], change[None], weight)[0]
    # In the outputs alone: second derivatives in the weights would cost many passes.
    start = output.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(start, targets), start, create_graph=True)
    # A loss that is linear in the outputs has no second derivative.
    if not slope.requires_grad:
        return torch.zeros(())
    try:
        (turned,) = torch.autograd.grad((slope * change).sum(), start, allow_unused=True)
    except RuntimeError:  # a function of the user's own, without a second derivative
        return torch.zeros(())
    return torch.zeros(()) if turned is None else (turned * change).sum().detach()


class Gradients(NamedTuple):
    """A batch's gradients in the order of the weights, its mean loss, and the model's outputs."""

    parts: Sequence[Tensor]
    loss: Tensor
    output: Tensor


def gradients(
    model: nn.Module, weights: Sequence[Tensor], batch: tuple[Features, Tensor], loss: Loss
) -> Gradients:
    """Compute a batch's gradients, mean loss and outputs; the model stays as it is."""
    features, targets = batch
    output = called(model, features)
    value = loss(output, targets)
    # Parameters that this batch does not use have gradient zero.
    parts = torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)
    dense = [part.to_dense() for part in parts]  # an embedding may have sparse ones
    return Gradients(dense, value.detach(), output.detach())


def length_along(
    model: nn.Module,
    weights: Sequence[Tensor],
    batch: tuple[Features, Tensor],
    loss: Loss,
    slope: Gradients,
) -> Tensor:
    """Return a step's length, in gradients, from the change of outputs that a small step makes.

    Args:
        model: with these weights, which are moved and put back.
        weights: the trained ones.
        batch: features and targets.
        loss: the mean loss over a batch.
        slope: the gradients at these weights.
    """
    (features, targets), (parts, value, output) = batch, slope
    square, norm = (squares([each[None] for each in vector])[0] for vector in (parts, weights))
    small = small_step(square, norm)
    with torch.no_grad():
        start = [weight.clone() for weight in weights]
        for weight, part in zip(weights, parts, strict=True):
            weight -= small * part
        change = (output - called(model, features)) / small
        # Copied back: adding the step again would not restore every bit.
        for weight, before in zip(weights, start, strict=True):
            weight.copy_(before)
    return step_length(square, curvature_along(loss, output, targets, change), value)


def cross_entropy_curvature(logits: Tensor, change: Tensor, weight: Tensor) -> Tensor:
    """Return the second derivative (n,) of each client's weighted cross entropy, by formula.

    Args:
        logits: (n, s, c), of n clients' s examples.
        change: of the logits, (n, s, c).
        weight: (n, s), each example's weight.
    """
    # The variance of the change, with the softmax as the distribution over classes.
    share, exact = torch.softmax(logits, dim=-1).double(), change.double()
    mean = (share * exact).sum(-1, keepdim=True)
    spread = (share * (exact - mean).square()).sum(-1)
    return (spread * weight).sum(-1)


def squared_error_curvature(change: Tensor, weight: Tensor) -> Tensor:
    # (n,) from changes of outputs (n, s, c); the second derivative of a square is 2.
    return (2 * change.double().square().mean(-1) * weight).sum(-1)


class FirstLoss(NamedTuple):
    """The loss of a client's first batch, at the weights that it received.

    Attributes:
        loss: the mean over the batch.
        relative: the same as a share of the loss of a model that gives all classes the same
            probability; 1.0 where the loss is not a cross entropy. Return it as the metric
            `relative-loss`: clients whose model is right already shorten their updates by it. It
            stays on the client unless an offer names it among its numbers, in the same account.
    """

    loss: float
    relative: float


def local_steps(
    model: nn.Module,
    batches: Iterable[tuple[Features, Tensor]],
    loss: Loss = nn.functional.cross_entropy,
    epochs: int = LOCAL_EPOCHS,
) -> FirstLoss:
    """Train a model on one client's data, in steps as long as its own curvature asks for.

    For a training function of Flower or NVFlare, it does what `train` does with a client by
    default. It needs no learning rate, and adds no noise: privacy comes from what is sent. The
    model keeps its mode, training or evaluation.

    Args:
        model: trained in place, in its parameters that require a gradient.
        batches: the client's (features, targets), such as a DataLoader, or `[(x, y)]` for all in
            one; iterated once an epoch.
        loss: from (outputs, targets) to the mean loss.
        epochs: passes over the batches.

    Returns:
        The loss before the first step, in two forms.

    Raises:
        ValueError: there is no batch, or no parameter to train.

    References:
        `docs/theory/untuned.md`.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> x, y = torch.eye(2), torch.tensor([[1.0], [-1.0]])
        >>> first = local_steps(model, [(x, y)], torch.nn.functional.mse_loss, epochs=100)
        >>> torch.nn.functional.mse_loss(model(x), y).item() < 0.01 * first.loss
        True
    """
    epochs = validate.whole("epochs", epochs, low=1)
    weights = [each for each in model.parameters() if each.requires_grad]
    if not weights:
        raise ValueError(
            "Expected a model with parameters that require a gradient, got "
            f"{sum(1 for _ in model.parameters())} parameters of which none does."
        )
    # Without a client's key: a device draws from its own generators.
    first: FirstLoss | None = None
    for _ in range(epochs):
        for features, targets in batches:
            # One seed for both: with another dropout mask, outputs would change by the mask too.
            seed = int(torch.randint(2**31, ()))
            with seeded(seed, weights[0].device):
                slope = gradients(model, weights, (features, targets), loss)
            buffers = [buffer.clone() for buffer in model.buffers()]
            with seeded(seed, weights[0].device):
                length = length_along(model, weights, (features, targets), loss, slope)
            with torch.no_grad():
                # Running statistics shall count this batch once, though it was computed twice.
                for buffer, before in zip(model.buffers(), buffers, strict=True):
                    buffer.copy_(before)
                for weight, part in zip(weights, slope.parts, strict=True):
                    weight -= length * part
            first = first or _first_loss(slope, loss)
    if first is None:
        raise ValueError("Expected batches of a client's data, got 0 batches.")
    return first


def _first_loss(slope: Gradients, loss: Loss) -> FirstLoss:
    # Outputs of shape (n,) have one score an example, which the 1 behind the shape stands in for.
    value, guess = float(slope.loss), uniform_loss(loss, [*slope.output.shape, 1][1])
    return FirstLoss(value, 1.0 if guess is None else value / guess)
