"""Files that one process at a time may hold."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def exclusive(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock file; the system lets go of it however the process ends.

    Raises:
        BlockingIOError: another holds it, and `wait` is false.
    """
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


@contextlib.contextmanager
def folder(path: Path) -> Iterator[None]:
    """Hold the run in a folder for this process alone.

    Raises:
        BlockingIOError: another process is training it.
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
