"""The tables of distributions over ranks, and their random directions."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numba
import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import expit, gammaln, log_expit, ndtr, ndtri

from randquant import Key
from randquant.aggregation import hadamard
from randquant_papers.rank.checks import Neighboring, real, whole

# Tables of ranks, and the pair of laws that no two updates ranked by one table can exceed.
#
# A rank mechanism draws a rank from one table and sends which index has it: two updates give two
# orders of the same weights. Derivation: `papers/docs/rank-theory.md`.

LARGEST_TOTAL = 2**62
"""Most that weights may sum to: words of 64 bits are compared with it."""

LARGEST_SIZE = 2**29
"""Most coordinates that are ranked."""

Pair = tuple[np.ndarray, np.ndarray]
"""Two rows of Python integers with the same sum."""


@dataclass(frozen=True, slots=True)
class RankTable:
    """The weights of ranks, the first of which is the best: levels of equal weights.

    Args:
        counts: how many ranks each level has, from the best on; in all an even number, two of each
            coordinate.
        weights: the weight of each rank of a level, in units of 1/`total`; positive and falling.

    Guarantees:
        Of all pairs of orders of the weights, and all mixtures of orders, none has a larger
        hockey-stick or Rényi divergence than `reversal`, at any epsilon and any order.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> table = RankTable((1, 3), (5, 1))
        >>> table.size, table.total, [[int(w) for w in row] for row in table.reversal]
        (2, 8, [[5, 2, 1], [1, 2, 5]])
    """

    counts: tuple[int, ...]
    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("counts", "weights"):
            numbers = tuple(whole(f"each of {name}", n, low=1) for n in getattr(self, name))
            object.__setattr__(self, name, numbers)
        if len(self.counts) != len(self.weights) or not self.counts:
            raise ValueError(
                f"Expected a count and a weight of each level, got {len(self.counts)} counts and "
                f"{len(self.weights)} weights."
            )
        # rank-theory.md, Proposition 1: the worst pair is the reversal of a sorted table only.
        if any(low >= high for high, low in itertools.pairwise(self.weights)):
            raise ValueError(
                f"Expected falling weights, got {self.weights}: sort the table, best rank first."
            )
        if sum(self.counts) % 2 or sum(self.counts) > 2 * LARGEST_SIZE:
            raise ValueError(
                f"Expected an even number of ranks, at most 2**30, got {sum(self.counts)}: each "
                "coordinate has two."
            )
        if self.total > LARGEST_TOTAL:
            raise ValueError(f"Expected weights that sum to 2**62 or less, got {self.total}.")

    @property
    def size(self) -> int:
        """The number of ranked coordinates, with both signs."""
        # A rank of each coordinate and of its negative.
        return sum(self.counts) // 2

    @property
    def total(self) -> int:
        """The sum of the weights of all ranks: the denominator of their probabilities."""
        return sum(count * weight for count, weight in zip(self.counts, self.weights, strict=True))

    @property
    def starts(self) -> tuple[int, ...]:
        """The first rank, from 0 on, of each level, and the number of ranks."""
        starts = [0]
        for count in self.counts:
            starts.append(starts[-1] + count)
        return tuple(starts)

    @property
    def reversal(self) -> Pair:
        """The table against its reversal, equal quotients put together."""
        ranks = 2 * self.size
        # rank-theory.md, Proposition 1: rank r of one update may be rank 2D - 1 - r of the other.
        cuts = sorted({*self.starts, *(ranks - start for start in self.starts)})
        rows = []
        for first, end in itertools.pairwise(cuts):
            weight, mirrored = self._weight(first), self._weight(ranks - end)
            rows.append(((end - first) * weight, (end - first) * mirrored))
        return _pair(rows)

    @property
    def absence(self) -> Pair:
        """The table against a uniform rank, which is what a zero update sends."""
        ranks = 2 * self.size
        # rank-theory.md, Proposition 3: both rows in units of 1 / (total · ranks).
        levels = zip(self.counts, self.weights, strict=True)
        return _pair([(count * weight * ranks, count * self.total) for count, weight in levels])

    def pairs(self, neighboring: Neighboring) -> tuple[Pair, ...]:
        """The pairs that dominate neighbours, one for each order of the two worlds."""
        if neighboring == "replace_one":
            # rank-theory.md, Proposition 1: exchanging the rows relabels them.
            return (self.reversal,)
        # rank-theory.md, Proposition 3: of these two neither exceeds the other everywhere.
        there, absent = self.absence
        return (there, absent), (absent, there)

    def _weight(self, rank: int) -> int:
        level = next(at for at, start in enumerate(self.starts[1:]) if rank < start)
        return self.weights[level]


def _pair(rows: list[tuple[int, int]]) -> Pair:
    first, second = (np.array(row, dtype=object) for row in zip(*rows, strict=True))
    return first, second


# Tables of ranks: the best for one participation, good ones for many, and what they achieve.
#
# Figures are about a unit vector in a uniformly random position: by symmetry a decoded index is, on
# average, `gain` times that vector. Derivation: `papers/docs/rank-theory.md`.

MIN_LOG_RATIO, MAX_LOG_RATIO = 1e-6, 30.0
"""Logs of the quotient of weights: below, they would hardly differ; above, not fit 62 bits."""

LEVELS = 48
"""Most levels of a graded table."""

NODE_COUNT = 4001
"""Number of points of an integral over one beta law."""


def top_sum(size: int, count: int) -> float:
    """Expected sum of the largest magnitudes of a random unit vector's coordinates.

    Args:
        size: D, coordinates, 1 to 2**29.
        count: how many of the largest, from 0 to 2D: of D coordinates and their negatives, so that
            beyond D the sum falls again.

    Returns:
        The sum, to about nine digits.

    References:
        David and Nagaraja 2003 (order statistics and beta laws).

    Example:
        >>> bool(abs(top_sum(2, 1) - 2 * math.sqrt(2) / math.pi) < 1e-12)
        True
    """
    size = whole("size", size, low=1, high=LARGEST_SIZE)
    count = whole("count", count, low=0, high=2 * size)
    count = min(count, 2 * size - count)
    if count == 0:
        return 0.0
    # rank-theory.md, Proposition 7: a normal vector's length is independent of its direction.
    log_length = gammaln((size + 1) / 2) - gammaln(size / 2) + math.log(2) / 2
    length = math.exp(log_length) if size < 2**20 else math.sqrt(size) * (1 - 1 / (4 * size))
    return size * _mean_density(size - count, count) / length


def _mean_density(rest: int, count: int) -> float:
    """Mean of a half-normal's density where its tail has a beta law of count and rest."""
    if rest == 0:
        return math.sqrt(2 / math.pi)
    # The log odds of the tail have a smooth law without edges: equal steps, and weights that need
    # no normalisation, are exact to rounding.
    centre, spread = math.log(count / rest), math.sqrt(1 / count + 1 / rest)
    reach = 10 * spread + 40 / min(count, rest)
    odds = centre + np.linspace(-reach, reach, NODE_COUNT)
    exponents = count * log_expit(odds) + rest * log_expit(-odds)
    weights = np.exp(exponents - exponents.max())
    density = np.sqrt(2 / math.pi) * np.exp(-0.5 * ndtri(expit(odds) / 2) ** 2)
    return float(weights @ density / weights.sum())


