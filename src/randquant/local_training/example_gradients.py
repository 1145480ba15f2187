"""A client's update that hides each of its examples, in a training function of one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from randquant._internal import validate
from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.local_training.clients import client_set
from randquant.local_training.dry_run import Loss, takes_classes
from randquant.local_training.local import ONE_GRADIENT, Local
from randquant.local_training.problem import Problem, check_all_labels, make_problem
from randquant.local_training.work import Work
from randquant.privacy.accounting.release import check_examples

MAX_SUMMING_ERROR = 2**30
"""Most of n**2 / examples, for n summed gradients: float64 then sums two neighbours' gradients with
errors of at most 2**-22 clip_norm (`docs/theory/vector.md`, Proposition 16). With 2**31 the bound
would have no room left for the other roundings."""


def example_update(
    model: nn.Module,
    data: Any,
    loss: Loss = nn.functional.cross_entropy,
    *,
    clip_norm: float,
    examples: int,
    local: Local = ONE_GRADIENT,
) -> dict[str, Tensor]:
    """Compute an update in which no example of a client's weighs more than a public share.

    The gradient of each example is clipped to clip_norm; their sum is divided by `examples`, a
    public number that all clients have in common, such as the number of examples of all clients
    over the number of clients. Then a client with more examples counts for more, and the mean over
    the clients is that over all examples. It is for a training function of Flower or NVFlare whose
    guarantee is for one example (`QuantizeMod(examples=...)`, `QuantizeFilter(examples=...)`), once
    a round, at the model that the server has sent; `train(privacy=Privacy(unit="example"))` does
    the same in a simulation.

    Args:
        model: as the server has sent it; it is not changed.
        data: the client's examples, in any form that `train` takes for a client.
        loss: from (outputs, targets) to the mean loss.
        clip_norm: L2 threshold of one example's gradient, at most that of the mechanism.
        examples: the public number, at least that of the account. Divided by a smaller one, an
            example moves the update further than the account says, and nothing can notice it.
        local: which parts are trained, what is done about running statistics, the columns of a
            table, the device, and whether examples are computed together.

    Returns:
        What is to be added to each trained parameter, by name, float32 on the CPU: minus the sum of
        the clipped gradients, divided by `examples`. Send it as an update, not added to the model:
        the difference of two rounded models can move by more than one example's share.

    Guarantees:
        Replacing one example moves the update, once the mechanism has clipped it to its clip_norm,
        by at most (2 / examples + 2**-20) · clip_norm, however many examples the client has. An
        example whose gradient overflows counts as one without a gradient. The model and
        the loss must treat each example by itself; what they keep of one in an attribute is
        refused, what a function or a global variable keeps is not seen.

    Raises:
        TypeError, ValueError: as `train` refuses a model, a client's data or a loss; local steps
        are asked for; or the client has too many examples for a sum in float64. A client whose
        data hold NaN, infinity or a label beyond the model's is refused too, and its silence is
        not covered: clean data first, example by example.

    References:
        `docs/theory/vector.md`, Proposition 16.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x, y = torch.eye(2), torch.tensor([[1000.0], [-1000.0]])
        >>> update = example_update(
        ...     model, (x, y), torch.nn.functional.mse_loss, clip_norm=1.0, examples=4)
        >>> update["weight"].numpy().round(3)
        array([[ 0.25, -0.25]], dtype=float32)
    """
    clip_norm = validate.real("clip_norm", clip_norm, low=1e-30, high=1e30)
    examples = check_examples(examples)
    validate.kind("local", local, Local)
    steps = local.learning_rate or local.batch or local.standardize or (local.epochs or 1) > 1
    if steps:
        raise ValueError(
            "Expected one gradient of each of a client's examples, got local with batch, epochs, "
            "standardize or steps of a learning_rate: after a step each gradient depends on all "
            "examples, so leave them out."
        )
    problem = _make_problem(model, data, loss, local)
    count = int(problem.clients.sizes[0])
    if count * count > MAX_SUMMING_ERROR * examples:
        raise ValueError(
            f"Expected at most {int((MAX_SUMMING_ERROR * examples) ** 0.5)} examples with "
            f"examples={examples}, got {count}: their sum in float64 would not be exact enough; "
            "take a larger public number."
        )
    work = Work(example_norm=clip_norm, divisor=examples, together=local.together)
    learner = Learner(problem, work, local.device)
    # Dropout draws from this key, so that one example's draws change no other's gradient.
    updates, _ = learner.updates([0], Key.generate())
    flat = -torch.from_numpy(updates[0])
    parts = flat.split([shape.numel() for shape in map(torch.Size, problem.shapes)])
    shaped = zip(problem.parts, parts, problem.shapes, strict=True)
    return {name: part.reshape(shape) for name, part, shape in shaped}


def _make_problem(model: nn.Module, data: Any, loss: Loss, local: Local) -> Problem:
    """Check a model on made-up examples, so that no example of the client's decides the outcome."""
    clients = client_set([data], local.columns, takes_classes(loss))
    made_up = clients.made_up()
    settings = {
        "loss": loss, "parts": local.parts, "frozen": local.frozen, "buffers": local.buffers,
        "public": local.public,
    }  # fmt: skip
    try:
        tried = make_problem(model, [(made_up.features, made_up.targets)], **settings)
    except (TypeError, ValueError):  # some models need real numbers, as lengths of sequences
        return make_problem(model, [data], columns=local.columns, **settings)
    problem = replace(tried, clients=clients)
    check_all_labels(problem)
    return problem
