"""A client's steps in a training function of one's own, without a learning rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from randquant._internal import validate
from randquant.local_training.copies import Features, seeded
from randquant.local_training.curvature import Gradients, gradients, length_along
from randquant.local_training.local import LOCAL_EPOCHS
from randquant.local_training.trial import Loss, guess_of


class FirstLoss(NamedTuple):
    """The loss of a client's first batch, at the weights that it received.

    Attributes:
        loss: the mean over the batch.
        relative: the same as a share of the loss of a model that gives all classes the same
            probability; 1.0 where the loss is no cross entropy. Return it as the metric
            `relative-loss`, from which clients that are right already shorten their updates. It
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

    It is what `train` does with a client by default, for a training function of Flower or NVFlare:
    it needs no learning rate, and no privacy, which is added to what is sent. The model is left in
    the mode in which it was given.

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
        raise ValueError("Expected a model with parameters that require a gradient, got none.")
    first: FirstLoss | None = None
    for _ in range(epochs):
        for features, targets in batches:
            seed = int(torch.randint(2**31, ()))  # dropout draws the same for both outputs
            with seeded(seed, weights[0].device):
                found = gradients(model, weights, (features, targets), loss)
            held = [buffer.clone() for buffer in model.buffers()]
            with seeded(seed, weights[0].device):
                length = length_along(model, weights, (features, targets), loss, found)
            with torch.no_grad():
                for buffer, before in zip(model.buffers(), held, strict=True):
                    buffer.copy_(before)  # running statistics have seen this batch once
                for weight, part in zip(weights, found.parts, strict=True):
                    weight -= length * part
            first = first or _first_loss(found, loss)
    if first is None:
        raise ValueError("Expected batches of a client's data, got none.")
    return first


def _first_loss(found: Gradients, loss: Loss) -> FirstLoss:
    value, guess = float(found.loss), guess_of(loss, [*found.output.shape, 1][1])
    return FirstLoss(value, 1.0 if guess is None else value / guess)