@functools.lru_cache(maxsize=64)
def gain(table: RankTable) -> float:
    """Mean product of a random unit vector and the signed coordinate that a table draws for it.

    Example:
        >>> gain(RankTable((1, 1), (3, 1)))  # randomised response: 3/4 - 1/4
        0.5
    """
    steps = [high - low for high, low in zip(table.weights, [*table.weights[1:], 0], strict=True)]
    sums = [top_sum(table.size, start) for start in table.starts[1:]]
    return math.fsum(step * part for step, part in zip(steps, sums, strict=True)) / table.total


def shared(table: RankTable) -> float:
    """Return the part of a squared error that clients of one rotation do not average out.

    It is the share for clients that all have one update, of the largest norm.

    Args:
        table: of ranks.

    Example:
        >>> shared(RankTable((1, 1), (3, 1)))  # one coordinate: a rotation is a sign, known to all
        0.0
    """
    ends, size = table.starts[1:], table.size
    square = 0
    cuts = sorted({end for end in ends if end < size} | {2 * size - e for e in ends if e > size})
    for first, end in itertools.pairwise([0, *cuts, size]):
        weights = [
            table.weights[next(at for at, e in enumerate(ends) if rank < e)]
            for rank in (first, 2 * size - 1 - first)
        ]
        square += (end - first) * (weights[0] - weights[1]) ** 2
    # rank-theory.md, Proposition 8.
    square /= table.total**2
    gained = gain(table) ** 2
    return max((square - gained) / (1 - gained), 0.0)


