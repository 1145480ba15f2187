"""The arrays that a strategy of Flower's remembers between rounds: an optimiser's moments."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.serverapp.strategy import Strategy

from randquant.rounds.trained import Arrays


def arrays_in(strategy: Strategy) -> dict[str, np.ndarray]:
    """Arrays by attribute and key, of lists and dictionaries of nothing else."""
    return {
        f"{name}/{key}": array
        for name, value in vars(strategy).items()
        for key, array in _arrays_in(value).items()
    }


def restore(strategy: Strategy, arrays: Arrays) -> None:
    """Undo `arrays_in`; ValueError, and nothing is changed, if they are not this strategy's."""
    by_attribute: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        attribute, _, key = name.partition("/")
        # A method, or a number that the user has set, is not replaced by what a file says.
        if not isinstance(vars(strategy).get(attribute, ""), list | dict | None):
            raise ValueError(
                f"Expected arrays that {type(strategy).__name__} remembers, got {name!r}."
            )
        by_attribute.setdefault(attribute, {})[key] = array
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
