"""Every arrangement of the others, where a few of the vertices stand for all.

Derivation: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from randquant._internal.progress import report
from randquant.channels.channel import Channel
from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.sums.binomial import LogBinomial
from randquant.privacy.certificates.sums.blocks import SPARE, even
from randquant.privacy.certificates.sums.chain import ChainLaw, Powers, rounding
from randquant.privacy.certificates.sums.pairs import PairGrid, Values, refined
from randquant.privacy.certificates.sums.rounding import (
    FAINT,
    fits,
    largest_ratio,
    left_out,
    log_keep,
    thinned,
)
from randquant.privacy.divergence import UNIT

FEW = 4
"""Vertices that stand for all, at most."""

MOST = 2500
"""Arrangements that are tried, at most."""

LONGEST = 2**14
"""Length of a sum's law, at most."""

GROUPS, BLOCKS = 10, 32
"""Into how many groups the number of those is cut that send what a class sends: of single clients,
and of blocks, of which there are few."""

SHARES = 2**53
"""Unit of the share of a row that is a mix of others."""

WORK = 5e7
"""Curvatures of one outcome that a bound may take to compute, about."""

COARSE = 10
"""Points of a grid that arrangements are weighed against."""


@dataclass(frozen=True, slots=True)
class Classes:
    """Rows, mixes of which are under every row but for a share of it.

    Attributes:
        rows: (J, m) probabilities.
        share: a whole number over SHARES: so much of each row, at least.
        block: how many clients send one of them together, shifted by what their inputs decide.
        bells: laws that are under the rest of every row, shifted: of what sends none of `rows`.
        bell_shares: whole numbers over SHARES, how much of each.
    """

    rows: np.ndarray
    share: int
    block: int = 1
    bells: tuple[np.ndarray, ...] = ()
    bell_shares: tuple[int, ...] = ()

    @staticmethod
    def every(channel: Channel) -> Classes:
        """All vertices, by their means."""
        rows = np.unique(channel.weights, axis=0) / channel.denominator
        return Classes(
            even(rows[np.argsort(rows @ np.arange(channel.levels), kind="stable")]), SHARES
        )

    @staticmethod
    @functools.lru_cache(maxsize=64)
    def of(channel: Channel, clients: int) -> Classes | None:
        """All vertices if that can be afforded; else the ends and what is between them."""
        every = Classes.every(channel)
        rows = every.rows
        # Few vertices are put in blocks, where arrangements are too many; more are not.
        if len(rows) <= FEW or arrangements(channel, clients) <= MOST:
            return every
        at = np.linspace(0, len(rows) - 1, FEW - 1).round().astype(int)
        share = min(_share(row, rows[at]) for row in rows)
        return Classes(rows[at], int(share * SHARES)) if share > 0.5 else None


def arrangements(channel: Channel, clients: int) -> int:
    """In how many ways the others may be at vertices."""
    vertices = len(np.unique(channel.weights, axis=0))
    return math.comb(clients + vertices - 2, clients - 1)


def _share(row: np.ndarray, classes: np.ndarray) -> float:
    """How much of a row is a mix of others; rounded down."""
    from scipy.optimize import linprog

    some = row > 0
    ratios = (classes[:, some] / row[some]).T
    solution = linprog(
        -np.ones(len(classes)), A_ub=ratios, b_ub=np.ones(len(ratios)), bounds=(0, None)
    )
    if solution.x is None or (classes[:, ~some] > 0).any():
        return 0.0
    # theory/vector-sums.md, Proposition 19: whatever was found is scaled down until it fits.
    found = np.maximum(solution.x, 0.0)
    return float(found.sum() / max((ratios @ found).max(), 1.0)) * (1 - 2**6 * UNIT)


