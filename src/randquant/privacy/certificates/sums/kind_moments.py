"""One coordinate's divergence in a sum: every arrangement of kinds of blocks of the others.

Derivation and rounding: `docs/theory/sums.md`, Proposition 14.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from randquant._internal.progress import report
from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.binomial import LogBinomial
from randquant.privacy.certificates.sums.bounds import floor_for
from randquant.privacy.certificates.sums.classes import SHARES, Classes
from randquant.privacy.certificates.sums.kinds import (
    fitting_sizes,
    kinds_of_blocks,
    least_variance,
)
from randquant.privacy.certificates.sums.law import Law
from randquant.privacy.certificates.sums.mixture import add_trimmed, table
from randquant.privacy.certificates.sums.rows import Rows
from randquant.privacy.divergence import UNIT

FAINT = 2.0**-8
"""By this share of what is attained, at most, a bound may rise for less work."""

MOST, THREE, FEW, STEEP = 300, 110, 40, 6.0
"""Others to whom this is applied; to whom a third kind is; to whom many bells are; and the order
above which a bell hides more than the kinds that it takes from. Beyond, arrangements are many."""

FEW_BELLS, MANY_BELLS = (0.5, 0.15, 0.04), (0.4,)
"""Variances of the bells of few others, and of more, over the least of a block."""

NEAREST = 3
"""By so many blocks fewer an arrangement may have that settles another one."""

Blocks = tuple[tuple[Classes, int], ...]
"""Kinds of blocks, and how many blocks of their size there are."""

Counts = tuple[tuple[int, ...], ...]
"""Of each size, how many blocks send a kind, and how many each of the bells."""


def by_kinds(channel: Channel, rows: Rows, others: int, order: float, log_single: float) -> float:
    """Bound the log moment by all arrangements of kinds of blocks of the others.

    Args:
        channel: the channel.
        rows: the client's own rows.
        others: how many other clients there are.
        order: in (1, inf).
        log_single: at least the largest log moment of one client.
    """
    # theory/sums.md, Proposition 2: counting on fewer others would be a bound, but a poor one.
    blocks = _blocks(channel, others, order) if others <= MOST else ()
    if not blocks or np.isinf(log_single):
        return log_single
    worst = _Worst(rows, blocks, order, log_single)
    depth = 60 + log_single
    groups = []
    for drawn in itertools.product(*(list(_drawn(*each, depth)) for each in blocks)):
        counts, masses = zip(*drawn, strict=True)
        groups.append((sum(masses) + 8 * UNIT, counts))
    # If all blocks send a kind, which is the first group: a bound may rise by so much.
    attained = worst.first(groups[0][1])
    spare = math.expm1(min(attained, 700.0)) * FAINT
    total = -math.inf
    for at, (mass, counts) in enumerate(sorted(groups)):
        if at % 64 == 0:
            report("how the others' blocks are spread", at, len(groups))
        fewer = worst.fewer(counts, math.log(spare) - mass if spare > 0 else -math.inf)
        moment = worst.of(fewer)
        if fewer != counts:
            spare -= math.exp(mass + moment)
        # theory/sums.md, Proposition 14: a mean over how many blocks draw a kind.
        total = float(np.logaddexp(total, moment + mass))
    # Each addition costs 16 units at most; smaller sums on the way count by their share only.
    return min(total + 16 * (len(groups) + 4) * UNIT * (1 + abs(total)), log_single)


class _Worst:
    """Of so many blocks that send a kind, and so many that send a bell, the worst arrangement."""

    def __init__(self, rows: Rows, blocks: Blocks, order: float, log_single: float):
        floor = floor_for(rows, log_single)
        self.rows, self.order, self.log_single = rows, order, log_single
        self.noises = [_Kinds(kinds, floor) for kinds, _ in blocks]
        # theory/sums.md, Proposition 14: mirrored arrangements have the mirrored pairs' moments.
        self.mirror = rows.mirror and all(each.mirror for each in self.noises)
        self.known: dict[Counts, float] = {}
        self.moments: dict[Counts, float] = {}
        most = blocks[0][1]
        self.steps = (most + 1, *sorted({max(most // part, 1) for part in (2, 4, 8)}, reverse=True))

    def fewer(self, counts: Counts, most: float) -> Counts:
        """So many blocks, or fewer whose log moment is below `most`."""
        # theory/sums.md, Proposition 4: fewer of any shape hide less. First of one size alone.
        for step in self.steps:
            first = counts[0][0] // step * step
            fewer = ((first, *(0 for _ in counts[0][1:])), *((0,) * len(c) for c in counts[1:]))
            if self.of(fewer) < most:
                return fewer
        return counts

    def of(self, counts: Counts) -> float:
        """The largest log moment of any pair and arrangement, at least."""
        if counts not in self.known:
            largest = -math.inf
            several = zip(self.noises, counts, strict=True)
            for each in itertools.product(*(noise.arrangements(drawn) for noise, drawn in several)):
                if self._canonical(each) != each:
                    continue
                # theory/sums.md, Proposition 2: one with fewer blocks settles it.
                bound = self._settled(each)
                if bound > largest:
                    bound = self._moment(each)
                self.moments[each] = bound
                largest = max(largest, bound)
            self.known[counts] = largest
        return self.known[counts]

    def first(self, counts: Counts) -> float:
        """The log moment of the arrangement with all blocks of one kind."""
        several = zip(self.noises, counts, strict=True)
        return self._moment(tuple(noise.arrangements(drawn)[0] for noise, drawn in several))

    def _canonical(self, arrangement: Counts) -> Counts:
        if not self.mirror:
            return arrangement
        return max(arrangement, tuple((each[1], each[0], *each[2:]) for each in arrangement))

    def _settled(self, arrangement: Counts) -> float:
        """The least log moment that is known of arrangements with fewer blocks."""
        (head, *others), least = arrangement, math.inf
        for at, count in enumerate(head):
            for less in range(1, min(count, NEAREST) + 1):
                fewer = ((*head[:at], count - less, *head[at + 1 :]), *others)
                least = min(least, self.moments.get(self._canonical(fewer), math.inf))
        return least

    def _moment(self, arrangement: Counts) -> float:
        law = Law.nothing(math.inf)
        for noise, counts in zip(self.noises, arrangement, strict=True):
            law = law * noise.of(counts)
        # theory/sums.md, Propositions 7 and 8.
        moment = float(table(self.rows, law, self.order)[0].max())
        return float(add_trimmed(moment, law.trimmed, law.floor, self.log_single))


def _drawn(kinds: Classes, blocks: int, depth: float) -> Iterator[tuple[tuple[int, ...], float]]:
    """How many of so many blocks send a kind, and each of the bells, at least; log of the mass."""
    shares = (kinds.share, *kinds.bell_shares)
    for least, _, mass in LogBinomial.of(blocks, sum(shares), SHARES, depth).tops():
        for counts, part in _split(least, shares, depth):
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
    for least, greatest, mass in LogBinomial.of(total, shares[0], sum(shares), depth).tops():
        for counts, part in _split(total - greatest, shares[1:], depth):
            yield (least, *counts), mass + part


def _blocks(channel: Channel, others: int, order: float) -> Blocks:
    """The blocks that hide most: almost all of one size, and one or two that hold the rest."""
    best: tuple[float, Blocks] = (0.0, ())
    fitting = [size for size in fitting_sizes(channel) if size <= others]
    for size in fitting[-2:]:
        several = []
        for each, count in _sizes(others, size, fitting).items():
            # Counts multiply: of the blocks that are left over only those of very few have bells.
            bells = each == size or others < 5 * size
            if others <= FEW and bells:
                kinds = kinds_of_blocks(channel, each, True, FEW_BELLS)
            elif order > STEEP and others <= THREE and bells:
                kinds = kinds_of_blocks(channel, each, True, MANY_BELLS)
            else:
                kinds = kinds_of_blocks(channel, each, others <= THREE)
            if kinds is not None:
                several.append((kinds, count))
        hidden = sum(kinds.share * count * least_variance(kinds.rows) for kinds, count in several)
        best = max(best, (hidden, tuple(several)), key=lambda found: found[0])
    return best[1]


def _sizes(others: int, size: int, usable: Sequence[int]) -> Counter[int]:
    """How many blocks of which size hold as many clients as can be: at most two of other sizes."""
    pairs = [(a, b) for a in (0, *usable) for b in (0, *usable) if b <= a <= size]
    found = []
    for whole in {others // size, max(others // size - 1, 0)}:
        rest = others - whole * size
        held = max(sum(pair) for pair in pairs if sum(pair) <= rest)
        # Of those that hold as many the fewest, which are large.
        parts = max(pair for pair in pairs if sum(pair) == held)
        found.append((whole * size + held, whole, parts))
    _, whole, parts = max(found)
    return Counter([size] * whole + [part for part in parts if part])


class _Kinds:
    """Laws of sums of blocks, of each kind; computed laws are kept."""

    def __init__(self, kinds: Classes, floor: float):
        # Whole numbers over their sum: 1 unit.
        zeros = np.zeros(kinds.rows.shape[1], np.int64)
        self.single = [Law(row, zeros, 1.0, 0.0, floor) for row in kinds.rows]
        self.mirror = np.array_equal(kinds.rows, kinds.rows[::-1, ::-1])
        if len(kinds.rows) == 3:  # left, right, middle
            self.mirror = np.array_equal(kinds.rows[[1, 0, 2]], kinds.rows[:, ::-1])
        zeros = [np.zeros(len(bell), np.int64) for bell in kinds.bells]
        bells = zip(kinds.bells, zeros, strict=True)
        self.bells = [Law(bell, zero, 1.0, 0.0, floor) for bell, zero in bells]
        self.known = [[Law.nothing(floor)] for _ in self.single + self.bells]

    def arrangements(self, drawn: tuple[int, ...]) -> list[tuple[int, ...]]:
        """How many blocks are of each kind, in all ways, and how many send each bell."""
        kinds, (blocks, *bells) = len(self.single), drawn
        found = []
        for cuts in itertools.combinations(range(blocks + kinds - 1), kinds - 1):
            ends = (-1, *cuts, blocks + kinds - 1)
            found.append((*(b - a - 1 for a, b in itertools.pairwise(ends)), *bells))
        # Blocks of one kind are worst, as a rule: what is left is settled by them.
        return found[::-1]

    def of(self, counts: tuple[int, ...]) -> Law:
        """The law of the sum of so many blocks of each kind, and of each bell."""
        law = self.known[0][0]
        for single, known, count in zip(self.single + self.bells, self.known, counts, strict=True):
            while len(known) <= count:
                known.append(known[-1] * single)
            law = law * known[count]
        return law
