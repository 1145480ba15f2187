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

from randquant.local_training.copies import Features, called
from randquant.local_training.trial import Loss

DAMPING = 1e-3
"""Curvature that is added to the loss's: no step is longer than a thousand gradients."""

NOTHING = 1e-36
"""Squared norm of a gradient below which it is not followed: its step would overflow."""

NEARBY = 1e-3
"""Length of the step by which a change of outputs is measured, beside that of the weights: large
beside what rounding to float32 does, small beside what bends."""


def squares(parts: Iterable[Tensor]) -> Tensor:
    """Return the squared norms (n,) of n clients' vectors, given as parts (n, *shape)."""
    each = (part.detach().reshape(len(part), -1).square() for part in parts)
    return torch.stack([part.sum(1, dtype=torch.float64) for part in each]).sum(0)


def small_step(square: Tensor, weights: Tensor) -> Tensor:
    """Return how many gradients long a step is that shows how outputs change.

    Args:
        square: squared norm of the gradient.
        weights: squared norm of the weights.

    Example:
        >>> small_step(torch.tensor(4.0), torch.tensor(100.0))
        tensor(0.0050)
    """
    shortest = torch.where(square > NOTHING, square, 1.0)
    return (NEARBY * torch.sqrt(weights.clamp_min(1) / shortest)).float()


def step_length(square: Tensor, curvature: Tensor, loss: Tensor) -> Tensor:
    """Return how many gradients long a step is: to the lowest point of the loss along it.

    Args:
        square: squared norm of the gradient g.
        curvature: g'Hg, with H the Gauss-Newton matrix: that of the loss if outputs were linear in
            the weights.
        loss: the loss, which a step must not be expected to take below zero: a parabola that
            stays above zero does not ask for a longer one.

    Returns:
        |g|^2 / (g'Hg + DAMPING |g|^2), at most 2 loss / |g|^2 if the loss is positive. Zero for a
        gradient of zero.

    Example:
        >>> step_length(torch.tensor(4.0), torch.tensor(8.0), torch.tensor(3.0))
        tensor(0.4998)
    """
    exact, high = square.double(), loss.double()
    # What is too bent for float32 is not followed.
    bent = torch.where(curvature.isnan(), math.inf, curvature.double()).clamp_min(0)
    length = exact / (bent + DAMPING * exact)
    length = torch.where(high > 0, torch.minimum(length, 2 * high / exact), length)
    return torch.where(exact > NOTHING, length, 0.0).float()


def along(loss: Loss, output: Tensor, targets: Tensor, change: Tensor) -> Tensor:
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
        >>> along(square, torch.zeros(2), torch.ones(2), torch.tensor([1.0, 3.0]))
        tensor(10.)
    """
    if loss is nn.functional.cross_entropy and output.ndim == 2 and targets.ndim == 1:
        weight = torch.full((1, len(output)), 1 / len(output), device=output.device)
        return of_cross_entropy(output[None], change[None], weight)[0]
    start = output.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(start, targets), start, create_graph=True)
    if not slope.requires_grad:
        return torch.zeros(())
    try:
        (turned,) = torch.autograd.grad((slope * change).sum(), start, allow_unused=True)
    except RuntimeError:  # a function of the user's own, without a second derivative
        return torch.zeros(())
    return torch.zeros(()) if turned is None else (turned * change).sum().detach()


class Gradients(NamedTuple):
    """Of a batch: in the order of the weights; its mean loss, and the model's outputs."""

    parts: Sequence[Tensor]
    loss: Tensor
    output: Tensor


def gradients(
    model: nn.Module, weights: Sequence[Tensor], batch: tuple[Features, Tensor], loss: Loss
) -> Gradients:
    """Return a batch's gradients, its loss, and the outputs that they are of."""
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
    found: Gradients,
) -> Tensor:
    """Return how many gradients long a step is, by what a small one does to the outputs.

    Args:
        model: with these weights, which are moved and put back.
        weights: the trained ones.
        batch: features and targets.
        loss: the mean loss over a batch.
        found: the gradients at these weights.
    """
    (features, targets), (parts, value, output) = batch, found
    square, held = (squares([each[None] for each in of])[0] for of in (parts, weights))
    near = small_step(square, held)
    with torch.no_grad():
        start = [weight.clone() for weight in weights]
        for weight, part in zip(weights, parts, strict=True):
            weight -= near * part
        change = (output - called(model, features)) / near
        for weight, before in zip(weights, start, strict=True):
            weight.copy_(before)
    return step_length(square, along(loss, output, targets, change), value)


def of_cross_entropy(logits: Tensor, change: Tensor, weight: Tensor) -> Tensor:
    """Return each client's second derivative of its weighted cross entropies, by formula.

    Args:
        logits: (n, s, c), of n clients' s examples.
        change: of the logits, (n, s, c).
        weight: (n, s), each example's weight.

    Returns:
        (n,) numbers.
    """
    share, exact = torch.softmax(logits, dim=-1).double(), change.double()
    mean = (share * exact).sum(-1, keepdim=True)
    spread = (share * (exact - mean).square()).sum(-1)
    return (spread * weight).sum(-1)


def of_squares(change: Tensor, weight: Tensor) -> Tensor:
    """Return the same of weighted means of squares, of outputs that change so, (n,) numbers."""
    return (2 * change.double().square().mean(-1) * weight).sum(-1)
