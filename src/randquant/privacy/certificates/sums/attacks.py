"""Inputs of the other clients, all at one vertex, that hide a client poorly: lower ends.

Derivations: `docs/theory/sums.md`, `vector-sums.md`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.law import KEEP_ALL, Law
from randquant.privacy.certificates.sums.outcomes import ClientRows, log_excesses, log_moments
from randquant.privacy.divergence import UNIT

PARTS, VERTICES, SQUARES = 32, 5, (2**4, 2**10)
"""Parts into which the way from end to end is cut, about, for pairs of inputs; vertices that others
are put at, at most; and parts of the largest squared distance that distant pairs are apart."""

BESIDE, CLOSE_PARTS, STEPS = 8, (2**5, 2**8, 2**11, 2**20), (1, 2, 3, 4, 6)
"""Inputs beside which pairs are tried, at most; and which parts of a cell, or how many parts of the
way, these are apart."""

FLOOR, LONG, DEEP = 150.0, 2**11, 2**16
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


@functools.lru_cache(maxsize=1024)
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
    close = _Close.of(channel, points)
    depth = max(order - 1, 1.0) * client.loss
    best: Reached = (0.0, (float(points[0]), float(points[0])))
    # Any others and any pair give a lower end: all are put at one vertex.
    for vertex in _some(len(channel.weights), VERTICES):
        noise = at_one_vertex(channel.weights[vertex], channel.denominator, others, depth)
        best = max(best, close.best(noise, order))
        ratio = log_moments(noise, rows, rows, order)[0] * weight
        # Rounded moments choose pairs; of distant ones more digits are known.
        for apart in square.max() / np.array(SQUARES):
            found = np.where(square >= apart, ratio, -1.0)
            i, j = np.unravel_index(int(found.argmax()), found.shape)
            if found[i, j] > best[0]:
                # Points are off by 1 unit of themselves, a distance of a part by 2048, its
                # square twice.
                lower = attained(noise, rows[i], rows[j], order) * (1 - 2**13 * UNIT)
                pair = float(points[i]), float(points[j])
                best = max(best, (lower * float(weight[i, j]), pair))
    return best


def _some(count: int, most: int) -> list[int]:
    """So many of 0 to count - 1, evenly."""
    return np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()


def _beside(count: int, steps: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Some of 0 to count - 1, each with those so many steps away."""
    for here in _some(count, BESIDE):
        for step in steps:
            yield from ((here, at) for at in (here - step, here + step) if 0 <= at < count)


@dataclass(frozen=True, slots=True)
class _Close:
    """Pairs of inputs beside each other, some of which approach the Fisher information.

    Attributes:
        inputs: (P, 2) of each pair.
        distance: (P,) between them, within 4 units.
        rows: (2P, m) probabilities: of the first input of each, then of the second.
    """

    inputs: np.ndarray
    distance: np.ndarray
    rows: np.ndarray

    @staticmethod
    def of(channel: Channel, points: np.ndarray) -> _Close:
        """Beside some vertices and some of the points, on both sides."""
        inputs, weights, total = channel.inputs, channel.weights.astype(object), channel.denominator
        pairs, distance, rows = [], [], []
        for vertex, other in _beside(len(inputs), (1,)):
            way = inputs[other] - inputs[vertex]
            # Whole numbers, so that rows are exact, and positions are those of a dither.
            for part in CLOSE_PARTS if way != 0 else ():
                pairs.append((inputs[vertex], inputs[vertex] + way / part))
                distance.append(abs(way) / part)
                beside = (part - 1) * weights[vertex] + weights[other]
                rows.append((weights[vertex] / total, beside / (part * total)))
        for here, there in _beside(len(points), STEPS):
            pairs.append((points[here], points[there]))
            distance.append(abs(points[here] - points[there]))
            rows.append((_row(channel, points[here]), _row(channel, points[there])))
        both = np.array(rows, dtype=np.float64)
        return _Close(np.array(pairs), np.array(distance), np.concatenate([both[:, 0], both[:, 1]]))

    def best(self, noise: Law, order: float) -> Reached:
        """The largest divergence over squared distance behind a noise."""
        here = np.arange(len(self.distance))
        pairs = np.concatenate([here, here + len(here)]), np.concatenate([here + len(here), here])
        excess = log_excesses(noise, self.rows, pairs, order, upper=False)
        # Inputs are off by 1 unit of themselves, a divergence by less than that of its square.
        moved = 8 * UNIT * np.abs(self.inputs).max(axis=1) / self.distance
        ratio = np.logaddexp(0.0, excess) * (1 - 64 * UNIT) / (order - 1)
        ratio *= np.tile(np.maximum(1 - moved, 0.0) / self.distance**2, 2)
        at = int(ratio.argmax())
        one, two = (float(at) for at in self.inputs[at % len(here)])
        return float(ratio[at]), (one, two) if at < len(here) else (two, one)


def _points(inputs: np.ndarray) -> np.ndarray:
    """Inputs to try, all vertices among them."""
    reach = inputs[-1] - inputs[0]
    parts = np.maximum(PARTS * np.diff(inputs) / reach, 1.0)
    # Powers of two: the encoder's dither has these positions exactly.
    counts = (2 ** np.log2(parts).round()).astype(int)
    cells = zip(inputs[:-1], inputs[1:], counts.tolist(), strict=True)
    points = [np.linspace(left, right, count, endpoint=False) for left, right, count in cells]
    return np.append(np.concatenate(points), inputs[-1])


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
