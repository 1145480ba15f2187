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

MOST, THREE = 300, 110
"""Others to whom this is applied, and to whom a third kind is: beyond, arrangements are many."""

Blocks = tuple[tuple[Classes, int], ...]
"""Kinds of blocks, and how many blocks of their size there are."""


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
    blocks = _blocks(channel, others) if others <= MOST else ()
    if not blocks or np.isinf(log_single):
        return log_single
    floor, depth = floor_for(rows, log_single), 60 + log_single
    noises = [_Kinds(kinds, floor) for kinds, _ in blocks]
    drawn = [LogBinomial.of(count, kinds.share, SHARES, depth).tops() for kinds, count in blocks]
    # theory/sums.md, Proposition 14: mirrored arrangements have the mirrored pairs' moments.
    mirror = rows.mirror and all(each.mirror for each in noises)
    turn = np.arange(len(rows.weights))
    turn[: rows.vertices] = turn[: rows.vertices][::-1]
    total, done = np.full(rows.allowed.shape, -np.inf), 0
    ways = sum(
        _ways(noises, [least for least, _ in groups]) for groups in itertools.product(*drawn)
    )
    ways = ways // 2 + 1 if mirror else ways
    for groups in itertools.product(*drawn):
        worst = np.full(rows.allowed.shape, -np.inf)
        for noise in _arranged(noises, [least for least, _ in groups], mirror):
            if done % 64 == 0:
                report("how the others' blocks are spread", done, ways)
            done += 1
            # theory/sums.md, Propositions 7 and 8.
            moments = table(rows, noise, order)[0]
            worst = np.maximum(worst, add_trimmed(moments, noise.trimmed, noise.floor, log_single))
        if mirror:
            worst = np.maximum(worst, worst[np.ix_(turn, turn)])
        # theory/sums.md, Proposition 14: a mean over how many blocks draw a kind.
        total = np.logaddexp(total, worst + sum(mass for _, mass in groups) + 8 * UNIT)
    largest = float(total.max())
    # Each addition costs 16 units at most; smaller sums on the way count by their share only.
    many = 4 + len(list(itertools.product(*drawn)))
    return min(largest + 16 * many * UNIT * (1 + abs(largest)), log_single)


def _blocks(channel: Channel, others: int) -> Blocks:
    """The blocks that hide most: almost all of one size, and one or two that hold the rest."""
    best: tuple[float, Blocks] = (0.0, ())
    fitting = [size for size in fitting_sizes(channel) if size <= others]
    for size in fitting[-2:]:
        several = []
        for each, count in _sizes(others, size, fitting).items():
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
        self.known = [[Law.nothing(floor)] for _ in self.single]

    def arrangements(self, blocks: int) -> list[tuple[int, ...]]:
        """How many blocks are of each kind, in all ways."""
        kinds = len(self.single)
        found = []
        for cuts in itertools.combinations(range(blocks + kinds - 1), kinds - 1):
            ends = (-1, *cuts, blocks + kinds - 1)
            found.append(tuple(b - a - 1 for a, b in itertools.pairwise(ends)))
        return found

    def of(self, counts: tuple[int, ...]) -> Law:
        """The law of the sum of counts[j] blocks of kind j."""
        law = self.known[0][0]
        for single, known, count in zip(self.single, self.known, counts, strict=True):
            while len(known) <= count:
                known.append(known[-1] * single)
            law = law * known[count]
        return law


def _ways(noises: list[_Kinds], blocks: list[int]) -> int:
    """How many arrangements there are, mirrored ones counted twice."""
    kinds = [len(noise.single) for noise in noises]
    return math.prod(math.comb(n + k - 1, k - 1) for n, k in zip(blocks, kinds, strict=True))


def _arranged(noises: list[_Kinds], blocks: list[int], mirror: bool) -> Iterator[Law]:
    """Laws of the sum of so many blocks of each size, in all arrangements."""
    several = [noise.arrangements(count) for noise, count in zip(noises, blocks, strict=True)]
    for counts in itertools.product(*several):
        turned = tuple((each[1], each[0], *each[2:]) for each in counts)
        if mirror and counts < turned:
            continue
        law = noises[0].of(counts[0])
        for noise, each in zip(noises[1:], counts[1:], strict=True):
            law = law * noise.of(each)
        yield law
