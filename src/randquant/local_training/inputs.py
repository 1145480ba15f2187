"""Features of one tensor or of several: how they are sliced, joined and given to a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Features = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""What a model is called with: one tensor, or a tuple or dict of tensors of the same examples."""


def tensors(features: Features) -> list[Tensor]:
    """Return all tensors of the features."""
    if isinstance(features, dict):
        return list(features.values())
    return list(features) if isinstance(features, tuple) else [features]


def of_each(function: Callable[..., Any], *features: Any) -> Any:
    """Apply a function to each tensor, with those in the same place of the other features.

    Example:
        >>> of_each(lambda one, other: one + other, (1, 2), (10, 20))
        (11, 22)
    """
    first = features[0]
    if isinstance(first, dict):
        return {name: function(*(each[name] for each in features)) for name in first}
    if isinstance(first, tuple):
        return tuple(function(*each) for each in zip(*features, strict=True))
    return function(*features)


def called(
    model: nn.Module, features: Features, weights: Mapping[str, Tensor] | None = None
) -> Any:
    """Call a model as torch does: `model(x)`, `model(*features)` or `model(**features)`.

    Args:
        model: the model.
        features: of a batch.
        weights: parameters to take instead of the model's own, by name.

    Returns:
        The output; of one with `logits`, as Hugging Face's models return it, the logits.
    """
    named = features if isinstance(features, dict) else {}
    places = () if named else features if isinstance(features, tuple) else (features,)
    if weights is None:
        output = model(*places, **named)
    else:
        output = functional_call(model, dict(weights), places, named)
    return getattr(output, "logits", output)


def described(features: Features, words: Callable[[Tensor], str]) -> str:
    """Describe each tensor in words; a dict's with their names."""
    texts = of_each(words, features)
    if isinstance(texts, dict):
        return ", ".join(f"{name} {text}" for name, text in texts.items())
    return " and ".join(texts) if isinstance(texts, tuple) else texts


def stored(model: nn.Module) -> list[Tensor]:
    """Return a model's parameters and buffers."""
    return [*model.parameters(), *model.buffers()]


def copied(model: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """Copy a model, which shares these tensors with it.

    What layers have computed from their parameters, as those of weight_norm do, is detached from
    them, or torch would not copy it; they compute it anew.

    Raises:
        ValueError: the model cannot be copied.
    """
    memo = {id(tensor): tensor for tensor in shared}
    for layer in model.modules():
        for value in vars(layer).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except (RuntimeError, TypeError, copy.Error) as error:
        raise ValueError(
            f"Expected a model that can be copied, got {type(error).__name__} from copy.deepcopy: "
            f"{str(error).rstrip('.')}. Build it anew without what holds that."
        ) from error


def in_float32(model: nn.Module) -> nn.Module:
    """Return the model, or a copy in float32 if none of its parameters is: features are."""
    kinds = {parameter.dtype for parameter in model.parameters()}
    if not kinds or torch.float32 in kinds:
        return model
    narrow = copied(model).float()
    return narrow._apply(lambda each: each.cfloat() if each.is_complex() else each)
