"""Every arrangement of few others, most of which need not be looked at.

Derivation: `docs/theory/vector-sums.md`, Proposition 25.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.classes import Arranged, Classes, arrangements
from randquant.privacy.certificates.sums.pairs import PairGrid, Values, refined
from randquant.privacy.certificates.sums.pruned_kernel import worst
from randquant.privacy.certificates.sums.rounding import slack, spent

MOST = 50_000
"""Arrangements of the others, at most."""

LEAST_ORDER = 3.0
"""Below it curvature is not convex enough, and low orders are bounded well by kinds."""

AIM, LOOSE = 1.22, 0.14
"""What the bound shall be over what is attained, and the part of that which a grid may cost."""

HALF_WAY = 0.5
"""Where between what is known of a pair and the aim the line is drawn, in logarithms."""

SOONER = 0.9
"""With how many of the others a pair is looked at first, of those that would do if each hid as much
as the others: most arrangements hide a little more than the worst."""

WORK = 3e4
"""Curvatures and moments that a grid may have, about."""

WHOLE = 16.0
"""Orders beyond it are raised to whole ones, whose powers are products."""

TOP = 650.0
"""No moment that is computed is larger than e to this."""


def by_pruning(channel: Channel, clients: int, order: float, attained: float) -> float:
    """Bound a sum's curvature by all arrangements of few others; infinite if they are not few.

    Args:
        channel: a channel whose curvature is finite.
        clients, order: as in `kappa_sum`.
        attained: at most what the bound will be.
    """
    if order < LEAST_ORDER or arrangements(channel, clients) > MOST:
        return math.inf
    # theory/vector-sums.md, Proposition 25: D grows with the order.
    # (van Erven and Harremoës 2014, Theorem 3)
    order = float(math.ceil(order)) if order > WHOLE else order
    search = Arranged(channel, clients, order, attained, Classes.every(channel))
    if not search.fits:
        return math.inf
    pruned = _Pruned(search, AIM / (1 + LOOSE) * attained)
    total = refined(
        search.inputs, order, pruned.evaluate, pruned.goal, 1.0, search.mirrored, WORK, LOOSE
    )
    return search.raised(total)


@dataclass(frozen=True, slots=True)
class _Pruned:
    search: Arranged
    goal: float

    def evaluate(self, grid: PairGrid, every: int) -> Values:
        """Values of the worst arrangement, or of beginnings of all that are less than allowed."""
        if not len(grid.first):
            return np.zeros(0), np.zeros(0)
        search, order = self.search, self.search.order
        others, pairs, cells = search.others, len(grid.first), np.diff(grid.start)
        everything = (np.full(cells.sum(), np.inf), np.full(pairs, np.inf))
        # One client alone: nothing shows more.
        alone = self._worst(grid, search.kinds, 0, everything, np.zeros(pairs, int))
        known = np.zeros(cells.sum()), np.zeros(pairs)
        # All others at one vertex: about the worst there is.
        for kind in search.kinds:
            pure = self._worst(grid, kind[None], others, everything, np.full(pairs, others))
            known = np.maximum(known[0], pure[0]), np.maximum(known[1], pure[1])
        square = grid.squares()
        squares = np.repeat(square, cells), square
        # theory/vector-sums.md, Proposition 25: whatever is allowed affects how tight a bound
        # is, and the work, not whether it holds.
        ratios = (
            _ratio(known[0], squares[0], order),
            _ratio(known[1] / _or_one(square), square, order),
        )
        drawn = [each ** (1 - HALF_WAY) * self.goal**HALF_WAY for each in ratios]
        allowed = (
            np.minimum(_back(drawn[0], squares[0], order), alone[0]),
            # Of one point it is what rounding leaves: it is allowed.
            np.where(
                square > 0, np.minimum(_back(drawn[1], square, order) * square, alone[1]), 1.0
            ),
        )
        if every > 1:  # where to cut is judged
            return allowed
        part = np.where(square > 0, ratios[1] / drawn[1], 0.0)
        np.maximum.at(part, np.repeat(np.arange(pairs), cells), ratios[0] / drawn[0])
        due = np.floor((others + 1) * SOONER * part).astype(int) - 1
        if not search.mirrored:
            return self._worst(grid, search.kinds, others, allowed, due)
        # theory/vector-sums.md, Proposition 25: half of the pairs, behind all arrangements.
        half = grid.first + grid.second <= len(grid.cells)
        halves = np.repeat(half, cells), half
        limits = [np.where(h, a, np.inf) for h, a in zip(halves, allowed, strict=True)]
        found = self._worst(grid, search.kinds, others, (limits[0], limits[1]), due * half)
        found = np.where(halves[0], found[0], 0.0), np.where(half, found[1], 0.0)
        turned = grid.turned(found)
        return np.maximum(found[0], turned[0]), np.maximum(found[1], turned[1])

    def _worst(
        self, grid: PairGrid, kinds: np.ndarray, others: int, allowed: Values, due: np.ndarray
    ) -> Values:
        search, order = self.search, self.search.order
        found = np.zeros_like(allowed[0]), np.zeros_like(allowed[1])
        outcomes = (search.others + 1) * search.places.shape[1]
        # theory/vector-sums.md, Propositions 10 and 18.
        raised = 1 + slack(search.error, search.loss, order) + spent(outcomes, search.loss, order)
        worst(
            kinds, others, search.places, np.diff(search.inputs),
            np.append(grid.cells, grid.cells[-1]), grid.positions, grid.first, grid.second,
            grid.low, grid.start, order, search.error, math.exp(search.log_keep), raised,
            1.1 * search.rest / (order - 1), allowed, due, found,
        )  # fmt: skip
        return found


def _or_one(square: np.ndarray) -> np.ndarray:
    return np.where(square > 0, square, 1.0)


def _ratio(curvature: np.ndarray, square: np.ndarray, order: float) -> np.ndarray:
    """Divergence over squared distance, of its curvature."""
    scale = (order - 1) * square
    return np.where(scale > 0, np.log1p(scale * curvature) / _or_one(scale), curvature)


def _back(ratio: np.ndarray, square: np.ndarray, order: float) -> np.ndarray:
    """Curvature, of divergence over squared distance."""
    scale = (order - 1) * square
    return np.where(scale > 0, np.expm1(np.minimum(scale * ratio, TOP)) / _or_one(scale), ratio)
