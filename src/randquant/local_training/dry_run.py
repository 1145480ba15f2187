"""A dry run of a model and a loss on one batch, which refuses what cannot be trained."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from randquant._internal import validate
from randquant.local_training.data import ClientSet, StoredExamples, error_context
from randquant.local_training.models import (
    Features,
    called,
    check_graph,
    copied,
    described,
    drawn,
    equal,
    is_batch_norm,
    map_tensors,
    named_tensors,
    seeded,
    tensors,
)

Loss = Callable[[Tensor, Tensor], Tensor]
"""The mean loss over a batch, from the model's output and the targets."""

DRY_RUN_BATCH_SIZE = 8
"""Examples of the first client that are run through the model. More would cost time at the start of
every run; with fewer, a loss that ignores or weighs some of them may look like a mean."""

IGNORED_LABEL = -100
"""Label that torch's cross entropy leaves out by default."""

MEAN_LOSS_TOLERANCE = 1e-3
"""Largest relative difference of a mean loss over a batch and over the same batch twice. It is a
hundred times what rounding to float32 causes; a tenth would refuse losses of large batches."""


class DryRun(NamedTuple):
    """Properties of a model and a loss that a dry run has shown.

    Attributes:
        classes: number of classes; None where the task is not a classification.
        draws: a training step draws random numbers on made-up examples, or the model fails on them.
        still: names of layers that are kept in evaluation mode.
        outputs: numbers that the model gives for an example.
    """

    classes: int | None
    draws: bool
    still: tuple[str, ...]
    outputs: int


def perform_dry_run(
    model: nn.Module,
    parts: Sequence[str],
    clients: ClientSet,
    loss: Loss,
    buffers: str,
) -> DryRun:
    """Run the first examples of the first client through a copy of the model.

    Args:
        model: as `in_float32` returns it; it stays as it is.
        parts: names of the parameters that are trained.
        clients: all clients' data.
        loss: of a batch.
        buffers: what is done about running statistics.

    Raises:
        TypeError, ValueError: the model does not take the features, returns something other than a
            tensor, keeps running statistics, or changes its own parameters; or the loss is not a
            mean over the batch, is not finite, has no finite gradient, does not depend on the
            parameters, or depends on another model's.
    """
    # On a copy: a forward pass may write buffers, and the user's model stays as it is.
    model = copied(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in parts)
    batch = _first_batch(clients)
    # Twice, because BatchNorm takes no single example in training.
    features = map_tensors(lambda tensor: torch.cat([tensor] * 2), batch[0])
    twice = features, torch.cat([batch[1]] * 2)
    with seeded(0):
        still = _still_layers(model, twice[0], clients.made_up().features, buffers)
    work_mode(model, still)
    with seeded(0):
        output = _output(model, twice[0])
        if loss is nn.functional.cross_entropy:
            _check_several(output)
            _check_scores(output)
            with error_context(clients.names[0]):
                check_labels(twice[1], class_number(output, twice[1]))
        first = _loss(loss, output, twice[1])
    # The same batch with the same random numbers: if they differ, a module has stored something.
    with seeded(0):
        again = _loss(loss, _output(model, twice[0]), twice[1])
    _check_repeats(first, again)
    _check_dependence(first, parts)
    check_graph(first, model)
    _check_gradient(first, model)
    classes, outputs = class_number(output, twice[1]), output.numel() // len(twice[1])
    draws = draws_numbers(model, clients.made_up(classes), loss)
    # In evaluation mode, because batch norm in training makes an example's loss depend on others.
    model.eval()
    with seeded(0):
        one = _loss(loss, _output(model, batch[0]), batch[1])
    with seeded(0):
        two = _loss(loss, _output(model, twice[0]), twice[1])
    _check_mean(float(one.detach()), float(two.detach()))
    return DryRun(classes, draws, still, outputs)


def draws_numbers(model: nn.Module, examples: StoredExamples, loss: Loss) -> bool:
    """Return whether a training step draws from a global generator, or fails."""
    # On made-up examples: whether a model draws may depend on the numbers that it sees, and one
    # client's must not decide how all are computed.
    with seeded(0):
        before = drawn()
        try:
            loss(called(copied(model), examples.features), examples.targets)
        except Exception:  # of the user's own model, which was not made for these numbers
            return True
        return before != drawn()


