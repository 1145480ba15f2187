"""A server's state: one file, replaced as a whole.

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

from randquant._internal import validate
from randquant._internal.files import make_folder, read_own
from randquant._internal.serialization import write_atomic

MAGIC = b"RQSTATE1"
HEAD = len(MAGIC) + 32
ERRORS = (AttributeError, OSError, KeyError, TypeError, ValueError, RecursionError)
"""What reading a damaged state, or one of something else, may raise."""
DTYPE = re.compile(r"[<>|][biuf][0-9]{1,2}")


def write(path: Path, record: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a record of JSON data, and arrays of numbers by name.

    Raises:
        ValueError: an array is of something else, which could not be read again.
        OSError: the file cannot be written.
    """
    for name, array in arrays.items():
        if not DTYPE.fullmatch(array.dtype.str):
            raise ValueError(f"Expected arrays of numbers, got {name!r} of {array.dtype}.")
    fields = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    head = json.dumps({"record": record, "arrays": fields}).encode()
    parts = [len(head).to_bytes(8, "little"), head, *(a.tobytes() for a in arrays.values())]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    make_folder(path.parent)
    write_atomic(path, b"".join([MAGIC, digest.digest(), *parts]), private=True)


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Undo `write`: return (record, arrays).

    Raises:
        ValueError: the file is damaged.
        OSError: it cannot be read, or is a link.
    """
    return _read(read_own(path))


def refused(path: Path, error: Exception) -> ValueError:
    """What is raised in the place of an error of ERRORS: where, why, and what to do."""
    reason = str(error).rstrip(".")
    return ValueError(
        f"Expected the state of a run in {path}, but: {reason}. Restore it from a copy, or begin "
        "again in another folder."
    )


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
