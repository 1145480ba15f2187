"""JSON files of results: values as JSON, a checksum of their content, atomic writing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

CHECKSUM = "checksum"


def to_json(value: Any) -> Any:
    """Convert dataclasses, mappings, sequences and numbers to plain values of JSON.

    Infinity becomes the string "inf".

    Raises:
        ValueError: a number is NaN.

    Example:
        >>> to_json({"epsilon": (1.5, math.inf)})
        {'epsilon': [1.5, 'inf']}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_json(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("Expected a number in a result, got NaN.")
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the whole new one."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def seal(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with a checksum of its content as its last field.

    The checksum detects damage and manual edits. It is not a signature: anyone can compute it.
    """
    return {**data, CHECKSUM: _checksum(data)}


def unseal(text: bytes) -> dict[str, Any]:
    """Return the object that `seal` was given, from its JSON text.

    Raises:
        ValueError: it is no JSON object with a checksum, or its content was changed.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or CHECKSUM not in data:
        raise ValueError("it is not a JSON object with a checksum")
    if data.pop(CHECKSUM) != _checksum(data):
        raise ValueError("its checksum does not match its content, so it was changed")
    return data


def _checksum(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
