"""The server's step without a learning rate, for runs on engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant.rounds.offer import Offer
from randquant.rounds.parameter_free import REACH_LENGTHS, ParameterFreeStep, Predicts
from randquant.rounds.parameter_layout import Arrays, Layout

START = "start of the run"
"""Name, in a run's store, of the weights that the steps started from."""


class UntunedSteps:
    """A run's steps without a learning rate: `ParameterFreeStep` with the settings of its offers.

    Args:
        predicts: what the model predicts, which decides how far the first steps go.

    Raises:
        ValueError: `predicts` is neither `classes` nor `numbers`.
    """

    def __init__(self, predicts: Predicts) -> None:
        validate.choice("predicts", predicts, tuple(REACH_LENGTHS))
        self.predicts: Predicts = predicts
        self._state: Mapping[str, Any] = {}
        self._next: Mapping[str, Any] = {}

    def step(
        self,
        offer: Offer,
        layout: Layout,
        model: Arrays,
        mean: np.ndarray,
        clients: int,
        rounds: int,
    ) -> np.ndarray:
        """Return what to add to the trained arrays, (dimension,) float32.

        Args:
            offer: of the round, with a clip_norm.
            layout, model: the trained arrays, before the step.
            mean: the mean update.
            clients: number of clients that the mean is of.
            rounds: of the whole run, as declared.
        """
        shapes = [shape for _, shape, _ in layout.trained]
        rule = ParameterFreeStep.for_mechanism(
            offer.mechanism, shapes, extra=offer.preparation.extra, clients=clients,
            rounds=rounds, predicts=self.predicts,
        )  # fmt: skip
        weights = layout.update(None, model)
        # The engine may still reject the step, so the new state waits for `keep_step`.
        # `rule` steps against a gradient: the update is its negative.
        stepped, self._next = rule.step(weights, -mean, self._state)
        return stepped - weights

    def keep_step(self) -> None:
        # A failed round leaves the model as it was, and must leave the steps so too.
        self._state = self._next

    def record(self) -> dict[str, Any]:
        # JSON; the array is in `arrays`.
        return {name: value for name, value in self._state.items() if name != "start"}

    def arrays(self) -> dict[str, np.ndarray]:
        return {START: self._state["start"]} if self._state else {}

    def restore(self, record: Mapping[str, Any], start: np.ndarray | None) -> None:
        # Inverts `record` and `arrays`. A run that has taken no step yet has no start.
        self._state = {} if start is None else {**record, "start": start}
