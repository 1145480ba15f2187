"""A client's work in a round, and the result of a test: values without data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Work:
    """A client's work in a round: `Local` settings, and the threshold of example gradients.

    Attributes:
        batch: samples of a step, drawn without repeats; None for all of the client's.
        epochs: passes over its data, with learning_rate only.
        learning_rate: step size of local SGD, or auto for the length from `step_length`; the
            update is the model difference after all steps. None to send one gradient.
        example_norm: L2 threshold to which each example's gradient is clipped before the mean;
            None for no clipping. Not with learning_rate.
        together: compute clients together or not; None to decide as `Local` says.
        summed: send the sum of the clipped gradients instead of their mean; a gradient that is not
            finite counts as none.
    """

    batch: int | None = None
    epochs: int = 1
    learning_rate: float | Literal["auto"] | None = None
    example_norm: float | None = None
    together: bool | None = None
    summed: bool = False


GRADIENT = Work()
"""The gradient of the mean loss over all of a client's data."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Accuracy in [0, 1] and mean loss on test data.

    Attributes:
        accuracy: None where the task is not a classification, or there are no test data.
        loss: None where there are no test data.
        balanced_accuracy: mean of the classes' accuracies; None unless classes are imbalanced.
        auc: area under the ROC curve; None unless there are two classes.
    """

    accuracy: float | None
    loss: float | None
    balanced_accuracy: float | None = None
    auc: float | None = None
