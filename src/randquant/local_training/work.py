"""What a client computes in a round, and what a test measures: settings and results, no data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
        together: whether clients are computed together, see `Local`.
        divisor: what the sum of the clipped gradients is divided by; None for their number. With
            a public number a client counts by how many examples it has, and one example moves its
            update as far as in any other client.
    """

    batch: int | None = None
    epochs: int = 1
    learning_rate: float | Literal["auto"] | None = None
    example_norm: float | None = None
    together: bool | None = None
    divisor: int | None = None


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
