"""Files that must be there after a power cut."""

from __future__ import annotations

import os
from pathlib import Path

from randquant.records import write_atomic


class DamagedFile(ValueError):
    """A file of a client's own is not what it should be."""


def write_durable(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all, and return when file and name are on disk."""
    write_atomic(path, data)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
