"""What a server must not lose: one file, written whole or not at all."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy

from randquant.records import write_atomic

MODEL, INNER, RECORD = "model/", "inner/", "record"


def save(path: Path, record: Mapping[str, Any], model: ArrayRecord, inner: Strategy) -> None:
    """Write a record of JSON data, a model, and the arrays that a strategy steps with."""
    arrays = {MODEL + name: array.numpy() for name, array in model.items()}
    for name, value in vars(inner).items():
        for key, array in _arrays_in(value).items():
            arrays[f"{INNER}{name}/{key}"] = array
    arrays[RECORD] = np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)  # type: ignore[arg-type]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())


def load(path: Path, inner: Strategy) -> tuple[dict[str, Any], ArrayRecord]:
    """Undo `save`: put the strategy's arrays back in it; (record, model).

    Raises:
        ValueError: the file is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        record = json.loads(arrays.pop(RECORD).tobytes())
    except (OSError, KeyError, ValueError, EOFError) as error:
        raise ValueError(
            f"Expected the state of a run in {path}, got something else ({error}): restore it from "
            "a copy, or begin again in another folder."
        ) from error
    model, found = {}, {}
    for name, array in arrays.items():
        if name.startswith(MODEL):
            model[name.removeprefix(MODEL)] = Array(array)
        else:
            attribute, key = name.removeprefix(INNER).split("/", 1)
            found.setdefault(attribute, {})[key] = array
    for attribute, parts in found.items():
        in_order = all(key.startswith("#") for key in parts)
        setattr(inner, attribute, list(parts.values()) if in_order else parts)
    return record, ArrayRecord(model)


def _arrays_in(value: Any) -> dict[str, np.ndarray]:
    """Of a list or dictionary of arrays, such as an optimiser's moments; else nothing."""
    if isinstance(value, list):
        value = {f"#{place}": part for place, part in enumerate(value)}
    if isinstance(value, dict) and value and all(isinstance(v, np.ndarray) for v in value.values()):
        return value
    return {}
