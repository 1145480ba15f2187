"""Which index a client sends whose ranks are those of blocks.

Derivation: `docs/theory/rank.md`, Propositions 12 and 13.
"""

from __future__ import annotations

import numpy as np

from randquant.aggregation.ranking import draw_below, index_at
from randquant.channels.keys import Key
from randquant.mechanisms.design.blocks import block_sums, response
from randquant.privacy.certificates.rank import RankTable


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
