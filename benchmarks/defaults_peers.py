"""Plain DP-FedAvg and other libraries' mechanisms on a task, all clients of a round at once.

The server is trusted, every client takes part in every round, and the Gaussian noise is exactly
what the whole run's (epsilon, delta) asks for, where one client's update may be replaced
by another. Nothing is lost to rounding, masks or proofs, which favours what is simulated here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from defaults_tasks import Recurrent, Task, Words
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from randquant.local_training.models import written_out
from randquant.privacy import gaussian_noise

try:
    from pfl.internal.ops import numpy_ops, selector
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.stats import MappedVectorStatistics
except ImportError:
    GaussianMechanism = None

ROUNDS, DELTA = 30, 1e-5
AT_ONCE = 20
"""Clients of a convolution that are computed together: their activations stay in the cache."""


class Updates(NamedTuple):
    """Clients' model differences: that of the first layer as `rows` of its inputs, the rest flat.

    A dense layer of f inputs changes by a combination of the client's few examples, so that its
    difference is rows' x and its inner products are those of the rows with x x'.
    """

    rest: Tensor
    rows: Tensor | None
    x: Tensor
    gram: Tensor | None

    @property
    def norms(self) -> Tensor:
        """L2 norms, (n,)."""
        square = self.rest.square().sum(1)
        if self.rows is not None:
            square = square + (self.rows * (self.gram @ self.rows)).sum((1, 2))
        return square.clamp_min(1e-30).sqrt()

    def total(self, factors: Tensor) -> Tensor:
        """The sum of the updates times these factors, (d,)."""
        rest = factors @ self.rest
        if self.rows is None:
            return rest
        rows = (self.rows * factors[:, None, None]).flatten(0, 1)
        return torch.cat([(rows.mT @ self.x.flatten(0, 1)).flatten(), rest])

    def dense(self) -> Tensor:
        """All of them, (n, d)."""
        if self.rows is None:
            return self.rest
        return torch.cat([(self.rows.mT @ self.x).flatten(1), self.rest], 1)


class Simulator:
    """Local SGD of all of a task's clients, or of its examples where these are protected."""

    def __init__(self, task: Task) -> None:
        model, clients, (x, y) = stackable(task)
        self.examples = task.settings.get("unit") == "example"
        if self.examples:
            clients = [
                pair
                for own in clients
                for pair in zip(own[0][:, None], own[1][:, None], strict=True)
            ]
        self.regression = "loss" in task.settings
        most, self.clients = max(len(own) for _, own in clients), len(clients)

        def padded(part: Tensor) -> Tensor:
            return torch.cat([part, part[:1].expand(most - len(part), *part.shape[1:])])

        self.x, self.y = (torch.stack([padded(own[at]) for own in clients]) for at in (0, 1))
        sizes = torch.tensor([len(own) for _, own in clients])[:, None]
        self.share = (torch.arange(most) < sizes) / sizes
        layers = list(model) if isinstance(model, nn.Sequential) else [model]
        self.first, self.gram, self.test = None, None, (x, y)
        if isinstance(layers[0], nn.Linear):
            first = layers.pop(0)
            self.first = first.weight.detach()
            if first.bias is not None:
                self.first = torch.cat([self.first, first.bias.detach()[:, None]], 1)
                self.x, x = (torch.cat([z, torch.ones_like(z[..., :1])], -1) for z in (self.x, x))
            self.test, self.gram = (x, y), self.x @ self.x.mT
        self.rest = nn.Sequential(*layers)
        self.named = dict(self.rest.named_parameters())
        start = [] if self.first is None else [self.first.flatten()]
        self.start = torch.cat([*start, *(each.detach().flatten() for each in self.named.values())])
        convolution = any(isinstance(layer, nn.Conv2d) for layer in model.modules())
        self.group = AT_ONCE if convolution else self.clients

    def _split(self, weights: Tensor) -> tuple[Tensor | None, dict[str, Tensor]]:
        used = 0 if self.first is None else self.first.numel()
        rest = torch.split(weights[used:], [each.numel() for each in self.named.values()])
        named = zip(self.named.items(), rest, strict=True)
        first = None if self.first is None else weights[:used].view_as(self.first)
        return first, {name: flat.view_as(like) for (name, like), flat in named}

    def _output(self, own: dict[str, Tensor], x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # which vmap knows
            return functional_call(self.rest, own, (x,))

    def _losses(self, output: Tensor, y: Tensor) -> Tensor:
        if self.regression:
            return (output - y).square().mean(-1)
        flat = output.flatten(0, -2), y.flatten()
        return functional.cross_entropy(*flat, reduction="none").view_as(y)

    def updates(self, weights: Tensor, rate: float, steps: int) -> Updates:
        """Model differences after so many steps over all of a client's examples."""
        groups = [self._updates(weights, rate, steps, slice(at, at + self.group))
                  for at in range(0, self.clients, self.group)]  # fmt: skip
        rest = torch.cat([rest for rest, _ in groups])
        rows = None if self.first is None else groups[0][1]
        return Updates(rest, rows, self.x, self.gram)

    def _updates(self, weights, rate, steps, of: slice) -> tuple[Tensor, Tensor | None]:
        first, start = self._split(weights)
        x, y, share = self.x[of], self.y[of], self.share[of]
        inputs = x if first is None else x @ first.mT
        rows = torch.zeros_like(inputs)
        own = {name: each.expand(len(x), *each.shape).clone() for name, each in start.items()}
        for _ in range(steps):
            here = inputs if first is None else inputs + self.gram[of] @ rows
            leaves = [*([] if first is None else [here]), *own.values()]
            for leaf in leaves:
                leaf.requires_grad_()
            output = vmap(self._output)(own, here) if len(self.rest) else here
            parts = list(torch.autograd.grad((self._losses(output, y) * share).sum(), leaves))
            with torch.no_grad():
                if first is not None:
                    rows = rows - rate * parts.pop(0)
                own = {
                    name: each - rate * part
                    for (name, each), part in zip(own.items(), parts, strict=True)
                }
        change = [(own[name] - start[name]).flatten(1).detach() for name in own]
        rest = torch.cat(change, 1) if change else torch.zeros(len(x), 0)
        return rest.nan_to_num(), None if first is None else rows.nan_to_num()

    def score(self, weights: Tensor) -> float:
        """Test accuracy or R^2, in per cent."""
        first, own = self._split(weights)
        x, y = self.test
        with torch.no_grad():
            output = self._output(own, x if first is None else x @ first.mT)
        if self.regression:
            rest = (output - y).square().mean() / (y - y.mean()).square().mean()
            return 100 * max(-1.0, 1 - float(rest))
        return 100 * float((output.argmax(1) == y).float().mean())


def stackable(task: Task) -> tuple[nn.Module, list, tuple[Tensor, Tensor]]:
    """The same model in layers that vmap can take, clients and test data with what it reads."""
    model, change = task.model, None
    if isinstance(model, Recurrent):
        model = written_out(model)
    elif isinstance(model, Words):
        words = nn.Linear(2000, 16, bias=False)
        words.weight = nn.Parameter(model.words.weight.detach().mT.contiguous())
        model = nn.Sequential(words, model.out)
        change = lambda x: functional.one_hot(x, 2000).float().mean(1)  # noqa: E731
    elif task.settings.get("parts") == ("2.*",):
        model, change = model[2], model[:2]
    if change is None:
        return model, task.clients, task.test
    with torch.no_grad():
        clients = [(change(x), y) for x, y in task.clients]
        return model, clients, (change(task.test[0]), task.test[1])


Aggregate = Callable[[Tensor, Updates], Tensor]


def multiplier(epsilon: float) -> float:
    """Deviation of the noise in a round's sum for clip norm 1, where two updates are 2 apart."""
    return 2 * math.sqrt(ROUNDS) * gaussian_noise(epsilon, DELTA)


def run(simulator: Simulator, aggregate: Aggregate, rate: float, steps: int, seed: int) -> float:
    """The score after all rounds."""
    torch.manual_seed(seed + 100)
    np.random.seed(seed)  # noqa: NPY002, which Flower and pfl draw from
    weights = simulator.start
    for _ in range(ROUNDS):
        weights = aggregate(weights, simulator.updates(weights, rate, steps))
    return round(simulator.score(weights), 2)


def clipped(norm: float, epsilon: float, server: float = 1.0) -> Aggregate:
    """The mean of clipped updates with Gaussian noise."""
    deviation = norm * multiplier(epsilon)

    def aggregate(weights: Tensor, updates: Updates) -> Tensor:
        total = updates.total((norm / updates.norms).clamp_max(1))
        noisy = total + deviation * torch.randn_like(total)
        return weights + server / len(updates.norms) * noisy

    return aggregate


def plain(simulator: Simulator, epsilon: float, rate: float, norm: float, seed: int) -> float:
    """Five steps of local SGD; where examples are protected, one gradient and a server's rate."""
    if simulator.examples:
        return run(simulator, clipped(norm, epsilon, rate), 1.0, 1, seed)
    return run(simulator, clipped(norm, epsilon), rate, 5, seed)


def of_flower(strategy: Any) -> Aggregate:
    """A wrapper of Flower's around FedAvg, fed by hand: its own clipping, mean and noise."""
    logging.getLogger("flwr").setLevel(logging.ERROR)

    def aggregate(weights: Tensor, updates: Updates) -> Tensor:
        strategy.current_round_params = [weights.numpy()]
        sent = [ndarrays_to_parameters([row]) for row in (weights + updates.dense()).numpy()]
        results = [(None, FitRes(Status(Code.OK, ""), each, 1, {})) for each in sent]
        parameters, _ = strategy.aggregate_fit(2, results, [])
        return torch.from_numpy(parameters_to_ndarrays(parameters)[0])

    return aggregate


def flower_fixed(simulator: Simulator, epsilon: float, seed: int) -> float:
    """Clip norm 10 as in Flower's example fl-dp-sa, clients as in its quickstart-pytorch.

    These take one epoch of SGD at rate 0.1 in batches of 32, which is one step here: no client has
    more examples, and momentum 0.9 begins anew in each round.
    """
    wrapped = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), multiplier(epsilon), 10.0, simulator.clients
    )
    try:
        return run(simulator, of_flower(wrapped), 0.1, 1, seed)
    except ZeroDivisionError:  # Flower divides by the norm of an update that is zero
        return math.nan


