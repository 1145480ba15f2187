"""MNIST in small: files in its format, of random images."""

import struct
from pathlib import Path

import numpy as np


def small_mnist(folder: Path, count: int) -> Path:
    """MNIST files with so many random training images and labels."""
    rng = np.random.default_rng(0)
    for split, size in (("train", count), ("t10k", 20)):
        images = rng.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        labels = (np.arange(size) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
            (folder / f"{split}-{kind}-ubyte").write_bytes(header + array.tobytes())
    return folder
