"""IDX files, the format of the MNIST data sets: every byte is checked on reading.

Files are untrusted: no memory is allocated because a header asks for it, and every kind of damage
raises one clear error.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

MAX_ITEMS = 1_000_000
"""Most items that a file may hold: the real ones have 60,000 and 10,000."""

IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
"""The kinds of file: how their names end."""

_MAGIC = {IMAGES: 0x00000803, LABELS: 0x00000801}
_CHUNK = 1 << 20


def read(path: Path, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Read one file of unsigned bytes, plain or gzip'd.

    Args:
        path: the file; compressed if its name ends in .gz.
        kind: IMAGES or LABELS.
        shape: shape of one item.

    Returns:
        (count, *shape) uint8.

    Guarantees:
        A file shorter or longer than its header states is refused before an array is allocated.

    Raises:
        ValueError: the file is damaged or of another kind (see `damaged`).
    """
    try:
        with _opened(path) as stream:
            header = _read_at_most(stream, 8 + 4 * len(shape))
            count = _checked_count(path, header, kind, shape)
            size = count * math.prod(shape)
            # One more byte shows whether data follow, and makes gzip verify its checksum.
            payload = _read_at_most(stream, size + 1)
    except (OSError, EOFError, zlib.error) as error:
        advice = "check its permissions or download it again"
        raise damaged(path, "a readable file", f"'{error}'", advice) from error
    if len(payload) != size:
        got = f"only {len(payload)}" if len(payload) < size else "more"
        raise damaged(path, f"{size} bytes after the header", got)
    return np.frombuffer(payload, np.uint8).reshape(count, *shape)


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _read_at_most(stream: BinaryIO, size: int) -> bytearray:
    """Return `size` bytes, or fewer at the end: memory grows with the data, not with the header."""
    payload = bytearray()
    while chunk := stream.read(min(_CHUNK, size - len(payload))):
        payload += chunk
    return payload


def _checked_count(path: Path, header: bytearray, kind: str, shape: tuple[int, ...]) -> int:
    """Return the number of items in the header, after checking it against `kind` and `shape`."""
    length = 8 + 4 * len(shape)
    if len(header) != length:
        raise damaged(path, f"a header of {length} bytes", f"only {len(header)}")
    magic, count, *dimensions = (int(number) for number in np.frombuffer(header, ">u4"))
    if magic != _MAGIC[kind]:
        expected = f"magic number 0x{_MAGIC[kind]:08x} ({kind})"
        raise damaged(path, expected, f"0x{magic:08x}", "check that the file is what its name says")
    if tuple(dimensions) != shape:
        expected, got = ("x".join(map(str, sides)) for sides in (shape, dimensions))
        raise damaged(path, f"images of {expected}", got, "only this size is read")
    if not 1 <= count <= MAX_ITEMS:
        raise damaged(path, f"from 1 to {MAX_ITEMS} items", count)
    return count


def damaged(
    path: Path, expected: str, got: object, advice: str = "download the file again"
) -> ValueError:
    """Return an error that names the file, what was expected, what was found and what to do."""
    return ValueError(f"Expected {expected} in {path}, got {got}: {advice}.")
