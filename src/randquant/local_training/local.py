"""What a client computes in a round, as a user says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from randquant._internal import declared
from randquant._internal.declared import Clients, Count, Data
from randquant.local_training.standardize import Standardize
from randquant.local_training.work import Work

Buffers = Literal["refuse", "frozen", "server"]
"""What is done about layers that keep running statistics, see `make_problem`."""

BUFFER_CHOICES: tuple[Buffers, ...] = ("refuse", "frozen", "server")

LOCAL_EPOCHS = 5
"""Passes over a client's data in a round, unless one gradient is sent."""

Rate = Annotated[float, Meta(ge=0, le=1e30)] | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Local:
    """What a client computes in a round, of which parts of the model, and where.

    Attributes:
        epochs: passes over a client's data in a round; by default 5, or 1 for a gradient.
        batch: samples of a local step; by default all of a client's.
        learning_rate: step size of local SGD; 0 to send one gradient instead of a model difference,
            which is the default where examples are protected; auto, else the default, for steps as
            long as the curvature of the client's own loss asks for. Then updates are not cut but
            scaled to clip_norm, long ones and short ones, where it bounds their L2 norm.
        parts: patterns of the names of the parameters that are trained; by default all.
        frozen: patterns of the names of the parameters that are not trained.
        buffers: what becomes of running statistics, such as BatchNorm's: the model is refused, they
            stay frozen, or the server computes them on public examples.
        public: for buffers="server": examples that no client holds.
        columns: names of the features' column, or several columns, and of the targets'.
        device: where updates are computed: cpu, cuda or cuda:NUMBER, or such a torch.device.
        threads: threads to simulate clients on; rounding depends on them.
        together: compute several clients, or several examples that are clipped, in one vectorised
            pass, or one by one; rounding depends on it. By default together where that is right
            by the model's operations, and faster.
        standardize: bring features, and a regression's targets, to mean 0 and deviation 1, by
            figures that the run asks its clients for; by default they stay as they are.

    Clients are computed together by default if all of this holds:

    - Each operation that the model applies to examples treats each by itself. `row_wise.py` has a
      table of them: linear layers, convolutions, pooling, embeddings, attention, norms over an
      example, activations, arithmetic, and reshaping, reductions and joins that leave the examples
      apart. The model runs once on zeros to see which it applies, whatever its layers are called.
    - The loss is cross_entropy, mse_loss, l1_loss, smooth_l1_loss, huber_loss or
      binary_cross_entropy_with_logits, with its defaults.
    - Training draws no random numbers, the model has no hooks, all data are in memory, and it shows
      who takes part in a round.
    - A step has little arithmetic, or is one linear layer's, or on a GPU.

    With together=True the last of them does not count, and a user stands for an operation that is
    not in the table and for a loss of one's own: each example's must depend on that example alone,
    and the loss be the mean of the examples'. Even where this is wrong, the vectorised pass
    (`torch.func.vmap`) keeps clients apart and refuses what depends on numbers; an index beyond a
    table of embeddings is refused as its client's, and so is a module or a loss whose attributes
    keep something of a call. What a function or a global variable keeps is not seen. What is known
    to be wrong is refused before the first round. `Learner.together` says what was decided, and
    `Learner.obstacle` why not.

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
        object.__setattr__(self, "standardize", Standardize.of(self.standardize))
        # A torch.device, in a module that those without torch import.
        object.__setattr__(self, "device", str(self.device))
        for name in ("parts", "frozen"):
            patterns: Any = getattr(self, name)
            if patterns is not None:
                several = (patterns,) if isinstance(patterns, str) else tuple(patterns)
                object.__setattr__(self, name, several)
        declared.checked(self)

    @property
    def is_gradient(self) -> bool:
        """Whether one gradient is sent, once it is `complete`."""
        return not self.learning_rate

    def complete(self, unit: str) -> Local:
        """The same with the defaults of what is protected, a `client` or an `example`."""
        rate: float | Literal["auto"] | None = self.learning_rate
        if rate is None:
            rate = "auto" if unit == "client" else 0.0
        epochs = self.epochs
        if epochs is None:
            epochs = LOCAL_EPOCHS if rate else 1
        return replace(self, learning_rate=rate, epochs=epochs)

    def work(self, example_norm: float | None = None) -> Work:
        """What a `Learner` is told, with the threshold of single examples' gradients."""
        rate = self.learning_rate or None
        return Work(self.batch, self.epochs or 1, rate, example_norm, self.together)


ONE_GRADIENT = Local(epochs=1, learning_rate=0.0)
"""The gradient of the mean loss over all of a client's data."""
