"""How often each shape of a blanket is drawn: the noise in a sum, and its probabilities."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np

from randquant.privacy.certificates.sums.binomial import LogBinomial
from randquant.privacy.certificates.sums.blanket import FEW_SHAPES, Blanket
from randquant.privacy.certificates.sums.law import Law, product
from randquant.privacy.divergence import UNIT

MOST_CLIENTS = 2**20
"""More clients than this are counted as so many: more only hide better."""

FEW = 1500
"""Up to so many draws, counts are told apart shape by shape; beyond, all fall together."""

Draws = tuple[tuple[int, ...], float]
"""How often each shape is drawn, at least, and the log of at least the probability of that."""


DEVIATIONS = (3.2, 2.7, 2.3, 2.0, 1.75, 1.5, 1.3, 1.1, 0.9)
"""Levels below the mean of every count where all counts fall together."""

POINTS = {1: 45, 2: 24, 3: 14}
"""Into how many groups the counts of each shape are cut, by how many shapes there are."""


def draws(
    blanket: Blanket, clients: int, depth: float, parts: Mapping[int, int] = POINTS
) -> list[Draws]:
    """Group the possible draws of this many clients.

    Args:
        blanket: the blanket.
        clients: how many draw.
        depth: outcomes less likely than about e^-depth may be treated coarsely.
        parts: as `POINTS`.

    Returns:
        Groups that hold all outcomes. With h decreasing in every count, E[h] is at most
        sum e^log_mass·h(counts).
    """
    # theory/sums.md, Proposition 2: counting on fewer others is a bound for all.
    clients = min(clients, MOST_CLIENTS)
    together = len(blanket.shares) > FEW_SHAPES or clients * blanket.beta > FEW
    if together and len(blanket.shares) > 1:
        return _together(blanket, clients, depth)
    # Groups multiply over shapes: some hundreds in all.
    points = parts[len(blanket.shares)]
    groups = []
    total_drawn = LogBinomial.of(clients, sum(blanket.shares), blanket.denominator, depth)
    for total, _, mass in total_drawn.groups(points):
        for counts, part in _split(total, blanket.shares, depth, points):
            # theory/sums.md, Proposition 10: both carry spare units for their sum; 8 more.
            log_mass = min(mass + part, 0.0) + 8 * UNIT
            if log_mass > -math.inf:
                groups.append((counts, log_mass))
    return groups


def _split(
    total: int, shares: tuple[int, ...], depth: float, points: int
) -> Iterator[tuple[tuple[int, ...], float]]:
    """How this many draws may be distributed over the shapes."""
    if len(shares) == 1:
        yield (total,), 0.0
        return
    # theory/sums.md, Proposition 4: given the total, draws of the first shape are binomial. Its
    # group counts its least for itself and total less its greatest for the other shapes.
    first_drawn = LogBinomial.of(total, shares[0], sum(shares), depth)
    for least, greatest, mass in first_drawn.groups(points):
        for counts, part in _split(total - greatest, shares[1:], depth, points):
            yield (least, *counts), mass + part


def _together(blanket: Blanket, clients: int, depth: float) -> list[Draws]:
    """Nested levels: at level s, every shape is drawn at least levels[s] times."""
    binomials = [LogBinomial.of(clients, s, blanket.denominator, depth) for s in blanket.shares]
    # A normal variable is so far below its mean with probability e^-depth at most.
    reach = math.sqrt(2 * depth) + 2
    levels, fails = [(0,) * len(binomials)], [-math.inf]
    for deviations in [*np.geomspace(reach, 4, 4), *DEVIATIONS]:
        counts = tuple(_lower(binomial, float(deviations)) for binomial in binomials)
        fail = [binomial.below(count) for binomial, count in zip(binomials, counts, strict=True)]
        log_fail = float(np.logaddexp.reduce(fail)) + 1e-12
        if counts != levels[-1] and log_fail < -0.2:
            levels.append(counts)
            fails.append(log_fail)
    # theory/sums.md, Proposition 4: Abel's sum, where the last F is 1; 1e-12 is far above the
    # rounding of exp and log, whose results are at most 1.
    fails.append(0.0)
    # P(level s is reached and s + 1 is not) <= P(s + 1 is not reached), counted once.
    masses = []
    for least, most in itertools.pairwise(fails):
        share = -math.expm1(least - most) if least < most else 0.0
        masses.append(most + math.log(share) + 1e-12 if share > 0 else most)
    return list(zip(levels, masses, strict=True))


def _lower(binomial: LogBinomial, deviations: float) -> int:
    centre = binomial.first + int(binomial.logs.argmax())
    return max(centre - int(deviations * binomial.deviation), 0)


class Noises:
    """Laws of draws from a blanket's shapes, each computed from the previous one where possible."""

    def __init__(self, blanket: Blanket, floor: float):
        self.single = [blanket.law(j, floor) for j in range(len(blanket.shapes))]
        self.counts = (0,) * len(self.single)
        self.law = Law.nothing(floor)

    def of(self, counts: tuple[int, ...]) -> Law:
        """The law of the sum of counts[j] draws from shape j, for all j."""
        more = [count - known for count, known in zip(counts, self.counts, strict=True)]
        if min(more) >= 0:
            law = self.law * product(self.single, more)
        else:
            law = product(self.single, counts)
        self.counts, self.law = counts, law
        return law
