"""How much of noise a model will feel, measured on public data before any privacy is spent."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from randquant._internal import validate
from randquant.training.clients import ClientSet, client_set, named
from randquant.training.examples import Columns
from randquant.training.problem import Loss

PROBES = 16
"""Random vectors that the trace of the Hessian is averaged over."""


class Signal(NamedTuple):
    """What `randquant.plan` knows a task by.

    Attributes:
        norms: (n,) float64, L2 norms of the clients' gradients before they are clipped.
        mean_norm: L2 norm of the mean of many clients' clipped gradients.
        effective_rank: trace of the loss's Hessian over its largest eigenvalue, 1 to d.
        curvature: that largest eigenvalue.
    """

    norms: np.ndarray
    mean_norm: float
    effective_rank: float
    curvature: float


def public_signal(
    model: nn.Module,
    clients: Any,
    clip_norm: float,
    *,
    loss: Loss = nn.functional.cross_entropy,
    columns: Columns | None = None,
    examples: int = 256,
    seed: int = 0,
) -> Signal:
    """Measure on public data what decides how much noise a task stands.

    Args:
        model: a module, of which the parameters that require gradients are trained. It is looked
            at in evaluation mode, as it is, and stays so: give it the training that it will start
            from.
        clients: public data in clients' portions, as `randquant.train` takes clients, two or more;
            each stands for what a client's gradient will be taken of. No epsilon covers them.
        clip_norm: L2 threshold of a gradient.
        loss: from (output, targets) to the mean loss over a batch.
        columns: names of the features' and the targets' column, where they have names.
        examples: of how many, drawn from all clients', the curvature is taken; it costs some 40
            gradients of them twice.
        seed: of these draws.

    Guarantees:
        Equal arguments give an equal Signal on one machine.

    Raises:
        TypeError, ValueError: clients' data are in no known form, see `randquant.train`; the
            gradients' mean is no longer than chance makes it; or the loss curves down or has no
            second derivatives.

    References:
        `docs/theory/plan.md`, Proposition 2; Malladi et al. 2023 (MeZO), assumption 1, on the
        effective rank of fine-tuning; Hutchinson 1990 on the trace.

    Example:
        >>> x, y = torch.randn(600, 4), torch.arange(600) % 2
        >>> x[:, 0] += y  # what tells the classes apart
        >>> public = {k: (x[k::30], y[k::30]) for k in range(30)}
        >>> known = public_signal(nn.Linear(4, 2), public, clip_norm=1.0)
        >>> known.mean_norm <= 1, 1 <= known.effective_rank <= 10
        (True, True)
    """
    validate.real("clip_norm", clip_norm, above=0)
    validate.whole("examples", examples, low=1)
    found = client_set(clients, columns)
    validate.whole("number of public clients", len(found), low=2)
    model = copy.deepcopy(model).eval()
    own = [each for each in model.parameters() if each.requires_grad]
    device = own[0].device

    def slope(features: Tensor, targets: Tensor, *, again: bool = False) -> Tensor:
        mean = loss(model(features.to(device)), targets.to(device))
        parts = torch.autograd.grad(mean, own, create_graph=again, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])

    norms, mean_norm = _agreement(found, clip_norm, slope)
    draw = np.random.default_rng(seed)
    with _second_derivatives():
        gradient = slope(*_drawn(found, examples, draw), again=True)
        largest, rank = _curvature(gradient, own, draw)
    return Signal(norms, mean_norm, rank, largest)


def _agreement(
    clients: ClientSet, clip_norm: float, slope: Callable[[Tensor, Tensor], Tensor]
) -> tuple[np.ndarray, float]:
    """The gradients' norms, and the norm of the mean of many of them, clipped."""
    norms, clipped, total = [], [], 0.0
    for client, places in enumerate(clients.places):
        with named(clients.names[client]):
            gradient = slope(*clients.take(client, places)).double()
        norms.append(float(gradient.norm()))
        factor = min(1.0, clip_norm / norms[-1]) if norms[-1] else 1.0
        clipped.append(factor * norms[-1])
        total = total + factor * gradient
    count = len(norms)
    squared = float(torch.as_tensor(total).norm() / count) ** 2
    # The squared norm of a mean of few exceeds that of many by its variance.
    variance = (float(np.square(clipped).sum()) / count - squared) / (count - 1)
    if not squared > variance:
        raise ValueError(
            f"Expected public clients whose gradients agree, got {count} whose mean is no longer "
            "than chance makes it: give more of them, or train the model on them less."
        )
    return np.array(norms), math.sqrt(squared - variance)


def _drawn(clients: ClientSet, examples: int, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
    """So many examples of all clients', or all there are."""
    owners = np.repeat(np.arange(len(clients)), clients.sizes)
    places = np.concatenate(clients.places)
    chosen = draw.permutation(len(places))[:examples]
    taken = [clients.take(int(owners[k]), places[k : k + 1]) for k in chosen]
    features, targets = zip(*taken, strict=True)
    return torch.cat(features), torch.cat(targets)


def _curvature(
    gradient: Tensor, own: list[nn.Parameter], draw: np.random.Generator
) -> tuple[float, float]:
    """The largest eigenvalue of the Hessian, and its trace over that."""
    size = gradient.numel()

    def product(vector: np.ndarray) -> np.ndarray:
        along = torch.as_tensor(vector.reshape(-1), dtype=gradient.dtype, device=gradient.device)
        try:
            parts = torch.autograd.grad(
                gradient @ along, own, retain_graph=True, materialize_grads=True
            )
        except RuntimeError as error:
            raise ValueError(
                f"Expected a model and a loss with second derivatives, got torch's {error}"
            ) from error
        return torch.cat([part.reshape(-1) for part in parts]).double().cpu().numpy()

    probes = draw.choice([-1.0, 1.0], (PROBES, size))
    trace = float(np.mean([probe @ product(probe) for probe in probes]))
    if size == 1:
        largest = trace
    else:
        hessian = LinearOperator((size, size), product)  # type: ignore[call-arg]
        start = draw.standard_normal(size)
        found: Any = eigsh(hessian, 1, which="LA", v0=start, tol=0.01)  # type: ignore[arg-type]
        largest = float(found[0][0])
    if not (largest > 0 and trace > 0):
        raise ValueError(
            f"Expected a loss that curves up, got a Hessian with largest eigenvalue {largest:.3g} "
            f"and trace {trace:.3g}: train the model on public data first."
        )
    return largest, min(max(trace / largest, 1.0), float(size))


@contextmanager
def _second_derivatives() -> Iterator[None]:
    """Fused attention and recurrent layers have none."""
    with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        yield
