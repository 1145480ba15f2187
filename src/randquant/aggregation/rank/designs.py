"""Tables of ranks: the best for one participation, good ones for many, and what they achieve.

Figures are about a unit vector in a uniformly random position: by symmetry a decoded index is, on
average, `gain` times that vector. Derivation: `docs/theory/rank.md`.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
from scipy.special import expit, gammaln, log_expit, ndtr, ndtri

from randquant._internal import validate
from randquant.aggregation.rank.table import LARGEST_SIZE, LARGEST_TOTAL, RankTable
from randquant.privacy.guarantee import Neighboring

LEAST, MOST = 1e-6, 30.0
"""Logs of the quotient of weights: below, they would hardly differ; above, not fit 62 bits."""

LEVELS = 48
"""Most levels of a graded table."""

NODES = 4001
"""Points of an integral over one beta law."""


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
    size = validate.whole("size", size, low=1, high=LARGEST_SIZE)
    count = validate.whole("count", count, low=0, high=2 * size)
    count = min(count, 2 * size - count)
    if count == 0:
        return 0.0
    # theory/rank.md, Proposition 7: a normal vector's length is independent of its direction.
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
    odds = centre + np.linspace(-reach, reach, NODES)
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
    """How much of a client's squared error does not average out over clients of one rotation.

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
    # theory/rank.md, Proposition 8.
    square /= table.total**2
    gained = gain(table) ** 2
    return max((square - gained) / (1 - gained), 0.0)


@functools.lru_cache(maxsize=64)
def two_levels(size: int, epsilon: float, neighboring: Neighboring = "replace_one") -> RankTable:
    """The table with the largest gain for one participation, which has two levels.

    Args:
        size: D, coordinates, 1 to 2**29.
        epsilon: log of the quotient of the two weights, LEAST to MOST: the pure epsilon of one
            update under `replace_one`, and about half of it under `zero_out`.
        neighboring: which pure epsilon the table is the best for.

    Guarantees:
        No table of that pure epsilon has a larger gain, up to the rounding of weights and, under
        `zero_out`, of counts to integers. None that is (epsilon, delta)-private under
        `replace_one` gains much more: theory/rank.md, Proposition 4.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> table = two_levels(1024, 8.0)
        >>> table.counts, round(gain(table) * 32, 3)
        ((7, 2041), 2.721)
    """
    size, epsilon = _checked(size, epsilon)
    if neighboring == "zero_out":
        # theory/rank.md, Proposition 5: neither weight is farther from uniform than half of it.
        cut = min(math.ceil(2 * size * float(expit(-epsilon / 2))), size)
        return integers([cut, 2 * size - cut], [math.exp(epsilon), 1.0])
    low, high = 1, size  # the gain rises with the cut, then falls: theory/rank.md, Proposition 4
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
        epsilon: log of the largest quotient of weights, LEAST to MOST.
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
    order = validate.real("order", order, above=1, high=1e3)
    # Cuts at equal steps of the expected score.
    reach = -float(ndtri(0.25 / size))
    tails = 2 * size * ndtr(-np.linspace(reach, 0.0, LEVELS))
    cuts = np.unique(np.clip(np.rint(tails), 1, size).astype(np.int64)).tolist()
    counts = np.diff([0, *cuts]).tolist()
    sums = [top_sum(size, cut) for cut in cuts]
    scores = np.diff([0.0, *sums]) / counts
    # theory/rank.md, Proposition 6: the slope at a rank is proportional to its score.
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
    low, high = 0.0, MOST
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
    size = validate.whole("size", size, low=1, high=LARGEST_SIZE)
    return size, validate.real("epsilon", epsilon, low=LEAST, high=MOST)
