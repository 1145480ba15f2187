"""Curvature of a sum in which clients draw from shapes that do not depend on their inputs.

Derivation: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.sums.blanket import Blanket
from randquant.privacy.certificates.sums.blanket_draws import Noises, draws
from randquant.privacy.certificates.sums.blocks import block_blankets
from randquant.privacy.certificates.sums.bounds import blankets
from randquant.privacy.certificates.sums.classes import MOST, arrangements, by_classes
from randquant.privacy.certificates.sums.kinds import by_kinds
from randquant.privacy.certificates.sums.pairs import all_pairs
from randquant.privacy.certificates.sums.reachable import reached
from randquant.privacy.certificates.sums.rounding import (
    FAINT,
    between,
    fits,
    largest_ratio,
    left_out,
    log_keep,
    thinned,
)
from randquant.privacy.certificates.vector import Kappa
from randquant.privacy.divergence import UNIT

TOLERANCE = 2.0**-6
"""Boxes whose bound exceeds the best pair by less than this share are not searched on: the method
itself loses more."""

FINE, COARSE = {1: 120, 2: 48, 3: 14}, {1: 45, 2: 10, 3: 5}
"""Into how many parts the counts of each shape are cut, by how many shapes there are."""

KINDS, CLASSES, BLANKETS, LOOSE = 1.03, 1.1, 1.2, 2.0
"""A bound so near what is attained is not improved on: by kinds of blocks, by few vertices that
stand for all, by blankets, which hide less than kinds do, and by those of two bells."""

GAIN = 1 + 2.0**-10
"""A bound that cannot be closer by this factor is not computed."""

LOW = 4.0
"""Orders to which counts are cut finely: beyond, outcomes are few enough to search pairs."""


def by_blanket(channel: Channel, clients: int, order: float, alone: Kappa) -> Kappa:
    """Bound a sum's curvature by what clients draw whatever their inputs are.

    Args:
        channel: a channel whose curvature is finite.
        clients, order: as in `kappa_sum`.
        alone: the curvature of one client's code.
    """
    lower, witness = reached(channel, clients, order)
    # theory/vector-sums.md, Propositions 4 and 19: each bounds the curvature, the least counts.
    upper, vertices = alone.upper, len(channel.inputs)
    every = vertices > 2 and arrangements(channel, clients) <= MOST
    if every:
        upper = min(upper, by_classes(channel, clients, order, lower))
    # theory/vector-sums.md, Proposition 22.
    if upper > KINDS * lower:
        upper = min(upper, by_kinds(channel, clients, order, lower))
    # More vertices are only stood for; two are tried in all arrangements by `between_ends`, and
    # blankets are as close beyond its largest sums.
    stood = not every and vertices > 2 and upper > CLASSES * lower
    if stood:
        upper = min(upper, by_classes(channel, clients, order, lower, enough=CLASSES * lower))
    if upper > BLANKETS * lower:
        several = (Blanket.of(channel), *blankets(channel))
        upper = _least(channel, clients, order, several, lower, upper)
    if stood and upper > CLASSES * lower:
        upper = min(upper, by_classes(channel, clients, order, lower, enough=upper))
    if upper > LOOSE * lower:
        upper = _least(channel, clients, order, block_blankets(channel, two=True), lower, upper)
    return between(lower, witness, upper, alone)


def _least(
    channel: Channel,
    clients: int,
    order: float,
    several: Sequence[Blanket],
    attained: float,
    upper: float,
) -> float:
    """The least bound of several blankets, and of one that is known."""
    least = [_best_case(channel, clients, order, each) for each in several]
    known: list[_Sum] = []
    for limit, blanket in sorted(zip(least, several, strict=True), key=lambda each: each[0]):
        enough = min([upper, *(each.least for each in known)])
        if limit * GAIN < enough:
            known.append(_Sum(channel, clients, order, blanket, attained))
    for found in sorted(known, key=lambda found: found.least):
        if found.least < upper:
            upper = min(upper, found.bound(upper))
    return upper


def _best_case(channel: Channel, clients: int, order: float, blanket: Blanket) -> float:
    """At most what a blanket's bound will be, but for rounding: quickly found."""
    lines, codes = CellLines.of(channel), np.arange(channel.levels)[channel.weights.any(axis=0)]
    rows = lines.weights / lines.denominator
    means = rows @ codes
    own = rows @ codes**2 - means**2
    # Every law tells as much of its mean as Gaussian noise of its variance, or more (Cramér and
    # Rao), and pairs within a cell approach order/2 times what it tells.
    hidden = np.minimum(own[:-1], own[1:]) + blanket.drawing(clients - 1) * blanket.variance
    slopes = np.diff(means) / lines.widths
    return order / 2 * float((slopes**2 / hidden).max()) if hidden.min() > 0 else math.inf


