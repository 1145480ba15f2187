"""The server's step with a round's mean update: SGD, with or without momentum, or Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from randquant._internal import validate

Moments = tuple[np.ndarray, ...]
"""The state of an optimiser between rounds: (d,) float32 each."""

DECAY = (0.9, 0.999)
"""Adam's decay rates of the first and the second moment."""

FLOOR = np.float32(1e-8)
"""Adam's epsilon: added to the root of the second moment."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The server's optimiser: a step against the mean update, by SGD or Adam.

    Args:
        learning_rate: step size, > 0.
        kind: `sgd` or `adam`.
        momentum: of SGD, in [0, 1): the step follows the sum of past mean updates, whose weight
            is multiplied by momentum in each round.

    Guarantees:
        Steps are those of torch.optim.SGD and torch.optim.Adam with these arguments and otherwise
        their defaults, up to rounding. A step depends only on the means of this and past rounds:
        it is post-processing, and costs no privacy.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Reddi et al. 2021 (adaptive federated optimisation); Hsu, Qi and Brown 2019 (FedAvgM).

    Example:
        >>> optimizer = Optimizer(learning_rate=0.5, momentum=0.9)
        >>> parameters, moments = np.zeros(1, np.float32), optimizer.init(1)
        >>> for round in (1, 2):
        ...     mean = np.ones(1, np.float32)
        ...     parameters, moments = optimizer.step(parameters, mean, moments, round)
        >>> parameters
        array([-1.45], dtype=float32)
    """

    learning_rate: float
    kind: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0

    def __post_init__(self) -> None:
        validate.real("learning_rate", self.learning_rate, above=0, high=1e30)
        validate.choice("kind", self.kind, ("sgd", "adam"))
        validate.real("momentum", self.momentum, low=0, below=1)

    def init(self, dimension: int) -> Moments:
        """The state before the first round: zeros."""
        count = 2 if self.kind == "adam" else int(self.momentum > 0)
        return tuple(np.zeros(dimension, dtype=np.float32) for _ in range(count))

    def step(
        self, parameters: np.ndarray, mean: np.ndarray, moments: Moments, round: int
    ) -> tuple[np.ndarray, Moments]:
        """Return new parameters and moments after round number `round`, 1 for the first."""
        rate = np.float32(self.learning_rate)
        if self.kind == "adam":
            first, second = (
                np.float32(decay) * old + np.float32(1 - decay) * new
                for decay, old, new in zip(DECAY, moments, (mean, mean * mean), strict=True)
            )
            first_scale, second_scale = (np.float32(1 - decay**round) for decay in DECAY)
            direction = (first / first_scale) / (np.sqrt(second / second_scale) + FLOOR)
            return parameters - rate * direction, (first, second)
        if self.momentum:
            moments = (np.float32(self.momentum) * moments[0] + mean,)
            mean = moments[0]
        return parameters - rate * mean, moments
