"""Curvature of a sum in which each client sends, now and then, a code of no input: any channel.

Derivation: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from randquant.channel import Channel
from randquant.curvature import Lines
from randquant.divergence import UNIT
from randquant.sums.chain import Law, Powers, rounding
from randquant.sums.chain_kernel import curvatures
from randquant.sums.margins import (
    LOG_PRECISE,
    between,
    largest_ratio,
    left_out,
    log_keep,
    ratios,
    slack,
)
from randquant.vector import Kappa, Search

GROUPS = (-18, -15, -12, -10, -8, -6, -4, -3, -2.25, -1.5, -1, -0.5, 0, 0.5, 1)
"""In standard deviations: where numbers of independent clients are cut into groups."""


TOLERANCE = 2.0**-9
"""Boxes whose bound exceeds the best pair by less than this share are not searched on: the method
itself loses more."""


def by_blanket(channel: Channel, clients: int, order: float, alone: Kappa) -> Kappa:
    """Bound a sum's curvature: each of the others is independent of its input with chance beta.

    Args:
        channel: a channel whose curvature is finite.
        clients, order: as in `kappa_sum`.
        alone: the curvature of one client's code.
    """
    lines, levels = Lines.of(channel), len(channel.values)
    used = channel.weights.any(axis=0)
    rows = np.zeros((len(lines.inputs), levels))
    rows[:, used] = lines.weights / lines.denominator
    least = rows.min(axis=0)
    beta = min(float(least.sum()), 1.0) * (1 - 4 * levels * UNIT)
    ratio, loss = largest_ratio(rows[:, used])
    least_log = log_keep(len(GROUPS) * clients * levels, loss, order)
    error = 2 * rounding(clients, levels) + 64 * levels * UNIT
    if least_log - loss < LOG_PRECISE or slack(error, ratio, loss, order) > 1e-3:
        return alone
    outcomes = [
        share * np.stack([np.convolve(row, law.mass) for row in rows])
        for share, law in _blankets(beta, least / least.sum(), clients - 1)
    ]
    joint = np.concatenate(outcomes, axis=1)
    rest = left_out(joint.shape[1], least_log, loss, order)
    joint = joint[:, joint.max(axis=0) >= math.exp(least_log)]
    together = Lines(lines.inputs, joint, 1, error, rest)
    found, close = together.curvature(order)
    if found > close * (1 + TOLERANCE):
        found = min(found, Search(together, order, close, TOLERANCE).run())
    slopes = np.abs(np.diff(rows[:, used], axis=0)) / np.diff(lines.inputs)[:, None]
    upper = found + rest * float((slopes / least[used]).max()) ** 2
    lower, witness = _attack(lines.inputs, rows, clients, order)
    return between(lower, upper * (1 + 16 * UNIT), alone, witness)


def _blankets(beta: float, spread: np.ndarray, others: int) -> Iterator[tuple[float, Law]]:
    """(chance, law of their sum): how many of the others are independent, in groups.

    A group has the law of the fewest in it: what others add on top only hides more.
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


def _attack(inputs: np.ndarray, rows: np.ndarray, clients: int, order: float):
    """Others all at one vertex: the best divergence over squared distance within a cell."""
    best, witness = 0.0, (0.0, 0.0)
    found = np.empty((2, 2))
    error = 2 * rounding(clients, rows.shape[1])
    ratio, loss = largest_ratio(rows[:, rows.any(axis=0)])
    part = 1 - 2 * slack(error, ratio, loss, order)
    for vertex in sorted({0, len(rows) // 2, len(rows) - 1}):
        others = Powers(rows[vertex]).of(clients - 1).mass
        for cell in range(len(inputs) - 1):
            ends = inputs[cell : cell + 2]
            first, second = (np.convolve(row, others) for row in rows[cell : cell + 2])
            curvatures(first, second, math.exp(LOG_PRECISE), -1.0, error, order, 1, found)
            reached = ratios(found * part, order) / (ends[1] - ends[0]) ** 2
            i, j = np.unravel_index(int(reached.argmax()), reached.shape)
            if reached[i, j] > best:
                best, witness = float(reached[i, j]), (float(ends[i]), float(ends[j]))
    return best * (1 - 64 * UNIT), witness
