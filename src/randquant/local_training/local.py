"""Settings of a client's work in a round, that work, and the result of a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from randquant._internal import declared, validate
from randquant._internal.declared import setting
from randquant._internal.formatting import from_json
from randquant.statistics.query import bounds


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


Bound = float | tuple[float, ...]

MAX_BOUND, MIN_BOUNDS_DISTANCE = 1e30, 1e-30
"""Largest bound and smallest distance of two bounds, so that no value computed from them overflows
float32 or becomes zero in it."""


@dataclass(frozen=True, slots=True)
class Standardize:
    """Standardise features, and a regression's targets, to mean 0 and deviation 1.

    Before the first round, the run asks all clients for means and deviations in one table of
    `randquant.statistics`, which counts in its guarantee. The model learns on standardised values;
    `run.model` takes raw features and predicts in raw units.

    Attributes:
        lower, upper: public bounds to which features are clipped: one number for all features, or
            one for each.
        target: (lower, upper) of a regression's targets, likewise; by default targets stay as they
            are, as labels do.
        share: part of the epsilon and delta that `spent` leaves, for the table; with 0 nothing is
            asked, and the bounds are mapped to -1 and 1.

    Raises:
        TypeError, ValueError: a setting is of the wrong kind or out of bounds.

    Example:
        >>> Standardize([18, 15], [100, 70], target=(0, 400)).bounds("features", 2)
        [(18.0, 100.0), (15.0, 70.0)]
    """

    lower: Bound
    upper: Bound
    target: tuple[Bound, Bound] | None = None
    share: float = 0.1

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, _as_bound(name, getattr(self, name)))
        if self.target is not None:
            pair = validate.listed("target", self.target)
            if len(pair) != 2:
                raise ValueError(f"Expected target as (lower, upper), got {len(pair)} values.")
            object.__setattr__(self, "target", tuple(_as_bound("target", each) for each in pair))
        # At most 0.9, because training needs some of epsilon.
        validate.real("share", self.share, low=0, high=0.9)
        declared.checked(self)
        # For their refusals alone: wrong bounds should fail before any data are read.
        for what in ("features", "target"):
            self.bounds(what)

    @classmethod
    def read(cls, value: Any) -> Standardize | None:
        """Return settings from a record, or settings and None as they are."""
        if isinstance(value, Mapping):
            return from_json(cls, dict(value))
        if value is not None:
            validate.kind("standardize", value, cls)
        return value

    def bounds(self, what: str, count: int | None = None) -> list[tuple[float, float]]:
        """Return (lower, upper) of each feature or number of a target; [] without a target.

        Args:
            what: `features` or `target`.
            count: of features, or of numbers of a target; by default as many as there are bounds.

        Raises:
            ValueError: there are bounds of another number of values, or a pair is not a range.
        """
        ends: Any = (self.lower, self.upper) if what == "features" else self.target
        if ends is None:
            return []
        sizes = {len(each) for each in ends if isinstance(each, tuple)}
        if count is None:
            count = max(sizes, default=1)
        if sizes - {count}:
            raise ValueError(
                f"Expected bounds of {count} {what}, or one for all, got "
                f"{sorted(sizes - {count})[0]} in standardize."
            )
        pairs = list(zip(*(each if isinstance(each, tuple) else (each,) * count for each in ends),
                         strict=True))  # fmt: skip
        for number, (low, high) in enumerate(pairs):
            bounds(f"{what.removesuffix('s')} {number}", low, high)
            validate.real("a bound's distance from 0", max(abs(low), abs(high)), high=MAX_BOUND)
            validate.real("bounds' distance", high - low, low=MIN_BOUNDS_DISTANCE)
        return pairs


def _as_bound(name: str, bound: Any) -> Bound:
    if np.ndim(bound) == 0:
        return validate.real(name, bound)
    return tuple(validate.array(name, bound).tolist())


Buffers = Literal["refuse", "frozen", "server"]
"""How layers that keep running statistics are treated, see `make_problem`."""

BUFFER_CHOICES: tuple[Buffers, ...] = ("refuse", "frozen", "server")

LOCAL_EPOCHS = 5
"""Default passes over a client's data in a round, unless one gradient is sent."""


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

    epochs: int | None = setting(None, "clients", ge=1, le=10_000)
    batch: int | None = setting(None, "clients", ge=1)
    learning_rate: float | Literal["auto"] | None = setting(None, "clients", ge=0, le=1e30)
    parts: tuple[str, ...] | None = setting(None, "data")
    frozen: tuple[str, ...] | None = setting(None, "data")
    buffers: Buffers = setting("refuse", "data")
    public: Any = None
    columns: tuple[str | Sequence[str], str] | None = None
    device: str = setting("cpu", "clients", pattern=r"^(cpu|cuda(:\d{1,3})?)$")
    threads: int = setting(2, "clients", ge=1, le=256)
    together: bool | None = setting(None, "clients")
    standardize: Standardize | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "standardize", Standardize.read(self.standardize))
        # It may be a torch.device, but users without torch import this module.
        object.__setattr__(self, "device", str(self.device))
        for name in ("parts", "frozen"):
            patterns: Any = getattr(self, name)
            if patterns is not None:
                # One pattern may come without a list: its letters would each be a pattern
                # otherwise.
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
