"""Reading of files that a user names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

TOO_DEEP = "it is nested too deeply"

_LONG_KEY = re.compile(
    r"""(?<![\w"'\\-])(?:(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*){64}"""
)
"""A dotted key, whose parts may be quoted, for which `tomllib` would take memory in the square of
its length."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; ValueError if it is none, or is nested too deeply."""
    if _LONG_KEY.search(text):
        raise ValueError(TOO_DEEP)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def read_text(path: Path, what: str, advice: str = "check its name") -> str:
    """Return the text of a file.

    Args:
        path: the file.
        what: what it should hold, with its article, as in "a channel".
        advice: what to do if it is not there.

    Raises:
        FileNotFoundError, IsADirectoryError, PermissionError, OSError: it cannot be read.
        ValueError: it is no text in UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"Expected {what} in {path}, got no text: it is another file.") from None
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"Expected {what} in {path}, got no such file: {advice}.") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"Expected {what} in {path}, got a folder: {advice}.") from None
    except PermissionError:
        raise PermissionError(f"Expected {what} in {path}, got no permission to read it.") from None
