"""Running statistics of BatchNorm that the server computes on public examples.

Statistics of a client's own activations would leave it without protection. The server's depend
only on the released weights and on public examples, so they cost no privacy; clients use them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from randquant.local_training.examples import Examples
from randquant.local_training.models import called, map_tensors

STATISTICS_BATCH_SIZE = 256
"""Most public examples in a batch. More would only need more memory; fewer would make the average
over batches of each batch's variance smaller than the variance of all examples."""


class ServerStatistics:
    """Computes a model's running statistics at its present weights.

    Args:
        model: a replica that shares parameters and buffers with the models whose statistics are to
            be set; its layers' modes are changed.
        examples: public ones, at least two.
        device: where the model is.

    Guarantees:
        The statistics are a function of the weights and the public examples; nothing of an earlier
        round remains in them.
    """

    def __init__(self, model: nn.Module, examples: Examples, device: torch.device) -> None:
        self._model, self._examples, self._device = model.eval(), examples, device
        self._layers: list[Any] = [each for each in model.modules() if is_batch_norm(each)]
        for layer in self._layers:
            # In training mode it updates its statistics; the rest of the model is as in a test.
            layer.train()
            # None means plain averages over batches, which the order of examples does not weigh.
            layer.momentum = None

    def refresh(self) -> None:
        """Set the statistics to averages over batches of public examples of nearly equal sizes."""
        # From zero: statistics of earlier weights say nothing about these.
        for layer in self._layers:
            layer.reset_running_stats()
        count = len(self._examples)
        with torch.no_grad():
            for places in np.array_split(np.arange(count), -(-count // STATISTICS_BATCH_SIZE)):
                features, _ = self._examples.take(places)
                called(self._model, map_tensors(lambda each: each.to(self._device), features))


def is_batch_norm(layer: nn.Module) -> bool:
    """Return whether a layer is a BatchNorm that keeps running statistics."""
    norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
    return norm and bool(layer.track_running_stats)
