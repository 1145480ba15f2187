"""The server's state: one file, replaced as a whole.

offset  bytes  field
0       8      magic "RQSTATE1"
8       32     SHA-256 of what follows
40      8      n
48      n      JSON: the record, and (name, dtype, shape) of every array
48 + n         the arrays
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy

from randquant._internal import validate
from randquant._internal.disk import make_folder
from randquant._internal.serialization import write_atomic
from randquant.integrations.flower.arrays import read

MAGIC, MODEL, INNER = b"RQSTATE1", "model/", "inner/"
HEAD = len(MAGIC) + 32
DTYPE = re.compile(r"[<>|][biuf][0-9]{1,2}")


def save(path: Path, record: Mapping[str, Any], model: ArrayRecord, inner: Strategy) -> None:
    """Write a record of JSON data, a model, and the arrays of a strategy's state."""
    arrays = {MODEL + name: read(array) for name, array in model.items()}
    for name, value in vars(inner).items():
        for key, array in _arrays_in(value).items():
            arrays[f"{INNER}{name}/{key}"] = array
    fields = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    head = json.dumps({"record": record, "arrays": fields}).encode()
    parts = [len(head).to_bytes(8, "little"), head, *(a.tobytes() for a in arrays.values())]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    make_folder(path.parent)
    write_atomic(path, b"".join([MAGIC, digest.digest(), *parts]))


def load(path: Path, inner: Strategy) -> tuple[dict[str, Any], ArrayRecord]:
    """Undo `save`: restore the strategy's arrays; return (record, model).

    Raises:
        ValueError: the file is damaged.
    """
    try:
        record, arrays = _read(path.read_bytes())
        model, by_attribute = {}, {}
        for name, array in arrays.items():
            if name.startswith(MODEL):
                model[name.removeprefix(MODEL)] = Array(array)
                continue
            attribute, key = name.removeprefix(INNER).split("/", 1)
            known = vars(inner).get(attribute, "") if name.startswith(INNER) else ""
            if not isinstance(known, list | dict | None):
                raise ValueError(f"{name!r} does not belong to this strategy")
            by_attribute.setdefault(attribute, {})[key] = array
    except (AttributeError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise ValueError(
            f"Expected the state of a run in {path}, but: {reason}. Restore it from a copy, or "
            "begin again in another folder."
        ) from error
    for attribute, parts in by_attribute.items():
        in_order = list(parts) == [f"#{place}" for place in range(len(parts))]
        setattr(inner, attribute, list(parts.values()) if in_order else parts)
    return record, ArrayRecord(model)


def _read(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return (record, arrays) of a file's bytes, in the memory of these bytes."""
    body = memoryview(data)[HEAD:]
    if data[:HEAD] != MAGIC + hashlib.sha256(body).digest():
        raise ValueError("it is damaged")
    start = 8 + int.from_bytes(body[:8], "little")
    head: dict[str, Any] = json.loads(bytes(body[8:start]))
    arrays = {}
    for name, dtype, shape in head["arrays"]:
        if not DTYPE.fullmatch(dtype) or name in arrays:
            raise ValueError(f"{name!r} is not an array of numbers, or comes twice")
        sides = [validate.whole("side", side, low=0, high=len(data)) for side in shape]
        size = math.prod(sides) * np.dtype(dtype).itemsize
        if size > len(body) - start:
            raise ValueError("its arrays end too soon")
        arrays[name] = np.ndarray(sides, dtype, bytearray(body[start : start + size]))
        start += size
    if start != len(body) or not isinstance(head["record"], dict):
        raise ValueError("it has other bytes after its arrays, or no record")
    return head["record"], arrays


def _arrays_in(value: Any) -> dict[str, np.ndarray]:
    """Arrays by name of a list or dictionary, such as an optimiser's moments; else empty."""
    if isinstance(value, list):
        value = {f"#{place}": part for place, part in enumerate(value)}
    if isinstance(value, dict) and value and all(isinstance(v, np.ndarray) for v in value.values()):
        return value
    return {}
