"""Ranks within blocks of coordinates, whose answer is the same multiple of every update.

An update is cut into blocks, each in a uniformly random position. A block of norm r answers with as
many of its best ranks as have the expected sum `response` · r. First the tables, then the draw of
an index. Derivation: `docs/theory/rank.md`, Propositions 12 and 13.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from randquant._internal import validate
from randquant.aggregation.rank.designs import LEAST, MOST, integers, top_sum, two_levels
from randquant.aggregation.rank.drawing import draw_below, index_at
from randquant.aggregation.rank.table import RankTable
from randquant.channels.keys import Key
from randquant.privacy.guarantee import Neighboring

STEPS = 50
"""Of a search by thirds or halves."""


@functools.lru_cache(maxsize=8)
def block_sums(size: int) -> np.ndarray:
    """Expected sum of the 0, 1, … size largest magnitudes of a random unit vector's coordinates.

    Example:
        >>> block_sums(2).round(3)
        array([0.   , 0.9  , 1.273])
    """
    sums = np.array([top_sum(size, count) for count in range(size + 1)])
    sums.flags.writeable = False
    return sums


@functools.lru_cache(maxsize=64)
def response(blocks: int, size: int, count: int) -> float:
    """The largest answer that `count` ranks give to every unit vector, whatever its blocks' norms.

    Args:
        blocks: how many blocks there are.
        size: coordinates of a block.
        count: ranks, 1 to blocks · size.

    Example:
        >>> bool(response(1, 2, 1) == block_sums(2)[1])
        True
    """
    count = validate.whole("count", count, low=1, high=blocks * size)
    if blocks == 1:
        return float(block_sums(size)[count])
    low, high = 0.0, float(block_sums(size)[-1])
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if most_ranks(blocks, size, middle) <= count else (low, middle)
    return low


def most_ranks(blocks: int, size: int, answer: float) -> float:
    """How many ranks an answer needs at most, over all norms of blocks whose squares sum to one.

    Args:
        blocks: how many blocks there are, 2 or more.
        size: coordinates of a block.
        answer: within (0, block_sums(size)[-1]].

    Example:
        >>> bool(4 * np.interp(0.5, block_sums(16), range(17)) <= most_ranks(4, 16, 1.0) < 8)
        True
    """
    sums = block_sums(size)
    found, _ = _least(lambda slope: _above(slope, sums, answer, blocks), 0.0, float(blocks * size))
    return found


def _above(slope: float, sums: np.ndarray, answer: float, blocks: int) -> float:
    """Ranks of all blocks, by the lowest line of a slope above those of one of square norm u."""
    # theory/rank.md, Proposition 13: on each step of the sums ranks are linear in the norm.
    steps, count = np.diff(sums), np.arange(len(sums) - 1)
    asked = np.clip(answer**2 / (2 * slope * steps), sums[:-1], np.minimum(sums[1:], answer))
    needed = count + (asked - sums[:-1]) / steps - slope * (asked / answer) ** 2
    return blocks * float(needed[sums[:-1] <= answer].max()) + slope


def _least(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """(value, place) of the least value of a function that falls and then rises."""
    for _ in range(STEPS):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, second) if function(first) < function(second) else (first, high)
    return function((low + high) / 2), (low + high) / 2


@functools.lru_cache(maxsize=64)
def block_two_levels(
    blocks: int, size: int, epsilon: float, neighboring: Neighboring = "replace_one"
) -> RankTable:
    """A good table of two levels for ranks within blocks.

    Args:
        blocks: how many blocks there are.
        size: coordinates of a block.
        epsilon: log of the quotient of the two weights, LEAST to MOST.
        neighboring: as in `two_levels`.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> block_two_levels(4, 256, 8.0).counts
        (8, 2040)
    """
    total = 2 * blocks * size
    if blocks == 1 or neighboring == "zero_out":  # the same ranks as without blocks
        return two_levels(total // 2, epsilon, neighboring)
    epsilon = validate.real("epsilon", epsilon, low=LEAST, high=MOST)
    most = float(block_sums(size)[-1])

    def cost(log_answer: float) -> float:
        answer = most * math.exp(log_answer)
        return (most_ranks(blocks, size, answer) * math.expm1(epsilon) + total) / answer

    _, place = _least(cost, -20.0, 0.0)
    count = math.ceil(most_ranks(blocks, size, most * math.exp(place)))
    return integers([count, total - count], [math.exp(epsilon), 1.0])


def block_gain(table: RankTable, blocks: int) -> float:
    """Mean product of a unit vector and the signed coordinate drawn for it, whatever the vector.

    Example:
        >>> round(block_gain(block_two_levels(4, 256, 8.0), 4) * 32, 3)
        2.665
    """
    high, low = table.weights
    return (high - low) * response(blocks, table.size // blocks, table.counts[0]) / table.total


def draw_index(turned: np.ndarray, table: RankTable, key: Key) -> int:
    """Draw the index of a signed coordinate, of many where a block is long.

    Args:
        turned: (block, blocks) rotated update, not zero.
        table: of two levels.
        key: of this update.

    Returns:
        j for the coordinate at place j of turned.reshape(-1), size + j for its negative.

    Guarantees:
        Given the rotation, the law is a mixture of orders of the table's weights.
        Its mean is the same multiple of every vector, over rotations of the blocks.
    """
    unit = int(draw_below(table.total, key.fold_in("rank"))[0])
    step = table.weights[0] - table.weights[1]
    # theory/rank.md, Proposition 12: `count` ranks with the difference of weights, and all alike.
    if unit >= step * table.counts[0]:
        return int(draw_below(2 * table.size, key.fold_in("uniform"))[0])
    place, counts = unit // step, best_of_blocks(turned, table.counts[0], key.fold_in("counts"))
    ends = np.cumsum(counts)
    if place >= ends[-1]:
        return other_index(turned, counts, key.fold_in("other"))
    block = int(np.searchsorted(ends, place, side="right"))
    return _at(turned, block, place - int(ends[block] - counts[block]))


def best_of_blocks(turned: np.ndarray, count: int, key: Key) -> np.ndarray:
    """Draw how many of its best ranks each block gives: (blocks,) in all `count` at most.

    Their expected sum is linear in the block's norm.
    """
    size, blocks = turned.shape
    squares = np.square(turned / np.abs(turned).max()).sum(axis=0)
    norms = np.sqrt(squares / squares.sum())
    wanted = np.interp(response(blocks, size, count) * norms, block_sums(size), np.arange(size + 1))
    # theory/rank.md, Proposition 13: rounded with one offset, so that sums are rounded as well.
    offset = int(key.words(1)[0]) * 2.0**-64
    ends = np.minimum(np.floor(np.cumsum(wanted) + offset), count)
    return np.diff(ends, prepend=0).astype(np.int64)


def _at(turned: np.ndarray, block: int, rank: int) -> int:
    """The index of a rank within a block."""
    size, blocks = turned.shape
    index = index_at(np.ascontiguousarray(turned[:, block]), rank)
    return (index % size) * blocks + block + turned.size * (index >= size)


def other_index(turned: np.ndarray, counts: np.ndarray, key: Key) -> int:
    """A uniformly distributed one of the indices whose coordinate no block gives."""
    blocks, given = turned.shape[1], 0
    while True:
        index = int(draw_below(2 * turned.size, key.fold_in(given))[0])
        given += 1
        place, block = divmod(index % turned.size, blocks)
        order = np.argsort(-np.abs(turned[:, block]), kind="stable")
        if place not in order[: counts[block]]:
            return index