def _first_batch(clients: ClientSet) -> tuple[Features, Tensor]:
    places = np.arange(min(DRY_RUN_BATCH_SIZE, len(clients.sources[0])))
    with error_context(clients.names[0]):
        # Read twice: a run that is resumed must see the same examples.
        batch, again = (clients.take(0, places) for _ in range(2))
        parts = ([*tensors(features), targets] for features, targets in (batch, again))
        # Equal and not close: an example that differs in the last digit makes another update.
        if not all(torch.equal(*pair) for pair in zip(*parts, strict=True)):
            raise ValueError(
                "Expected an example that is the same each time it is read, up to torch's, NumPy's "
                "and Python's global random numbers, got two that differ: a run that is resumed "
                "must read what it read before; draw from those generators."
            )
    return batch


def _check_several(output: Tensor) -> None:
    if output.ndim > 1 and output.shape[1] == 1:
        raise ValueError(
            "Expected a score for each of several classes with cross_entropy, got outputs of shape "
            f"{tuple(output.shape)}: with one class the loss is always 0. Give another one, for "
            "example loss=torch.nn.functional.mse_loss for numbers."
        )


def _check_scores(output: Tensor) -> None:
    # A warning only: outputs may be probabilities by chance, for example all equal.
    rows = output.detach()
    if bool(((rows >= 0) & (rows <= 1)).all()) and bool(((rows.sum(1) - 1).abs() < 1e-4).all()):
        warnings.warn(
            "The model's outputs are probabilities, which add up to 1, and cross_entropy takes the "
            "softmax of outputs itself: leave out the model's last softmax, or it learns slowly.",
            UserWarning,
            stacklevel=validate.callers(),
        )


def _check_repeats(first: Tensor, again: Tensor) -> None:
    if not torch.equal(first, again):
        raise ValueError(
            f"Expected the same loss of the same batch, up to torch's random numbers, got "
            f"{float(first.detach()):.6g} and then {float(again.detach()):.6g}: a module may not "
            "keep anything of one call for the next, or have a random generator of its own."
        )


def _check_dependence(loss: Tensor, parts: Sequence[str]) -> None:
    # Otherwise every client would send zeros, and the run would spend its epsilon on nothing.
    if not loss.requires_grad:
        raise ValueError(
            "Expected a loss that depends on the trained parameters, got a constant in "
            f"{', '.join(parts[:3])}{', …' if len(parts) > 3 else ''}: compute it from the model's "
            "output without detaching, and train the parameters that it uses."
        )


def _check_gradient(loss: Tensor, model: nn.Module) -> None:
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    # A parameter that this batch does not use has no gradient, which is fine.
    try:
        parts = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        raise ValueError(
            f"Expected a loss with a gradient, got {type(error).__name__}: {_sentence(error)} "
            "Where a layer overwrites what the gradient needs, as a dropout after a ReLU may, take "
            "inplace=False."
        ) from error
    # Before the run: an update with NaN is refused only after the cost of its round is recorded.
    for name, part in zip(trained, parts, strict=True):
        if part is not None and not part.to_dense().isfinite().all():
            raise ValueError(
                f"Expected a finite gradient at the initial weights, got NaN or infinity for "
                f"{name}: check the model, the loss and the scale of the features."
            )


def work_mode(model: nn.Module, still: Sequence[str]) -> None:
    """Set a model to training mode, except for the layers in `still`, which keep statistics."""
    # All of it first: a layer that a user had set to evaluation mode would otherwise train without
    # its dropout.
    model.train()
    for name in still:
        model.get_submodule(name).training = False


def class_number(output: Tensor, targets: Tensor) -> int | None:
    """Return C for outputs (n, C, …) with integer targets (n, …); None for other tasks."""
    if targets.is_floating_point() or output.ndim < 2 or output.shape[1] < 2:
        return None
    # Scores are in the second dimension, as torch's cross entropy takes them, also for each pixel
    # of an image.
    return output.shape[1] if output.shape[:1] + output.shape[2:] == targets.shape else None


def is_binary(loss: Loss) -> bool:
    is_function = loss is nn.functional.binary_cross_entropy_with_logits
    return is_function or isinstance(loss, nn.BCEWithLogitsLoss)


def takes_classes(loss: Loss) -> bool:
    """Return whether a loss takes class numbers as targets, as far as torch's losses are known."""
    functions = (nn.functional.cross_entropy, nn.functional.nll_loss)
    return loss in functions or isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)


