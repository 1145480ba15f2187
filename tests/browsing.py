"""A Chromium of this machine, and waits for what a page does in it.

Waits hold also under a policy that forbids pages to evaluate strings.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import time
from typing import Any


@functools.cache
def chromium() -> str | None:
    """The first that says its version: where none is installed, some names only tell how."""
    for program in filter(
        None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    ):
        if subprocess.run([program, "--version"], capture_output=True).returncode == 0:
            return program
    return None


def until(page: Any, condition: str, seconds: float = 120) -> bool:
    """Whether an expression becomes true on a page of playwright within some seconds.

    `page.wait_for_function` asks again within the page, where the page's policy holds.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        if time.monotonic() > end:
            return False
        page.wait_for_timeout(50)
    return True
