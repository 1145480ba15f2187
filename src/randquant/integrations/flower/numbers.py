"""Numbers that travel beside updates: a client's metrics, and the threshold that updates have."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import INFO
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, RecordDict
from flwr.common import log

from randquant._internal import validate
from randquant.integrations.flower import messages

if TYPE_CHECKING:
    import numpy as np
    from flwr.serverapp.strategy import Result

    from randquant.aggregation.alongside import Alongside, Number
    from randquant.aggregation.mechanism import UpdateMechanism
    from randquant.integrations.flower.offer import Offer


@dataclass
class Beside:
    """What a run's clients send beside their updates, on the server's side.

    Attributes:
        alongside: how; None for nothing.
        threshold: what clients clip their updates to in the next round.
        found: the last round's numbers.
    """

    alongside: Alongside | None = None
    threshold: float = 0.0
    found: Mapping[str, float] | None = None

    @classmethod
    def of(
        cls,
        mechanism: UpdateMechanism,
        numbers: Sequence[Number],
        weighted_by: str | None,
        clip_quantile: float | None,
    ) -> Beside:
        """From a strategy's arguments.

        Raises:
            ValueError: the mechanism does not clip whole updates.
            TypeError: `numbers` is no list of numbers.
        """
        from randquant.aggregation.alongside import Alongside, Number, QuantileClip

        for each in validate.listed("numbers", numbers):
            validate.kind("numbers", each, Number)
        if not numbers and weighted_by is None and clip_quantile is None:
            return cls()
        norm = mechanism.clip_norm
        if norm is None:
            raise ValueError(
                "Expected a mechanism with a clip_norm for numbers beside updates, got one that "
                "clips coordinates one by one: numbers share the norm of an update."
            )
        clip = None if clip_quantile is None else QuantileClip(clip_quantile)
        return cls(Alongside(norm, tuple(numbers), clip, weighted_by), norm)

    @property
    def extra(self) -> int:
        """How many coordinates the numbers take."""
        return 0 if self.alongside is None else self.alongside.extra

    def stamp(self, requests: Mapping[int, Mapping[str, ConfigRecord]]) -> None:
        """Write the round's threshold into the requests to upload."""
        for records in requests.values() if self.alongside is not None else ():
            records[messages.HEAD][messages.THRESHOLD] = float(self.threshold)

    def update(self, mean: np.ndarray) -> np.ndarray:
        """The mean update, from a decoded mean; keeps the numbers, and moves the threshold."""
        if self.alongside is None:
            return mean
        update, self.found, self.threshold = self.alongside.parted(mean, self.threshold)
        return update

    def told(self, offer: Offer, clients: int) -> dict[str, float]:
        """The last round's numbers as metrics, each with the standard deviation of its noise."""
        if self.alongside is None or self.found is None:
            return {}
        coordinate = offer.mechanism.expected_error(offer.dimension).deviation(clients)
        told: dict[str, float] = {}
        for name, value in self.found.items():
            deviation = self.alongside.deviation(name, coordinate)
            told[name], told[f"{name}_deviation"] = value, deviation
            log(INFO, "randquant: %s %.4g, noise of standard deviation %.2g.", name, value,
                deviation)  # fmt: skip
        if self.alongside.clip is not None:
            told["clip_norm"] = self.threshold
        return told

    def measured(self, result: Result) -> dict[int, dict[str, Any]]:
        """What the server measured after each round, and what its clients' numbers said."""
        found = {n: dict(metrics) for n, metrics in result.evaluate_metrics_serverapp.items()}
        names = () if self.alongside is None else [each.name for each in self.alongside.numbers]
        for number, metrics in result.train_metrics_clientapp.items():
            own = {f"clients' {name}": metrics[name] for name in names if name in metrics}
            found.setdefault(number, {}).update(own)
        return found


def numbers_in(content: RecordDict) -> dict[str, float]:
    """All single numbers in a train function's metrics, by name.

    Raises:
        ValueError: two records have a number of one name.
    """
    found: dict[str, float] = {}
    for record in content.metric_records.values():
        single: dict[str, Any] = {k: v for k, v in record.items() if isinstance(v, numbers.Real)}
        if twice := found.keys() & single.keys():
            raise ValueError(f"Expected each metric in one record, got {min(twice)!r} in two.")
        found |= single
    return found
