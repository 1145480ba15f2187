"""Blocks of clients: some laws that, shifted, are under the law of every block.

The sum of a few codes is nearly normal, whatever their inputs. Derivation and rounding:
`docs/theory/vector-sums.md`, Proposition 19.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from randquant.channels.channel import Channel

FITS, SIZES = 400, (1, 2, 3, 4, 6, 8, 12)
"""Linear programmes for one size of blocks, at most; and how many clients may be in a block."""

CUTS = ((0.0, 0.0), (3e-4, 1e-3), (2e-3, 3e-4), (5e-3, 3e-4), (1e-2, 1e-3))
"""What may be cut off a kind at the end of the codes that it is nearer to, and at the other: that
is room to be shifted."""

BELLS, FEW = (0.3, 0.06), 12
"""Variances of bells, over the least of a block; and blocks for which they are worth their time."""

TAKEN = 0.98
"""How much is taken of what there is of the kinds, and of each bell but the last, where bells
follow: that leaves room for them."""

PRECISE = 2304
"""Clients of a block, squared, times levels, at most: `SPARE` pays for so much rounding."""

SPARE = 1e-13
"""More than the relative error of a block's law, of what is fitted under it, and of `even`."""

REACH, SHAPE = 3.5, 2.0**40
"""Deviations to which a bell reaches; units of probabilities of kinds and bells."""

FIRST = 4.0
"""How much more what comes first is worth, kinds or a bell, than what comes next."""

AT_ONCE = 12
"""Linear programmes that are solved as one: a single one is smaller than what a call costs."""

LEAST_SHARE = 0.5
"""Kinds that are no more than this of some block are of no use."""

SHARES = 2**53
"""Unit of the share of a block that is a mix of others."""


@dataclass(frozen=True, slots=True)
class Cover:
    """Laws, shifts of which are under the law of any block of clients but for a share of it.

    Attributes:
        size: clients in a block.
        kinds: (2 or 3, L) probabilities; which of them is up to the clients' inputs.
        bells: (J,) laws under what the kinds leave.
        shares: (1 + J,) whole numbers over SHARES: how much of every block are kinds, and bells.
        least: the least variance of a client.
    """

    size: int
    kinds: np.ndarray
    bells: tuple[np.ndarray, ...]
    shares: tuple[int, ...]
    least: float


def even_rows(channel: Channel) -> np.ndarray:
    """The different rows of vertices, by their means; mirror images where they nearly are.

    No entry is raised.
    """
    rows = np.unique(channel.weights, axis=0) / channel.denominator
    rows = rows[np.argsort(rows @ np.arange(channel.levels), kind="stable")]
    # A row that is lowered is still under the true one.
    least = np.minimum(rows, rows[::-1, ::-1])
    return least if np.allclose(least, rows, rtol=SPARE / 2, atol=0) else rows


