"""One batch is run through a model and a loss, to learn what they do and refuse what cannot be."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from randquant.training.clients import ClientSet, named

TRIED = 8
"""Examples of the first client that are run through the model."""

APART = 1e-3
"""Relative difference between a mean loss over a batch and over the same batch twice, beyond which
the loss is no mean: a hundred times what rounding to float32 makes of it."""


CPU = torch.device("cpu")


class Trial(NamedTuple):
    """What a model and a loss do: how many classes there are, whether they draw random numbers."""

    classes: int | None
    draws: bool


def tried(
    model: nn.Module,
    parts: Sequence[str],
    clients: ClientSet,
    loss: Callable[[Tensor, Tensor], Tensor],
    buffers: str,
) -> Trial:
    """Run the first examples of the first client through a copy of the model.

    Args:
        model: as it is given.
        parts: names of the parameters that are trained.
        clients: all clients' data.
        loss: of a batch.
        buffers: what is done about running statistics.

    Raises:
        TypeError, ValueError: the model does not take the features, returns something other than a
            tensor, or keeps running statistics; or the loss is no mean over the batch, is not
            finite, or does not depend on the parameters.
    """
    model = copy.deepcopy(model)
    with seeded(0):
        before = torch.get_rng_state()
        features, targets = clients.take(0, clients.places[0][:TRIED])
        # Twice, because BatchNorm takes no single example in training.
        twice = torch.cat([features, features]), torch.cat([targets, targets])
        _check_statistics(model, twice[0], buffers)
        work_mode(model, buffers)
        output = _output(model, twice[0])
        if loss is nn.functional.cross_entropy:
            with named(clients.names[0]):
                check_labels(twice[1], class_number(output, twice[1]))
        _loss(loss, output, twice[1])
        draws = not torch.equal(before, torch.get_rng_state())
        model.eval()
        output = _output(model, features)
        one = _loss(loss, output, targets)
        two = _loss(loss, _output(model, twice[0]), twice[1])
    _check_mean(float(one.detach()), float(two.detach()))
    if not one.requires_grad:
        raise ValueError(
            "Expected a loss that depends on the trained parameters, got one that does not: "
            f"compute it from the model's output, without detaching; trained are {parts[0]}, …."
        )
    return Trial(class_number(output, targets), draws)


@contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Run with the generators of torch's CPU and of a device seeded; afterwards as they were.

    These generators belong to all threads: only one thread may be in here.
    """
    there = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if there else []):
        torch.default_generator.manual_seed(seed)
        if there:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def work_mode(model: nn.Module, buffers: str) -> None:
    """Set a model's layers to how clients train it: frozen running statistics stay as they are."""
    model.train()
    if buffers != "refuse":
        for layer in model.modules():
            if keeps_statistics(layer):
                layer.eval()


def keeps_statistics(layer: nn.Module) -> bool:
    """Whether a layer of torch keeps running statistics of what it is given in training."""
    normalises = isinstance(layer, nn.modules.batchnorm._NormBase)
    return normalises and bool(layer.track_running_stats)


def class_number(output: Tensor, targets: Tensor) -> int | None:
    """How many classes: outputs (n, C, …) with integer targets (n, …); None for other tasks."""
    if targets.is_floating_point() or output.ndim < 2 or output.shape[1] < 2:
        return None
    return output.shape[1] if output.shape[:1] + output.shape[2:] == targets.shape else None


def check_labels(labels: Tensor, classes: int | None) -> None:
    """Refuse labels that no output of the model stands for, if they are numbers of classes."""
    if classes is None:
        return
    low, high = (int(bound) for bound in labels.aminmax())
    if low < 0 or high >= classes:
        raise ValueError(
            f"Expected labels from 0 to {classes - 1}, one for each output of the model, got "
            f"{low if low < 0 else high}: renumber them, or give the model more outputs."
        )


def _check_statistics(model: nn.Module, features: Tensor, buffers: str) -> None:
    """Refuse a model whose buffers would change in training."""
    work_mode(model, buffers)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    _output(model, features)
    moved = [
        name for name, buffer in model.named_buffers()
        if name not in before or not torch.equal(buffer, before[name])
    ]  # fmt: skip
    if moved:
        where = moved[0].rpartition(".")[0]
        kind = type(model.get_submodule(where)).__name__
        raise ValueError(
            f"Expected a model without running statistics, got {kind} with {moved[0]}: replace "
            "BatchNorm by GroupNorm, or keep the statistics as they are with buffers='frozen'; "
            "clients' statistics would be sent unprotected."
        )


def _output(model: nn.Module, features: Tensor) -> Tensor:
    try:
        output = model(features)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"Expected a model that takes features {('n', *features.shape[1:])} in "
            f"{features.dtype}, got {type(error).__name__}: {_sentence(error)}"
        ) from error
    if not isinstance(output, Tensor):
        raise TypeError(
            f"Expected a model that returns one tensor, got a {type(output).__name__}: wrap it in "
            "a module whose forward returns the tensor that the loss takes."
        )
    return output


def _loss(loss: Callable[[Tensor, Tensor], Tensor], output: Tensor, targets: Tensor) -> Tensor:
    kinds = f"an output {tuple(output.shape)} and targets {tuple(targets.shape)} {targets.dtype}"
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            value = loss(output, targets)
    except IndexError as error:
        raise ValueError(
            f"Expected labels that are outputs' numbers, got {_sentence(error)} Renumber them "
            "from 0, or give the model more outputs."
        ) from error
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(
            f"Expected a loss of {kinds}, got {type(error).__name__}: {_sentence(error)}"
        ) from error
    if any("target size" in str(each.message) for each in warned):
        raise ValueError(
            f"Expected targets of the output's shape, got {kinds}, which the loss would stretch "
            "to each other: reshape the targets."
        )
    if not isinstance(value, Tensor):
        raise TypeError(f"Expected a loss that returns a tensor, got a {type(value).__name__}.")
    if value.numel() != 1 or value.ndim:
        raise ValueError(
            f"Expected a loss that returns one number, got shape {tuple(value.shape)}: take the "
            "mean over the batch, reduction='mean'."
        )
    if not value.isfinite():
        raise ValueError(
            f"Expected a finite loss at the initial weights, got {float(value.detach())}: check "
            "the model, the loss and the scale of the features."
        )
    return value


def _check_mean(one: float, two: float) -> None:
    size = max(abs(one), abs(two))
    if abs(two - one) <= APART * size:
        return
    if abs(two - 2 * one) <= APART * size:
        raise ValueError(
            "Expected a mean loss over the batch, got a sum: a batch twice has twice the loss; "
            "take reduction='mean'."
        )
    raise ValueError(
        f"Expected a mean loss over the batch, got {one:.6g} for a batch and {two:.6g} for the "
        "same batch twice: an example's loss may not depend on the others."
    )


def _sentence(error: Exception) -> str:
    words = " ".join(str(error).split())
    return (words if len(words) <= 200 else words[:199] + "…").rstrip(".") + "."