@functools.lru_cache(maxsize=64)
def two_levels(size: int, epsilon: float, neighboring: Neighboring = "replace_one") -> RankTable:
    """The table with the largest gain for one participation, which has two levels.

    Args:
        size: D, coordinates, 1 to 2**29.
        epsilon: log of the quotient of the two weights, MIN_LOG_RATIO to MAX_LOG_RATIO: the pure
            epsilon of one update under `replace_one`, and about half of it under `zero_out`.
        neighboring: which pure epsilon the table is the best for.

    Guarantees:
        No table of that pure epsilon has a larger gain, up to the rounding of weights and, under
        `zero_out`, of counts to integers. None that is (epsilon, delta)-private under
        `replace_one` gains much more: rank-theory.md, Proposition 4.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> table = two_levels(1024, 8.0)
        >>> table.counts, round(gain(table) * 32, 3)
        ((7, 2041), 2.721)
    """
    size, epsilon = _checked(size, epsilon)
    if neighboring == "zero_out":
        # rank-theory.md, Proposition 5: neither weight is farther from uniform than half of it.
        cut = min(math.ceil(2 * size * float(expit(-epsilon / 2))), size)
        return integers([cut, 2 * size - cut], [math.exp(epsilon), 1.0])
    low, high = 1, size  # the gain rises with the cut, then falls: rank-theory.md, Proposition 4
    while low < high:
        middle = (low + high) // 2
        if _ideal(size, epsilon, middle) < _ideal(size, epsilon, middle + 1):
            low = middle + 1
        else:
            high = middle
    return integers([low, 2 * size - low], [math.exp(epsilon), 1.0])


def _ideal(size: int, epsilon: float, cut: int) -> float:
    """Gain of two levels of real weights with this many ranks in the first."""
    return math.expm1(epsilon) * top_sum(size, cut) / (cut * math.expm1(epsilon) + 2 * size)


@functools.lru_cache(maxsize=64)
def graded(
    size: int, epsilon: float, order: float, neighboring: Neighboring = "replace_one"
) -> RankTable:
    """A table for many participations: weights that fall with the rank's expected coordinate.

    Args:
        size: D, coordinates, 1 to 2**29.
        epsilon: log of the largest quotient of weights, MIN_LOG_RATIO to MAX_LOG_RATIO.
        order: the Rényi order for which the shape of the weights is the best one, > 1.
        neighboring: under `zero_out` weights rise above uniform as far as they fall below it;
            under `replace_one` the worse half of the ranks has one weight.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> table = graded(1024, 1.0, 4.0)
        >>> len(table.counts), table.weights[0] <= math.e * table.weights[-1]
        (44, True)
    """
    size, epsilon = _checked(size, epsilon)
    order = real("order", order, above=1, high=1e3)
    # Cuts at equal steps of the expected score.
    reach = -float(ndtri(0.25 / size))
    tails = 2 * size * ndtr(-np.linspace(reach, 0.0, LEVELS))
    cuts = np.unique(np.clip(np.rint(tails), 1, size).astype(np.int64)).tolist()
    counts = np.diff([0, *cuts]).tolist()
    sums = [top_sum(size, cut) for cut in cuts]
    scores = np.diff([0.0, *sums]) / counts
    # rank-theory.md, Proposition 6: the slope at a rank is proportional to its score.
    steepest = _slope(epsilon, order) / scores[0]
    ratios = [math.exp(epsilon), *(_ratio(score * steepest, order) for score in scores[1:])]
    if neighboring == "replace_one":
        return integers([*counts, size], [*ratios, 1.0])
    # Above uniform and below it: square roots, over that of the last, which is 1.
    above = [math.sqrt(ratios[0] * ratio) for ratio in ratios]
    below = [math.sqrt(ratios[0] / ratio) for ratio in reversed(ratios)]
    return integers(counts + counts[::-1], above + below)


def _slope(log_ratio: float, order: float) -> float:
    """order · r^(order - 1) - (order - 1) · r^-order - 1 at r = e^log_ratio."""
    high = order * math.expm1((order - 1) * log_ratio)
    return high - (order - 1) * math.expm1(-order * log_ratio)


def _ratio(slope: float, order: float) -> float:
    """Invert `_slope`: the ratio r >= 1."""
    low, high = 0.0, MAX_LOG_RATIO
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _slope(middle, order) < slope else (low, middle)
    return math.exp(low)


