"""Reading of files that a user names."""

from __future__ import annotations

from pathlib import Path


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
