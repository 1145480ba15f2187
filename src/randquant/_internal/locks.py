"""Lock files, held by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def exclusive(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock file; the operating system releases it when the process ends.

    Raises:
        BlockingIOError: another process holds it, and `wait` is false.
    """
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:  # `held` may hold it for a moment
            time.sleep(0.05)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def held(path: Path) -> bool:
    """Return whether a process holds the lock of the run in a folder."""
    try:
        with open(path / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextlib.contextmanager
def folder(path: Path) -> Iterator[None]:
    """Lock the run in a folder for this process.

    Raises:
        BlockingIOError: another process holds the lock.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(path / "lock", wait=False))
        except BlockingIOError:
            raise BlockingIOError(
                f"Expected {path} to be free, but another process is training it: wait for it "
                "or choose another folder."
            ) from None
        yield