def flower_adaptive(simulator: Simulator, epsilon: float, seed: int) -> float:
    """All parameters at their defaults; the same clients.

    The default noise of the count of clipped updates is refused where clients are few: then it has
    the deviation of the noise multiplier, which makes the updates' noise 15 % larger.
    """
    noise, clients = multiplier(epsilon), simulator.clients
    wrapped = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(), noise, clients, clipped_count_stddev=None if noise < clients / 10 else noise
    )
    return run(simulator, of_flower(wrapped), 0.1, 1, seed)


def pfl(simulator: Simulator, epsilon: float, seed: int) -> float:
    """pfl's GaussianMechanism as its benchmarks' baseline.yaml for images sets it.

    Clip norm 0.4, one local epoch at rate 0.1 in batches of 10 (one step here but for clients of
    more examples), server SGD at rate 1.
    """
    mechanism = GaussianMechanism(0.4, multiplier(epsilon))
    if not selector.has_framework_module():
        selector.set_framework_module(numpy_ops)

    def aggregate(weights: Tensor, updates: Updates) -> Tensor:
        total = None
        for row in updates.dense().numpy():
            sent = MappedVectorStatistics({"update": row}, weight=1)
            sent, _ = mechanism.constrain_sensitivity(statistics=sent)
            total = sent if total is None else total + sent
        noisy, _ = mechanism.add_noise(statistics=total, cohort_size=simulator.clients)
        return weights + torch.from_numpy(noisy["update"] / simulator.clients).float()

    return run(simulator, aggregate, 0.1, 1, seed)
