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

MAX_EXAMPLES = 2**25
"""Most examples of a client: their clipped gradients are then summed with an error of at most
2**-22 clip_norm (`ClippedSum`). With twice as many the bound of Proposition 16 in
`docs/theory/vector.md` would have no room left for the other roundings."""


def example_update(
    model: nn.Module,
    data: Any,
    loss: Loss = nn.functional.cross_entropy,
    *,
    clip_norm: float,
    local: Local = ONE_GRADIENT,
) -> dict[str, Tensor]:
    """Compute a client's update as a sum over its examples, none of which weighs more than another.

    It is minus the sum of the examples' gradients, each clipped to clip_norm. A training function
    of Flower or NVFlare returns it where the guarantee is for one example, once a round, computed
    at the model that the server has sent: `QuantizeMod(examples=N)` or `QuantizeFilter(examples=N)`
    divides it by the public number N. Then a client with more examples counts for more, and with
    N all examples over the number of clients the mean over the clients is that over all examples.
    `train(privacy=Privacy(unit="example"))` does the same in a simulation.

    Args:
        model: as the server has sent it; it is not changed.
        data: the client's examples, in any form that `train` takes for a client.
        loss: from (outputs, targets) to the mean loss.
        clip_norm: L2 threshold of one example's gradient, at most that of the mechanism.
        local: which parts are trained, what is done about running statistics, the columns of a
            table, the device, and whether examples are computed together.

    Returns:
        What is to be added to each trained parameter, before it is divided by N: by name, float32
        on the CPU. Send it as an update, not added to the model: the difference of two rounded
        models can move by more than one example's share.

    Guarantees:
        Once it was divided by any N and clipped to a mechanism's clip_norm, replacing one example
        moves it by at most (2 / N + 2**-20) · clip_norm, however many examples the client has. An
        example whose gradient overflows counts as one without a gradient. The model and
        the loss must treat each example by itself; what they keep of one in an attribute is
        refused, what a function or a global variable keeps is not seen.

    Raises:
        TypeError, ValueError: as `train` refuses a model, a client's data or a loss; local steps
        are asked for; or the client has more than 2**25 examples. A client whose
        data hold NaN, infinity or a label beyond the model's is refused too, and its silence is
        not covered: clean data first, example by example.

    References:
        `docs/theory/vector.md`, Proposition 16.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x, y = torch.eye(2), torch.tensor([[1000.0], [-1000.0]])
        >>> update = example_update(model, (x, y), torch.nn.functional.mse_loss, clip_norm=1.0)
        >>> update["weight"].numpy().round(3)
        array([[ 1., -1.]], dtype=float32)
    """
    clip_norm = validate.real("clip_norm", clip_norm, low=1e-30, high=1e30)
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
    if count > MAX_EXAMPLES:
        raise ValueError(
            f"Expected at most {MAX_EXAMPLES:,} examples of one client, got {count:,}: rounding "
            "their sum might move it further than one of them does; give some of them."
        )
    work = Work(example_norm=clip_norm, summed=True, together=local.together)
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
