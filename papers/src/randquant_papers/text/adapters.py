"""Low-rank adapters: a trained model stays as it is, and few numbers beside it are trained."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn


class Adapted(nn.Module):
    """A linear layer that stays as it is, plus a product of two narrow matrices that is trained.

    Attributes:
        layer: the layer, whose parameters do not require gradients.
        down: (rank, inputs) float32, drawn with the deviation that PyTorch's linear layers have.
        up: (outputs, rank) float32, zero at first: then the layer computes what it did.
    """

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        nn.init.uniform_(self.down, -(layer.in_features**-0.5), layer.in_features**-0.5)

    @property
    def weight(self) -> Tensor:
        """The layer's weight with the adapter's in it: attention reads it and does not call."""
        return self.layer.weight + self.up @ self.down

    @property
    def bias(self) -> Tensor | None:
        """The layer's."""
        return self.layer.bias

    def forward(self, features: Tensor) -> Tensor:
        """What the layer computes of (…, inputs), plus what the adapter adds."""
        return self.layer(features) + features @ self.down.T @ self.up.T


def with_adapters(model: nn.Module, rank: int, layers: Sequence[str] | None = None) -> nn.Module:
    """Return a copy of a model with adapters beside linear layers, and nothing else to train.

    `randquant.train` and the Flower strategy train and send parameters that require gradients
    alone, so only the adapters: rank·(inputs + outputs) numbers a layer.

    Args:
        model: a trained model.
        rank: columns of an adapter, at least 1; small updates need few.
        layers: patterns such as `blocks.*` of the layers' names; None for all linear layers.

    Raises:
        ValueError: a pattern matches no linear layer, or there is none; or rank is not below the
            numbers of inputs and outputs of each layer.

    References:
        Hu et al. 2022 (LoRA), section 4.1.

    Example:
        >>> adapted = with_adapters(nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 10)), 2, ["0"])
        >>> [name for name, each in adapted.named_parameters() if each.requires_grad]
        ['0.down', '0.up']
    """
    model = copy.deepcopy(model).requires_grad_(False)
    for name, layer in linear_layers(model, layers).items():
        most = max(1, min(layer.in_features, layer.out_features) - 1)
        check_rank(rank, most, f"an adapter of layer {name} is narrower than the layer")
        replace(model, name, Adapted(layer, rank))
    return model


def linear_layers(model: nn.Module, layers: Sequence[str] | None) -> dict[str, nn.Linear]:
    """A model's linear layers by name: those that patterns match, or all for None.

    Raises:
        ValueError: a pattern matches no linear layer, or there is none.
    """
    linear = {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear)}
    if not linear or "" in linear:
        raise ValueError(
            "Expected a model with linear layers in it, got "
            f"{'one linear layer' if linear else f'a {type(model).__name__} without any'}: wrap a "
            "single layer in nn.Sequential, or train parts of the model with parts=."
        )
    if layers is None:
        return linear
    for pattern in layers:
        if not any(fnmatchcase(name, pattern) for name in linear):
            raise ValueError(
                f"Expected layers to match linear layers' names, got {pattern!r}, which matches "
                f"none of {', '.join(linear)}."
            )
    matched = {name for name in linear if any(fnmatchcase(name, each) for each in layers)}
    return {name: each for name, each in linear.items() if name in matched}


def check_rank(rank: int, most: int, why: str) -> None:
    """Raise a ValueError unless a rank is from 1 to the most that a layer allows."""
    if not 1 <= rank <= most:
        raise ValueError(f"Expected rank from 1 to {most}, got {rank}: {why}.")


def replace(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of that of a name."""
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, module)
