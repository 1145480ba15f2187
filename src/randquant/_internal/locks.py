"""Lock files, held by one process at a time, on every system that has file locks."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from filelock import lock_descriptor

from randquant._internal.disk import opener

NAME = "lock"
"""The lock file of a run, in its folder."""

POLL = 0.005
"""Seconds between two attempts to get a lock that another process holds."""

MOMENT = 0.05
"""Seconds for which `held` may make a lock seem to be held: it has it for microseconds."""


@contextlib.contextmanager
def exclusive(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock file; the operating system releases it when the process ends, however it ends.

    Args:
        path: the lock file.
        wait: seconds for which another process may hold it.

    Raises:
        BlockingIOError: another process holds it for longer.
        PermissionError: the file cannot be written.
        OSError: the file system has no locks. Nothing less than a lock of the operating system is
            taken: a mere file would outlast a process that is killed.
    """
    file = _acquired(path, time.monotonic() + max(wait, MOMENT))
    with file:
        yield


def held(path: Path) -> bool:
    """Return whether a process holds the lock of the run in a folder; nothing is written.

    Raises:
        OSError: the lock file cannot be read, or the file system has no locks.
    """
    until = time.monotonic() + MOMENT
    try:
        with open(path / NAME, "rb", opener=opener) as lock:
            while not _tried(lock, path / NAME):  # another process may ask the same
                if time.monotonic() > until:
                    return True
                time.sleep(POLL)
    except FileNotFoundError:
        pass
    return False


@contextlib.contextmanager
def folder(path: Path) -> Iterator[None]:
    """Lock the run in a folder for this process.

    Raises:
        BlockingIOError: another process holds the lock.
        PermissionError: the folder cannot be written.
        OSError: the file system has no locks.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(path / NAME))
        except BlockingIOError:
            raise BlockingIOError(
                f"Expected {path} to be free, but another process is training it: wait for it "
                "or choose another folder."
            ) from None
        yield


def remove(path: Path) -> None:
    """Delete a folder with the run in it, which no other process may be training.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: as in `folder`, or a file cannot be deleted.
    """
    with folder(path):
        for entry in path.iterdir():
            if entry.name == NAME:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        with contextlib.suppress(PermissionError):  # Windows deletes no file that is open
            (path / NAME).unlink()
    (path / NAME).unlink(missing_ok=True)
    path.rmdir()


def _acquired(path: Path, until: float) -> BinaryIO:
    """Return the lock file, open and locked; BlockingIOError if it is not free by then."""
    while True:
        file = _opened(path)
        try:
            if _tried(file, path):
                if _is(file, path):
                    return file
            elif time.monotonic() > until:
                raise BlockingIOError(
                    f"Expected {path} to be free, but another process holds it: wait for it."
                )
            else:
                time.sleep(POLL)
        except BaseException:
            file.close()
            raise
        file.close()


def _opened(path: Path) -> BinaryIO:
    """Open a lock file for writing, which changes nothing in it; create it if it is missing."""
    try:
        return open(path, "ab", opener=opener)
    except OSError as error:
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise PermissionError(
                f"Expected a folder that can be written, got {path.parent}: change its "
                "permissions, or choose another."
            ) from error
        raise


def _tried(file: BinaryIO, path: Path) -> bool:
    """Lock an open file if it is free; OSError with a sentence if locks are not supported."""
    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        raise OSError(
            f"Expected a file system with locks under {path.parent}, got {error.strerror!r}: "
            "choose a folder on a local disk."
        ) from error


def _is(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is still the one of that name, which `remove` may have deleted."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