def uniform_loss(loss: Loss, outputs: int) -> float | None:
    """Return the loss of a classifier whose outputs are all equal; None for other tasks."""
    # A client's loss as a share of it says how much the client has still to learn.
    if loss is nn.functional.cross_entropy or isinstance(loss, nn.CrossEntropyLoss):
        return math.log(outputs) if outputs > 1 else None
    return math.log(2) if is_binary(loss) else None


def check_labels(labels: Tensor, classes: int | None) -> None:
    """Refuse labels without an output of the model; `classes` is None for other targets."""
    if classes is None:
        return
    # cross_entropy itself would not name the client, and on a GPU it would end the process.
    low, high = (int(bound) for bound in labels.aminmax())
    if low < 0 or high >= classes:
        raise ValueError(
            f"Expected labels from 0 to {classes - 1}, one for each output of the model, got "
            f"{low if low < 0 else high}: {_no_class(low)}."
        )


def _no_class(low: int) -> str:
    if low == IGNORED_LABEL:
        return (
            "which cross_entropy ignores, so that its mean is over fewer targets; leave those "
            "examples out, or give a loss of your own that handles them"
        )
    return "renumber them, or give the model more outputs"


def _still_layers(
    model: nn.Module, features: Features, made_up: Features, buffers: str
) -> tuple[str, ...]:
    # The layers whose buffers change in training: in evaluation mode they must stay as they are.
    # Batch norm's statistics of a client's activations would leave it without protection.
    moved = _moved(model, features, ())
    _check_parameters(model, moved)
    _check_always(model, made_up, moved)
    still = tuple(dict.fromkeys(name.rpartition(".")[0] for name in moved))
    layers = [model.get_submodule(name) for name in still]
    other = next((each for each in layers if not is_batch_norm(each)), None)
    if moved and buffers == "refuse":
        remedies = "keep them as they are with buffers='frozen'"
        if other is None:
            remedies += "; or replace BatchNorm by GroupNorm, or take public ones, buffers='server'"
        raise ValueError(
            f"Expected a model without running statistics, got {type(layers[0]).__name__} with "
            f"{moved[0]}, of which each client would have its own: {remedies}."
        )
    if buffers == "server" and other is not None:
        raise ValueError(
            f"Expected BatchNorm layers with buffers='server', got {type(other).__name__}: take "
            "buffers='frozen'."
        )
    every = [name for name, _ in model.named_modules()]
    # With all layers in evaluation mode as well, as they are for tests.
    moved = _moved(model, features, still) or _moved(model, features, every)
    if moved:
        raise ValueError(
            "Expected buffers that evaluation mode leaves unchanged, got a new value of "
            f"{moved[0]}: each client would have its own; replace its layer."
        )
    return still


def _check_always(model: nn.Module, made_up: Features, moved: Sequence[str]) -> None:
    """Refuse buffers that only some examples change: the first client's would decide for all."""
    try:
        usual = _moved(model, made_up, ())
    except Exception:  # of the user's own model, which was not made for these numbers
        return
    if others := set(usual).symmetric_difference(moved):
        raise ValueError(
            f"Expected buffers that all examples change, or none, got {min(others)}, which some "
            "change: the first client's examples would decide how all clients are computed; "
            "replace its layer."
        )


def _check_parameters(model: nn.Module, moved: Sequence[str]) -> None:
    # Embedding with max_norm shortens the rows that a batch reads, and so shows which words it has.
    for name, _ in model.named_parameters():
        if name in moved:
            layer = model.get_submodule(name.rpartition(".")[0])
            remedy = "omit max_norm" if isinstance(layer, nn.Embedding) else "replace that layer"
            raise ValueError(
                f"Expected a forward pass that leaves parameters unchanged, got a change of {name} "
                f"by {type(layer).__name__}: other clients would see whose examples it saw; "
                f"{remedy}."
            )


def _moved(model: nn.Module, features: Features, still: Sequence[str]) -> list[str]:
    # The buffers and parameters that a forward pass in training writes to, seen on a copy.
    model = copied(model)
    work_mode(model, still)
    before = named_tensors(model)
    state = {name: (each._version, each.detach().clone()) for name, each in before.items()}
    _output(model, features)
    after = named_tensors(model)

    def written(name: str) -> bool:
        if after.get(name) is not before.get(name):
            return True
        # By version, because a later client may write other numbers than this one; and by value,
        # because batch norm writes without a new version.
        version, value = state[name]
        return after[name]._version != version or not equal(after[name].detach(), value)

    return [name for name in {**before, **after} if written(name)]


