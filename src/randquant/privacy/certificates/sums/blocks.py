"""Blocks of clients: what several codes together have in common, whatever their inputs.

The sum of a few codes is nearly normal: bell-shaped noise, shifted by what the inputs decide, is
under its law but for little. Derivation and rounding: `docs/theory/sums.md`.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.blanket import LARGE, SHAPE_BITS, Blanket

FITS = 240
"""Linear programmes for one blanket, at most."""

MOST = 8
"""Clients in a block, at most."""

ONE, TWO = (0.95,), (0.9, 0.3)
"""Variances of bells over the least of a block: of one bell, and of two for high orders."""

REACH, TAKEN = 3.5, 0.95
"""Deviations to which a bell reaches; share of the first bell that leaves room for another."""

SPARE = 1e-13
"""More than the relative error of a block's law, of what is fitted under it, and of `even`."""


@functools.lru_cache(maxsize=256)
def block_blankets(channel: Channel, two: bool = False) -> tuple[Blanket, ...]:
    """Blankets of blocks: for blocks of any clients, and for blocks of clients at one vertex.

    Args:
        channel: the channel of every client.
        two: whether a second bell is fitted under what the first leaves, so that hardly a block
            hides nothing: at high orders that is what counts.
    """
    rows = np.unique(channel.weights, axis=0) / channel.denominator
    rows = even(rows[np.argsort(rows @ np.arange(channel.levels), kind="stable")])
    if channel.levels > LARGE or len(rows) > FITS:
        return ()
    # theory/sums.md, Proposition 13: all multisets of vertices, or those of one vertex.
    sizes = [size for size in range(2, MOST + 1) if len(multisets(rows, size, FITS)) <= FITS]
    bells = TWO if two else ONE
    found = [_fitted(channel, rows, multisets(rows, size, FITS), 1, bells) for size in sizes[-1:]]
    if sizes[-1:] != [MOST]:
        pure = [(vertex,) * MOST for vertex in range(len(rows))]
        found.append(_fitted(channel, rows, pure, len(rows), bells))
    return tuple(blanket for blanket in found if blanket is not None)


def even(rows: np.ndarray) -> np.ndarray:
    """Rows that are each other's mirror images where they nearly are; no entry is raised."""
    # A row that is lowered is still under the true one.
    least = np.minimum(rows, rows[::-1, ::-1])
    return least if np.allclose(least, rows, rtol=SPARE / 2, atol=0) else rows


def multisets(rows: np.ndarray, size: int, most: int) -> list[tuple[int, ...]]:
    """Who may be in a block: vertices, without mirror images; more than `most` are not listed."""
    last = len(rows) - 1
    # Bells, and kinds together, are their own mirror images: they fit under a block as they do
    # under the mirrored one.
    if math.comb(last + size, size) > 2 * most:
        return [()] * (most + 1)
    several = list(itertools.combinations_with_replacement(range(last + 1), size))
    if not np.array_equal(rows, rows[::-1, ::-1]):
        return several
    return [each for each in several if each <= tuple(last - v for v in reversed(each))]


def _fitted(
    channel: Channel,
    rows: np.ndarray,
    blocks: list[tuple[int, ...]],
    kinds: int,
    variances: tuple[float, ...],
) -> Blanket | None:
    """A blanket of bells for these blocks; None if they have none in common."""
    size, place = len(blocks[0]), np.arange(channel.levels)
    # Of normal noise, what has least variance is under the rest: less still leaves room.
    least = size * float((rows @ place**2 - (rows @ place) ** 2).min())
    if least <= 0:
        return None  # some row is always the same code
    # A shape is whatever its integers say.
    shapes = [bell(share * least) for share in variances]
    if max(len(shape) for shape in shapes) > size * (channel.levels - 1) + 1:
        return None
    bells = [shape / shape.sum() for shape in shapes]
    laws = [functools.reduce(np.convolve, rows[list(block)]) for block in blocks]
    shares = _common(laws, bells[:1], 0.0)
    if len(bells) > 1:
        # theory/sums.md, Proposition 13: of each bell what all laws have at once.
        shares = _common(laws, bells, TAKEN * shares[0])
    weights = [int(share * channel.denominator) for share in shares.tolist()]
    if min(weights) <= 0:
        return None
    return Blanket(tuple(shapes), tuple(weights), channel.denominator, size, kinds)


def _common(laws: list[np.ndarray], bells: list[np.ndarray], first: float) -> np.ndarray:
    """The least shares of all laws; of the rest it is of no use if one has nothing of a bell."""
    least = np.ones(len(bells))
    for law in laws:
        least = np.minimum(least, _shares(law, bells, first))
        if least.min() <= 0:
            break
    return least


def bell(variance: float) -> np.ndarray:
    """Normal noise, cut off: whole numbers."""
    reach = max(int(REACH * math.sqrt(variance)), 1)
    bell = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    return np.ceil(bell * 2**SHAPE_BITS).astype(np.int64)


def _shares(law: np.ndarray, bells: list[np.ndarray], first: float) -> np.ndarray:
    """How much of each bell, at all places together, is under a law at once; rounded down.

    Args:
        law: (L,) probabilities.
        bells: the shapes, each with a sum of 1.
        first: how much of the first there shall be; of the last there is as much as can be.
    """
    from scipy.optimize import linprog

    if law.min() <= 0:
        return np.zeros(len(bells))
    counts = [len(law) - len(shape) + 1 for shape in bells]
    each = np.repeat(np.eye(len(bells)), counts, axis=1)
    cover = np.zeros((len(law), sum(counts)))
    columns = iter(cover.T)
    for shape, count in zip(bells, counts, strict=True):
        for start in range(count):
            next(columns)[start : start + len(shape)] = shape
    # Relative to the law, as a solver's tolerance is absolute.
    cover /= law[:, None]
    solution = linprog(
        -each[-1], A_ub=np.concatenate([cover, -each[:1]]),
        b_ub=np.append(np.ones(len(law)), -first), bounds=(0, None), method="highs",
    )  # fmt: skip
    if solution.x is None:
        return np.zeros(len(bells))
    # theory/sums.md, Proposition 13: whatever was found is scaled down until it fits.
    found = np.maximum(solution.x, 0.0)
    over = np.maximum(cover @ found, 1.0)
    over = np.array([over[column > 0].max() for column in cover.T])
    return each @ (found / over) * (1 - 4 * SPARE)
