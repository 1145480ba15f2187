"""Inputs of the other clients, all at one vertex, that hide a client poorly: lower ends.

Derivations: `docs/theory/sums.md`, `vector-sums.md`.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.law import KEEP_ALL, Law
from randquant.privacy.certificates.sums.outcomes import ClientRows, log_excesses, log_moments
from randquant.privacy.divergence import UNIT

PARTS, VERTICES = 32, 5
"""Parts into which the way from end to end is cut, about, for pairs of inputs; and vertices that
others are put at, at most."""

FLOOR, LONG, DEEP = 90.0, 2**11, 2**16
"""Bits below which tails are left out, of sums of so many codes, and of so many whatever the order
is; lower ends account for that."""

Reached = tuple[float, tuple[float, float]]
"""A divergence over squared distance, and the pair of inputs that has it."""


def at_one_vertex(row: np.ndarray, total: int, others: int, depth: float) -> Law:
    """The law of the sum of others with equal inputs.

    Args:
        row, total: whole numbers.
        others: how many there are.
        depth: in nats, how rare sums may count.
    """
    # theory/sums.md, Proposition 7: where some code is impossible, no tail is harmless.
    codes = 1 if (row == 0).any() else others * len(row)
    deep = depth / math.log(2) if codes <= DEEP else 0.0
    floor = FLOOR + deep if codes > LONG else KEEP_ALL
    return Law.of(row, total, floor).power(others)


def attained(noise: Law, p: np.ndarray, q: np.ndarray, order: float) -> float:
    """At most log of sum_z P(z)^order Q(z)^(1-order), P and Q being p and q convolved with noise.

    Args:
        noise: law of the others' sum.
        p, q: (m,) rows, within 1 unit.
        order: in (1, inf].
    """
    table, slack = log_moments(noise, p[None], q[None], order)
    # theory/sums.md, Proposition 7: without what was trimmed a moment may be larger.
    if math.isinf(order):  # theory/sums.md, Proposition 8
        return max(float(table[0, 0]) - slack, 0.0) if noise.trimmed == 0 else 0.0
    whole = float(table[0, 0]) - slack if noise.trimmed == 0 else 0.0
    pair = np.zeros(1, np.int64), np.ones(1, np.int64)
    excess = log_excesses(noise, np.stack([p, q]), pair, order, upper=False)
    return max(float(np.logaddexp(0.0, excess[0])) * (1 - 32 * UNIT), whole, 0.0)


@functools.lru_cache(maxsize=256)
def by_distance(channel: Channel, others: int, order: float) -> Reached:
    """Others all at one vertex: the best divergence over squared distance of some pairs.

    Args:
        channel: a channel whose curvature is finite.
        others: how many there are.
        order: in (1, inf).
    """
    client = ClientRows.of(channel)
    points = _points(client.inputs)
    square = (points[:, None] - points) ** 2
    weight = 1 / ((order - 1) * np.where(square > 0, square, np.inf))
    rows = np.stack([_row(channel, at) for at in points])
    depth = max(order - 1, 1.0) * client.loss
    # Any others and any pair give a lower end: all are put at one vertex.
    some = np.unique(np.linspace(0, len(client.rows) - 1, VERTICES).round().astype(int))
    best: tuple[float, tuple[float, float]] = (0.0, (float(points[0]), float(points[0])))
    vertices = channel.weights[np.append(True, np.diff(channel.inputs) > 0)]
    for vertex in some.tolist():
        noise = at_one_vertex(vertices[vertex], channel.denominator, others, depth)
        ratio = log_moments(noise, rows, rows, order)[0] * weight
        # Close pairs have the largest ratios, of others more digits are proven.
        for apart in (0.0, float(square.max()) / 16):
            found = np.where(square >= apart, ratio, -1.0)
            i, j = np.unravel_index(int(found.argmax()), found.shape)
            if found[i, j] > best[0]:
                lower = attained(noise, rows[i], rows[j], order) * float(weight[i, j])
                best = max(best, (lower, (float(points[i]), float(points[j]))))
    # Points are off by 1 unit of themselves, a distance of a part by 2048, its square twice.
    return best[0] * (1 - 2**13 * UNIT), best[1]


def _points(inputs: np.ndarray) -> np.ndarray:
    """Inputs to try, all vertices among them, and some close to both ends."""
    reach = inputs[-1] - inputs[0]
    parts = np.maximum(PARTS * np.diff(inputs) / reach, 1.0)
    # Powers of two: the encoder's dither has these positions exactly.
    counts = (2 ** np.log2(parts).round()).astype(int)
    cells = zip(inputs[:-1], inputs[1:], counts.tolist(), strict=True)
    points = [np.linspace(left, right, count, endpoint=False) for left, right, count in cells]
    points = np.append(np.concatenate(points), inputs[-1])
    # In a cell pairs approach the Fisher information, the closer the more.
    step = 2.0**-5 * np.array([points[1] - points[0], points[-2] - points[-1]])
    return np.unique(np.append(points, points[[0, -1]] + step))


def _row(channel: Channel, at: float) -> np.ndarray:
    """The row of an input: of exact integers."""
    row, total = channel.mix(float(at))
    return np.array([int(weight) / total for weight in row])


def endless(channel: Channel, witness: tuple[float, float]) -> Reached:
    """For a channel of infinite curvature: infinite where that of a sum is known to be, else 0.

    Where the channel jumps, so do sums. Where its largest or least code becomes impossible at a
    vertex, so does the largest or least sum. A sum in between may arise from other codes.
    """
    for cell, (left, right) in enumerate(itertools.pairwise(channel.weights)):
        start, stop = (float(end) for end in channel.inputs[cell : cell + 2])
        if start == stop and (left != right).any():
            return math.inf, (start, stop)
        (low, high), (least, most) = (np.flatnonzero(row)[[0, -1]] for row in (left, right))
        if least < low or most > high:
            return math.inf, (stop, start)
        if low < least or high > most:
            return math.inf, (start, stop)
    return 0.0, witness
