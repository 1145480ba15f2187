"""A public random rotation, which spreads a vector evenly over its coordinates.

Derivation: `docs/theory/additive.md`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from randquant._internal import validate
from randquant.aggregation.walsh_hadamard import hadamard
from randquant.channels.keys import Key


@dataclass(frozen=True, slots=True)
class Rotation:
    """Randomised Hadamard rotation of d coordinates, padded with zeros to a power of two.

    Args:
        dimension: d, coordinates of a vector, 1 to 2**30.
        seed: whole number that clients and server share. It is public, and privacy does not rest
            on it; it spreads every vector that was chosen independently of the seed.

    Guarantees:
        `forward` keeps inner products and L2 norms, and `inverse(forward(x))` is x, both up to
        float64 rounding. Both are linear: the inverse of a sum is the sum of inverses.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Ailon and Chazelle 2006 (fast Johnson-Lindenstrauss); Suresh et al. 2017, section 3.

    Example:
        >>> rotation = Rotation(dimension=3, seed=0)
        >>> rotation.size, rotation.inverse(rotation.forward(np.array([3.0, 0.0, 4.0]))).round(12)
        (4, array([3., 0., 4.]))
    """

    dimension: int
    seed: int

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.whole("dimension", self.dimension, low=1, high=2**30)
        validate.whole("seed", self.seed, low=0, high=2**64 - 1)

    @property
    def size(self) -> int:
        """Coordinates of a rotated vector: the smallest power of two >= `dimension`."""
        return 1 << (self.dimension - 1).bit_length()

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Rotate vectors (..., d) to (..., size), float64."""
        full = np.zeros((*x.shape[:-1], self.size))
        np.multiply(
            x, _signs(self.seed, self.size)[: self.dimension], out=full[..., : self.dimension]
        )
        return _hadamard(full)

    def inverse(self, y: np.ndarray) -> np.ndarray:
        """Rotate vectors (..., size) back to (..., d), float64, without the padding."""
        full = _hadamard(np.array(y, dtype=np.float64, order="C"))[..., : self.dimension]
        return full * _signs(self.seed, self.size)[: self.dimension]


@functools.lru_cache(maxsize=8)
def _signs(seed: int, size: int) -> np.ndarray:
    """(size,) float64 of ±1, from the seed."""
    words = Key.from_seed(seed).fold_in("rotation").words(-(-size // 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=size, bitorder="little")
    signs = 1.0 - 2.0 * bits
    signs.setflags(write=False)
    return signs


def _hadamard(x: np.ndarray) -> np.ndarray:
    """Orthonormal Walsh-Hadamard transform along the last axis, (..., power of two), in place."""
    size = x.shape[-1]
    for row in x.reshape(-1, size):
        hadamard(row, math.sqrt(size))
    return x
