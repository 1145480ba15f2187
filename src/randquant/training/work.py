"""What a client computes in a round, and what a test measures: settings and results, no data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from randquant.aggregation.clipping import clip_to_norm
from randquant.privacy.accounting.releases import Norm


@dataclass(frozen=True, slots=True)
class Weighting:
    """Clients count by their number of examples, up to a public bound.

    A client with n examples clips its update and multiplies it by min(n, most_examples) /
    most_examples, which is at most 1: it sends nothing that it could not have sent without weights,
    and every guarantee holds as it stands. The server divides by the number of clients and not by
    the sum of weights, which is private. So the step is that of the weighted mean of clipped
    updates times the average weight of all clients (`docs/theory/weights.md`).

    Attributes:
        most_examples: number of examples from which on clients count alike; chosen without looking
            at the data.
        clip_norm: threshold that an update is clipped to before it is multiplied.
        norm: the norm that is clipped, `l2` or `l1`.
    """

    most_examples: int
    clip_norm: float
    norm: Norm = "l2"

    def weight(self, examples: int) -> float:
        """The weight of a client with that many examples, in (0, 1]."""
        return min(examples, self.most_examples) / self.most_examples

    def applied(self, update: np.ndarray, examples: int) -> np.ndarray:
        """The clipped and weighted update of a client with that many examples, (d,) float32."""
        clipped = clip_to_norm(update, self.clip_norm, self.norm)
        return clipped * np.float32(self.weight(examples))


@dataclass(frozen=True, slots=True)
class Work:
    """What a client computes in a round: its `Local` settings, and what a threshold adds.

    Attributes:
        batch: samples of a step, drawn without repeats; None for all of the client's.
        epochs: passes over its data, with learning_rate only.
        learning_rate: step size of local SGD, or auto for steps as long as `step_length` says; the
            update is the model difference after it. None to send one gradient.
        example_norm: L2 threshold that each example's gradient is clipped to before the mean is
            taken; None for no clipping. Not with learning_rate.
        weighting: how clients' updates are weighted; None for all alike.
        length: L2 norm that updates are scaled to, before they are weighted; None for no scaling.
    """

    batch: int | None = None
    epochs: int = 1
    learning_rate: float | Literal["auto"] | None = None
    example_norm: float | None = None
    weighting: Weighting | None = None
    length: float | None = None


GRADIENT = Work()
"""The gradient of the mean loss over all of a client's data."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Accuracy in [0, 1] and mean loss on test data.

    Attributes:
        accuracy: None where the task is no classification, or there are no test data.
        loss: None where there are no test data.
    """

    accuracy: float | None
    loss: float | None
