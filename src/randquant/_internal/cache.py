"""Guesses kept on disk: where a search ended, so that the next one begins there.

Only guesses are kept, never a result: whoever reads one builds and certifies what it leads to. A
damaged, stale or forged file costs time, and cannot make anything that is stated false.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from randquant._internal import sealed
from randquant._internal.serialization import to_json
from randquant._internal.version import __version__

SWITCH = "RANDQUANT_CACHE"
"""Environment variable: `off`, or a folder instead of the user's cache folder."""

LARGEST = 1 << 20
"""Most bytes of a file that is read."""


def recall(kind: str, inputs: Mapping[str, Any]) -> Any:
    """Return the guess that was kept for exactly these inputs; None if there is none.

    Args:
        kind: what the guess is for, such as `calibration`.
        inputs: everything that the search depends on, as JSON values; versions are added.
    """
    path = _path(kind, inputs)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            kept, _ = sealed.unseal(file.read(LARGEST))
        return kept["guess"] if kept["inputs"] == _described(kind, inputs) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def keep(kind: str, inputs: Mapping[str, Any], guess: Any) -> None:
    """Keep a guess for these inputs, if the cache is on and can be written; the write is atomic."""
    path = _path(kind, inputs)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sealed.write(path, {"inputs": _described(kind, inputs), "guess": guess})
    except (OSError, ValueError):  # a cache that cannot be written is no cache
        return


def folder() -> Path | None:
    """The cache folder; None if the cache is off.

    Example:
        >>> import os
        >>> os.environ[SWITCH] = "off"
        >>> folder() is None
        True
    """
    chosen = os.environ.get(SWITCH, "")
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        place = os.environ.get("LOCALAPPDATA")
    elif sys.platform == "darwin":
        place = "~/Library/Caches"
    else:
        place = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(place).expanduser() / "randquant" if place else None
    except RuntimeError:  # no home
        return None


def _described(kind: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    described = {"kind": kind, **inputs, "versions": list(_versions())}
    return json.loads(json.dumps(to_json(described), sort_keys=True))


@functools.cache
def _versions() -> tuple[str, ...]:
    return __version__, np.__version__, scipy.__version__


def _path(kind: str, inputs: Mapping[str, Any]) -> Path | None:
    home = folder()
    if home is None:
        return None
    text = json.dumps(_described(kind, inputs), sort_keys=True)
    return home / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
