"""How much of noise a model will feel, measured on public data before any privacy is spent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor, nn

from randquant._internal import validate
from randquant.channels.keys import Key
from randquant.training.client import Learner
from randquant.training.clients import named
from randquant.training.generators import seeded
from randquant.training.inputs import called, of_each
from randquant.training.local import ONE_GRADIENT, Local
from randquant.training.problem import Loss, Problem, problem_of
from randquant.training.vectorised import KNOWN_ATTENTION

PROBES, MOST_PROBES, WANTED = 16, 64, 0.05
"""Fewest and most random vectors for the trace, and its relative standard error."""


class Signal(NamedTuple):
    """What `randquant.plan` knows a task by.

    Attributes:
        norms: (n,) float64, L2 norms of the clients' updates before they are clipped.
        mean_norm: L2 norm of the mean of many clients' clipped updates.
        effective_rank: trace of the loss's Hessian over its largest eigenvalue: of d coordinates'
            noise the loss feels no more than in so many that are all curved the most.
    """

    norms: np.ndarray
    mean_norm: float
    effective_rank: float


@torch.enable_grad()
def public_signal(
    model: nn.Module,
    clients: Any,
    clip_norm: float,
    *,
    loss: Loss = nn.functional.cross_entropy,
    local: Local = ONE_GRADIENT,
    examples: int = 256,
    seed: int = 0,
) -> Signal:
    """Measure on public data what decides how much noise a task stands.

    Args:
        model: as training will start from it: trained on public data, if there are such.
        clients: public data in clients' portions, as `randquant.train` takes clients, two or more.
            No epsilon covers them.
        clip_norm: L2 threshold of an update.
        loss: as for `randquant.train`.
        local: what a client computes, likewise; one gradient of all its examples by default.
        examples: of how many, drawn from all clients', the Hessian is taken: its product with a
            vector is needed some dozens of times, and costs about two gradients of them.
        seed: of all random draws.

    Guarantees:
        Equal arguments give an equal Signal on one machine. The model, and all generators of random
        numbers, are left as they were.

    Raises:
        TypeError, ValueError: nothing can be trained with these, see `randquant.train`; the
            updates' mean is no longer than chance makes it; or the loss does not curve up, or has
            no second derivatives.

    References:
        `docs/theory/plan.md`, Proposition 2; McCandlish et al. 2018, section 2.2, on what a step
        wins with noise; Malladi et al. 2023 (MeZO), assumption 1, on the effective rank of
        fine-tuning; Hutchinson 1990 on the trace.

    Example:
        >>> x, y = torch.randn(600, 4), torch.arange(600) % 2
        >>> x[:, 0] += y  # what tells the classes apart
        >>> public = {k: (x[k::30], y[k::30]) for k in range(30)}
        >>> known = public_signal(nn.Linear(4, 2), public, clip_norm=1.0)
        >>> 0 < known.mean_norm <= 1, 1 <= known.effective_rank <= 10
        (True, True)
    """
    validate.real("clip_norm", clip_norm, above=0)
    validate.whole("examples", examples, low=1)
    validate.choice("buffers", local.buffers, ("refuse", "frozen"))
    if local.standardize is not None:
        raise ValueError("Expected no standardize with public data: standardise them yourself.")
    problem = problem_of(
        model, clients, loss=loss, parts=local.parts, frozen=local.frozen, buffers=local.buffers,
        columns=local.columns,
    )  # fmt: skip
    count = len(problem.clients)
    validate.whole("number of public clients", count, low=2)
    key, draw = Key.from_seed(seed), np.random.default_rng(seed)
    with KNOWN_ATTENTION():
        norms, mean = _updates(Learner(problem, local.complete("client").work()), clip_norm, key)
    # The squared norm of a mean of few exceeds that of many by its variance.
    own = float(np.square(np.minimum(norms, clip_norm)).sum()) / count**2
    squared = (float(mean @ mean) - own) * count / (count - 1)
    if not squared > 0:
        raise ValueError(
            f"Expected public clients whose updates agree, got {count} whose mean is no longer "
            "than chance makes it: give more of them."
        )
    with seeded(seed), KNOWN_ATTENTION():
        product = _hessian(problem, examples, draw)
        trace = _trace(product, len(mean), draw)
        largest = _largest(product, mean) if trace > 0 else math.nan
    if not largest > 0:
        raise ValueError(
            f"Expected a loss that curves up, got a Hessian with trace {trace:.3g}: train the "
            "model on public data first."
        )
    rank = min(max(trace / largest, 1.0), float(len(mean)))
    return Signal(norms, min(math.sqrt(squared), clip_norm), rank)


def _updates(learner: Learner, clip_norm: float, key: Key) -> tuple[np.ndarray, np.ndarray]:
    """Norms of the clients' updates (n,), and the mean of the clipped ones (d,)."""
    names = learner.problem.clients.names
    norms: list[float] = []
    total = np.zeros(learner.dimension)
    for clients in learner.groups(range(len(names)), 1):
        updates, _ = learner.updates(clients, key)
        for client, update in zip(clients, updates, strict=True):
            norm = float(np.linalg.norm(update.astype(np.float64)))
            with named(names[client]):
                if not math.isfinite(norm):
                    raise ValueError(
                        "Expected a finite update, got nan or infinities: check its examples, the "
                        "model's weights and the step size."
                    )
            total += update * min(1.0, clip_norm / norm) if norm else update
            norms.append(norm)
    return np.array(norms), total / len(names)


