"""Kinds of blocks: two or three laws that, shifted, stand for any few of the other clients.

Derivation and rounding: `docs/theory/vector-sums.md`, Proposition 22.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.blocks import SPARE, bell, even, multisets
from randquant.privacy.certificates.sums.classes import SHARES, Classes, by_classes

FITS, SIZES = 400, (2, 3, 4, 6, 8, 12)
"""Linear programmes for one size of blocks, at most; and how many clients may be in a block."""

CUTS = ((2e-3, 3e-4), (5e-3, 3e-4), (1e-2, 1e-3))
"""What may be cut off a kind at the end of the codes that it is nearer to, and at the other: that
is room to be shifted."""

LEAST_CUT, ROOM = (3e-4, 1e-3), 0.03
"""What is cut off where bells are beside the kinds, unless more of a block than this is lost: what
is cut off decides at high orders, and bells make up for the room."""

TAKEN = 0.98
"""How much is taken of what there is of the kinds, and of each bell but the last, where bells
follow: that leaves room for them."""

PRECISE = 2304
"""Clients of a block, squared, times levels, at most: `SPARE` pays for so much rounding."""

AT_ONCE = 12
"""Linear programmes that are solved as one: a single one is smaller than what a call costs."""

FIRST = 4.0
"""How much more what comes first is worth, kinds or a bell, than what comes next."""

CLOSE = 1.2
"""A bound so near what is attained is not improved on by blocks of another size: at high orders
what counts is not how much they hide but how likely few of them hide anything."""

LEAST_SHARE = 0.5
"""Kinds that are no more than this of some block are of no use."""

SHAPE = 2.0**40
"""Units of a kind's probabilities."""


def by_kinds(channel: Channel, clients: int, order: float, attained: float) -> float:
    """Bound a sum's curvature by all arrangements of kinds of blocks; infinite if there are none.

    Args:
        channel: a channel whose curvature is finite.
        clients, order: as in `kappa_sum`.
        attained: at most what the bound will be.
    """
    upper = math.inf
    for kinds in _hiding_most(channel, clients):
        if upper > CLOSE * attained:
            upper = min(upper, by_classes(channel, clients, order, attained, kinds))
    return upper


@functools.lru_cache(maxsize=256)
def _hiding_most(channel: Channel, clients: int) -> tuple[Classes, ...]:
    """Kinds of two sizes, first of that which hides most, about."""
    found = []
    # Large blocks have more in common, small ones leave fewer clients over.
    for size in [size for size in fitting_sizes(channel) if 2 * size < clients][-2:]:
        kinds = kinds_of_blocks(channel, size)
        if kinds is not None:
            whole = (clients - 1) // size * least_variance(kinds.rows)
            found.append((whole * kinds.share, kinds))
    return tuple(kinds for _, kinds in sorted(found, key=lambda each: -each[0]))


@functools.lru_cache(maxsize=256)
def kinds_of_blocks(
    channel: Channel, size: int, middle: bool = False, variances: tuple[float, ...] = ()
) -> Classes | None:
    """Laws, shifts of which are under the law of any `size` clients but for a share of it.

    Args:
        channel: the channel of every client.
        size: clients in a block, one of SIZES.
        middle: whether there is a third kind, of clients in the middle.
        variances: of bells under what the kinds leave, over the least of a block.

    Returns:
        Two or three kinds, and how much of every block they are, and of the bells; None if there
        are too many different blocks, or some of them have nothing in common with the kinds.
    """
    blocks = _blocks(channel, size)
    if not blocks:
        return None
    rows = _rows(channel)
    kinds, kept = _promising(channel, size, middle, bool(variances))
    shapes = [bell(share * size * least_variance(rows)) for share in variances]
    bells = [shape / shape.sum() for shape in shapes]
    # How much there shall be of each affects how tight a bound is, not whether it holds.
    caps = [TAKEN * kept] if bells else []
    for several in range(1, len(bells)):
        caps.append(TAKEN * float(_together(_pure(rows, size), kinds, bells[:several], caps)[-1]))
    # theory/vector-sums.md, Proposition 22: what all blocks have of the kinds together, and of the
    # bells that are under the rest.
    laws = np.stack([_law(rows, block) for block in blocks])
    shares = [int(share * SHARES) for share in _together(laws, kinds, bells, caps)]
    if shares[0] <= LEAST_SHARE * SHARES:
        return kinds_of_blocks(channel, size, middle) if variances else None
    return Classes(kinds, shares[0], block=size, bells=tuple(bells), bell_shares=tuple(shares[1:]))


@functools.lru_cache(maxsize=256)
def _promising(
    channel: Channel, size: int, middle: bool, beside: bool = False
) -> tuple[np.ndarray, float]:
    """The kinds to take, and how much of blocks of equal clients they are at least."""
    rows = _rows(channel)
    pure = _pure(rows, size)
    # Which laws the kinds are affects how tight a bound is, not whether it holds.
    tried = [_kinds(rows, size, middle, *cut) for cut in (LEAST_CUT, *CUTS)]
    kept = [float(_together(pure, kinds)[0]) for kinds in tried]
    best = max(range(1, len(tried)), key=lambda at: kept[at] * least_variance(tried[at]))
    if beside and kept[0] >= kept[best] - ROOM:
        best = 0
    return tried[best], kept[best]


def fitting_sizes(channel: Channel) -> list[int]:
    """Sizes of blocks of which there are not too many kinds."""
    return [size for size in SIZES if _blocks(channel, size)]


