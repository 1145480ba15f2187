"""Whether several clients may be computed in one vectorised pass, and whether that is faster."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from randquant.training.copies import Copies
from randquant.training.examples import StoredExamples
from randquant.training.gathering import Gathering
from randquant.training.generators import seeded
from randquant.training.inputs import called, of_each, stored
from randquant.training.one_client import OneClient
from randquant.training.problem import Problem
from randquant.training.together import Together
from randquant.training.trial import TRIED, Loss
from randquant.training.work import Work

KNOWN_ATTENTION = partial(sdpa_kernel, SDPBackend.MATH)
"""Attention that vmap has rules for, while in force; it is a setting of the whole process."""

ALIKE = 1e-3
"""Relative difference of two updates below which they are the same but for rounding."""

SMALL_RATE = 0.01
"""Step size of two steps that are compared."""

MADE = 6
"""Examples that are made up to compare the two."""


def may_be_together(
    problem: Problem, work: Work, copies: Copies, data: Gathering, loss: Loss, *, linear: bool
) -> bool:
    """Whether one pass over several clients gives each the update that it has alone.

    It is tried on two clients with made-up examples, because no client's data may change how
    others are computed. It does not where examples have an influence on each other's outputs or
    losses, and vmap refuses what depends on the numbers (`if x.sum() > 0`) and what it has no
    rule for.

    Args:
        problem: the model, the clients' data and the loss.
        work: what a client computes.
        copies: of the model, on the device.
        data: the clients' examples, on the device.
        loss, linear: as for `Together`.
    """
    table, random = problem.clients.table, problem.trial.draws
    if table is None or random or work.example_norm is not None or _is_hooked(problem.model):
        return False
    made = data.instead(_made(table, problem.trial.classes or 2))
    # Lengths by curvature differ ever more from step to step where a client has nearly arrived.
    ways = [(work.learning_rate, 1), *[(SMALL_RATE, 2)] * (work.learning_rate is not None)]
    try:
        with seeded(0), KNOWN_ATTENTION(), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            for rate, count in ways:
                steps = [[np.arange(4)] * count, [np.arange(4, MADE)] * count]
                found, losses = Together(copies, made, loss, rate, linear=linear).updates(steps)
                alone = OneClient(problem, replace(work, learning_rate=rate), copies, made, loss)
                each = [alone.of_steps(0, own, None) for own in steps]
                expected = torch.stack([update for update, _ in each])
                apart = (found - expected).norm(dim=1) / expected.norm(dim=1)
                first = np.array([loss for _, loss in each])
                if not (apart.max() < ALIKE and np.abs(losses / first - 1).max() < ALIKE):
                    return False
    except Exception:  # anything may happen in a model of the user's own
        return False
    return True


def _made(table: StoredExamples, classes: int) -> StoredExamples:
    """Random examples of the same shapes and types."""
    draw = torch.Generator().manual_seed(0)

    def like(tensor: Tensor, below: int) -> Tensor:
        shape = (MADE, *tensor.shape[1:])
        if tensor.is_floating_point():
            return torch.rand(shape, generator=draw).to(tensor)
        return torch.randint(below, shape, generator=draw).to(tensor)

    features = of_each(lambda tensor: like(tensor, 2), table.features)
    return StoredExamples(features, like(table.targets, classes))


def _is_hooked(model: nn.Module) -> bool:
    """Whether a function of the user's own runs with a forward or backward pass."""
    return any(
        layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
        for layer in model.modules()
    ) or any(parameter._backward_hooks for parameter in model.parameters())


def numbers_kept(problem: Problem) -> float:
    """How many numbers a gradient step keeps for each example: a measure of its arithmetic."""
    model, count = copy.deepcopy(problem.model).eval(), 0
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    weights = {tensor.untyped_storage().data_ptr() for tensor in stored(model)}

    def keep(tensor: Tensor) -> Tensor:
        nonlocal count
        if tensor.untyped_storage().data_ptr() not in weights:
            count += tensor.numel()
        return tensor

    with seeded(0), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        features, targets = problem.clients.take(0, problem.clients.places[0][:TRIED])
        called(model, features)
    return count / len(targets)
