"""The server's step where nobody gives a rate, whatever engine a run is on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant.rounds.offer import Offer
from randquant.rounds.parameter_free import REACH, ParameterFreeStep, Predicts
from randquant.rounds.trained import Arrays, Layout

START = "start of the run"
"""Name of the array that the steps remember, among those of a run's state."""


class UntunedSteps:
    """A run's steps without a rate: `ParameterFreeStep` with what a round's offer says.

    A step becomes part of the state when the round has succeeded.

    Args:
        predicts: what the model predicts, which decides how far the first steps go.

    Raises:
        ValueError: it is neither `classes` nor `numbers`.
    """

    def __init__(self, predicts: Predicts) -> None:
        validate.choice("predicts", predicts, tuple(REACH))
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
        """What to add to the trained arrays, (dimension,) float32.

        Args:
            offer: of the round, with a clip_norm.
            layout, model: what is trained, before the step.
            mean: the mean update.
            clients: how many it is of.
            rounds: of the whole run, as declared.
        """
        shapes = [shape for _, shape, _ in layout.trained]
        rule = ParameterFreeStep.for_mechanism(
            offer.mechanism, shapes, extra=offer.preparation.extra, clients=clients, rounds=rounds,
            predicts=self.predicts,
        )  # fmt: skip
        here = layout.update(None, model)
        there, self._next = rule.step(here, -mean, self._state)
        return there - here

    def taken(self) -> None:
        """Keep the last step: its round has succeeded."""
        self._state = self._next

    def record(self) -> dict[str, Any]:
        """JSON data of the state, without its array."""
        return {name: value for name, value in self._state.items() if name != "start"}

    def arrays(self) -> dict[str, np.ndarray]:
        """The array of the state, by its name; empty before the first step."""
        return {START: self._state["start"]} if self._state else {}

    def restore(self, record: Mapping[str, Any], start: np.ndarray | None) -> None:
        """Undo `record` and `arrays`."""
        self._state = {} if start is None else {**record, "start": start}