def _hessian(
    problem: Problem, examples: int, draw: np.random.Generator
) -> Callable[[np.ndarray], np.ndarray]:
    """The product of the loss's Hessian, over so many of all clients' examples, with a vector."""
    clients, model = problem.clients, problem.model.eval()
    every = dict(model.named_parameters())
    own = [every[name] for name in problem.parts]
    owners = np.repeat(np.arange(len(clients)), clients.sizes)
    places = np.concatenate(clients.places)
    chosen = draw.permutation(len(places))[:examples]
    taken = [clients.take(int(owners[k]), places[k : k + 1]) for k in chosen]
    parts, targets = zip(*taken, strict=True)
    output = called(model, of_each(lambda *each: torch.cat(each), *parts))

    def flat(value: Tensor, *, again: bool = False) -> Tensor:
        parts = torch.autograd.grad(
            value, own, retain_graph=True, create_graph=again, allow_unused=True,
            materialize_grads=True,
        )  # fmt: skip
        return torch.cat([part.reshape(-1) for part in parts])

    gradient = flat(problem.loss(output, torch.cat(targets)), again=True)

    def product(vector: np.ndarray) -> np.ndarray:
        try:
            along = torch.as_tensor(vector.reshape(-1), dtype=torch.float32)
            found = flat(gradient @ along)
        except RuntimeError as error:
            raise ValueError(
                "Expected a model and a loss with second derivatives, got none: torch says that "
                f"{str(error).partition(chr(10))[0]}"
            ) from error
        return found.double().numpy()

    return product


def _trace(
    product: Callable[[np.ndarray], np.ndarray], size: int, draw: np.random.Generator
) -> float:
    """The mean of vᵀHv over random signs v, as many as it takes."""
    found: list[float] = []
    while len(found) < MOST_PROBES:
        probe = draw.choice([-1.0, 1.0], size)
        found.append(float(probe @ product(probe)))
        error = np.std(found) / math.sqrt(len(found))
        if len(found) >= PROBES and error <= WANTED * abs(np.mean(found)):
            break
    return float(np.mean(found))


def _largest(product: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> float:
    """The largest eigenvalue, by Lanczos' method."""
    if len(start) == 1:
        return float(product(np.ones(1))[0])
    hessian = LinearOperator((len(start), len(start)), product)  # type: ignore[call-arg]
    try:
        found: Any = eigsh(hessian, 1, which="LA", v0=start, tol=0.01)  # type: ignore[arg-type]
    except ArpackError as error:
        raise ValueError(
            f"Expected a Hessian whose largest eigenvalue can be found, got ARPACK's {error}: look "
            "at the model's weights and examples, or give other examples with seed."
        ) from error
    return float(found[0][0])