def by_classes(
    channel: Channel,
    clients: int,
    order: float,
    attained: float,
    classes: Classes | None = None,
    enough: float = math.inf,
) -> float:
    """Bound a sum's curvature by trying every arrangement of the others; infinite if it cannot.

    Args:
        channel: a channel whose curvature is finite.
        clients, order: as in `kappa_sum`.
        attained: at most what the bound will be.
        classes: rows that stand for all; None for some of the channel's own.
        enough: a bound that is likely to be above it is not computed, and infinite.
    """
    if clients * (channel.levels - 1) > LONGEST:
        return math.inf
    classes = classes or Classes.of(channel, clients)
    if classes is None:
        return math.inf
    search = Arranged(channel, clients, order, attained, classes)
    # Fewer others hide less, by about as much as they are fewer.
    if not search.fits or attained > enough * search.counted:
        return math.inf
    return search.run()


class Arranged:
    """The laws of a sum for inputs at vertices, and the rounding of them; all arrangements.

    Attributes:
        kinds: (J, m) what one of the others sends.
        others: how many there are that send one of these.
        places: (V, m) the client's rows.
        loss: at least the log of the largest ratio of two rows at one code.
        error: relative, of laws.
        fits: whether float64 holds all that counts.
        log_keep, rest: outcomes below e to it are left out, and what they may add, at most.
        mirrored: whether turning inputs and codes round changes nothing.
    """

    def __init__(
        self, channel: Channel, clients: int, order: float, attained: float, classes: Classes
    ):
        self.clients, self.order = clients, order
        lines = CellLines.of(channel)
        rows = lines.weights / lines.denominator
        self.inputs, codes = lines.inputs, np.arange(channel.levels)
        # Codes that are never sent keep their places: places add up.
        self.places = np.zeros((len(rows), channel.levels))
        self.places[:, channel.weights.any(axis=0)] = rows
        _, self.loss = largest_ratio(rows)
        # Twice, as in `reached`; and what `even` changes.
        self.error = 2 * rounding(clients, channel.levels) + 2 * clients * SPARE
        # theory/vector-sums.md, Proposition 22: clients that fill no block are not counted.
        self.others = (clients - 1) // classes.block
        length = clients * (channel.levels - 1) + 1
        self.log_keep = log_keep(length, self.loss, order)
        self.fits = fits(self.log_keep, self.error, self.loss, order)
        # theory/vector-sums.md, Proposition 10: what outcomes that are skipped may add.
        self.rest = left_out(length, self.log_keep, self.loss, order) if self.fits else math.inf
        self.kinds = classes.rows
        self.powers = [Powers(row) for row in classes.rows]
        # theory/vector-sums.md, Proposition 19: the client's rows must be turned round as well.
        self.mirrored = np.array_equal(classes.rows, classes.rows[::-1, ::-1])
        self.mirrored &= np.array_equal(self.inputs, -self.inputs[::-1])
        turned = even(self.places)
        self.mirrored &= np.array_equal(turned, turned[::-1, ::-1])
        groups = [(self.others, self.others, 0.0)]
        if classes.share < SHARES:
            depth = 60 + order * self.loss
            drawn = LogBinomial.of(self.others, classes.share, SHARES, depth)
            groups = drawn.groups(GROUPS if classes.block == 1 else BLOCKS)
        spread = float((self.places @ codes**2 - (self.places @ codes) ** 2).max())
        outcomes = min(length, 20 * math.sqrt(clients * spread) + 20) * len(groups)
        # The blocks are as small as can be afforded, and then the grid as fine.
        self.block = 1
        points = max(len(rows), COARSE)
        most = min(MOST, WORK / (outcomes * points**2))
        while self._count(self.others) > most and self._depth(self.others):
            self.block += 1
        self.attained, self.outcomes = attained, outcomes * self._count(self.others)
        # Groups of as many whole blocks have the same laws: they are one.
        self.groups: dict[int, float] = {}
        for least, _, log_mass in groups:
            # theory/vector-sums.md, Proposition 12: 64 units, and 32 for sums of masses.
            mass = math.exp(log_mass) * (1 + (96 + 2 * abs(log_mass)) * UNIT)
            depth = self._depth(least)
            self.groups[depth] = self.groups.get(depth, 0.0) + mass
        self.known: list[tuple[float, list[CellLines]]] = []

    @property
    def counted(self) -> float:
        """The share of the others that is counted on, in the mean over all groups."""
        blocks = sum(mass * depth for depth, mass in self.groups.items())
        return blocks * self.block / max(self.others, 1)

    def _depth(self, others: int) -> int:
        """How many whole blocks there are, at least."""
        # theory/sums.md, Proposition 2.
        return max(-(-(others - len(self.powers) * (self.block - 1)) // self.block), 0)

    def _count(self, others: int) -> float:
        kinds = len(self.powers)
        several = math.comb(self._depth(others) + kinds - 1, kinds - 1)
        return several / 2 if self.mirrored else several

    def run(self) -> float:
        """The bound: of each group of counts the worst arrangement, pair by pair."""
        # Every grid is of the same laws.
        self.known = [
            (mass, [self._lines(law, mass) for law in self._laws(depth)])
            for depth, mass in self.groups.items()
        ]
        total = refined(
            self.inputs, self.order, self._evaluate, self.attained, self.outcomes, self.mirrored
        )
        # theory/vector-sums.md, Proposition 12: what all groups together may lose.
        return self.raised(total, len(self.groups), FAINT * self.attained)

    def raised(self, total: float, groups: int = 1, faint: float = 0.0) -> float:
        """The bound, with what was left out of each group, and of all."""
        slopes = np.abs(np.diff(self.places, axis=0)) / np.diff(self.inputs)[:, None]
        used = self.places.max(axis=0) > 0
        # theory/vector-sums.md, Proposition 10: the square of the largest relative change.
        steepest = float((slopes[:, used] / self.places[:, used].min(axis=0)).max())
        return (total + self.rest * steepest**2 * groups + faint) * (1 + 16 * UNIT)

    def _evaluate(self, grid: PairGrid, every: int) -> Values:
        curvature, moments = np.zeros(1), np.zeros(1)
        for mass, laws in self.known:
            worst = [np.zeros(1), np.zeros(1)]
            # The last is the one with most at the left end, or near the middle: a mirrored group.
            chosen = laws[::-every]
            for done, lines in enumerate(chosen):
                if done % 64 == 0:
                    report("how the others are spread", done, len(chosen))
                found = grid.evaluate(lines, self.loss)
                worst = [np.maximum(one, two) for one, two in zip(worst, found, strict=True)]
            if self.mirrored:
                turned = grid.turned((worst[0], worst[1]))
                worst = [np.maximum(one, two) for one, two in zip(worst, turned, strict=True)]
            # theory/vector-sums.md, Proposition 19: a mean over how many send what a class does.
            curvature, moments = curvature + mass * worst[0], moments + mass * worst[1]
        return curvature * (1 + 2**6 * UNIT), moments * (1 + 2**6 * UNIT)

    def _lines(self, law: ChainLaw, mass: float) -> CellLines:
        """Laws of the sum, of outcomes that count where others are so with probability `mass`."""
        joint = np.stack([np.convolve(row, law.mass) for row in self.places])
        joint = joint[:, joint.max(axis=0) >= math.exp(self.log_keep)]
        most = FAINT * self.attained / (len(self.groups) * max(mass, 1e-280))
        every = CellLines(self.inputs, joint, 1, self.error)
        kept, _, missing = thinned(every, self.order, most)
        return CellLines(self.inputs, kept, 1, self.error, self.rest + missing)

    def _laws(self, depth: int) -> Iterator[ChainLaw]:
        """Laws of the sum of so many whole blocks of others, in any arrangement."""
        kinds = len(self.powers)
        for cuts in itertools.combinations(range(depth + kinds - 1), kinds - 1):
            ends = [-1, *cuts, depth + kinds - 1]
            counts = [self.block * (b - a - 1) for a, b in itertools.pairwise(ends)]
            if self.mirrored and counts < counts[::-1]:
                continue
            law = Powers(np.ones(1)).of(0)
            for powers, count in zip(self.powers, counts, strict=True):
                law = law.convolve(powers.of(count))
            yield law
