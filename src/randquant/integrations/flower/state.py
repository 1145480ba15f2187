"""The server's state on Flower, in one file: the record, the model, the strategy's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy

from randquant.integrations.flower.messages import read_array as read
from randquant.rounds import state

MODEL, INNER, RUN = "model/", "inner/", "run/"


def save(
    path: Path,
    record: Mapping[str, Any],
    model: ArrayRecord,
    inner: Strategy,
    of_run: Mapping[str, np.ndarray],
) -> None:
    """Write a record of JSON data, a model, and the arrays of a strategy's and a run's state."""
    arrays = {MODEL + name: read(array) for name, array in model.items()}
    arrays |= {RUN + name: array for name, array in of_run.items()}
    for name, value in vars(inner).items():
        for key, array in _arrays_in(value).items():
            arrays[f"{INNER}{name}/{key}"] = array
    state.write(path, record, arrays)


def load(path: Path, inner: Strategy) -> tuple[dict[str, Any], ArrayRecord, dict[str, np.ndarray]]:
    """Undo `save`: restore the strategy's arrays; return (record, model, the run's arrays).

    Raises:
        ValueError: the file is damaged.
    """
    try:
        record, arrays = state.read(path)
        model, of_run, by_attribute = {}, {}, {}
        for name, array in arrays.items():
            if name.startswith(MODEL):
                model[name.removeprefix(MODEL)] = Array(array)
                continue
            if name.startswith(RUN):
                of_run[name.removeprefix(RUN)] = array
                continue
            attribute, key = name.removeprefix(INNER).split("/", 1)
            known = vars(inner).get(attribute, "") if name.startswith(INNER) else ""
            if not isinstance(known, list | dict | None):
                raise ValueError(f"{name!r} does not belong to this strategy")
            by_attribute.setdefault(attribute, {})[key] = array
    except state.ERRORS as error:
        raise state.refused(path, error) from error
    for attribute, parts in by_attribute.items():
        in_order = list(parts) == [f"#{place}" for place in range(len(parts))]
        setattr(inner, attribute, list(parts.values()) if in_order else parts)
    return record, ArrayRecord(model), of_run


def _arrays_in(value: Any) -> dict[str, np.ndarray]:
    """Arrays by name of a list or dictionary, such as an optimiser's moments; else empty."""
    if isinstance(value, list):
        value = {f"#{place}": part for place, part in enumerate(value)}
    kinds = np.ndarray | np.number  # of an array (), NumPy's arithmetic makes a number
    if isinstance(value, dict) and value and all(isinstance(v, kinds) for v in value.values()):
        return {key: np.asarray(part) for key, part in value.items()}
    return {}
