"""A client's steps in a training function of one's own, without a learning rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from randquant._internal import validate
from randquant.local_training.curvature import Gradients, gradients, length_along
from randquant.local_training.dry_run import Loss, uniform_loss
from randquant.local_training.local import LOCAL_EPOCHS
from randquant.local_training.models import Features, seeded


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
    value, guess = float(slope.loss), uniform_loss(loss, [*slope.output.shape, 1][1])
    return FirstLoss(value, 1.0 if guess is None else value / guess)