def _rows(channel: Channel) -> np.ndarray:
    """The different rows of vertices, by their means; none is raised."""
    rows = np.unique(channel.weights, axis=0) / channel.denominator
    return even(rows[np.argsort(rows @ np.arange(channel.levels), kind="stable")])


def _blocks(channel: Channel, size: int) -> list[tuple[int, ...]]:
    """Which clients may be in a block; none if there are too many blocks, or two vertices."""
    rows = _rows(channel)
    if len(rows) < 3 or size**2 * channel.levels > PRECISE:
        return []
    found = multisets(rows, size, FITS)
    return found if len(found) <= FITS else []


def _law(rows: np.ndarray, block: tuple[int, ...]) -> np.ndarray:
    return functools.reduce(np.convolve, rows[list(block)])


def _pure(rows: np.ndarray, size: int) -> np.ndarray:
    return np.stack([_law(rows, (vertex,) * size) for vertex in range(len(rows))])


def least_variance(rows: np.ndarray) -> float:
    """Of rows of probabilities (J, L)."""
    place = np.arange(rows.shape[1])
    return float((rows @ place**2 - (rows @ place) ** 2).min())


def _kinds(rows: np.ndarray, size: int, middle: bool, near: float, far: float) -> np.ndarray:
    """(J, L) probabilities: of blocks of clients in either half, and in the middle."""
    place, half = np.arange(rows.shape[1]), len(rows) // 2
    variance = rows @ place**2 - (rows @ place) ** 2
    # The others hide least where they vary least.
    low = int(variance[: half + len(rows) % 2].argmin())
    high = half + int(variance[half:].argmin())
    left = _cut(_law(rows, (low,) * size), near, far)
    mirrored = np.array_equal(rows, rows[::-1, ::-1])
    right = left[::-1] if mirrored else _cut(_law(rows, (high,) * size), far, near)
    found = [left, right]
    if middle:
        # As many at either side of the middle, so that it is its own mirror image.
        either = (half, len(rows) - 1 - half)
        central = _law(rows, tuple(either[at % 2] for at in range(size)))
        found.append(_cut((central + central[::-1]) / 2 if mirrored else central, near, near))
    length = max(len(each) for each in found)
    # Zeros beside it shift a law, which changes nothing; of the middle one as many at either side.
    length += (length - len(found[-1])) % 2
    table = np.zeros((len(found), length))
    starts = [0, length - len(right), (length - len(found[-1])) // 2]
    for row, each, start in zip(table, found, starts, strict=False):
        row[start : start + len(each)] = each
    return table


def _cut(law: np.ndarray, below: float, above: float) -> np.ndarray:
    """A law without so much at its ends, whose probabilities are whole numbers over their sum."""
    first = int(np.searchsorted(np.cumsum(law), below))
    last = len(law) - int(np.searchsorted(np.cumsum(law[::-1]), above))
    whole = np.ceil(law[first:last] * SHAPE)
    return whole / whole.sum()


def _together(
    laws: np.ndarray,
    kinds: np.ndarray,
    bells: Sequence[np.ndarray] = (),
    caps: Sequence[float] = (),
) -> np.ndarray:
    """How much of all kinds, and of each bell, at all places, is under each law at once, at least.

    Args:
        laws: (B, L) probabilities.
        kinds: (J, L') probabilities.
        bells: laws under what the kinds leave.
        caps: how much there shall be of the kinds, and of bells, at most; of the last there is as
            much as can be.

    Returns:
        (1 + number of bells,), rounded down.
    """
    from scipy.optimize import linprog
    from scipy.sparse import block_diag

    shapes = [(np.trim_zeros(kind), 0) for kind in kinds]
    shapes += [(bell, 1 + at) for at, bell in enumerate(bells)]
    length, layers = laws.shape[1], 1 + len(bells)
    if laws.min() <= 0 or max(len(shape) for shape, _ in shapes) > length:
        return np.zeros(layers)
    cover, of = [], []
    for shape, layer in shapes:
        for start in range(length - len(shape) + 1):
            cover.append(np.pad(shape, (start, length - len(shape) - start)))
            of.append(layer)
    cover, of = np.array(cover), np.eye(layers)[:, of]
    capped = of[: len(caps)]
    # What comes first counts most.
    worth = FIRST ** np.arange(layers - 1, -1, -1.0) @ of
    least = np.ones(layers)
    for first in range(0, len(laws), AT_ONCE):
        # Relative to the law, as a solver's tolerance is absolute.
        several = [cover.T / law[:, None] for law in laws[first : first + AT_ONCE]]
        together = block_diag([np.concatenate([each, capped]) for each in several], format="csc")
        most = np.tile(np.append(np.ones(length), caps), len(several))
        for method in ({"method": "highs-ds", "options": {"presolve": False}}, {"method": "highs"}):
            solution = linprog(
                -np.tile(worth, len(several)), A_ub=together, b_ub=most, bounds=(0, None), **method
            )
            if solution.x is not None:
                break
        else:
            return np.zeros(layers)
        # theory/vector-sums.md, Proposition 22: whatever was found is scaled down, place by place,
        # until it fits, and lowered by more than rounding.
        found = np.maximum(solution.x, 0.0).reshape(len(several), -1)
        for relative, each in zip(several, found, strict=True):
            over = np.maximum(relative @ each, 1.0)[:, None]
            fitting = each / np.where(relative > 0, over, 1.0).max(axis=0)
            least = np.minimum(least, of @ fitting * (1 - 2 * (len(shapes) + 2) * SPARE))
        if least[0] <= LEAST_SHARE:
            break
    return least
