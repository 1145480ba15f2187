"""What is sent of an update: its coordinates after a public random rotation, or a subset of them.

The rotation spreads an update evenly over the coordinates; its public seed is the mechanism's, the
same in all rounds. Which coordinates are sent follows from another public seed, which each round
has of its own and all its clients share. Derivations: `docs/theory/additive.md`,
`docs/theory/subsets.md`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np

from randquant._internal import validate
from randquant.aggregation.clipping import clip_to_norm
from randquant.aggregation.mechanism import CoordinateError, check_seed, mean_error
from randquant.channels import wire
from randquant.channels.keys import Key

# The compiled Walsh-Hadamard transform: a cache-sized part at a time, then across parts.

_PART = 2**14  # doubles: 128 KiB, what a second-level cache holds


@numba.njit(nogil=True, cache=True)
def hadamard(x: np.ndarray, divisor: float) -> None:
    """Transform x (n,) float64 or float32 in place, n a power of two, and divide by a divisor.

    It computes the textbook's sums and differences in the same order, but takes the first four
    steps in registers and then two steps at a time, so that it passes over memory less often.
    """
    size = x.shape[0]
    part = min(size, _PART)
    for start in range(0, size, part):
        block = x[start : start + part]
        last = divisor if size == part else 1.0
        if size <= 16:
            _later_steps(block, 1, last)
        else:
            _first_four_steps(block)
            _later_steps(block, 16, last)
    _later_steps(x, part, divisor)


@numba.njit(nogil=True, cache=True)
def _two_steps(a, b, c, d):
    sum_low, difference_low = a + b, a - b
    sum_high, difference_high = c + d, c - d
    return (
        sum_low + sum_high,
        difference_low + difference_high,
        sum_low - sum_high,
        difference_low - difference_high,
    )


@numba.njit(nogil=True, cache=True)
def _first_four_steps(x):
    for start in range(0, x.shape[0], 16):
        t = x[start : start + 16]
        a0, a1, a2, a3 = _two_steps(t[0], t[1], t[2], t[3])
        b0, b1, b2, b3 = _two_steps(t[4], t[5], t[6], t[7])
        c0, c1, c2, c3 = _two_steps(t[8], t[9], t[10], t[11])
        d0, d1, d2, d3 = _two_steps(t[12], t[13], t[14], t[15])
        t[0], t[4], t[8], t[12] = _two_steps(a0, b0, c0, d0)
        t[1], t[5], t[9], t[13] = _two_steps(a1, b1, c1, d1)
        t[2], t[6], t[10], t[14] = _two_steps(a2, b2, c2, d2)
        t[3], t[7], t[11], t[15] = _two_steps(a3, b3, c3, d3)


@numba.njit(nogil=True, cache=True)
def _later_steps(x, half, divisor):
    # All steps between entries at least `half` apart; the last one divides by the divisor.
    size = x.shape[0]
    while 4 * half <= size:
        # To divide in the last pass saves another pass over the memory.
        by = divisor if 8 * half > size else 1.0
        for base in range(0, size, 4 * half):
            a = x[base : base + half]
            b = x[base + half : base + 2 * half]
            c = x[base + 2 * half : base + 3 * half]
            d = x[base + 3 * half : base + 4 * half]
            if by == 1.0:
                for j in range(half):
                    sum_low, difference_low = a[j] + b[j], a[j] - b[j]
                    sum_high, difference_high = c[j] + d[j], c[j] - d[j]
                    a[j], c[j] = sum_low + sum_high, sum_low - sum_high
                    b[j] = difference_low + difference_high
                    d[j] = difference_low - difference_high
            else:
                for j in range(half):
                    sum_low, difference_low = a[j] + b[j], a[j] - b[j]
                    sum_high, difference_high = c[j] + d[j], c[j] - d[j]
                    a[j], c[j] = (sum_low + sum_high) / by, (sum_low - sum_high) / by
                    b[j] = (difference_low + difference_high) / by
                    d[j] = (difference_low - difference_high) / by
        half *= 4
    if 2 * half <= size:
        for base in range(0, size, 2 * half):
            a, b = x[base : base + half], x[base + half : base + 2 * half]
            for j in range(half):
                a[j], b[j] = (a[j] + b[j]) / divisor, (a[j] - b[j]) / divisor


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
        # The smallest power of two that holds the dimension: the transform needs one.
        return 1 << (self.dimension - 1).bit_length()

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Rotate vectors (..., d) to (..., size), float64."""
        full = np.zeros((*x.shape[:-1], self.size))
        np.multiply(
            x, _signs(self.seed, self.size)[: self.dimension], out=full[..., : self.dimension]
        )
        return _hadamard_in_place(full)

    def inverse(self, y: np.ndarray) -> np.ndarray:
        """Rotate vectors (..., size) back to (..., d), float64, without the padding."""
        # A copy: the transform overwrites its argument, which belongs to the caller.
        full = _hadamard_in_place(np.array(y, dtype=np.float64, order="C"))[..., : self.dimension]
        return full * _signs(self.seed, self.size)[: self.dimension]


