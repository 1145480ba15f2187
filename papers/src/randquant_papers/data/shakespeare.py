"""Shakespeare's speaking roles, each a client: text by role as windows for predicting characters.

Read from `roles.json.gz` (a JSON list of objects with play, role and speeches), or from LEAF's JSON
for Shakespeare, whose overlapping samples are put together again.
"""

from __future__ import annotations

import functools
import gzip
import json
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The characters in the order of their codes: LEAF's 80, of which some are in no edition."""

LENGTH = 80
"""Characters in a window."""

SHORTEST = 200
"""Characters that a role must have to be a client."""

TESTED = 5
"""One window in TESTED, the last ones of each role, is test data: LEAF's split over time."""

FILES = ("roles.json.gz", "roles.json")
PATTERN = "all_data*.json"
FOLDERS = (".", "shakespeare", "shakespeare/all_data", "all_data")
LARGEST = 2**30
"""Most bytes of a file; LEAF's hold every character eighty times."""

_SPELLED = {"’": "'", "‘": "'", "“": '"', "”": '"', "—": "-", "–": "-", "\u2060": ""}


class Windows(NamedTuple):
    """Windows of text: inputs (N, 80) int64, targets (N, 80) int64, and roles (N,) int64.

    Numbers of characters are places in CHARACTERS, roles are counted from 0.
    """

    inputs: np.ndarray
    targets: np.ndarray
    roles: np.ndarray

    def by_role(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Each role's inputs and targets: clients as `randquant.train` takes them."""
        owned = (self.roles == role for role in np.unique(self.roles))
        return [(self.inputs[own], self.targets[own]) for own in owned]


def load(data_dir: str | Path | None) -> tuple[Windows, Windows]:
    """Load the roles' training and test windows.

    A role's speeches are joined by line ends and written in LEAF's 80 characters: typographic
    quotation marks and dashes as their plain forms, letters without accents, others left out. Its
    text is cut into windows of 80 characters, each with the character that follows each position;
    a rest at the end is left out. The first four fifths of a role's windows are training data and
    the others test data, so that both sets have the same roles.

    Args:
        data_dir: folder of `roles.json.gz`, or of LEAF's `all_data*.json`.

    Returns:
        (training, test), both with the same roles, in the order of the file: those of 200
        characters or more, line ends included. The last result is cached: do not change it.

    Raises:
        FileNotFoundError: there are no files, or no folder is given.
        ValueError: a file is damaged or of another kind, or no role is long enough.

    References:
        Caldas et al. 2018 (LEAF), section 3; McMahan et al. 2017, section 3 (a target at every
        position).
    """
    paths = _find(data_dir)
    stamps = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    return _windows(stamps)


def encoded(text: str) -> np.ndarray:
    """Places in CHARACTERS of a text's characters, int64, as `load` writes them.

    Example:
        >>> "".join(CHARACTERS[code] for code in encoded("O, “that’s” ñ—"))
        'O, "that\\'s" n-'
    """
    for character, plain in _SPELLED.items():
        text = text.replace(character, plain)
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    codes = _CODES[np.frombuffer(text.encode(), dtype=np.uint8)]
    return codes[codes >= 0]


_CODES = np.full(256, -1, dtype=np.int64)
_CODES[np.frombuffer(CHARACTERS.encode(), dtype=np.uint8)] = np.arange(len(CHARACTERS))


def _find(data_dir: str | Path | None) -> list[Path]:
    wanted = f"{FILES[0]} or LEAF's {PATTERN} for shakespeare"
    if data_dir is None:
        raise FileNotFoundError(f"Expected a folder with {wanted}, got none: give it as data_dir.")
    for folder in (Path(data_dir, name) for name in FOLDERS):
        for name in FILES:
            if (folder / name).is_file():
                return [folder / name]
        if found := sorted(folder.glob(PATTERN)):
            return found
    raise FileNotFoundError(
        f"Expected {wanted} in {Path(data_dir)}, found no such file: put it there "
        "or give another data_dir."
    )


@functools.lru_cache(maxsize=1)
def _windows(stamps: Sequence[tuple[str, int, int]]) -> tuple[Windows, Windows]:
    paths = [Path(name) for name, *_ in stamps]
    texts = [text for path in paths for text in _texts(path)]
    long = [text for text in texts if sum(map(len, text)) >= SHORTEST]
    rows = [_cut(text) for text in long]
    rows = [windows for windows in rows if len(windows) > 1]
    if not rows:
        raise ValueError(
            f"Expected a role of {SHORTEST} characters at least in {paths[0]}, got none of "
            f"{len(texts)}: use the complete file."
        )
    tested = [max(1, len(windows) // TESTED) for windows in rows]
    return (
        _joined([w[:-n] for w, n in zip(rows, tested, strict=True)]),
        _joined([w[-n:] for w, n in zip(rows, tested, strict=True)]),
    )


def _cut(segments: Sequence[np.ndarray]) -> np.ndarray:
    """Windows (n, 81) of a role's text; none reaches over the end of a segment."""
    parts = [
        np.lib.stride_tricks.sliding_window_view(segment, LENGTH + 1)[::LENGTH]
        for segment in segments
        if len(segment) > LENGTH
    ]
    return np.concatenate(parts) if parts else np.empty((0, LENGTH + 1), dtype=np.int64)


def _joined(rows: Sequence[np.ndarray]) -> Windows:
    windows = np.concatenate(rows)
    roles = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
    return Windows(windows[:, :-1].copy(), windows[:, 1:].copy(), roles)


def _texts(path: Path) -> Iterator[list[np.ndarray]]:
    """Each role's text in segments, encoded."""
    content = _read(path)
    if isinstance(content, dict):
        yield from _of_leaf(path, content)
        return
    for number, entry in enumerate(content):
        speeches = entry.get("speeches") if isinstance(entry, dict) else None
        if not isinstance(speeches, list) or not all(isinstance(each, str) for each in speeches):
            raise _damaged(path, "roles with a list of speeches", f"others as role {number}")
        yield [encoded("\n".join(speeches))]


def _read(path: Path) -> Any:
    wanted = "a list of roles, or LEAF's object"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise _damaged(path, f"at most {LARGEST:,} bytes", "more")
        content = json.loads(raw)
    except (OSError, EOFError, RecursionError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, "JSON", " ".join(str(error).split())[:80]) from None
    if not isinstance(content, list | dict):
        raise _damaged(path, wanted, f"a {type(content).__name__}")
    return content


def _of_leaf(path: Path, content: dict) -> Iterator[list[np.ndarray]]:
    """LEAF's samples put together: one that continues the sample before it adds a character."""
    users, data = content.get("users"), content.get("user_data")
    if not isinstance(users, list) or not isinstance(data, dict):
        raise _damaged(path, "an object with users and user_data", "no such object")
    for user in users:
        own = data.get(user) if isinstance(user, str) else None
        inputs, targets = (own.get(n) if isinstance(own, dict) else None for n in ("x", "y"))
        if not _strings(inputs) or not _strings(targets) or len(inputs) != len(targets):
            raise _damaged(path, "as many strings y as x of each user", f"others of {user!r:.40}")
        yield _segments(path, inputs, targets)


def _strings(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _segments(path: Path, inputs: list[str], targets: list[str]) -> list[np.ndarray]:
    segments: list[list[str]] = []
    before = ""
    for text, following in zip(inputs, targets, strict=True):
        if len(text) != LENGTH or len(following) != 1:
            raise _damaged(path, f"{LENGTH} characters and the one that follows", f"{len(text)}")
        if text == before[1:] and segments:
            segments[-1].append(following)
        else:
            segments.append([text, following])
        before = text + following
    return [encoded("".join(parts)) for parts in segments]


def _damaged(path: Path, expected: str, got: str) -> ValueError:
    return ValueError(f"Expected {path} to hold {expected}, got {got}: use the complete file.")
