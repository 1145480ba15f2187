"""JSON objects with a checksum of their content, so that a changed file is detected.

A checksum detects damage and manual edits. It is not a signature: anyone can compute it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from randquant._internal.disk import read_regular
from randquant._internal.serialization import to_json, write_json

CHECKSUM = "checksum"


def seal(record: Any, before: str = "") -> dict[str, Any]:
    """Return a record as a JSON object with a checksum as its last field.

    Args:
        record: a dataclass or mapping that `serialization.to_json` turns into a JSON object.
        before: the previous record's checksum, which enters this one: records form a chain, in
            which dropping, duplicating or moving a record is detected.

    Example:
        >>> seal({"epsilon": 1.5})
        {'epsilon': 1.5, 'checksum': 'c72970e599586e0d136390c5548596d6'}
    """
    data = to_json(record)
    return {**data, CHECKSUM: _checksum(data, before)}


def unseal(text: bytes, before: str = "") -> tuple[dict[str, Any], str]:
    """Invert `seal`, from the object's JSON text; return (record, checksum).

    Guarantees:
        Text whose content differs from the sealed record, or that follows another record, is
        refused; white space and the order of fields do not matter.

    Raises:
        ValueError: it is not a JSON object, has no checksum, or its checksum does not match.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or CHECKSUM not in data:
            raise ValueError("it is not a JSON object with a checksum")
        checksum = data.pop(CHECKSUM)
        if checksum != _checksum(data, before):
            raise ValueError("its checksum does not match its content, so it was changed")
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error).rstrip(".")) from None
    return data, checksum


def write(path: Path, record: Any, before: str = "") -> None:
    """Write a sealed record as an indented JSON file, atomically."""
    write_json(path, seal(record, before))


def read(path: Path, advice: str, before: str = "") -> dict[str, Any]:
    """Return the record in a sealed file.

    Args:
        path: the file.
        advice: what to do if it was changed, after "Expected … as it was written, but: ….".
        before: the previous record's checksum, as passed to `seal`.

    Raises:
        ValueError: the file was changed.
        OSError: it cannot be read.
    """
    try:
        return unseal(read_regular(path), before)[0]
    except ValueError as error:
        raise ValueError(f"Expected {path} as it was written, but: {error}. {advice}") from None


def _checksum(data: dict[str, Any], before: str) -> str:
    text = json.dumps(data, sort_keys=True, allow_nan=False)
    return hashlib.sha256((before + text).encode()).hexdigest()[:32]
