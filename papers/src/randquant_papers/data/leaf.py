"""FEMNIST in LEAF's format: JSON files of writers, each with rows of pixels and labels."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

CLASSES = 62
SIDE = 28
PATTERN = "all_data_*.json"
FOLDERS = ("femnist", "femnist/all_data", "all_data")
LARGEST = 2**29
"""Most bytes of a file: LEAF puts a hundred writers into each, in less than half of that."""

TESTED = 10
"""One writer in TESTED, with all samples, is held out as test data."""


class Samples(NamedTuple):
    """Pixels (N, 1, 28, 28) float32 in [0, 1], labels (N,) and writers (N,), counted from 0."""

    pixels: np.ndarray
    labels: np.ndarray
    writers: np.ndarray


def load(data_dir: str | Path | None) -> tuple[Samples, Samples]:
    """Load training samples, and test samples by other writers.

    Writers are sorted by name and then shuffled by a fixed rule. The first tenth of them, at least
    one, are the test writers.

    Returns:
        (training, test). The last result is cached: do not change it.

    Raises:
        FileNotFoundError: there are no files, or no folder is given.
        ValueError: a file is damaged or of another kind, or there is only one writer.
    """
    paths = _find(data_dir)
    stamps = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    return _loaded(stamps)


def _find(data_dir: str | Path | None) -> list[Path]:
    if data_dir is None:
        raise FileNotFoundError(
            f"Expected a folder with LEAF's {PATTERN} for femnist, got none: give it with "
            "--data-dir (data_dir in Python)."
        )
    for folder in (Path(data_dir), *(Path(data_dir, name) for name in FOLDERS)):
        if found := sorted(folder.glob(PATTERN)):
            return found
    raise FileNotFoundError(
        f"Expected LEAF's {PATTERN} for femnist in {Path(data_dir, FOLDERS[0])}, found no such "
        "files: put them there or give another --data-dir."
    )


@functools.lru_cache(maxsize=1)  # gigabytes of text, which every run of an experiment needs
def _loaded(stamps: Sequence[tuple[str, int, int]]) -> tuple[Samples, Samples]:
    users: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, *_ in stamps:
        for user, samples in _read(Path(name)).items():
            if user in users:
                raise _damaged(Path(name), "every writer once", f"{_short(user)} again")
            users[user] = samples
    if len(users) < 2:
        raise ValueError(
            f"Expected at least 2 writers in {stamps[0][0]} and the files beside it, got "
            f"{len(users)}: some are held out as test data."
        )
    names = sorted(users)
    order = np.random.Generator(np.random.Philox(0)).permutation(len(names))
    tested = max(1, len(names) // TESTED)
    test, train = ([users[names[k]] for k in sorted(part)] for part in np.split(order, [tested]))
    return _joined(train), _joined(test)


def _joined(writers: Sequence[tuple[np.ndarray, np.ndarray]]) -> Samples:
    sizes = [len(labels) for _, labels in writers]
    return Samples(
        np.concatenate([pixels for pixels, _ in writers]).reshape(-1, 1, SIDE, SIDE),
        np.concatenate([labels for _, labels in writers]),
        np.repeat(np.arange(len(writers)), sizes),
    )


def _read(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Each writer's pixels (n, 784) float32 and labels (n,) int64."""
    if path.stat().st_size > LARGEST:
        raise _damaged(path, f"at most {LARGEST:,} bytes", f"{path.stat().st_size:,}")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:80]
        raise _damaged(path, "JSON", reason) from None
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    for name, kind in kinds.items():
        if not isinstance(content, dict) or not isinstance(content.get(name), kind):
            raise _damaged(path, f"an object with {', '.join(kinds)}", f"no such {name}")
    users, sizes, data = (content[name] for name in kinds)
    alike = sorted(map(repr, users)) == sorted(map(repr, data))
    if not users or len(users) != len(sizes) or not alike:
        raise _damaged(path, "the same writers in users, num_samples and user_data", "others")
    return {
        user: _samples(path, user, size, data[user])
        for user, size in zip(users, sizes, strict=True)
    }


def _samples(path: Path, user: str, size: Any, data: Any) -> tuple[np.ndarray, np.ndarray]:
    rows, labels = (data.get(name) if isinstance(data, dict) else None for name in ("x", "y"))
    try:
        with np.errstate(over="ignore"):  # infinity is refused below
            pixels = np.array(rows, dtype=np.float32)
        numbers = np.array(labels)
    except (ValueError, TypeError, OverflowError):
        raise _damaged(path, "numbers in x and y", f"others of {_short(user)}") from None
    if isinstance(size, bool) or size != len(numbers.reshape(-1)) or not numbers.size:
        wanted = "as many labels as num_samples says, at least one"
        raise _damaged(path, wanted, f"{numbers.size} for {_short(user)}")
    if pixels.shape != (size, SIDE * SIDE) or not ((pixels >= 0) & (pixels <= 1)).all():
        wanted = f"{SIDE * SIDE} pixels from 0 to 1 for each label"
        raise _damaged(path, wanted, f"others of {_short(user)}")
    whole = numbers.dtype.kind == "i" and numbers.ndim == 1
    if not whole or numbers.min() < 0 or numbers.max() >= CLASSES:
        wanted = f"whole labels from 0 to {CLASSES - 1}"
        raise _damaged(path, wanted, f"others of {_short(user)}")
    return pixels, numbers.astype(np.int64)


def _short(user: str) -> str:
    return f"writer {user[:40]!r}"


def _damaged(path: Path, expected: str, got: str) -> ValueError:
    return ValueError(
        f"Expected {path} to hold {expected}, got {got}: use LEAF's complete FEMNIST files."
    )
