"""Settings of a client's work in a round, that work, and the result of a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from randquant._internal import declared
from randquant._internal.declared import Clients, Count, Data
from randquant.local_training.standardize import Standardize


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


Buffers = Literal["refuse", "frozen", "server"]
"""How layers that keep running statistics are treated, see `make_problem`."""

BUFFER_CHOICES: tuple[Buffers, ...] = ("refuse", "frozen", "server")

LOCAL_EPOCHS = 5
"""Default passes over a client's data in a round, unless one gradient is sent."""

Rate = Annotated[float, Meta(ge=0, le=1e30)] | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Local:
    """Settings of a client's work in a round: its steps, the trained parts, and the device.

    Attributes:
        epochs: passes over a client's data in a round; by default 5, or 1 for a gradient.
        batch: samples of a local step; by default all of a client's.
        learning_rate: step size of local SGD; 0 to send one gradient instead of a model difference,
            which is the default where examples are protected; otherwise the default is auto, which
            computes each step's length from the curvature of the client's own loss. Where clip_norm
            bounds the L2 norm, auto scales every update, long or short, to clip_norm.
        parts: patterns of the names of the parameters that are trained; by default all.
        frozen: patterns of the names of the parameters that are not trained.
        buffers: how running statistics, such as BatchNorm's, are treated: the model is refused,
            they stay frozen, or the server computes them on public examples.
        public: for buffers="server": examples that no client holds.
        columns: names of the features' column, or several columns, and of the targets'.
        device: where updates are computed: cpu, cuda or cuda:NUMBER, or such a torch.device.
        threads: threads to simulate clients on; rounding depends on them.
        together: compute several clients, or several examples that are clipped, in one vectorised
            pass, or one by one; rounding depends on it. By default together where the model's
            operations allow it and it is faster.
        standardize: bring features, and a regression's targets, to mean 0 and deviation 1, which
            the run asks its clients for; by default they stay as they are.

    Clients are computed together by default if all of this holds:

    - Each operation that the model applies treats every example by itself. `row_wise.py` has a
      table of such operations: linear layers, convolutions, pooling, embeddings, attention, norms
      over an example, activations, arithmetic, and reshaping, reductions and joins that keep the
      examples apart. The model runs on zeros to see which operations it applies. Recurrent layers
      (nn.RNN, GRU, LSTM) are written out in these.
    - The loss is cross_entropy, mse_loss, l1_loss, smooth_l1_loss, huber_loss or
      binary_cross_entropy_with_logits, with its defaults.
    - Training draws no random numbers but those of nn.Dropout, and none where examples are
      clipped; the model has no hooks, all data are in memory, and it is visible who takes part in
      a round.
    - A step has little arithmetic, or is one linear layer's, or on a GPU.

    With together=True the last condition does not count, and the user vouches for operations that
    are not in the table and for a loss of one's own: each example's result must depend on that
    example alone, and the loss must be the mean over examples. Even where this is wrong, the
    vectorised pass (`torch.func.vmap`) keeps clients apart and refuses branches on numbers. It also
    refuses, and names the client of, an index beyond a table of embeddings; and a module or a loss
    that stores something in its attributes during a call. Values that functions or global variables
    store are not seen. Models known to be wrong are refused before the first round.
    `Learner.together` says what was decided, and `Learner.obstacle` the reason if not together.

    Raises:
        TypeError, ValueError: a setting is of the wrong kind or out of bounds.

    Example:
        >>> Local().complete("client").learning_rate, Local().complete("example").learning_rate
        ('auto', 0.0)
    """

    epochs: Clients[Annotated[int, Meta(ge=1, le=10_000)] | None] = None
    batch: Clients[Count | None] = None
    learning_rate: Clients[Rate | None] = None
    parts: Data[tuple[str, ...] | None] = None
    frozen: Data[tuple[str, ...] | None] = None
    buffers: Data[Buffers] = "refuse"
    public: Any = None
    columns: tuple[str | Sequence[str], str] | None = None
    device: Clients[Annotated[str, Meta(pattern=r"^(cpu|cuda(:\d{1,3})?)$")]] = "cpu"
    threads: Clients[Annotated[int, Meta(ge=1, le=256)]] = 2
    together: Clients[bool | None] = None
    standardize: Standardize | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "standardize", Standardize.read(self.standardize))
        # It may be a torch.device, but users without torch import this module.
        object.__setattr__(self, "device", str(self.device))
        for name in ("parts", "frozen"):
            patterns: Any = getattr(self, name)
            if patterns is not None:
                several = (patterns,) if isinstance(patterns, str) else tuple(patterns)
                object.__setattr__(self, name, several)
        declared.checked(self)

    @property
    def is_gradient(self) -> bool:
        # Only of settings that are `complete`: before, None may still become auto.
        return not self.learning_rate

    def complete(self, unit: str) -> Local:
        """Fill in the defaults for the protected unit, a `client` or an `example`."""
        rate: float | Literal["auto"] | None = self.learning_rate
        if rate is None:
            # Local steps would mix examples, and clipping single ones would bound nothing.
            rate = "auto" if unit == "client" else 0.0
        epochs = self.epochs
        if epochs is None:
            epochs = LOCAL_EPOCHS if rate else 1
        return replace(self, learning_rate=rate, epochs=epochs)

    def work(self, example_norm: float | None = None) -> Work:
        """Return the work of a `Learner`, with the threshold of single examples' gradients."""
        # Users write 0 for a single gradient, `Work` writes None.
        rate = self.learning_rate or None
        return Work(self.batch, self.epochs or 1, rate, example_norm, self.together)


ONE_GRADIENT = Local(epochs=1, learning_rate=0.0)
"""The gradient of the mean loss over all of a client's data."""
