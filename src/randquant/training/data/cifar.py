"""CIFAR-100 from the binary version: 2 labels and 3 x 32 x 32 bytes per image."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CLASSES = 100
SHAPE = (3, 32, 32)
RECORD = 2 + 3 * 32 * 32
LARGEST = 10**6
"""Most images in a file: the real ones have 50,000 and 10,000."""

FILES = ("train.bin", "test.bin")
FOLDERS = ("cifar-100-binary", "cifar-100")


def load(data_dir: str | Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Load training images (N, 3, 32, 32) float32 in [0, 1] and fine labels (N,), then test data.

    Raises:
        FileNotFoundError: the files are missing, or no folder is given.
        ValueError: a file is damaged, or of another kind.
    """
    wanted = " and ".join(FILES)
    if data_dir is None:
        raise FileNotFoundError(
            f"Expected a folder with {wanted} (binary version) for cifar-100, got none: give it "
            "with --data-dir (data_dir in Python)."
        )
    folders = [Path(data_dir, folder) for folder in FOLDERS] + [Path(data_dir)]
    for folder in folders:
        if all((folder / file).is_file() for file in FILES):
            train, test = (_read(folder / file) for file in FILES)
            return *train, *test
    raise FileNotFoundError(
        f"Expected {wanted} (CIFAR-100, binary version) in {folders[0]}, found no such files: put "
        "them there or give another --data-dir."
    )


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    size = path.stat().st_size
    if size == 0 or size % RECORD or size > LARGEST * RECORD:
        raise ValueError(
            f"Expected {path} to hold images of {RECORD} bytes each, 1 to {LARGEST:,} of them, got "
            f"{size:,} bytes: use CIFAR-100's complete binary version."
        )
    records = np.fromfile(path, dtype=np.uint8).reshape(-1, RECORD)
    if records[:, 1].max() >= CLASSES:
        raise ValueError(
            f"Expected labels from 0 to {CLASSES - 1} in {path}, got {records[:, 1].max()}: check "
            "that this is CIFAR-100 and not CIFAR-10."
        )
    images = np.divide(records[:, 2:].reshape(-1, *SHAPE), np.float32(255))
    return images, records[:, 1].astype(np.int64)
