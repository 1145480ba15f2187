"""Bounds over the other clients' inputs: their laws in blocks, and mixtures that stand for them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.sum_bits import Bits, LogBinomial
from randquant.privacy.certificates.sum_laws import Law, log_moments, multiples, uneven
from randquant.privacy.divergence import UNIT

# Blocks of clients: some laws that, shifted, are under the law of every block.
#
# The sum of a few codes is nearly normal, whatever their inputs. Derivation and rounding:
# `docs/theory/vector-sums.md`, Proposition 19.

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


# What hides a client in a sum: laws that stand for whatever the other clients send.
#
# A list of groups, each with at least its probability and the laws that the others may have in it:
# moments are at most the mean over groups of the largest of each. Derivations:
# `docs/theory/sums.md` and `vector-sums.md`.

Method = Literal["exhaustive", "bits", "blocks", "fewer clients", "one client"]
"""How a sum is bounded."""

ARRANGEMENTS, FEWER = 100, 10
"""Of a group so many laws at least are told apart; of one that is less likely than `UNLIKELY`."""

LONG = 2**9
"""Of more blocks fewer laws are told apart: these are long."""

NEARLY = 1e-12
"""By how much rows that are mirror images nearly may differ from that, relatively."""

UNLIKELY, SPREAD = -9.0, 33
"""Logarithm of the probability of such a group; and how many laws are told apart of blocks."""

DRAWS = 8
"""Codes drawn evenly that are counted on, at most."""

SMALL = 4
"""Clients in a small block, at most."""

MANY = 2**22
"""Laws, times codes in a sum, that are told apart at most, about, but for `ARRANGEMENTS`."""

ALMOST, WORTH = 1.15, 1.5
"""Others at vertices are tried before blocks where so many times as many as are counted are all,
and after them where these are more, up to the second number."""


@dataclass(frozen=True, slots=True)
class Case:
    """Some of the cases that the others may be in.

    Attributes:
        log_mass: at least the logarithm of its probability.
        laws: of their sum.
    """

    log_mass: float
    laws: list[Law]


@dataclass(frozen=True, slots=True)
class Others:
    """Distributions that bound the sum of the other clients' codes.

    Attributes:
        groups: the cases.
        mirrored: whether the laws of half of each group stand for the rest, which are their mirror
            images.
        off: relative error of each law, beside that of rounding.
        unlike: how far, relatively, the law of the others may be from every mix of these laws.
        method: as in `SumCertificate`.
    """

    groups: list[Case]
    mirrored: bool
    off: float
    unlike: float
    method: Method


def mirrored_by(channel: Channel) -> bool:
    """Whether turning inputs and codes round leaves the channel as it is, but for rounding."""
    symmetric = np.array_equal(channel.inputs, -channel.inputs[::-1])
    return symmetric and uneven(channel.weights) <= NEARLY


def stand_ins(
    channel: Channel,
    others: int,
    floor: float,
    ways: int,
    mirrored: bool,
    depth: float,
    order: float,
) -> Iterator[Others]:
    """What may stand for the others, one after the other: each of them bounds all moments.

    Args:
        channel: the channel of every client.
        others: how many of them there are.
        floor: in bits, see `Law`.
        ways: so many laws of others at vertices are told apart, at most.
        mirrored: whether mirrored pairs count for mirrored others.
        depth: cases less likely than about e^-depth may be treated coarsely.
        order: in (1, inf).
    """
    most = affordable(channel, others) if len(channel.inputs) == 2 else ARRANGEMENTS
    ends = at_two_ends(channel, others, floor, most, mirrored)
    if ends is not None:
        yield ends
        return
    # A bound is as much looser as others are left out, about.
    counted = at_vertices_counted(channel, others, ways, mirrored)
    if counted * ALMOST >= others:
        yield at_vertices(channel, others, floor, ways, mirrored)
    if counted < others:
        yield from in_blocks(channel, others, floor, mirrored, depth, order)
    if ALMOST * counted < others <= WORTH * counted:
        yield at_vertices(channel, others, floor, ways, mirrored)


def affordable(channel: Channel, others: int) -> int:
    """How many laws of so many others may be told apart where these are long."""
    return max(MANY // (others * channel.levels), ARRANGEMENTS)


def at_vertices(channel: Channel, others: int, floor: float, ways: int, mirrored: bool) -> Others:
    """All others at vertices, in every way; or of some of them, if there are too many ways."""
    # theory/sums.md, Proposition 1: equal rows count once.
    rows = np.unique(channel.weights, axis=0)
    rows = rows[np.argsort((rows / channel.denominator) @ np.arange(channel.levels), kind="stable")]
    # Rows of one mean may be in an order that is not its own mirror image.
    mirrored = mirrored and uneven(rows) <= NEARLY
    # What is mirrored only nearly counts as an error of laws.
    off = 1.1 * math.expm1(others * math.log1p(uneven(rows))) if mirrored else 0.0
    singles = [Law.of(row, channel.denominator, floor) for row in rows]
    ways = min(ways, affordable(channel, others))
    laws = _between(singles, others, ways, mirrored, Law.nothing(floor))
    all_of_them = at_vertices_counted(channel, others, ways, mirrored) == others
    method: Method = "exhaustive" if all_of_them else "fewer clients"
    return Others([Case(0.0, laws)], mirrored, off, 0.0, method)


def at_vertices_counted(channel: Channel, others: int, ways: int, mirrored: bool) -> int:
    """How many of the others at vertices are counted on, in every way that is tried."""
    kinds = len(np.unique(channel.weights, axis=0))
    ways = min(ways, affordable(channel, others)) * (1 + mirrored)
    units, block = _told_apart(kinds, others, ways)
    return max(units - (block - 1) * (kinds - 1), 0)


def _told_apart(kinds: int, units: int, ways: int) -> tuple[int, int]:
    """How many units are counted, and in blocks of how many, in no more than so many ways."""
    blocks = 0
    while blocks < units and math.comb(blocks + kinds, kinds - 1) <= ways:
        blocks += 1
    # theory/sums.md, Proposition 2: of all kinds but one a block less 1 is left out.
    sizes = range(1, max(-(-units // max(blocks, 1)), 1) + 1)
    told = [(min(size * blocks, units), size) for size in sizes]
    return max(told, key=lambda each: each[0] - (each[1] - 1) * (kinds - 1))


def _arrangements(kinds: int, count: int) -> Iterator[tuple[int, ...]]:
    """In which ways so many are of some kinds: how many of each."""
    for cuts in itertools.combinations(range(count + kinds - 1), kinds - 1):
        ends = (-1, *cuts, count + kinds - 1)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(ends))


def at_two_ends(
    channel: Channel, others: int, floor: float, most: int, mirrored: bool
) -> Others | None:
    """All others, or all bits that their codes are sums of, at either end; None if it has more.

    Args:
        channel, others, floor, mirrored: as above.
        most: so many laws of a group are told apart.
    """
    bits = Bits.of(channel)
    if bits is None:
        return None
    # Whole numbers: the law of a unit is within 1 unit.
    ends = [Law.of(end, int(end.sum()), floor) for end in bits.ends]
    codes, mirrored = bits.trials + 1, bits.mirrored and mirrored
    evenly = Law.of(np.ones(codes, int), codes, floor)
    # theory/vector-sums.md, Proposition 21.
    groups = [
        Case(mass, _between(ends, sending * bits.trials, most, mirrored, evenly.power(draws)))
        for mass, sending, draws, most in _drawing(others, bits.even, most)
    ]
    # theory/vector-sums.md, Proposition 12.
    unlike = 1.1 * math.expm1(others * math.log1p(bits.error))
    return Others(groups, mirrored, 0.0, unlike, "bits")


def _drawing(others: int, even: float, most: int) -> list[tuple[float, int, int, int]]:
    """How many of the others draw evenly, in groups: log mass, who sends bits, draws, laws."""
    if even == 0:
        return [(0.0, others, 0, most)]
    least = [2**k for k in range(others.bit_length())] + [others + 1]
    # theory/vector-sums.md, Proposition 21: P(k or more draw evenly), and that of none.
    groups = [(others * math.log1p(-even) * (1 - 16 * UNIT), others, 0, most)]
    for count, after in itertools.pairwise(least):
        mass = math.log(math.comb(others, count)) * (1 + 16 * UNIT)
        mass += count * math.log(even) * (1 - 16 * UNIT)
        most = max(most // 2, FEWER)
        groups.append((mass, others - after + 1, min(count, DRAWS), most))
    return groups


def _between(ends: list[Law], units: int, most: int, mirrored: bool, beside: Law) -> list[Law]:
    """Laws of the sum of units at some ends: for every other one there is one that hides no more.

    Args:
        ends: the laws that a unit may have.
        units: how many there are.
        most: so many laws, if they are not mirrored.
        mirrored: whether half of them stand for the rest.
        beside: the law of what is added.
    """
    kinds = len(ends)
    units, block = _told_apart(kinds, units, most * (1 + mirrored))
    mirrored &= kinds > 1
    # theory/sums.md, Proposition 2: of all kinds but one, from so many to block - 1 more.
    # A mirrored arrangement stands for the other one.
    spread = []
    for blocks in _arrangements(kinds, units // block):
        counts = [several * block for several in blocks[:-1]]
        last = units - sum(counts)
        if not (mirrored and counts[0] > last):
            spread.append((*counts, max(last - (block - 1) * (kinds - 1), 0)))
    known = [
        multiples(end, several)
        for end, several in zip(ends, zip(*spread, strict=True), strict=True)
    ]
    laws = []
    for counts in spread:
        law = beside
        for powers, count in zip(known, counts, strict=True):
            law = law * powers[count] if count else law
        laws.append(law)
    return laws


def in_blocks(
    channel: Channel, others: int, floor: float, mirrored: bool, depth: float, order: float
) -> Iterator[Others]:
    """Blocks of a few clients, each sending one of some kinds, or a bell, or nothing.

    Args:
        channel, others, floor, mirrored, depth, order: as above.

    Returns:
        One for small blocks, which are many, and one for larger ones, which have more in common:
        each of those of some sizes that seems to hide most.
    """
    covers = covers_of(channel, others)
    rows = channel.weights / channel.denominator
    # Others at an end show about as much as can be; which they are decides no bound.
    at_end = Law.of(channel.weights[0], channel.denominator, floor)
    shown, single = (
        float(log_moments(noise, rows, rows, order)[0].max())
        for noise in (at_end.power(others), Law.nothing(floor))
    )
    for large in (False, True):
        # Any of them would do; some hide more, of others it is less likely that few hide anything.
        some = [
            (_expected(each, others, depth, shown, single), each.size, each)
            for each in covers
            if (each.size > SMALL) == large
        ]
        if some:
            yield _of_cover(min(some)[-1], mirrored, others, floor, depth)


def _of_cover(cover: Cover, mirrored: bool, others: int, floor: float, depth: float) -> Others:
    zeros = np.zeros(cover.kinds.shape[1], np.int64)
    # Whole numbers over their sum: 1 unit.
    kinds = [Law(row, zeros, 1.0, 0.0, floor) for row in cover.kinds]
    bells = [Law(bell, np.zeros(len(bell), np.int64), 1.0, 0.0, floor) for bell in cover.bells]
    mirrored &= np.array_equal(cover.kinds, cover.kinds[::-1, ::-1])
    groups = []
    for counts, mass in _drawn(cover, others // cover.size, depth):
        # What bells hide is beside every arrangement of the kinds.
        beside = Law.nothing(floor)
        for bell, count in zip(bells, counts[1:], strict=True):
            beside = beside * bell.power(count)
        likely = SPREAD if counts[0] <= LONG else FEWER
        most = likely if mass > UNLIKELY else FEWER
        groups.append(Case(mass, _between(kinds, counts[0], most, mirrored, beside)))
    return Others(groups, mirrored, 0.0, 0.0, "blocks")


def _expected(cover: Cover, others: int, depth: float, shown: float, single: float) -> float:
    """About the moment less 1 that a cover will bound, as a logarithm."""
    # An estimate chooses among covers; no bound rests on it.
    cases, masses = zip(*_drawn(cover, others // cover.size, depth), strict=True)
    variances = [_variance(cover.kinds[0]), *(_variance(bell) for bell in cover.bells)]
    hidden = np.array(cases) @ np.array(variances)
    # A log moment is about as the inverse of a variance, and one client's if nobody else counts.
    moments = np.minimum(shown * others * cover.least / np.maximum(hidden, 1e-9), single)
    excess = np.where(moments > 30, moments, np.log(np.expm1(np.minimum(moments, 30))))
    return float(np.logaddexp.reduce(excess + np.array(masses)))


def _variance(law: np.ndarray) -> float:
    place = np.arange(len(law))
    return float(place**2 @ law - (place @ law) ** 2)


def _drawn(cover: Cover, blocks: int, depth: float) -> Iterator[tuple[tuple[int, ...], float]]:
    """How many of so many blocks send a kind, and each of the bells, at least; log of the mass."""
    drawn = LogBinomial.of(blocks, sum(cover.shares), SHARES, depth)
    for least, _, mass in drawn.groups():
        for counts, part in _split(least, cover.shares, depth):
            # theory/sums.md, Proposition 10: both carry spare units for their sum; 8 more.
            yield counts, min(mass + part, 0.0) + 8 * UNIT


def _split(
    total: int, shares: tuple[int, ...], depth: float
) -> Iterator[tuple[tuple[int, ...], float]]:
    """How so many blocks are divided among the kinds and the bells."""
    if len(shares) == 1:
        yield (total,), 0.0
        return
    # theory/sums.md, Proposition 4: a group counts its least, and total less its greatest beside.
    for least, greatest, mass in LogBinomial.of(total, shares[0], sum(shares), depth).groups():
        for counts, part in _split(total - greatest, shares[1:], depth):
            yield (least, *counts), mass + part
