"""JSON of records, atomic writing of files, and checksums that reveal changed files."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from randquant._internal import validate
from randquant._internal.files import flush, opener, read_regular, sync_folder

# Records as JSON and back, and atomic writing of files.

T = TypeVar("T")


def to_json(record: Any) -> Any:
    """Convert records, dicts, tuples and numbers to plain JSON values.

    Guarantees: infinity becomes the string "inf"; NaN is refused.

    Example:
        >>> to_json({"epsilon": float("inf")})
        {'epsilon': 'inf'}
    """
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: to_json(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [to_json(value) for value in record]
    record = validate.number(record)
    if isinstance(record, float):
        # JSON has neither: other parsers refuse Python's NaN and Infinity.
        if math.isnan(record):
            raise ValueError("Expected a number in a record, got NaN.")
        if math.isinf(record):
            return "inf" if record > 0 else "-inf"
    return record


def from_json(kind: type[T], data: Any) -> T:
    """Build a record of dataclass `kind` from parsed JSON.

    Raises:
        ValueError: a field is missing or unknown.
    """
    if not isinstance(data, dict):
        raise ValueError(f"Expected a JSON object for {kind.__name__}, got {type(data).__name__}.")
    known = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    # A field of a later version may change what the others mean: none is ignored.
    unknown = sorted(set(data) - known)
    if unknown:
        raise ValueError(f"Expected only known fields of {kind.__name__}, got {unknown[0]!r}.")
    try:
        return kind(**{key: float(v) if v in ("inf", "-inf") else v for key, v in data.items()})
    except TypeError as error:
        raise ValueError(f"Expected every field of {kind.__name__}: {error}.") from None


def write_atomic(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write `data` to `path` atomically: a reader sees either the old file or the whole new one.

    Args:
        path: the file.
        data: its new content.
        private: whether only this user may read it.

    Guarantees:
        The written file survives a power failure. If writing fails, the old file is unchanged and
        no other file is left behind. Symbolic links are not followed.

    Raises:
        OSError: it cannot be written; the error names `path`.
    """
    temporary = path.with_name(path.name + ".partial")
    mode = 0o600 if private else 0o666
    with naming(path):
        temporary.unlink(missing_ok=True)  # left by a killed process, or a planted link
        try:
            # Content first, then the name, then the folder: after a power cut at any point the name
            # has a whole file, the old one or the new one.
            with open(temporary, "xb", opener=functools.partial(opener, mode=mode)) as file:
                file.write(data)
                file.flush()
                flush(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    # Adds the file's name to errors of writing it, which name the temporary file or none.
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(
            f"Expected an existing folder to write {path.name} in, got {path.parent}: create it."
        ) from error
    except IsADirectoryError as error:
        raise IsADirectoryError(
            f"Expected to write a file {path}, got a folder of that name: choose another."
        ) from error
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(path: Path, record: Any) -> None:
    text = json.dumps(to_json(record), indent=2, allow_nan=False)
    write_atomic(path, (text + "\n").encode())


# JSON objects with a checksum of their content, so that a changed file is detected.
#
# A checksum detects damage and manual edits. It is not a signature: anyone can compute it.

CHECKSUM = "checksum"


def seal(record: Any, before: str = "") -> dict[str, Any]:
    """Return a record as a JSON object with a checksum as its last field.

    Args:
        record: a dataclass or mapping that `serialization.to_json` turns into a JSON object.
        before: the previous record's checksum, which is part of this one: records form a chain, in
            which a missing, repeated or moved record is detected.

    Example:
        >>> seal({"epsilon": 1.5})
        {'epsilon': 1.5, 'checksum': 'c72970e599586e0d136390c5548596d6'}
    """
    data = to_json(record)
    return {**data, CHECKSUM: _checksum(data, before)}


def unseal(text: bytes | str, before: str = "") -> tuple[dict[str, Any], str]:
    """Invert `seal`, from the object's JSON text; return (record, checksum).

    Guarantees:
        A text whose content differs from the sealed record, or that followed another record, is
        refused; white space and the order of fields do not matter.

    Raises:
        ValueError: it is not a JSON object, has no checksum, or its checksum does not match.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or CHECKSUM not in data:
            raise ValueError("it is not a JSON object with a checksum")
        checksum = data.pop(CHECKSUM)  # it covers all other fields
        if checksum != _checksum(data, before):
            raise ValueError("its checksum does not match its content, so it was changed")
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error).rstrip(".")) from None
    return data, checksum


def write(path: Path, record: Any, before: str = "") -> None:
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


# Arrays of numbers as bytes: the length of a head, the head, the arrays, each in its own bytes.

HASH_BYTES = 32
MAX_ARRAY_DIMENSIONS = 64
"""Largest number of dimensions of NumPy's arrays, and so of an array that was written."""

DTYPE = re.compile(r"[<>|][biuf][0-9]{1,2}")


def pack_arrays(record: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return a record of JSON data and arrays of numbers by name as bytes, with their checksum.

    Raises:
        ValueError: an array is of something else, which could not be read again.
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
    return b"".join([digest.digest(), *parts])


def unpack_arrays(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Invert `pack_arrays`: return (record, arrays).

    Raises:
        ValueError: the content is damaged.
    """
    body = memoryview(content)[HASH_BYTES:]
    if content[:HASH_BYTES] != hashlib.sha256(body).digest():
        raise ValueError("it is damaged")
    try:
        return _unpacked(body)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it was not written by this package: {error}") from None


def _unpacked(body: memoryview) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    start = 8 + int.from_bytes(body[:8], "little")
    head: dict[str, Any] = json.loads(bytes(body[8:start]))
    arrays = {}
    for name, dtype, shape in head["arrays"]:
        if not (isinstance(name, str) and DTYPE.fullmatch(dtype)) or name in arrays:
            raise ValueError(f"{name!r} is not an array of numbers, or comes twice")
        if len(shape) > MAX_ARRAY_DIMENSIONS:  # before they are multiplied
            raise ValueError(f"{name!r} has {len(shape)} sides")
        sides = [validate.whole("side", side, low=0, high=len(body)) for side in shape]
        size = math.prod(sides) * np.dtype(dtype).itemsize
        if size > len(body) - start:  # before memory is taken for it
            raise ValueError("its arrays end too soon")
        arrays[name] = np.ndarray(sides, dtype, bytearray(body[start : start + size]))
        start += size
    if start != len(body) or not isinstance(head["record"], dict):
        raise ValueError("it has other bytes after its arrays, or no record")
    return head["record"], arrays


def _checksum(data: dict[str, Any], before: str) -> str:
    # 128 bits: enough against accidents, which is all a checksum is for.
    text = json.dumps(data, sort_keys=True, allow_nan=False)
    return hashlib.sha256((before + text).encode()).hexdigest()[:32]
