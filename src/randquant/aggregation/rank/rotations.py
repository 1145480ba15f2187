"""Public rotations of which every group of clients has its own: uniform ones, or nearly so.

A rank mechanism is unbiased if the rotation is uniformly distributed, and one rotation for all
clients would give all of them the same error: `docs/theory/rank.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np
from scipy.linalg import solve_triangular
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
        validate.convert_numbers(self)
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
        x = _sized(x, (self.dimension,))
        if self.size <= UNIFORM_UP_TO:
            return Reflections(self._key, self.size).forward(x)
        y = np.zeros(self.size)
        y[: self.dimension] = x
        for number in range(PASSES):
            _flip(y, self._words(number))
            hadamard(y, math.sqrt(self.size))
        return y

    def inverse(self, y: np.ndarray) -> np.ndarray:
        """Rotate a vector (size,) back to (d,), float64, without the padding."""
        y = _sized(y, (self.size,))
        if self.size <= UNIFORM_UP_TO:
            return Reflections(self._key, self.size).inverse(y)
        x = np.array(y, dtype=np.float64)
        for number in reversed(range(PASSES)):
            hadamard(x, math.sqrt(self.size))
            _flip(x, self._words(number))
        return x[: self.dimension]

    def _words(self, number: int) -> np.ndarray:
        """(size / 64,) uint64: a bit for each sign."""
        return self._key.fold_in(number).words(self.size // 64)


class Reflections:
    """A uniformly distributed rotation, as a product of reflections.

    Derivation: `docs/theory/rank.md`, Proposition 7.

    Args:
        key: of the rotation; public.
        size: m, coordinates.

    Guarantees:
        `forward` and `inverse` rotate each column of (m,) or (m, n) arrays, and undo each other, up
        to float64 rounding.

    References:
        Stewart 1980; Schreiber and Van Loan 1989 (products of reflections).
    """

    def __init__(self, key: Key, size: int) -> None:
        words = key.words(size * (size + 1) // 2)
        normals = ndtri(((words >> np.uint64(12)) + 0.5) * 2.0**-52)
        self._axes, self._signs = _axes(normals, size)
        # The product of all I - 2vv^T is I - V T V^T; this is the inverse of T.
        self._triangle = np.triu(self._axes.T @ self._axes, 1) + np.eye(size) / 2

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Rotate the columns of x, float64."""
        y = (self._signs * np.asarray(x, dtype=np.float64).T).T
        return y - self._axes @ solve_triangular(self._triangle, self._axes.T @ y)

    def inverse(self, y: np.ndarray) -> np.ndarray:
        """Rotate the columns of y back, float64."""
        x = np.asarray(y, dtype=np.float64)
        x = x - self._axes @ solve_triangular(self._triangle, self._axes.T @ x, trans=1)
        return (self._signs * x.T).T


def _sized(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array; ValueError unless it has this shape: compiled code does not look."""
    if np.shape(x) != shape:
        raise ValueError(
            f"Expected an array of shape {shape} to rotate, got {np.shape(x)}: this rotation "
            "is of another dimension."
        )
    return x


@numba.njit(nogil=True, cache=True)
def _flip(x: np.ndarray, words: np.ndarray) -> None:
    """Negate x[64 w + b] in place where bit b of words[w] is set."""
    for place, word in enumerate(words):
        part = x[64 * place : 64 * place + 64]
        for bit in range(64):
            part[bit] *= 1.0 - 2.0 * np.float64((word >> np.uint64(bit)) & np.uint64(1))


@numba.njit(nogil=True, cache=True)
def _axes(normals: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(axes of the reflections as columns, signs): theory/rank.md, Proposition 7.

    The reflection at a place takes the place's axis to a random direction of what is left.
    """
    axes, signs, sign = np.zeros((size, size)), np.empty(size), 1.0
    for place in range(size):
        left = size - place
        # The directions of `left` dimensions come after those of fewer.
        axis = normals[left * (left - 1) // 2 : left * (left + 1) // 2].copy()
        side = 1.0 if axis[0] >= 0 else -1.0
        axis[0] += side * math.sqrt((axis * axis).sum())
        axes[place:, place] = axis / math.sqrt((axis * axis).sum())
        sign *= -side
        signs[place] = sign
    return axes, signs
