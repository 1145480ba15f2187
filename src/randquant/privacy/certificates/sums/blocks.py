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

VARIANCE, REACH = 0.95, 3.5
"""Variance of the noise, over the least of a block; and deviations to which it reaches."""

SPARE = 1e-13
"""More than the relative error of a block's law, of what is fitted under it, and of `even`."""


@functools.lru_cache(maxsize=256)
def block_blankets(channel: Channel) -> tuple[Blanket, ...]:
    """Blankets of blocks: for blocks of any clients, and for blocks of clients at one vertex."""
    rows = np.unique(channel.weights, axis=0) / channel.denominator
    rows = even(rows[np.argsort(rows @ np.arange(channel.levels), kind="stable")])
    if channel.levels > LARGE or len(rows) > FITS:
        return ()
    # theory/sums.md, Proposition 13: all multisets of vertices, or those of one vertex.
    sizes = [size for size in range(2, MOST + 1) if len(_multisets(rows, size)) <= FITS]
    found = [_fitted(channel, rows, _multisets(rows, size), 1) for size in sizes[-1:]]
    if sizes[-1:] != [MOST]:
        pure = [(vertex,) * MOST for vertex in range(len(rows))]
        found.append(_fitted(channel, rows, pure, len(rows)))
    return tuple(blanket for blanket in found if blanket is not None)


def even(rows: np.ndarray) -> np.ndarray:
    """Rows that are each other's mirror images where they nearly are; no entry is raised."""
    # A row that is lowered is still under the true one.
    least = np.minimum(rows, rows[::-1, ::-1])
    return least if np.allclose(least, rows, rtol=SPARE / 2, atol=0) else rows


def _multisets(rows: np.ndarray, size: int) -> list[tuple[int, ...]]:
    """Who may be in a block: vertices, without mirror images; too many are not listed."""
    last = len(rows) - 1
    # A bell is its own mirror image: it fits under a block as it does under the mirrored one.
    if math.comb(last + size, size) > 2 * FITS:
        return [()] * (FITS + 1)
    several = list(itertools.combinations_with_replacement(range(last + 1), size))
    if not np.array_equal(rows, rows[::-1, ::-1]):
        return several
    return [each for each in several if each <= tuple(last - v for v in reversed(each))]


def _fitted(
    channel: Channel, rows: np.ndarray, blocks: list[tuple[int, ...]], kinds: int
) -> Blanket | None:
    """A blanket of one shape for these blocks; None if they have none of it in common."""
    size, place = len(blocks[0]), np.arange(channel.levels)
    # Of normal noise, what has least variance is under the rest: less still leaves room.
    variance = VARIANCE * size * float((rows @ place**2 - (rows @ place) ** 2).min())
    reach = max(int(REACH * math.sqrt(variance)), 1)
    if 2 * reach > size * (channel.levels - 1):
        return None
    bell = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    # A shape is whatever its integers say.
    shape = np.ceil(bell * 2**SHAPE_BITS).astype(np.int64)
    laws = (functools.reduce(np.convolve, rows[list(block)]) for block in blocks)
    share = int(min(_share(law, shape / shape.sum()) for law in laws) * channel.denominator)
    return Blanket((shape,), (share,), channel.denominator, size, kinds) if share > 0 else None


def _share(law: np.ndarray, bell: np.ndarray) -> float:
    """How much of a bell, at all places together, is under a law; rounded down."""
    from scipy.optimize import linprog

    cover = np.zeros((len(law), len(law) - len(bell) + 1))
    for start in range(cover.shape[1]):
        cover[start : start + len(bell), start] = bell
    if law.min() <= 0:
        return 0.0
    # Relative to the law, as a solver's tolerance is absolute.
    cover /= law[:, None]
    solution = linprog(
        -np.ones(cover.shape[1]), A_ub=cover, b_ub=np.ones(len(law)), bounds=(0, None),
        method="highs",
    )  # fmt: skip
    if solution.x is None:
        return 0.0
    # theory/sums.md, Proposition 13: whatever was found is scaled down until it fits.
    found = np.maximum(solution.x, 0.0)
    over = np.maximum(cover @ found, 1.0)
    over = np.array([over[column > 0].max() for column in cover.T])
    return float((found / over).sum()) * (1 - 4 * SPARE)
