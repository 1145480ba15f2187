"""Public rotations of which every group of clients has its own: uniform ones, or nearly so.

A rank mechanism is unbiased if the rotation is uniformly distributed, and one rotation for all
clients would give all of them the same error: `docs/theory/rank.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np
from scipy.special import ndtri

from randquant._internal import validate
from randquant.aggregation.walsh_hadamard import hadamard
from randquant.channels.keys import Key

UNIFORM_UP_TO = 64
"""Most coordinates that are rotated by a uniformly distributed rotation, in D^2 operations."""

FEWEST = 2**13
"""Fewest coordinates that signs and transforms spread well enough; shorter updates are padded."""

PASSES = 3
"""Signs and a transform, so often: two leave a bias that can be measured."""


def spread_size(dimension: int) -> int:
    """Coordinates of a rotated update of this dimension, padding included.

    Example:
        >>> [spread_size(dimension) for dimension in (3, 64, 65, 10_000)]
        [3, 64, 8192, 16384]
    """
    dimension = validate.whole("dimension", dimension, low=1, high=2**29)
    if dimension <= UNIFORM_UP_TO:
        return dimension
    return max(FEWEST, 1 << (dimension - 1).bit_length())


@dataclass(frozen=True, slots=True)
class GroupRotation:
    """The rotation of one group of clients.

    Args:
        dimension: d, coordinates of an update; up to UNIFORM_UP_TO they are rotated by a uniformly
            distributed matrix, more are padded and rotated by PASSES of signs and transforms.
        seed: public, fixed before the updates are known.
        group: whole number of the group, whose rotation is independent of all others'.

    Guarantees:
        `forward` keeps inner products and L2 norms, and `inverse(forward(x))` is x, both up to
        float64 rounding. Privacy does not rest on it.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Stewart 1980 (uniform rotations from reflections); Ailon and Chazelle 2006.

    Example:
        >>> rotation = GroupRotation(dimension=3, seed=0, group=5)
        >>> rotation.inverse(rotation.forward(np.array([3.0, 0.0, 4.0]))).round(12) + 0.0
        array([3., 0., 4.])
    """

    dimension: int
    seed: int
    group: int

    def __post_init__(self) -> None:
        spread_size(self.dimension)
        validate.whole("seed", self.seed, low=0, high=2**64 - 1)
        validate.whole("group", self.group, low=0, high=2**64 - 1)

    @property
    def size(self) -> int:
        """Coordinates of a rotated vector."""
        return spread_size(self.dimension)

    @property
    def _key(self) -> Key:
        return Key.from_seed(self.seed).fold_in("group rotation", self.group)

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Rotate a vector (d,) to (size,), float64."""
        if self.size <= UNIFORM_UP_TO:
            y = np.array(x, dtype=np.float64)
            _reflect(y, self._normals(), -1)
            return y
        y = np.zeros(self.size)
        y[: self.dimension] = x
        for number in range(PASSES):
            _flip(y, self._words(number))
            hadamard(y, math.sqrt(self.size))
        return y

    def inverse(self, y: np.ndarray) -> np.ndarray:
        """Rotate a vector (size,) back to (d,), float64, without the padding."""
        if self.size <= UNIFORM_UP_TO:
            x = np.array(y, dtype=np.float64)
            _reflect(x, self._normals(), 1)
            return x
        x = np.array(y, dtype=np.float64)
        for number in reversed(range(PASSES)):
            hadamard(x, math.sqrt(self.size))
            _flip(x, self._words(number))
        return x[: self.dimension]

    def _words(self, number: int) -> np.ndarray:
        """(size / 64,) uint64: a bit for each sign."""
        return self._key.fold_in(number).words(self.size // 64)

    def _normals(self) -> np.ndarray:
        """(size (size + 1) / 2,) normal numbers: a direction of each dimension down to one."""
        words = self._key.words(self.size * (self.size + 1) // 2)
        return ndtri(((words >> np.uint64(12)) + 0.5) * 2.0**-52)


@numba.njit(nogil=True, cache=True)
def _flip(x: np.ndarray, words: np.ndarray) -> None:
    """Negate x[64 w + b] in place where bit b of words[w] is set."""
    for place, word in enumerate(words):
        part = x[64 * place : 64 * place + 64]
        for bit in range(64):
            part[bit] *= 1.0 - 2.0 * np.float64((word >> np.uint64(bit)) & np.uint64(1))


@numba.njit(nogil=True, cache=True)
def _reflect(x: np.ndarray, normals: np.ndarray, step: int) -> None:
    """Reflect what is left of x from each place on, from the first (1) or the last place (-1) on.

    The reflection takes the place's axis to a random direction: theory/rank.md, Proposition 7.
    """
    size = x.size
    for turn in range(size):
        place = turn if step > 0 else size - 1 - turn
        left = size - place
        part = x[place:]
        # The directions of `left` dimensions come after those of fewer.
        normal = normals[left * (left - 1) // 2 : left * (left + 1) // 2].copy()
        length = math.sqrt((normal * normal).sum())
        sign = 1.0 if normal[0] >= 0 else -1.0
        normal[0] += sign * length
        along = 2.0 * (normal * part).sum() / (normal * normal).sum()
        for j in range(left):
            part[j] = sign * (along * normal[j] - part[j])