def integers(counts: list[int], ratios: list[float]) -> RankTable:
    """The table of these weights, rounded down in units of the last; equal levels are merged."""
    unit = int(LARGEST_TOTAL // (sum(c * r for c, r in zip(counts, ratios, strict=True)) + 1))
    merged: dict[int, int] = {}
    for count, ratio in zip(counts, ratios, strict=True):
        # Down: no quotient of two weights exceeds that of the ratios.
        weight = int(unit * ratio * (1 - 2.0**-50)) if ratio > 1 else unit
        merged[weight] = merged.get(weight, 0) + count
    return RankTable(tuple(merged.values()), tuple(merged))


def _checked(size: int, epsilon: float) -> tuple[int, float]:
    size = whole("size", size, low=1, high=LARGEST_SIZE)
    return size, real("epsilon", epsilon, low=MIN_LOG_RATIO, high=MAX_LOG_RATIO)


# Public rotations of which every group of clients has its own: uniform ones, or nearly so.
#
# A rank mechanism is unbiased if the rotation is uniformly distributed, and one rotation for all
# clients would give all of them the same error: `papers/docs/rank-theory.md`.

MAX_UNIFORM_DIMENSION = 64
"""Most coordinates that are rotated by a uniformly distributed rotation, in D^2 operations."""

MIN_SPREAD_DIMENSION = 2**13
"""Fewest coordinates that signs and transforms spread well enough; shorter updates are padded."""

PASS_COUNT = 3
"""Signs and a transform, so often: two leave a bias that can be measured."""


def spread_size(dimension: int) -> int:
    """Coordinates of a rotated update of this dimension, padding included.

    Example:
        >>> [spread_size(dimension) for dimension in (3, 64, 65, 10_000)]
        [3, 64, 8192, 16384]
    """
    dimension = whole("dimension", dimension, low=1, high=2**29)
    if dimension <= MAX_UNIFORM_DIMENSION:
        return dimension
    return max(MIN_SPREAD_DIMENSION, 1 << (dimension - 1).bit_length())


@dataclass(frozen=True, slots=True)
class GroupRotation:
    """The rotation of one group of clients.

    Args:
        dimension: d, coordinates of an update; up to MAX_UNIFORM_DIMENSION they are rotated by a
            uniformly distributed matrix, more are padded and rotated by signs and a transform,
            PASS_COUNT times.
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
        for name in ("seed", "group"):
            object.__setattr__(self, name, whole(name, getattr(self, name), 0, 2**64 - 1))

    @property
    def size(self) -> int:
        """Coordinates of a rotated vector."""
        return spread_size(self.dimension)

    @property
    def _key(self) -> Key:
        # From a public seed: the server undoes the rotation, and privacy holds for any of them.
        return Key.from_seed(self.seed).fold_in("group rotation", self.group)

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Rotate a vector (d,) to (size,), float64."""
        x = _sized(x, (self.dimension,))
        if self.size <= MAX_UNIFORM_DIMENSION:
            return Reflections(self._key, self.size).forward(x)
        y = np.zeros(self.size)
        y[: self.dimension] = x
        for number in range(PASS_COUNT):
            _flip(y, self._words(number))
            hadamard(y, math.sqrt(self.size))
        return y

    def inverse(self, y: np.ndarray) -> np.ndarray:
        """Rotate a vector (size,) back to (d,), float64, without the padding."""
        y = _sized(y, (self.size,))
        if self.size <= MAX_UNIFORM_DIMENSION:
            return Reflections(self._key, self.size).inverse(y)
        x = np.array(y, dtype=np.float64)
        # Signs and the scaled transform undo themselves: the same steps, backwards.
        for number in reversed(range(PASS_COUNT)):
            hadamard(x, math.sqrt(self.size))
            _flip(x, self._words(number))
        return x[: self.dimension]

    def _words(self, number: int) -> np.ndarray:
        """(size / 64,) uint64: a bit for each sign."""
        return self._key.fold_in(number).words(self.size // 64)


class Reflections:
    """A uniformly distributed rotation, as a product of reflections.

    Derivation: `papers/docs/rank-theory.md`, Proposition 7.

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
        # Middles of 2**52 cells of (0, 1): at 0 and 1 the normal quantile would be infinite.
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
    """(axes of the reflections as columns, signs): rank-theory.md, Proposition 7.

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
