"""FedAvg whose step needs no rate, once it is wrapped."""

from __future__ import annotations

from typing import Any

from flwr.serverapp.strategy import FedAvg

from randquant.integrations.untuned import Predicts, UntunedSteps


class ParameterFree(FedAvg):
    """Selects clients as FedAvg does; `QuantizedStrategy` then takes steps that need no rate.

    Clients scale their updates to the mechanism's `clip_norm`, and the server's steps follow from
    public facts and the released means (docs/theory/untuned.md). It is what `QuantizedStrategy`
    takes by default.

    Args:
        predicts: what the model predicts, `classes` or `numbers`.
        options: those of FedAvg; `fraction_evaluate` is 0 by default, since nothing protects what
            clients measure.

    Raises:
        ValueError: `predicts` is neither.

    Example:
        >>> ParameterFree(fraction_train=0.5).fraction_evaluate
        0.0
    """

    def __init__(self, predicts: Predicts = "classes", **options: Any) -> None:
        UntunedSteps(predicts)  # checks it
        self.predicts: Predicts = predicts
        super().__init__(**{"fraction_evaluate": 0.0, **options})
