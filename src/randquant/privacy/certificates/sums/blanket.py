"""Privacy blankets: what all clients' codes have in common, whatever their inputs, up to shifts.

A client's code is split into a shape drawn with fixed probabilities, a place, and the rest. Place
and rest are revealed; the shape's own randomness still hides the client. Derivations and rounding:
`docs/theory/sums.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.law import KEEP_ALL, Law

SHAPE_BITS = 20
"""Bits of a shape's weights."""

LARGE = 64
"""Channels of more levels get a blanket of one shape."""

FEW_SHAPES, MANY_SHAPES = 3, 6
"""How many shapes a blanket has at most, where all their counts are told apart, and elsewhere."""


@dataclass(frozen=True, slots=True)
class Blanket:
    """Every row of a channel is at least a sum of shifted shapes, each with a fixed probability.

    Row v >= sum over j and t of c[v, j, t]·shape_j shifted by t, where sum over t of c[v, j, t] is
    shares[j]/denominator for every vertex v, hence for every input.

    Attributes:
        shapes: integers (w,) each, in units of their sum.
        shares: whole numbers, one for each shape.
        denominator: the channel's.
        block: how many clients draw together; their law is that of the sum of their codes.
        apart: how many kinds of clients are never in one block.
    """

    shapes: tuple[np.ndarray, ...]
    shares: tuple[int, ...]
    denominator: int
    block: int = 1
    apart: int = 1

    @staticmethod
    def of(channel: Channel) -> Blanket:
        """The classical blanket, exactly: the least weight of each code, unshifted."""
        # theory/sums.md, Proposition 3, of one shape that is not shifted.
        weights = channel.weights.min(axis=0)
        share = int(weights.astype(object).sum())
        return Blanket((weights,), (share,), channel.denominator)

    @property
    def beta(self) -> float:
        """The probability that a client draws from some shape; within 1 unit."""
        return sum(self.shares) / self.denominator

    @property
    def variance(self) -> float:
        """What a block is hidden by in the mean, in float64: the variance of what it draws."""
        shares = zip(self.shapes, self.shares, strict=True)
        return sum(_variance(shape) * share / self.denominator for shape, share in shares)

    def drawing(self, others: int) -> int:
        """How many whole blocks there are of so many others, at least."""
        # theory/sums.md, Proposition 13: of each kind of clients all but block - 1 are in one.
        return max(-(-(others - self.apart * (self.block - 1)) // self.block), 0)

    def law(self, shape: int, floor: float = KEEP_ALL) -> Law:
        """The law of one draw from a shape."""
        weights = self.shapes[shape]
        return Law.of(weights, int(weights.astype(object).sum()), floor)


def shifted_blankets(channel: Channel) -> list[Blanket]:
    """Search for blankets that keep much of the rows' variance: of 1, 2, 3 and more shapes.

    Whatever the search finds is made exact in integers: it affects how tight a bound is, not
    whether it holds.
    """
    table = np.unique(channel.weights, axis=0) / channel.denominator
    # A few rows choose the shapes: `_exact` then fits them under every row.
    most = 8 if channel.levels <= 20 else 4
    part = table[:: len(table) // most] if len(table) > 1.5 * most else table
    smooth = _smooth(channel)
    choices, chosen, value = [], [], 0.0
    large = channel.levels > LARGE
    for _ in range(1 if large else FEW_SHAPES):
        gained, at = max((_fitted(part, [*chosen, s])[0], at) for at, s in enumerate(smooth))
        # Another shape must pay for its counts, which are grouped more coarsely.
        if gained <= value * 1.02:
            break
        chosen, value = [*chosen, smooth[at]], gained
        choices.append(chosen)
    if chosen and not large:
        candidates = [*smooth, *_pairs(channel.levels)]
        gains = [
            share[0].sum() * _variance(shape)
            for shape, share in zip(candidates, _fitted(part, candidates)[1], strict=True)
        ]
        choices.append([candidates[at] for at in np.argsort(gains)[::-1][:MANY_SHAPES]])
    exact = [_exact(channel, shapes) for shapes in choices]
    return [blanket for blanket in exact if blanket is not None]


def _widths(levels: int) -> list[int]:
    most = 20 if levels <= 20 else 8 if levels <= LARGE else 4  # a large programme takes long
    return np.unique(np.geomspace(2, levels, most).astype(int)).tolist()


def _smooth(channel: Channel) -> list[np.ndarray]:
    """Shapes to choose from: even, binomial, the least weights of all inputs."""
    widths = _widths(channel.levels)
    family = [np.ones(w, dtype=np.int64) for w in widths]
    for w in widths[1:]:
        steps = np.ones(1)
        for _ in range(w - 1):
            steps = np.convolve(steps, [0.5, 0.5])
        # A shape is whatever its integers say: that they are rounded costs nothing.
        family.append(np.round(steps * 2**SHAPE_BITS).astype(np.int64))
    least = channel.weights.min(axis=0)
    if least.any():
        # So many bits that shares times shapes stay exact and quick.
        family.append(least >> max(int(least.max()).bit_length() - SHAPE_BITS, 0))
    return family


def _pairs(levels: int) -> list[np.ndarray]:
    """Two codes at some distance: the most variance, but nothing between them."""
    return [np.array([1, *[0] * (w - 2), 1], dtype=np.int64) for w in _widths(levels)[1:]]


def _fitted(table: np.ndarray, shapes: list[np.ndarray]) -> tuple[float, list[np.ndarray]]:
    """The shares of most variance, by a linear programme: (variance, (V, places) per shape)."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_matrix

    vertices, levels = table.shape
    if levels > LARGE and vertices > 1:  # one shape: vertex by vertex
        alone = [_fitted(row[None], shapes) for row in table]
        return min(value for value, _ in alone), [np.concatenate([s for _, (s,) in alone])]
    places = [levels - len(shape) + 1 for shape in shapes]
    starts = np.cumsum([0, *places])
    size, kinds = int(starts[-1]), np.arange(len(shapes))
    codes, columns, entries = [], [], []
    for shape, start, count in zip(shapes, starts[:-1], places, strict=True):
        used = np.flatnonzero(shape)
        codes.append((used[:, None] + np.arange(count)).ravel())
        columns.append(np.tile(start + np.arange(count), len(used)))
        entries.append(np.repeat(shape[used] / shape.sum(), count))
    # theory/sums.md, Proposition 3: under each row, the shapes at all their places; and of each
    # shape at least one share for all vertices, whose variance is to be largest.
    each = np.arange(vertices)[:, None]
    shares = vertices * levels + each * len(shapes)
    parts = [
        (each * levels + np.concatenate(codes), each * size + np.concatenate(columns),
         np.concatenate(entries)),
        (shares + np.repeat(kinds, places), each * size + np.arange(size), -1.0),
        (shares + kinds, vertices * size + kinds + 0 * each, 1.0),
    ]  # fmt: skip
    flat = [[part.ravel() for part in np.broadcast_arrays(*three)] for three in parts]
    row, column, entry = (np.concatenate(side) for side in zip(*flat, strict=True))
    matrix = coo_matrix((entry, (row, column)))
    limits = np.concatenate([table.ravel(), np.zeros(vertices * len(shapes))])
    variance = [_variance(shape) for shape in shapes]
    cost = np.concatenate([np.zeros(vertices * size), -np.array(variance)])
    solution = linprog(cost, A_ub=matrix.tocsr(), b_ub=limits, bounds=(0, None), method="highs")
    # No solution is an empty blanket, which bounds nothing.
    if solution.x is None:
        return 0.0, [np.zeros((vertices, count)) for count in places]
    shares = solution.x[: vertices * size].reshape(vertices, size)
    return -solution.fun, np.split(shares, starts[1:-1], axis=1)


def _variance(shape: np.ndarray) -> float:
    place = np.arange(len(shape))
    mean = place @ shape / shape.sum()
    return float((place - mean) ** 2 @ shape / shape.sum())


def _exact(channel: Channel, shapes: list[np.ndarray]) -> Blanket | None:
    """The shares of these shapes, rounded down to integers that fit under every row."""
    # theory/sums.md, Proposition 3: from here on Python integers, so that what the floating-point
    # programme found only affects how much is kept.
    shares = _fitted(channel.weights / channel.denominator, shapes)[1]
    least = [channel.denominator] * len(shapes)
    for vertex, row in enumerate(channel.weights.astype(object)):
        counts = []
        used = np.zeros(channel.levels, dtype=object)
        for shape, share in zip(shapes, shares, strict=True):
            unit = channel.denominator / float(shape.sum())
            counts.append([int(value) for value in np.maximum(share[vertex], 0.0) * unit])
            for place, count in enumerate(counts[-1]):
                used[place : place + len(shape)] += count * shape.astype(object)
        # Where a code is overfull, all that touches it is scaled down, rounded down again: then the
        # sum fits.
        over = np.flatnonzero(used > row).tolist()
        for j, shape in enumerate(shapes):
            total = int(shape.sum())
            kept = 0
            for place, count in enumerate(counts[j]):
                limit = count
                for z in over:
                    if 0 <= z - place < len(shape) and shape[z - place]:
                        limit = min(limit, count * row[z] // used[z])
                kept += limit
            # A vertex that has more of a shape gives the rest away.
            least[j] = min(least[j], kept * total)
    kept = [(shape, share) for shape, share in zip(shapes, least, strict=True) if share > 0]
    if not kept:
        return None
    shapes, least = (list(side) for side in zip(*kept, strict=True))
    return Blanket(tuple(shapes), tuple(least), channel.denominator)
