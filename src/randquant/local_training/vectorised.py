"""Whether several clients may be computed in one vectorised pass, and whether that is faster."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from randquant.local_training.clients import MADE
from randquant.local_training.copies import Copies
from randquant.local_training.gathering import Gathering
from randquant.local_training.generators import seeded
from randquant.local_training.inputs import called, copied, stored
from randquant.local_training.one_client import OneClient
from randquant.local_training.problem import Problem
from randquant.local_training.together import Together
from randquant.local_training.trial import Loss
from randquant.local_training.work import Work

KNOWN_ATTENTION = partial(sdpa_kernel, SDPBackend.MATH)
"""Attention that vmap has rules for, while in force; it is a setting of the whole process."""

BY_EXAMPLE = (
    nn.functional.cross_entropy,
    nn.functional.mse_loss,
    nn.functional.l1_loss,
    nn.functional.smooth_l1_loss,
    nn.functional.huber_loss,
    nn.functional.binary_cross_entropy_with_logits,
)
"""Losses that are the mean of each example's, whatever the examples: a problem's labels are checked
where it is the cross entropy. Others may leave examples out, weigh them or compare them."""

ALIKE = 5e-3
"""Relative difference of two updates below which they are the same but for rounding."""

MADE_UP = ((0.0, 1.0, 2), (-4.0, 4.0, 6), (-300.0, 300.0, 60))
"""From where to where made-up numbers are, and below what integers: what a model does with its
batch may show in some of them only, as a limit on the largest does."""

SMALL_RATE = 1e-3
"""Size of two steps that are compared: lengths by curvature differ ever more from step to step
where a client has nearly arrived, and with large numbers they run away."""

STEPS = (
    ((range(9), range(9)), ((9, 10), (11,))),
    (((0,), (1,)), ((9,), (10,))),
)
"""Which made-up examples two clients have in each of two steps: many and few, and one each."""


def may_be_together(
    problem: Problem, work: Work, copies: Copies, data: Gathering, loss: Loss, *, linear: bool
) -> bool:
    """Whether one pass over several clients gives each the update that it has alone.

    It is tried on two clients with made-up examples, because no client's data may change how
    others are computed. It does not where examples have an influence on each other's outputs, and
    vmap refuses what depends on the numbers (`if x.sum() > 0`) and what it has no rule for. Nor may
    a module keep anything of a call: it could not be used after a pass over several clients.

    Args:
        problem: the model, the clients' data and the loss.
        work: what a client computes.
        copies: of the model, on the device.
        data: the clients' examples, on the device.
        loss, linear: as for `Together`.
    """
    table, random = problem.clients.table, problem.trial.draws
    known = problem.loss in BY_EXAMPLE and work.example_norm is None
    if table is None or random or not known or _is_hooked(problem.model):
        return False
    small = work if work.learning_rate is None else replace(work, learning_rate=SMALL_RATE)
    with seeded(0), KNOWN_ATTENTION(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for usual, numbers in zip((True, False, False), MADE_UP, strict=True):
            made = data.instead(problem.clients.made_up(problem.trial.classes, *numbers))
            tries = [(small, 2), (work, 1)] if usual else [(small, 2)]
            for (each, count), steps in itertools.product(tries, STEPS):
                several = copies.apart()
                alone = OneClient(problem, each, copies.apart(), made, loss)
                together = Together(several, made, loss, each, linear=linear)
                alike = _are_alike(alone, together, several, [own[:count] for own in steps])
                if not alike and (usual or alike is not None):
                    return False
    return True


def _are_alike(
    alone: OneClient, together: Together, copies: Copies, steps: Sequence[Any]
) -> bool | None:
    """Whether both give the same; None where clients alone cannot be computed."""
    steps = [[np.array(samples) for samples in own] for own in steps]
    try:
        each = [alone.of_steps(0, own, None) for own in steps]
    except Exception:  # of the user's own model, which was not made for these numbers
        return None
    kept = _kept(copies.own())
    try:
        updates, losses = together.updates(steps)
    except Exception:
        return False
    expected = torch.stack([update for update, _ in each])
    far = (updates - expected).norm(dim=1) > ALIKE * expected.norm(dim=1)
    # Of one that overflows, its weight may make infinity or NaN; both are refused.
    one, other = (np.where(np.isfinite(x), x, np.inf) for x in (losses, [x for _, x in each]))
    same = np.allclose(one, other, ALIKE, 0)
    return bool(not far.any()) and same and kept == _kept(copies.own())


def _kept(model: nn.Module) -> list[tuple[str, int]]:
    """What layers have as attributes, but for parameters, buffers and layers: names and places."""
    found = []
    for layer in model.modules():
        for name, value in vars(layer).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                inner = value.values() if isinstance(value, dict) else value
                each = list(inner) if isinstance(value, dict | list | tuple | set) else []
                found += [(name, id(one)) for one in (value, *each)]
    return found


def _is_hooked(model: nn.Module) -> bool:
    """Whether a function of the user's own runs with a forward or backward pass."""
    return any(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        for layer in model.modules()
    ) or any(parameter._backward_hooks for parameter in model.parameters())


def numbers_kept(problem: Problem) -> float:
    """How many numbers a gradient step keeps for each example: a measure of its arithmetic.

    Counted for made-up examples; infinite where the model does not take such.
    """
    model, count = copied(problem.model).eval(), 0
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    weights = {_place(tensor) for tensor in stored(model)}

    def keep(tensor: Tensor) -> Tensor:
        nonlocal count
        if _place(tensor) not in weights:
            count += tensor.numel()
        return tensor

    features = problem.clients.made_up(problem.trial.classes).features
    with seeded(0), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        try:
            called(model, features)
        except Exception:  # of the user's own model, which was not made for these numbers
            return math.inf
    return count / MADE


def _place(tensor: Tensor) -> int:
    """Where a tensor is in memory; zero for one that is not at one place, as a sparse one."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
