"""EMNIST ByClass from its IDX files, whose images are turned upright."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

CLASSES = 62
SIDE = 28
KINDS = {"images-idx3-ubyte": (0x803, SIDE, SIDE), "labels-idx1-ubyte": (0x801,)}
"""How the names of the two kinds of file end, with their magic number and the shape of an item."""


def load(data_dir: str | Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Load training images (N, 1, 28, 28) float32 in [0, 1] and labels (N,), then test data.

    Args:
        data_dir: folder of the files, plain or with .gz, or of a folder emnist that holds them.

    Raises:
        FileNotFoundError: the files are missing, or no folder is given.
        ValueError: a file is damaged, or of another kind.

    References:
        Cohen et al. 2017 (EMNIST).
    """
    wanted = [f"emnist-byclass-{split}-{kind}" for split in ("train", "test") for kind in KINDS]
    if data_dir is None:
        raise FileNotFoundError(
            f"Expected a folder with {', '.join(wanted)} (plain or .gz) for emnist, got none: "
            "give it with --data-dir (data_dir in Python)."
        )
    for folder in (Path(data_dir), Path(data_dir, "emnist")):
        found = [
            next((path for end in ("", ".gz") if (path := folder / (name + end)).is_file()), None)
            for name in wanted
        ]
        paths = [path for path in found if path is not None]
        if len(paths) == len(wanted):
            return *_split(*paths[:2]), *_split(*paths[2:])
    raise FileNotFoundError(
        f"Expected {', '.join(wanted)} (plain or .gz) in {Path(data_dir, 'emnist')} for emnist, "
        "found no such files: put them there or give another --data-dir."
    )


def _split(images_path: Path, labels_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a split."""
    of_images, of_labels = KINDS.values()
    images, labels = _read(images_path, *of_images), _read(labels_path, *of_labels)
    if len(images) != len(labels) or labels.max() >= CLASSES:
        raise ValueError(
            f"Expected {labels_path} to hold {len(images)} labels from 0 to {CLASSES - 1}, got "
            f"{len(labels)} up to {labels.max()}: use EMNIST ByClass."
        )
    upright = images.swapaxes(1, 2)[:, np.newaxis]
    return np.divide(upright, np.float32(255), order="C"), labels.astype(np.int64)


def _read(path: Path, magic: int, *shape: int) -> np.ndarray:
    """The items (count, *shape) uint8 of a file."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"Expected {path} to be readable, got '{error}'.") from None
    count, rest = divmod(len(content) - 8 - 4 * len(shape), math.prod(shape))
    header = struct.pack(f">{2 + len(shape)}I", magic, max(count, 0), *shape)
    if count < 1 or rest or not content.startswith(header):
        raise ValueError(
            f"Expected {path} to be an IDX file of items {shape}, got another or a part of it: "
            "download EMNIST ByClass again."
        )
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(count, *shape)
