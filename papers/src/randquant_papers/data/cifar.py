"""CIFAR-10 and CIFAR-100 from their binary versions: labels and 3 x 32 x 32 bytes per image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

SHAPE = (3, 32, 32)
LARGEST = 10**6
"""Most images in a file: the real ones have 10,000 and 50,000."""


@dataclass(frozen=True, slots=True)
class Cifar:
    """How one of the two is published: its title, classes, files and usual folder names.

    The last of an image's `labels` bytes is its label; CIFAR-100 has the coarse one before it.
    """

    title: str
    classes: int
    labels: int
    train: tuple[str, ...]
    test: str
    folders: tuple[str, ...]

    @property
    def record(self) -> int:
        """Bytes of one image with its labels."""
        return self.labels + 3 * 32 * 32


KINDS = {
    "cifar-10": Cifar(
        "CIFAR-10", 10, 1, tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        "test_batch.bin", ("cifar-10-batches-bin", "cifar-10"),
    ),
    "cifar-100": Cifar(
        "CIFAR-100", 100, 2, ("train.bin",), "test.bin", ("cifar-100-binary", "cifar-100")
    ),
}  # fmt: skip


def load(
    name: str, data_dir: str | Path | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Load training images (N, 3, 32, 32) float32 in [0, 1] and labels (N,), then test data.

    Args:
        name: one of KINDS; labels of cifar-100 are the fine ones.
        data_dir: folder of the files, or of a folder that has a usual name and holds them.

    Raises:
        FileNotFoundError: the files are missing, or no folder is given.
        ValueError: a file is damaged, or of another kind.
    """
    kind = KINDS[name]
    wanted = " and ".join([kind.train[0] + (" to 5" if len(kind.train) > 1 else ""), kind.test])
    if data_dir is None:
        raise FileNotFoundError(
            f"Expected a folder with {wanted} (binary version) for {name}, got none: give it "
            "with --data-dir (data_dir in Python)."
        )
    folders = [Path(data_dir, folder) for folder in kind.folders] + [Path(data_dir)]
    for folder in folders:
        if all((folder / file).is_file() for file in (*kind.train, kind.test)):
            train = np.concatenate([_read(kind, folder / file) for file in kind.train])
            return *_parts(kind, train), *_parts(kind, _read(kind, folder / kind.test))
    raise FileNotFoundError(
        f"Expected {wanted} ({kind.title}, binary version) in {folders[0]}, found no such files: "
        "put them there or give another --data-dir."
    )


def _read(kind: Cifar, path: Path) -> np.ndarray:
    """The records (N, bytes) of a file, whose labels are checked."""
    size = path.stat().st_size
    if size == 0 or size % kind.record or size > LARGEST * kind.record:
        raise ValueError(
            f"Expected {path} to hold images of {kind.record} bytes each, 1 to {LARGEST:,} of "
            f"them, got {size:,} bytes: use {kind.title}'s complete binary version."
        )
    records = np.fromfile(path, dtype=np.uint8).reshape(-1, kind.record)
    highest = records[:, kind.labels - 1].max()
    if highest >= kind.classes:
        raise ValueError(
            f"Expected labels from 0 to {kind.classes - 1} in {path}, got {highest}: check that "
            f"this is {kind.title}."
        )
    return records


def _parts(kind: Cifar, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    images = np.divide(records[:, kind.labels :].reshape(-1, *SHAPE), np.float32(255))
    return images, records[:, kind.labels - 1].astype(np.int64)
