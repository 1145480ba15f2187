"""Waits for what a page does, also under a policy that forbids pages to evaluate strings."""

from __future__ import annotations

import time
from typing import Any


def until(page: Any, condition: str, seconds: float = 30) -> bool:
    """Whether an expression becomes true on a page of playwright within some seconds.

    `page.wait_for_function` asks again within the page, where the page's policy holds.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        if time.monotonic() > end:
            return False
        page.wait_for_timeout(50)
    return True
