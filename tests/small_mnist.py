"""MNIST in small: files in its format, of images from which something can be learned."""

import struct
from pathlib import Path

import numpy as np


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images that are bright in a row that their label says, and their labels."""
    made, labels = np.random.default_rng(seed).random((count, 28, 28)) / 2, np.arange(count) % 10
    made[np.arange(count), 2 * labels] += 0.5
    return np.rint(255 * made).astype(np.uint8), labels.astype(np.uint8)


def idx(array: np.ndarray) -> bytes:
    """The bytes of a file in MNIST's format."""
    header = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def small_mnist(folder: Path, count: int) -> Path:
    """MNIST files with so many training images and labels."""
    for split, size in (("train", count), ("t10k", 20)):
        for kind, array in zip(("images-idx3", "labels-idx1"), pictures(size, size), strict=True):
            (folder / f"{split}-{kind}-ubyte").write_bytes(idx(array))
    return folder