def _output(model: nn.Module, features: Features) -> Tensor:
    try:
        output = called(model, features)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"Expected a model that takes features {described(features, _sized)}, got "
            f"{type(error).__name__}: {_sentence(error)}{_as_floats(model, features)}"
        ) from error
    if not isinstance(output, Tensor):
        raise TypeError(
            f"Expected a model that returns one tensor, or an object with logits, got a "
            f"{type(output).__name__}: wrap it in a module whose forward returns the tensor that "
            "the loss takes."
        )
    return output


def _as_floats(model: nn.Module, features: Features) -> str:
    if any(not each.is_floating_point() for each in tensors(features)):
        with contextlib.suppress(Exception):
            called(model, map_tensors(lambda each: each.float(), features))
            return " It takes features as float32: convert them."
    return ""


def _sized(tensor: Tensor) -> str:
    return f"({', '.join(['n', *map(str, tensor.shape[1:])])}) in {_name(tensor.dtype)}"


def _loss(loss: Loss, output: Tensor, targets: Tensor) -> Tensor:
    kinds = (
        f"an output {tuple(output.shape)} and targets {tuple(targets.shape)} {_name(targets.dtype)}"
    )
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            value = _with_slope(loss, output, targets)
    except IndexError as error:
        raise ValueError(
            f"Expected labels that are outputs' numbers, got {_sentence(error)} Renumber them "
            "from 0, or give the model more outputs."
        ) from error
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(
            f"Expected a loss of {kinds}, got {type(error).__name__}: {_sentence(error)}"
            f"{_class_numbers(loss, output) or _other_targets(loss, output, targets)}"
        ) from error
    # mse_loss of (n, 1) and (n,) warns only, and averages over all pairs of examples.
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


def _with_slope(loss: Loss, output: Tensor, targets: Tensor) -> Tensor:
    # Some losses refuse wrong targets only when their gradient is computed.
    value = loss(output, targets)
    if isinstance(value, Tensor) and value.requires_grad and not value.ndim:
        torch.autograd.grad(value, output, retain_graph=True, allow_unused=True)
    return value


def _other_targets(loss: Loss, output: Tensor, targets: Tensor) -> str:
    # A remedy is proposed only if the loss takes the converted targets.
    same_shape = output.numel() == targets.numel()
    shaped = targets.reshape(output.shape) if same_shape else targets
    reshape = f"targets.reshape{tuple(output.shape)}".replace(f"({len(targets)},", "(-1,", 1)
    for conversion, converted in (
        ("targets.float()", targets.float()),
        ("targets.long()", targets.long()),
        (reshape, shaped),
        (f"{reshape}.float()", shaped.float()),
    ):
        refusals = (RuntimeError, ValueError, TypeError, IndexError, UserWarning)
        with contextlib.suppress(*refusals), warnings.catch_warnings():
            warnings.simplefilter("error")
            _with_slope(loss, output, converted)
            return f" It takes {conversion}: give such targets, or convert them in the loss."
    return ""


def _class_numbers(loss: Loss, output: Tensor) -> str:
    if loss is not nn.functional.cross_entropy or output.ndim < 2:
        return ""
    sizes = ", ".join(["n", *map(str, output.shape[2:])])
    return (
        f" Cross-entropy takes each example's class number, int64: targets ({sizes}); for another "
        "task give a loss of your own."
    )


def _check_mean(one: float, two: float) -> None:
    size = max(abs(one), abs(two))
    if abs(two - one) <= MEAN_LOSS_TOLERANCE * size:
        return
    # A sum would make a client's update grow with its number of examples.
    if abs(two - 2 * one) <= MEAN_LOSS_TOLERANCE * size:
        raise ValueError(
            f"Expected a mean loss over the batch, got a sum: {one:.6g} for a batch and {two:.6g} "
            "for the same batch twice; take reduction='mean'."
        )
    raise ValueError(
        f"Expected a mean loss over the batch, got {one:.6g} for a batch and {two:.6g} for the "
        "same batch twice: an example's loss may not depend on the others."
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sentence(error: Exception) -> str:
    # One line of bounded length: torch's messages may run over a page.
    words = " ".join(str(error).partition(" Hint:")[0].split())
    return (words if len(words) <= 200 else words[:199] + "…").rstrip(".") + "."