def covers_of(channel: Channel, others: int) -> list[Cover]:
    """Covers by blocks of all sizes that fit, of so many others."""
    # With few blocks it counts how likely one hides nothing: a third kind, and bells.
    found = [_cover(channel, n, others // n <= FEW) for n in SIZES if n <= others]
    return [each for each in found if each is not None]


@functools.lru_cache(maxsize=256)
def _cover(channel: Channel, size: int, few: bool, beside: bool = True) -> Cover | None:
    rows = even_rows(channel)
    blocks = _blocks(rows, size)
    if not blocks or size**2 * channel.levels > PRECISE:
        return None
    kinds, kept = _promising(rows, size, few)
    if kept <= LEAST_SHARE:
        return None
    least = size * _least_variance(rows)
    bells = tuple(_bell(part * least) for part in BELLS) if few and beside else ()
    # How much there shall be of each affects how tight a bound is, not whether it holds.
    caps = [TAKEN * kept] if bells else []
    for several in range(1, len(bells)):
        caps.append(TAKEN * float(_common(_pure(rows, size), kinds, bells[:several], caps)[-1]))
    # theory/vector-sums.md, Proposition 19: what all blocks have of them at once.
    laws = np.stack([_law(rows, block) for block in blocks])
    shares = tuple(int(share * SHARES) for share in _common(laws, kinds, bells, caps))
    if shares[0] <= LEAST_SHARE * SHARES:
        return _cover(channel, size, few, False) if bells else None
    return Cover(size, kinds, bells, shares, _least_variance(rows))


def _promising(rows: np.ndarray, size: int, middle: bool) -> tuple[np.ndarray, float]:
    """The kinds to take, and how much of blocks of equal clients they are at least."""
    pure = _pure(rows, size)
    # Which laws the kinds are affects how tight a bound is, not whether it holds.
    tried = [_kinds(rows, size, middle, *cut) for cut in CUTS]
    kept = [float(_common(pure, kinds)[0]) for kinds in tried]
    best = max(range(len(tried)), key=lambda at: kept[at] * _least_variance(tried[at]))
    return tried[best], kept[best]


def _blocks(rows: np.ndarray, size: int) -> list[tuple[int, ...]]:
    """Which clients may be in a block, without mirror images; none if these are too many."""
    last = len(rows) - 1
    if math.comb(last + size, size) > 2 * FITS:
        return []
    several = list(itertools.combinations_with_replacement(range(last + 1), size))
    # Kinds together, and bells, are their own mirror images: they fit under a block as they do
    # under the mirrored one.
    if np.array_equal(rows, rows[::-1, ::-1]):
        several = [each for each in several if each <= tuple(last - v for v in reversed(each))]
    return several if len(several) <= FITS else []


def _law(rows: np.ndarray, block: tuple[int, ...]) -> np.ndarray:
    return functools.reduce(np.convolve, rows[list(block)])


def _pure(rows: np.ndarray, size: int) -> np.ndarray:
    return np.stack([_law(rows, (vertex,) * size) for vertex in range(len(rows))])


def _least_variance(rows: np.ndarray) -> float:
    place = np.arange(rows.shape[1])
    return float((rows @ place**2 - (rows @ place) ** 2).min())


def _kinds(rows: np.ndarray, size: int, middle: bool, near: float, far: float) -> np.ndarray:
    """(2 or 3, L) probabilities: of blocks of clients in either half, and in the middle."""
    place, half = np.arange(rows.shape[1]), len(rows) // 2
    variance = rows @ place**2 - (rows @ place) ** 2
    # The others hide least where they vary least.
    low = int(variance[: half + len(rows) % 2].argmin())
    high = half + int(variance[half:].argmin())
    left = _cut(_law(rows, (low,) * size), near, far)
    mirrored = np.array_equal(rows, rows[::-1, ::-1])
    right = left[::-1] if mirrored else _cut(_law(rows, (high,) * size), far, near)
    # As many at either side of the middle, so that it is its own mirror image.
    either = (half, len(rows) - 1 - half)
    central = _law(rows, tuple(either[at % 2] for at in range(size)))
    central = _cut((central + central[::-1]) / 2 if mirrored else central, near, near)
    # Zeros beside it shift a law, which changes nothing; of the central one as many at either side.
    length = max(len(left), len(right), len(central))
    length += (length - len(central)) % 2
    found = [
        np.pad(left, (0, length - len(left))),
        np.pad(central, (length - len(central)) // 2),
        np.pad(right, (length - len(right), 0)),
    ]
    return np.stack(found if middle else found[::2])


def _cut(law: np.ndarray, below: float, above: float) -> np.ndarray:
    """A law without so much at its ends, whose probabilities are whole numbers over their sum."""
    first = int(np.searchsorted(np.cumsum(law), below))
    last = len(law) - int(np.searchsorted(np.cumsum(law[::-1]), above))
    whole = np.ceil(law[first:last] * SHAPE)
    return whole / whole.sum()


def _bell(variance: float) -> np.ndarray:
    """Normal noise, cut off; whole numbers over their sum."""
    reach = max(int(REACH * math.sqrt(variance)), 1)
    bell = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    whole = np.ceil(bell / bell.sum() * SHAPE)
    return whole / whole.sum()


def _common(
    laws: np.ndarray,
    kinds: np.ndarray,
    bells: Sequence[np.ndarray] = (),
    caps: Sequence[float] = (),
) -> np.ndarray:
    """How much of all kinds, and of each bell, at all places, is under each law at once, at least.

    Args:
        laws: (B, L) probabilities.
        kinds: (2 or 3, L') probabilities.
        bells: laws under what the kinds leave.
        caps: how much there shall be of the kinds, and of bells, at most; of the last there is as
            much as can be.

    Returns:
        (1 + number of bells,), rounded down.
    """
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
    least = np.ones(layers)
    for first in range(0, len(laws), AT_ONCE):
        # Relative to the law, as a solver's tolerance is absolute.
        several = [cover.T / law[:, None] for law in laws[first : first + AT_ONCE]]
        found = _solved(several, of, caps)
        # theory/vector-sums.md, Proposition 19: whatever was found is scaled down, place by place,
        # until it fits, and lowered by more than rounding.
        for relative, each in zip(several, found, strict=True):
            over = np.maximum(relative @ each, 1.0)[:, None]
            fitting = each / np.where(relative > 0, over, 1.0).max(axis=0)
            least = np.minimum(least, of @ fitting * (1 - 2 * (len(shapes) + 2) * SPARE))
        if least[0] <= LEAST_SHARE:
            break
    return least


def _solved(several: list[np.ndarray], of: np.ndarray, caps: Sequence[float]) -> np.ndarray:
    """Of each linear programme how much of every shape there is; zeros if it is not solved."""
    from scipy.optimize import linprog
    from scipy.sparse import block_diag

    layers = len(of)
    # What comes first counts most.
    worth = FIRST ** np.arange(layers - 1, -1, -1.0) @ of
    capped = [np.concatenate([each, of[: len(caps)]]) for each in several]
    most = np.tile(np.append(np.ones(len(several[0])), caps), len(several))
    cost = -np.tile(worth, len(several))
    for options in ({"method": "highs-ds", "options": {"presolve": False}}, {"method": "highs"}):
        solution = linprog(
            cost, A_ub=block_diag(capped, format="csc"), b_ub=most, bounds=(0, None), **options
        )
        if solution.x is not None:
            return np.maximum(solution.x, 0.0).reshape(len(several), -1)
    return np.zeros((len(several), of.shape[1]))
