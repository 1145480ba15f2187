"""Adapters along directions that public examples give, in which one step size suits all.

The server takes the same step in every coordinate, and a step that is right for one is too long for
another. So an adapter's coordinates are scaled by what its layer reads and by what the loss feels
of its outputs, both measured on public examples. Clipping, noise and accounting stay what they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from randquant_papers.text.adapters import check_rank, linear_layers, replace

AT_ONCE = 64

Loss = Callable[[Tensor, Tensor], Tensor]
"""The mean loss over a batch, from the model's output and the targets."""


class Directions(NamedTuple):
    """What an adapter reads of its layer's inputs, and what it adds to the outputs.

    Attributes:
        inputs: (rank, inputs) float32.
        outputs: (outputs, outputs) float32, symmetric.
    """

    inputs: Tensor
    outputs: Tensor


class Directed(nn.Module):
    """A linear layer that stays as it is, plus one trained matrix between fixed ones.

    Attributes:
        layer: the layer, whose parameters do not require gradients.
        along: (outputs, rank) float32, zero at first: all that is trained.
    """

    inputs: Tensor
    outputs: Tensor

    def __init__(self, layer: nn.Linear, directions: Directions) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.register_buffer("inputs", directions.inputs)
        self.register_buffer("outputs", directions.outputs)
        self.along = nn.Parameter(torch.zeros(layer.out_features, len(directions.inputs)))

    @property
    def weight(self) -> Tensor:
        """The layer's weight with what is added to it, for modules that read it and do not call."""
        return self.layer.weight + self.outputs @ self.along @ self.inputs

    @property
    def bias(self) -> Tensor | None:
        """The layer's."""
        return self.layer.bias

    def forward(self, features: Tensor) -> Tensor:
        """What the layer computes of (…, inputs), plus what the adapter adds."""
        if len(self.inputs) < self.layer.in_features:
            return self.layer(features) + features @ self.inputs.T @ (self.outputs @ self.along).T
        # What is added is as large as the layer: adding weights costs less than a second product.
        return nn.functional.linear(features, self.weight, self.bias)


def with_directions(model: nn.Module, directions: Mapping[str, Directions]) -> nn.Module:
    """Return a copy of a model with adapters along directions, and nothing else to train.

    Args:
        model: a trained model.
        directions: by the name of a linear layer, as `public_directions` gives them.

    Raises:
        ValueError: a name is of no linear layer.
    """
    model = copy.deepcopy(model).requires_grad_(False)
    for name, layer in linear_layers(model, list(directions)).items():
        replace(model, name, Directed(layer, directions[name]))
    return model


def public_directions(
    model: nn.Module,
    layers: Sequence[str] | None,
    rank: int | None,
    features: Tensor,
    targets: Tensor,
    *,
    loss: Loss = nn.functional.cross_entropy,
    damping: float = 0.3,
) -> dict[str, Directions]:
    """Directions for adapters of rank·outputs numbers a layer, from examples that are public.

    With A and B the mean squares of a layer's inputs and of the loss's slopes at its outputs, an
    adapter reads the rank largest eigenvectors of A, each over the root of its eigenvalue, and adds
    B^(-1/2) times what is trained. If inputs and slopes are independent, the loss is then about
    equally curved in all coordinates. `damping` times the mean eigenvalue is added to each.

    Args:
        model: a trained model.
        layers: patterns such as `blocks.*` of the linear layers' names; None for all.
        rank: directions that an adapter reads; None for all that its layer's inputs have: with
            damping it can then make any weights of the layer's.
        features, targets: public examples, n at least 1 each. No epsilon covers them.
        loss: the mean loss of the model's output and targets.
        damping: at least 0; with more, coordinates that say little are stretched less.

    Raises:
        ValueError: a pattern matches no linear layer, or one that the model does not call, such as
            the last of `nn.MultiheadAttention`; or rank exceeds a layer's inputs.

    References:
        Martens and Grosse 2015 (K-FAC), section 2.2; Sun et al. 2024 (FFA-LoRA), section 4, on
        training one matrix only; Li et al. 2022 (AdaDPS) on scaling by public data.

    Example:
        >>> model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
        >>> shown, labels = torch.randn(20, 6), torch.arange(20) % 3
        >>> adapted = with_directions(model, public_directions(model, ["0"], 2, shown, labels))
        >>> [name for name, each in adapted.named_parameters() if each.requires_grad]
        ['0.along']
    """
    model = copy.deepcopy(model).eval().requires_grad_(True)
    chosen = linear_layers(model, layers)
    if rank is not None:
        for name, layer in chosen.items():
            why = f"an adapter of layer {name} reads no more than its inputs"
            check_rank(rank, layer.in_features, why)
    squares = _mean_squares(model, chosen, features, targets, loss)
    return {name: _scaled(*squares[name], rank, damping) for name in chosen}


def _mean_squares(
    model: nn.Module,
    layers: Mapping[str, nn.Linear],
    features: Tensor,
    targets: Tensor,
    loss: Loss,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Of each layer's inputs and of the slopes at its outputs, float64, up to a factor."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    totals: dict[str, tuple[Tensor, Tensor]] = {}
    count = 0

    def watch(name: str):
        def hook(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            seen[name] = given[0].detach(), output

        return hook

    hooks = [layer.register_forward_hook(watch(name)) for name, layer in layers.items()]
    for some, wanted in zip(features.split(AT_ONCE), targets.split(AT_ONCE), strict=True):
        total = loss(model(some), wanted) * wanted.numel()
        if silent := [name for name in layers if name not in seen]:
            raise ValueError(
                f"Expected layers that the model calls, got {', '.join(silent)}, of which it uses "
                "the weights at most: leave such out of layers."
            )
        slopes = torch.autograd.grad(total, [output for _, output in seen.values()])
        for (name, (given, _)), slope in zip(seen.items(), slopes, strict=True):
            parts = [each.flatten(0, -2).double() for each in (given, slope)]
            squares = [each.T @ each for each in parts]
            old = totals.get(name, (0.0, 0.0))
            totals[name] = squares[0] + old[0], squares[1] + old[1]
        count += wanted.numel()
    for hook in hooks:
        hook.remove()
    return {name: (a / count, b / count) for name, (a, b) in totals.items()}


def _scaled(inputs: Tensor, slopes: Tensor, rank: int | None, damping: float) -> Directions:
    sizes, vectors = torch.linalg.eigh(inputs)
    read = _inverse_roots(sizes, damping)[:, None] * vectors.T
    sizes, vectors = torch.linalg.eigh(slopes)
    added = vectors * _inverse_roots(sizes, damping) @ vectors.T
    return Directions(read.flip(0)[:rank].float().contiguous(), added.float())


def _inverse_roots(sizes: Tensor, damping: float) -> Tensor:
    """Eigenvalues below rounding count as zero, and what has none is not stretched at all."""
    raised = sizes.clamp(min=0) + damping * sizes.mean()
    return torch.where(raised > 1e-12 * sizes.max(), raised, torch.inf).rsqrt()