class _Sum:
    """The laws of a sum, for inputs at vertices, given how often the others draw each shape.

    Attributes:
        close: what pairs within a cell approach; infinite where float64 does not hold what counts.
        least: no bound from these laws is below it, but for rounding.
    """

    def __init__(
        self, channel: Channel, clients: int, order: float, blanket: Blanket, attained: float
    ):
        self.order, self.close, self.least = order, math.inf, math.inf
        lines = CellLines.of(channel)
        used = channel.weights.any(axis=0)
        self.inputs, self.rows = lines.inputs, lines.weights / lines.denominator
        # Codes that are never sent keep their places: places add up.
        places = np.zeros((len(self.rows), channel.levels))
        places[:, used] = self.rows
        _, loss = largest_ratio(self.rows)
        self.loss = loss
        parts = FINE if order <= LOW or blanket.block > 1 else COARSE
        groups = draws(blanket, blanket.drawing(clients - 1), 60 + order * loss, parts)
        length = len(groups) * clients * channel.levels
        log_least = log_keep(length, loss, order)
        # theory/vector-sums.md, Proposition 12: what is trimmed counts as left out.
        noises = Noises(blanket, 8 - log_least / math.log(2))
        kept, error, lost, self.faint, missing = [], 0.0, 0.0, 0.0, 0.0
        for counts, log_mass in groups:
            law = noises.of(counts)
            # theory/vector-sums.md, Proposition 12.
            own = 1.05 * UNIT * (law.error + 4 * channel.levels + 64)
            error, lost = max(error, own), lost + law.trimmed * channel.levels
            with np.errstate(under="ignore"):
                mass = np.ldexp(law.mantissa, np.maximum(law.exponent, -2000).astype(np.int32))
            share = math.exp(log_mass) * (1 + (64 + 2 * abs(log_mass)) * UNIT)
            block = share * np.stack([np.convolve(row, mass) for row in places])
            block = block[:, block.max(axis=0) >= math.exp(log_least)]
            few = CellLines(self.inputs, block, 1, own)
            block, faint, left = thinned(few, order, FAINT * attained / len(groups))
            kept.append(block)
            self.faint, missing = self.faint + faint, missing + left
        # theory/vector-sums.md, Proposition 10: beyond it float64 does not hold what counts.
        if not fits(log_least, error, loss, order):
            return
        joint = np.concatenate(kept, axis=1)
        if not joint.shape[1]:
            return
        self.rest = left_out(int(length + lost) + 1, log_least, loss, order)
        # theory/vector-sums.md, Proposition 4: outcomes (group, sum) in place of codes.
        self.together = CellLines(self.inputs, joint, 1, error, self.rest + missing)
        self.close = self.together.close(order)
        square = (self.inputs[:, None] - self.inputs) ** 2
        square[square == 0] = math.inf
        far = float((self.together.divergences(order)[0] / square).max())
        self.least = max(self.close, far)

    def bound(self, enough: float) -> float:
        """Upper bound; infinite where it would be above `enough`."""
        if self.close > enough or math.isinf(self.close):
            return math.inf
        # theory/vector-sums.md, Proposition 5; the search only where that is loose.
        bound = self.together.curvature(self.order, enough=enough)
        if bound > self.close * (1 + TOLERANCE):
            bound = min(bound, all_pairs(self.together, self.order, self.loss))
        # theory/vector-sums.md, Proposition 10: outcomes left out, times the largest |d|/P squared.
        slopes = np.abs(np.diff(self.rows, axis=0)) / np.diff(self.inputs)[:, None]
        steepest = float((slopes / self.rows.min(axis=0)).max())
        return (bound + self.rest * steepest**2 + self.faint) * (1 + 16 * UNIT)
