"""Bytes and names of files on the disk itself, as far as the system can promise it."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path

if sys.platform == "darwin":
    import fcntl

UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOTTY})
"""Errors of file systems that cannot do what was asked, such as some on a network."""


def flush(file: int) -> None:
    """Put what was written to an open file on the disk, so that it survives a power cut.

    On macOS `fsync` leaves data in the disk's own cache, which a power cut empties.

    Raises:
        OSError: the disk reports an error.
    """
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
    os.fsync(file)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk: files that were created, renamed or deleted there.

    Windows cannot open a folder for this; its file system journals names itself.

    Raises:
        OSError: the disk reports an error.
    """
    if os.name == "nt":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        flush(opened)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    finally:
        os.close(opened)


def make_folder(folder: Path) -> None:
    """Create a folder, and those above it that are missing, so that they survive a power cut.

    Guarantees:
        The folder's name is on the disk even if another process created it and was killed before it
        flushed the name.

    Raises:
        OSError: it cannot be created, or the disk reports an error.
    """
    if folder.is_dir():
        with contextlib.suppress(PermissionError):  # of a folder above that is not ours to read
            sync_folder(folder.parent)
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)
