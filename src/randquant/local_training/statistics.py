"""Running statistics of BatchNorm that the server computes on public examples.

A client's own statistics of its activations would leave it unprotected. The server's depend on the
released weights and on public examples only, so they cost no privacy; clients normalise with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from randquant.local_training.copies import called, of_each
from randquant.local_training.examples import Examples

AT_ONCE = 256
"""Most public examples in a batch."""


class ServerStatistics:
    """Computes a model's running statistics at its present weights.

    Args:
        model: a copy that shares parameters and buffers with the models whose statistics are to be
            set; its layers' modes are changed.
        examples: public ones; two at least.
        device: where the model is.

    Guarantees:
        The statistics are a function of the weights and the public examples: nothing of an earlier
        round is left in them.
    """

    def __init__(self, model: nn.Module, examples: Examples, device: torch.device) -> None:
        self._model, self._examples, self._device = model.eval(), examples, device
        self._layers: list[Any] = [each for each in model.modules() if is_batch_norm(each)]
        for layer in self._layers:
            layer.train()
            layer.momentum = None  # plain averages over the batches

    def refresh(self) -> None:
        """Set the statistics to the averages over batches of at most AT_ONCE public examples."""
        for layer in self._layers:
            layer.reset_running_stats()
        count = len(self._examples)
        with torch.no_grad():
            for places in np.array_split(np.arange(count), -(-count // AT_ONCE)):
                features, _ = self._examples.take(places)
                called(self._model, of_each(lambda each: each.to(self._device), features))


def is_batch_norm(layer: nn.Module) -> bool:
    """Whether a layer is a BatchNorm that keeps running statistics."""
    norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
    return norm and bool(layer.track_running_stats)