@functools.lru_cache(maxsize=8)
def _signs(seed: int, size: int) -> np.ndarray:
    words = Key.from_seed(seed).fold_in("rotation").words(-(-size // 64))
    # In one order of bytes and bits, so that clients of every machine flip the same signs.
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=size, bitorder="little")
    signs = 1.0 - 2.0 * bits
    # The cache hands out one array to all: nobody may change it for the others.
    signs.setflags(write=False)
    return signs


def _hadamard_in_place(x: np.ndarray) -> np.ndarray:
    size = x.shape[-1]
    for row in x.reshape(-1, size):
        hadamard(row, math.sqrt(size))
    return x


@dataclass(frozen=True, slots=True)
class Subset:
    """A random subset of the coordinates of a rotated update.

    Args:
        size: coordinates of a rotated update, a power of two up to 2**30.
        count: k, how many of them are in the subset, 1 to `size`.
        seed: whole number below 2**64 that clients and server share. It is public, and privacy does
            not rest on it.

    Guarantees:
        Over independent uniform words (those of the seed's key), every subset of `count`
        coordinates is equally likely, exactly.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> Subset(size=8, count=3, seed=0).indices
        array([1, 2, 3])
    """

    size: int
    count: int
    seed: int

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        size = validate.whole("size", self.size, low=1, high=2**30)
        if size & (size - 1):
            raise ValueError(f"Expected a size that is a power of two, got {size}: rotate first.")
        validate.whole(
            "coordinates", self.count, low=1, high=size,
            why=f"a rotated update has {size} of them",
        )  # fmt: skip
        check_seed(self.seed)

    @property
    def indices(self) -> np.ndarray:
        # Ascending.
        return _indices(self.size, self.count, self.seed)


@dataclass(frozen=True, slots=True)
class Projection:
    """Map from an update to the numbers that are sent, and back from their mean.

    An update is clipped to `clip_norm` and rotated. With `coordinates` only a subset of the rotated
    coordinates is kept and clipped a second time, to `norm_sent`.

    Args:
        dimension: d, coordinates of an update, 1 to 2**30.
        clip_norm: clipping threshold of a whole update's norm, within [1e-30, 1e30].
        rotation_seed: of the rotation; public.
        coordinates: k, how many rotated coordinates are sent, at most `rotated`; None for all.
        subset_seed: of the round's subset; public. None where none is drawn yet.

    Guarantees:
        The numbers sent of any update have a norm of at most `norm_sent`, whatever the seeds.

    Raises:
        ValueError: `coordinates` exceeds `rotated`.

    Example:
        >>> some = Projection(650, 1.0, coordinates=100, subset_seed=7)
        >>> some.rotated, some.size, some.norm_sent
        (1024, 100, 0.3125)
        >>> bool(np.linalg.norm(some.forward(np.ones(650))) <= 0.3125)
        True
    """

    dimension: int
    clip_norm: float
    rotation_seed: int = 0
    coordinates: int | None = None
    subset_seed: int | None = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        if self.coordinates is not None and self.coordinates > self.rotated:
            raise ValueError(
                f"Expected coordinates <= {self.rotated}, as many as a rotated update of "
                f"{self.dimension} parameters has, got {self.coordinates}: send fewer, or leave "
                "it out to send all."
            )

    @property
    def rotation(self) -> Rotation:
        return Rotation(self.dimension, self.rotation_seed)

    @property
    def rotated(self) -> int:
        return self.rotation.size

    @property
    def size(self) -> int:
        return self.rotated if self.coordinates is None else self.coordinates

    @property
    def norm_sent(self) -> float:
        """Return the largest norm of what is sent: clip_norm · sqrt(size / rotated)."""
        if self.coordinates is None:
            return self.clip_norm
        # theory/subsets.md, Proposition 2: the clipping keeps to this float, so it may be rounded.
        return self.clip_norm * math.sqrt(self.coordinates / self.rotated)

    @property
    def certified(self) -> dict[str, Any]:
        # The fields `update` of a certificate file; no seed, for privacy needs none.
        fields = unrotated("norm", self.clip_norm, self.dimension)
        return {**fields, "rotated": self.rotated, "sent": self.size}

    @property
    def indices(self) -> np.ndarray:
        """Draw the rotated coordinates that are sent, (coordinates,) int64.

        Raises:
            ValueError: no seed was given.
        """
        coordinates, seed = _require_seed(self.coordinates, self.subset_seed)
        return Subset(self.rotated, coordinates, seed).indices

    def forward(self, vector: np.ndarray) -> np.ndarray:
        """Clip, rotate, restrict and clip again: (d,) floats to (size,) floats."""
        # Clipped before the rotation, with room for the rounding of both (`clipping._room`).
        rotated = self.rotation.forward(clip_to_norm(vector, self.clip_norm))
        if self.coordinates is None:
            return rotated
        # theory/subsets.md, Proposition 2: for every update, not on average over subsets.
        kept = clip_to_norm(rotated[self.indices], self.norm_sent)
        return kept.astype(np.float64)

    def inverse(self, mean: np.ndarray) -> np.ndarray:
        """Scale up, put zeros where nothing was sent, rotate back: (size,) to (d,) floats."""
        if self.coordinates is not None:
            # theory/subsets.md, Proposition 3: each coordinate is sent with probability k/D.
            whole = np.zeros(self.rotated)
            whole[self.indices] = mean * (self.rotated / self.coordinates)
            mean = whole
        return self.rotation.inverse(mean)

    def error(self, each: CoordinateError) -> CoordinateError:
        """Convert the error of each number sent to that of a coordinate of the decoded mean.

        A subset scales both up, and what it leaves out of a mean is an error in proportion to its
        length.
        """
        if self.coordinates is None:
            return each
        # theory/subsets.md, Proposition 4.
        times = self.rotated / self.coordinates
        spread = math.sqrt((1 - 1 / times) / (2 * self.coordinates))
        return replace(
            each,
            variance=each.variance * times,
            bias=each.bias * times,
            gain=each.gain * (1 - spread / math.sqrt(2 * math.pi)),
            sum_noise=each.sum_noise * math.sqrt(times),
            omitted=(times - 1) / self.rotated,
            longest=self.clip_norm,
        )


class ProjectedUpdates:
    """The part of mechanisms that clip and rotate whole updates, and send all or some coordinates.

    A mechanism names it before `MechanismDefaults`; the fields are those of `VectorMechanism`.
    """

    __slots__ = ()

    clip_norm: float
    rotation_seed: int
    coordinates: int | None
    subset_seed: int | None

    def _check_projection(self) -> None:
        validate.whole("rotation_seed", self.rotation_seed, low=0, high=2**64 - 1)
        check_coordinates(self.coordinates)
        check_seed(self.subset_seed)

    def in_round(self: Any, seed: int) -> Any:
        check_seed(seed)
        return self if self.coordinates is None else replace(self, subset_seed=seed)

    def projection(self, dimension: int) -> Projection:
        return Projection(
            dimension, self.clip_norm, self.rotation_seed, self.coordinates, self.subset_seed
        )

    def size(self, dimension: int) -> int:
        return self.projection(dimension).size

    def expected_error(self: Any, dimension: int) -> CoordinateError:
        projection = self.projection(dimension)
        return projection.error(mean_error(self, dimension, projection.rotated))


def unrotated(clip: str, threshold: float, dimension: int) -> dict[str, Any]:
    """Return the fields `update` of a certificate file, of an update that is sent as it is clipped.

    Args:
        clip: `norm` or `coordinates`.
        threshold: of the clipping.
        dimension: coordinates of the update.
    """
    size = {"dimension": dimension, "rotated": dimension, "sent": dimension}
    return {"clip": clip, "threshold": float(threshold), **size}


def check_coordinates(coordinates: int | None) -> None:
    if coordinates is not None:
        validate.whole("coordinates", coordinates, low=1, high=2**30)


def subset_coding(whole: wire.Coding, coordinates: int | None, seed: int | None) -> wire.Coding:
    """Return the header of a payload; it names the subset, so that subsets are never mixed.

    Raises:
        ValueError: the subset has no seed.
    """
    if coordinates is None:
        return whole
    count, seed = _require_seed(coordinates, seed)
    return wire.Format.from_facts(whole.levels, whole.fingerprint.hex(), "subset", count, seed)


def _require_seed(coordinates: int | None, seed: int | None) -> tuple[int, int]:
    if coordinates is None or seed is None:
        raise ValueError(
            "Expected the public seed of this round's subset of coordinates, got none: encode and "
            "average with mechanism.in_round(seed), one seed for all clients of a round and "
            "another one in each round."
        )
    return coordinates, seed


def subset_fields(coordinates: int | None, seed: int | None) -> dict[str, int]:
    """Return these settings as a record's fields, none where all coordinates are sent."""
    fields = {"coordinates": coordinates, "subset_seed": seed}
    return {name: value for name, value in fields.items() if value is not None}


@functools.lru_cache(maxsize=8)
def _indices(size: int, count: int, seed: int) -> np.ndarray:
    # The first distinct values of uniform draws; for more than half of all, the complement of
    # fewer.
    # theory/subsets.md, Proposition 1: by symmetry uniform; a size of 2**b takes b bits of a word.
    stream = Key.from_seed(seed).fold_in("subset").stream()
    drawn, missing = np.zeros(size, dtype=bool), min(count, size - count)
    while missing:
        words = np.empty(missing, dtype=np.uint64)
        stream(words)
        values = np.unique(words & np.uint64(size - 1))
        missing -= int(np.count_nonzero(~drawn[values]))
        drawn[values] = True
    indices = np.flatnonzero(drawn if 2 * count <= size else ~drawn)
    indices.setflags(write=False)
    return indices
