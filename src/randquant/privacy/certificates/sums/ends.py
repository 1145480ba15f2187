"""Curvature of sums of a channel with two vertices: every arrangement of the others is tried.

Derivations and rounding: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np

from randquant._internal.progress import report
from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.chain import ChainLaw, rounding, sums
from randquant.privacy.certificates.sums.chain_kernel import attained
from randquant.privacy.certificates.sums.kappa_blanket import by_blanket
from randquant.privacy.certificates.sums.pairs_kernel import curvatures
from randquant.privacy.certificates.sums.reachable import reached
from randquant.privacy.certificates.sums.rounding import (
    between,
    fits,
    largest_ratio,
    left_out,
    log_keep,
    ratios,
    slack,
    spent,
)
from randquant.privacy.certificates.vector import Kappa, kappa
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import at_most

LARGEST_CHAIN, LARGEST_SUM = 2**12, 2**17
"""Most clients whose arrangements are all tried, and most that are counted: more only hide more."""

LOOSE = 2.0**-9
"""How far a bound may be above the best pair, about, before pairs are cut finer."""

FEW_PARTS, MOST_PARTS = 12, 160
"""The way from one end of the inputs to the other is cut into at most so many parts, where
curvature is computed: the first number for any sum, the second for short ones."""

GROUPS = 64
"""In so many groups of arrangements curvature is bounded: each by the highest of its own."""

GRID_WORK = 4e7
"""Curvatures that a sum may take to compute before it gets no more than `FEW_PARTS`."""


@functools.lru_cache(maxsize=4096)
def between_ends(channel: Channel, clients: int, order: float, loose: float = LOOSE) -> Kappa:
    """The curvature of a sum of codes whose channel has no vertex but its ends.

    Args:
        channel: a channel of two vertices, of finite curvature.
        clients, order: as in `kappa_sum`; clients > 1.
        loose: how far the bound may be above the best pair, about.
    """
    alone = kappa(channel, order)
    # theory/vector-sums.md, Proposition 2.
    if clients <= LARGEST_CHAIN:
        return _Ends(channel, clients, order, loose).run(alone)
    found = by_blanket(channel, min(clients, LARGEST_SUM), order, alone)
    upper = found.upper
    # Of fewer clients the curvature is larger, about by as much as they are fewer.
    if upper * LARGEST_CHAIN > found.lower * clients:
        # theory/vector-sums.md, Proposition 1: more clients hide more.
        upper = min(upper, between_ends(channel, LARGEST_CHAIN, order, loose).upper)
    return Kappa(at_most(found.lower, upper), upper, order, found.witness)


class _Ends:
    """A channel whose only vertices are its ends: each of the others is at one of the two."""

    def __init__(self, channel: Channel, clients: int, order: float, loose: float):
        rows = channel.weights / channel.denominator  # codes keep their places: places add up
        self.used = rows.any(axis=0)
        self.channel, self.clients, self.order = channel, clients, order
        self.loose = loose
        self.left, self.right = rows
        self.width = float(channel.inputs[1] - channel.inputs[0])
        self.length = clients * (channel.levels - 1) + 1
        self.error = rounding(clients, channel.levels)
        self.ratio, self.loss = largest_ratio(rows[:, self.used])
        self.log_keep = log_keep(self.length, self.loss, order)
        self.slack = slack(self.error, self.loss, order)
        self.spent = spent(self.length, self.loss, order)

    def run(self, alone: Kappa) -> Kappa:
        if not fits(self.log_keep, self.error, self.loss, self.order):
            found = reached(self.channel, self.clients, self.order)
            return between(*found, math.inf, alone)
        parts = self._parts()
        upper, best = 0.0, (0.0, (0, 0), None)
        pairs, size = self._neighbours(), -(-self.arrangements // GROUPS)
        for done in range(0, self.arrangements, size):
            report("how the others are spread", done, self.arrangements)
            group = list(itertools.islice(pairs, size))
            grids = np.stack([self._raised(pair, parts) for pair in group])
            # Both figures rise with every entry of a grid: neighbouring grids are nearly the same.
            highest = grids.max(axis=0)
            upper = max(upper, self._bound(highest))
            ratio = ratios(highest, self.order)
            at = tuple(int(i) for i in np.unravel_index(int(ratio.argmax()), ratio.shape))
            if ratio[at] > best[0]:
                best = (float(ratio[at]), at, group[int(grids[:, *at].argmax())])
        # The width is within 1 unit: 5 of 16.
        upper = upper / self.width**2 * (1 + 16 * UNIT)
        _, (i, j), pair = best
        lower = 0.0
        if pair is not None:
            grid = np.empty((parts + 1, parts + 1))
            keep = math.exp(self.log_keep)
            attained(*pair, keep, self.error, self.order, parts, grid)
            # theory/vector-sums.md, Propositions 6 and 9: twice the slack, for what was computed is
            # not the truth but within `slack` of it.
            lower = float(ratios(grid * (1 - 2 * self.slack), self.order)[i, j])
            lower *= (1 - 64 * UNIT) / self.width**2
        ends = [float(self.channel.inputs[0] + self.width * k / parts) for k in (i, j)]
        return between(lower, (ends[0], ends[1]), upper, alone)

    def _neighbours(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Laws of the sum with the client at the left and at the right, for all others."""
        laws = sums(self.left, self.right, self.clients)
        for first, second in itertools.islice(itertools.pairwise(laws), self.arrangements):
            yield _aligned(first, second)

    @property
    def arrangements(self) -> int:
        """How many there are of the others; a mirrored channel's second half mirrors the first."""
        mirrored = np.array_equal(self.channel.weights[0], self.channel.weights[1][::-1])
        return (self.clients + 1) // 2 if mirrored else self.clients

    def _raised(self, pair: tuple[np.ndarray, np.ndarray], parts: int) -> np.ndarray:
        """(parts + 1, parts + 1): S between points of the way, differences raised."""
        some = np.maximum(*pair) >= math.exp(self.log_keep)
        first, second = (law[some] for law in pair)
        at = np.arange(parts + 1)[:, None]
        # A mix with positive parts: within 3 units of itself, however much larger an end is.
        rows = (parts - at) / parts * first + at / parts * second
        grown = np.exp((self.order - 1) * np.log(rows / first))
        # theory/vector-sums.md, Proposition 9: errors of both laws, 1.25 times counted.
        steep = np.abs(second - first) + 2.5 * self.error * np.maximum(first, second)
        start = np.arange((parts + 1) ** 2 + 1)
        grid = np.empty(len(start) - 1)
        curvatures(
            rows, grown, steep[None], *divmod(start[:-1], parts + 1), np.zeros_like(start), start,
            self.order, self.error, grid, np.empty(0),
        )  # fmt: skip
        return grid.reshape(parts + 1, parts + 1)

    def _bound(self, grid: np.ndarray) -> float:
        """Upper bound of D over squared distance in units of the way, for one set of others."""
        parts, above = len(grid) - 1, self.order - 1
        # Outcomes with hardly any mass may add this to every entry.
        rest = left_out(self.length, self.log_keep, self.loss, self.order) * (self.ratio - 1) ** 2
        raised = grid * (1 + self.slack + self.spent) + rest
        corners = [raised[:-1, :-1], raised[:-1, 1:], raised[1:, :-1], raised[1:, 1:]]
        if 2 < self.order < 3:  # the one case that is not convex in p
            corners = [corner * self._bent(parts)[:, None] for corner in corners]
        # Convex in each of p and q: at most the mix of its corners, within a box, and then in
        # smaller boxes at no further cost.
        finer = _finer(parts)
        at = np.arange(finer + 1) / finer
        first, second = np.meshgrid(at, at, indexing="ij")
        shares = [(1 - first) * (1 - second), (1 - first) * second, first * (1 - second)]
        shares.append(first * second)
        fine = np.sum(
            [c[..., None, None] * s for c, s in zip(corners, shares, strict=True)], axis=0
        )
        steep = np.maximum(fine[..., 1:, :], fine[..., :-1, :])
        steep = np.maximum(steep[..., 1:], steep[..., :-1])
        place = np.arange(parts)[:, None] * finer + np.arange(finer)
        apart = np.abs(place[:, None, :, None] - place[None, :, None, :])
        # Boxes that touch hold pairs at no distance; the 16 units pay for 5 of `scale`.
        near = np.maximum(apart - 1, 0) / (parts * finer)
        scale = above * near**2 * (1 - 16 * UNIT)
        with np.errstate(divide="ignore", invalid="ignore"):
            # theory/vector.md, Proposition 3; below: interpolation 5 units, log1p 8, two more.
            bound = np.where(near > 0, np.log1p(scale * steep) / scale, steep)
        return float(bound.max()) * (1 + 64 * UNIT)

    def _bent(self, parts: int) -> np.ndarray:
        """(parts,): cosh^(2 (order - 2)) of half the largest log-ratio within each part."""
        at = np.arange(parts + 1)[:, None] / parts
        left, right = self.left[self.used], self.right[self.used]
        logs = np.log((1 - at) * left + at * right)
        spread = np.abs(np.diff(logs, axis=0)).max(axis=1)
        # theory/vector.md, Proposition 4; the spread itself: theory/vector-sums.md, Proposition 3.
        return np.cosh(spread / 2 * (1 + 64 * UNIT)) ** (2 * (self.order - 2)) * (1 + 512 * UNIT)

    def _parts(self) -> int:
        """Number of parts for which the bound is tight enough near the diagonal."""
        left, right = self.left[self.used], self.right[self.used]
        steepest = (right - left) ** 2 / np.minimum(left, right)
        moment = self.order * (self.order - 1) / 4 * float(steepest.sum()) / self.clients
        least = 4 if 2 < self.order < 3 else 1  # where pairs are bounded less closely
        affordable = math.isqrt(int(GRID_WORK / (self.arrangements * self.length)))
        most = min(max(affordable, FEW_PARTS), MOST_PARTS)
        return min(max(math.ceil(math.sqrt(moment / (4 * self.loose))), least), most)


def _finer(parts: int) -> int:
    """How many times finer the way is cut where curvature is interpolated: a power of two."""
    return 16 if parts <= 12 else 8 if parts <= 24 else 4 if parts <= 48 else 2


def _aligned(first: ChainLaw, second: ChainLaw) -> tuple[np.ndarray, np.ndarray]:
    """Both laws over a common range of sums."""
    start = min(first.start, second.start)
    stop = max(first.start + len(first.mass), second.start + len(second.mass))
    both = np.zeros((2, stop - start))
    for row, law in zip(both, (first, second), strict=True):
        row[law.start - start : law.start - start + len(law.mass)] = law.mass
    return both[0], both[1]
