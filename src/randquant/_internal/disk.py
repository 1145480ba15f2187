"""Bytes and names of files on the disk itself, as far as the system can promise it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from pathlib import Path

if sys.platform == "darwin":
    import fcntl

UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOTTY})
"""Errors of file systems that cannot do what was asked, such as some on a network."""


_NOTHING_ELSE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags of `os.open`, on systems that have them: no link is followed, no pipe is waited for."""


def opener(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """Open a regular file, for `open(..., opener=opener)`.

    Raises:
        OSError: the name is that of a symbolic link, a pipe, a device or a folder.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_regular(path, os.lstat(path))
    file = os.open(path, flags | _NOTHING_ELSE, mode)
    try:
        _check_regular(path, os.fstat(file))
    except BaseException:
        os.close(file)
        raise
    return file


def read_regular(path: Path) -> bytes:
    """Read a file; OSError at once if the name is that of a link, pipe, device or folder."""
    with open(path, "rb", opener=opener) as file:
        return file.read()


def read_own(path: Path) -> bytes:
    """Read a file that only this package writes, and replaces as a whole.

    Raises:
        OSError: it cannot be read, is no regular file, or has another name, which would keep an old
            content when this one gets a new one.
    """
    with open(path, "rb", opener=opener) as file:
        check_one_name(path, file.fileno())
        return file.read()


def check_one_name(path: Path, file: int) -> None:
    """Raise OSError if an open file has other names than its path."""
    if (names := os.fstat(file).st_nlink) > 1:
        raise OSError(
            f"Expected {path} to be a file with one name, got one with {names} hard links: "
            "remove the others."
        )


def check_private(path: Path, file: int) -> None:
    """Raise OSError if other users may open an open file; on Windows its folder decides."""
    if os.name != "nt" and (mode := stat.S_IMODE(os.fstat(file).st_mode)) & 0o077:
        raise OSError(
            f"Expected {path} to be a file for its owner alone, got one of mode {mode:o}: others "
            f"may have read it; if not, set chmod 600."
        )


def _check_regular(path: str | Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        folder = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else folder
        raise OSError(f"Expected {path} to be a regular file, got {kind}: use another name.")


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
