"""Settings of the server: its step with a round's mean update, evaluation and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from randquant._internal import declared, validate
from randquant._internal.declared import Count, Files

AUTO = "auto"
"""The optimiser is chosen by what clients send, see `Server`."""

Callback = Callable[..., None]
"""Called after each round with its RoundMetrics."""


@dataclass(frozen=True, slots=True)
class Server:
    """The server's step with a round's mean update, and what is done from round to round.

    Attributes:
        optimizer: the server's optimiser: the name of a class in torch.optim; in Python also what
            makes an optimiser of parameters, such as lambda p: torch.optim.Adam(p, lr=0.01). auto
            for steps that need no rate where updates are scaled to clip_norm, and plain steps of
            SGD elsewhere.
        options: the optimiser's options by name, such as momentum=0.9.
        learning_rate: the server's step size; by default 1, or that of the optimiser that a
            function makes.
        evaluate_every: rounds between evaluations on test data; by default a tenth of the rounds.
        checkpoint_every: rounds between checkpoints.
        on_round: called after each round with its RoundMetrics, one function or several. What it
            raises stops the run, which can be continued.
        baseline: also train the same run without privacy, for the report.

    Raises:
        TypeError, ValueError: a setting is of the wrong kind or out of bounds.

    Example:
        >>> Server("Adam", learning_rate=0.01).optimizer
        'Adam'
    """

    optimizer: declared.Server[Any] = AUTO
    options: declared.Server[Mapping[str, Any]] = field(default_factory=dict)
    learning_rate: declared.Server[Annotated[float, Meta(gt=0, le=1e30)] | None] = None
    evaluate_every: declared.Server[Count | None] = None
    checkpoint_every: Files[Count] = 5
    on_round: Any = ()
    baseline: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "on_round", _callbacks(self.on_round))
        declared.checked(self)
        if not isinstance(self.optimizer, str):
            self._check_function()
        elif self.optimizer == AUTO and (self.options or self.learning_rate is not None):
            object.__setattr__(self, "optimizer", "SGD")
        if isinstance(self.optimizer, str) and self.optimizer != AUTO:
            object.__setattr__(self, "learning_rate", self.learning_rate or 1.0)
        for name in ("lr", "params"):
            if name in self.options:
                raise ValueError(
                    f"Expected server_options without {name}, got "
                    f"{name}={validate.shown(self.options[name])}: the step size is "
                    "learning_rate, and the parameters are the model's."
                )

    def evaluates(self, round: int, rounds: int) -> bool:
        # Besides, a run always evaluates its last model.
        return round % (self.evaluate_every or max(1, rounds // 10)) == 0

    def _check_function(self) -> None:
        if not callable(self.optimizer):
            raise TypeError(
                "Expected server_optimizer to be the name of a class in torch.optim, or a function "
                f"of parameters, got {validate.shown(self.optimizer)}: give lambda p: "
                "torch.optim.Adam(p, lr=0.01)."
            )
        if self.learning_rate is not None:
            raise ValueError(
                "Expected the learning rate in server_optimizer's own lr, got learning_rate="
                f"{self.learning_rate} too: leave it out."
            )


def _callbacks(on_round: Callback | Sequence[Callback] | None) -> tuple[Callback, ...]:
    several = isinstance(on_round, Sequence)
    callbacks = tuple(on_round) if several else () if on_round is None else (on_round,)
    for callback in callbacks:
        if not callable(callback):
            raise TypeError(
                f"Expected on_round to be a function of a round's metrics, or several, got "
                f"{validate.shown(callback)}."
            )
    return callbacks
