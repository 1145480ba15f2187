"""Runs pytest in forks of a process that has imported everything but the package itself.

A line of JSON in: tests, cache, output, limit. A line out: the exit code, or null out of time.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable

IMPORTED = (
    "mpmath",
    "numba",
    "scipy.optimize",
    "scipy.stats",
    "hypothesis.extra.numpy",
    "flwr.clientapp",
    "flwr.serverapp.strategy",
)
"""What a test may import: it takes a second or two, and once is enough for all mutants."""

MEMORY = 8 << 30
"""Bytes of address space of a run: a fault may ask for ever more memory."""

OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", "-rfE")
# Asserts are compiled once with the copy, not rewritten each time: why one fails does not matter.
PLAIN = ("--assert=plain", "-W", "ignore::pytest.PytestAssertRewriteWarning")


def main() -> None:
    """Serve until standard input ends."""
    import pytest

    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _become_a_test(asked, pytest.main)
        print(json.dumps(_wait(child, asked["limit"])), flush=True)


def _become_a_test(asked: dict, run: Callable) -> None:
    """Does not return."""
    code = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        file = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for stream, target in ((0, nothing), (1, file), (2, file)):
            os.dup2(target, stream)
        from numba.core import config

        config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"] = asked["cache"]
        code = int(run([*OPTIONS, *PLAIN, *asked["tests"]]))
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _wait(child: int, limit: float) -> int | None:
    """Exit code; None if it had to be ended. Nothing that it started is left behind."""
    ends, found = time.monotonic() + limit, (0, 0)
    while found[0] == 0 and time.monotonic() < ends:
        time.sleep(0.02)
        found = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if found[0] == 0:
        os.waitpid(child, 0)
        return None
    return os.waitstatus_to_exitcode(found[1])


if __name__ == "__main__":
    main()
