"""The arrays that a Flower strategy keeps between rounds, such as an optimiser's moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.serverapp.strategy import Strategy

from randquant.rounds.parameter_layout import Arrays


def arrays_in(strategy: Strategy) -> dict[str, np.ndarray]:
    """Return the arrays of a strategy by attribute and key, for `restore`.

    They are those of attributes that are lists or dictionaries with arrays alone.
    """
    return {
        f"{name}/{key}": array
        for name, value in vars(strategy).items()
        for key, array in _arrays_in(value).items()
    }


def memory(strategy: Strategy) -> dict[str, Any]:
    """Copy the attributes of a strategy that may hold such arrays."""
    # Flower's strategies have None there before their first step.
    kinds = list | dict | None
    kept = {name: value for name, value in vars(strategy).items() if isinstance(value, kinds)}
    return {name: None if value is None else value.copy() for name, value in kept.items()}


def restore(strategy: Strategy, arrays: Arrays, first: Mapping[str, Any]) -> None:
    """Set a strategy's arrays to those that `arrays_in` returned.

    Args:
        strategy: the strategy, which is left unchanged if the arrays are not its own.
        arrays: those of `arrays_in`.
        first: its `memory` before its first step; attributes without arrays are reset to it.

    Raises:
        ValueError: the strategy has no such attributes.
    """
    by_attribute: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        attribute, _, key = name.partition("/")
        # A method, or a number that the user has set, is not replaced by what a file says.
        if not isinstance(vars(strategy).get(attribute, ""), list | dict | None):
            raise ValueError(
                f"Expected arrays that {type(strategy).__name__} remembers, got {name!r}."
            )
        by_attribute.setdefault(attribute, {})[key] = array
    # Arrays that are not in the file are of a later state, or of another run: they go first.
    for attribute in {name.partition("/")[0] for name in arrays_in(strategy)}:
        setattr(strategy, attribute, first.get(attribute))
    for attribute, parts in by_attribute.items():
        in_order = list(parts) == [f"#{place}" for place in range(len(parts))]
        setattr(strategy, attribute, list(parts.values()) if in_order else parts)


def _arrays_in(value: Any) -> dict[str, np.ndarray]:
    if isinstance(value, list):
        value = {f"#{place}": part for place, part in enumerate(value)}
    kinds = np.ndarray | np.number  # of an array (), NumPy's arithmetic makes a number
    if isinstance(value, dict) and value and all(isinstance(v, kinds) for v in value.values()):
        return {key: np.asarray(part) for key, part in value.items()}
    return {}
