"""Curvature of a sum in which a client's code is, with probability beta, independent of its input.

Derivation: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.sums.chain import ChainLaw, Powers, rounding
from randquant.privacy.certificates.sums.reachable import reached
from randquant.privacy.certificates.sums.rounding import (
    between,
    fits,
    largest_ratio,
    left_out,
    log_keep,
)
from randquant.privacy.certificates.vector import BoxSearch, Kappa
from randquant.privacy.divergence import UNIT

GROUPS = (-18, -15, -12, -10, -8, -6, -4, -3, -2.25, -1.5, -1, -0.5, 0, 0.5, 1)
"""In standard deviations: where numbers of independent clients are cut into groups."""


TOLERANCE = 2.0**-9
"""Boxes whose bound exceeds the best pair by less than this share are not searched on: the method
itself loses more."""


def by_blanket(channel: Channel, clients: int, order: float, alone: Kappa) -> Kappa:
    """Bound a sum's curvature by the clients whose codes are independent of their inputs.

    Args:
        channel: a channel whose curvature is finite.
        clients, order: as in `kappa_sum`.
        alone: the curvature of one client's code.
    """
    lines = CellLines.of(channel)
    rows = np.zeros((len(lines.inputs), channel.levels))
    rows[:, channel.weights.any(axis=0)] = lines.weights / lines.denominator
    upper = _bound(lines.inputs, rows, clients, order, alone.upper)
    return between(*reached(channel, clients, order), upper, alone)


def _bound(inputs: np.ndarray, rows: np.ndarray, clients: int, order: float, alone: float) -> float:
    """Upper bound; infinite where it would be above that of one client alone.

    It is also infinite where relevant probabilities are too small for float64.
    """
    levels, used = rows.shape[1], rows.any(axis=0)
    least = rows.min(axis=0)
    # theory/vector-sums.md, Proposition 12: 4 m units for a sum of m, a quotient, a product.
    beta = min(float(least.sum()), 1.0) * (1 - 4 * levels * UNIT)
    _, loss = largest_ratio(rows[:, used])
    log_least = log_keep(len(GROUPS) * clients * levels, loss, order)
    # theory/vector-sums.md, Proposition 12: one for the draws, one for how many there are.
    error = 2 * rounding(clients, levels) + 64 * levels * UNIT
    # theory/vector-sums.md, Proposition 10: beyond it float64 does not hold what counts.
    if not fits(log_least, error, loss, order):
        return math.inf
    outcomes = [
        share * np.stack([np.convolve(row, law.mass) for row in rows])
        for share, law in _blankets(beta, least / least.sum(), clients - 1)
    ]
    joint = np.concatenate(outcomes, axis=1)
    rest = left_out(joint.shape[1], log_least, loss, order)
    joint = joint[:, joint.max(axis=0) >= math.exp(log_least)]
    # theory/vector-sums.md, Proposition 4: outcomes (group, sum) in place of codes.
    together = CellLines(inputs, joint, 1, error, rest)
    close = together.close(order)
    if close > alone:
        return math.inf
    # theory/vector-sums.md, Proposition 5; the search only where that is loose.
    bound = together.curvature(order, enough=alone)
    if bound > close * (1 + TOLERANCE):
        bound = min(bound, BoxSearch(together, order, close, TOLERANCE).run())
    # theory/vector-sums.md, Proposition 10: outcomes left out, times the largest |d|/P squared.
    slopes = np.abs(np.diff(rows[:, used], axis=0)) / np.diff(inputs)[:, None]
    return float(bound + rest * (slopes / least[used]).max() ** 2) * (1 + 16 * UNIT)


def _blankets(beta: float, spread: np.ndarray, others: int) -> Iterator[tuple[float, ChainLaw]]:
    """(probability, law of their sum) for groups of how many of the others are independent.

    A group gets the law of its smallest number: further codes only hide more.
    """
    count = Powers(np.array([1 - beta, beta])).of(others)
    middle, deviation = others * beta, math.sqrt(others * beta * (1 - beta))
    edges = {0} | {min(max(math.floor(middle + deviation * g), 0), others) for g in GROUPS}
    powers = Powers(spread)
    for low, high in itertools.pairwise([*sorted(edges), others + 1]):
        place = slice(max(low - count.start, 0), max(high - count.start, 0))
        share = float(count.mass[place].sum())
        if share > 0:
            yield share * (1 + 8 * UNIT), powers.of(low)
