"""The script that brings charts to life: Vega's runtime, packed once, and a few lines of ours."""

from __future__ import annotations

import functools
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"


@functools.cache
def script() -> str:
    """All that a page runs: Vega's runtime, and what draws the page's figures with it."""
    return "".join(
        (TEMPLATES / name).read_text(encoding="utf-8") for name in ("vega.js", "charts.js")
    )
