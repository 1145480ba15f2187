"""Whole updates of bounded L2 norm: how fast a channel's divergence grows with squared distance.

The problem: coordinates are encoded independently, so divergences of coordinates add up. If that of
one coordinate is at most K times the squared distance of its inputs, that of an update is at most K
times its squared L2 distance, in any dimension. K is a supremum over infinitely many pairs.

The bound is a branch and bound over boxes of pairs; the smallest of several bounds holds in a box.
It is proven in `docs/theory/vector.md`: Propositions 2 to 7 (the bounds), 8 (the search), 10 to 14
(rounding), 17 and 18 (pairs that neighbours may have).

From top to bottom: `CellLines`, a channel's rows between vertices, and `log_curvature`; then
`kappa`, and `squared_distance`, its factor in a bound; last the search, `BoxSearch`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import DITHER_STEPS, Channel
from randquant.privacy.certificates.coordinate import certify_metric, fisher_information
from randquant.privacy.divergence import LARGEST_ORDER, UNIT, renyi
from randquant.privacy.guarantee import NEIGHBORINGS, Interval, Neighboring

# Rows, slopes and curvature of a channel between any two inputs, with proven rounding.
#
# The search of `vector` runs over these. Derivations and rounding: `docs/theory/vector.md`.


@dataclass(frozen=True, slots=True)
class CellLines:
    """A channel's cells of positive width, as lines; codes that are never sent are left out.

    Attributes:
        inputs: (V,) vertices, rising.
        weights: (V, m) int64, all positive.
        denominator: sum of every row.
    """

    inputs: np.ndarray
    weights: np.ndarray
    denominator: int

    @classmethod
    def from_channel(cls, channel: Channel) -> CellLines:
        """Return the lines of a channel without jumps."""
        keep = np.append(True, np.diff(channel.inputs) > 0)
        weights = channel.weights[keep][:, channel.weights.any(axis=0)]
        return cls(channel.inputs[keep], weights, channel.denominator)

    @property
    def widths(self) -> np.ndarray:
        # (V-1,), within 1 unit.
        return np.diff(self.inputs)

    def rows(self, cell: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Return the probabilities at positions (exact, in [0, 1]) in cells, within 3 units."""
        # theory/vector.md, Proposition 10: positions are dyadic, so 1 - part is exact.
        left, right = self.weights[cell] / self.denominator, self.weights[cell + 1]
        part = position[..., None]
        return left * (1 - part) + right / self.denominator * part

    def chords(self, cells: np.ndarray, x: np.ndarray, y: np.ndarray):
        """Return |x' - x|, and upper bounds of |P_x' - P_x|/|x' - x| code by code.

        Args:
            cells: (..., 2) the cells of x and x'.
            x, y: (...) positions in them.

        Returns:
            (gap, slope). gap: (...), within 6 units. slope: (..., m), above the truth by at most 16
            units of the sum of its absolute parts; in one cell the cell's slope; 0 between cells if
            gap is.
        """
        first, second = cells[..., 0], cells[..., 1]
        ahead = first <= second
        low, high = np.minimum(first, second), np.maximum(first, second)
        until, since = 1 - np.where(ahead, x, y), np.where(ahead, y, x)
        gap = until * self.widths[low] + (self.inputs[high] - self.inputs[low + 1])
        gap += since * self.widths[high]
        step = np.diff(self.weights, axis=0) / self.denominator
        between = (self.weights[high] - self.weights[low + 1]) / self.denominator
        parts = [until[..., None] * step[low], between, since[..., None] * step[high]]
        change = np.abs(parts[0] + parts[1] + parts[2])
        # theory/vector.md, Proposition 10: the sum of three products needs 4 of these 8 units.
        change += 8 * UNIT * (np.abs(parts[0]) + np.abs(parts[1]) + np.abs(parts[2]))
        same = first == second
        change = np.where(same[..., None], np.abs(step[first]), change)
        divisor = np.where(same, self.widths[first], gap)[..., None]
        slope = np.divide(change, divisor, out=np.zeros_like(change), where=divisor > 0)
        gap = np.where(same, np.abs(x - y) * self.widths[first], gap)
        # The gap may be 4 units too large, the quotient and this product 1 too small each.
        return gap, slope * (1 + 8 * UNIT)

    def around_zero(self) -> tuple[int, float, float]:
        """Return the cell of 0, and two positions in it.

        0 lies between them, and what the encoder makes of it; they are equal if it is exact.
        """
        cell = int(np.searchsorted(self.inputs, 0.0, side="right")) - 1
        left, right = (Fraction(float(end)) for end in self.inputs[cell : cell + 2])
        steps = -left / (right - left) * DITHER_STEPS
        # theory/vector.md, Proposition 14: the encoder moves a position by less than a step.
        return cell, math.floor(steps) / DITHER_STEPS, math.ceil(steps) / DITHER_STEPS

    def divergences(self, order: float) -> tuple[np.ndarray, np.ndarray]:
        """Bound the divergences between the rows of all vertices: (V, V) lower, (V, V) upper."""
        pairs = [renyi(row, self.weights, self.denominator, order) for row in self.weights]
        lower, upper = (np.array(side) for side in zip(*pairs, strict=True))
        return lower, upper

    def exact(self, x: float) -> tuple[np.ndarray, int]:
        """Return the row at x in exact integers, without the encoder's rounding, and its sum."""
        cell = min(int(np.searchsorted(self.inputs, x, side="right")), len(self.inputs) - 1) - 1
        left, right = (Fraction(float(end)) for end in self.inputs[cell : cell + 2])
        part = (Fraction(x) - left) / (right - left)
        n, d = part.numerator, part.denominator
        start, end = self.weights[cell : cell + 2].astype(object)
        return (d - n) * start + n * end, d * self.denominator


def log_curvature(slope: np.ndarray, p: np.ndarray, q: np.ndarray, order: float) -> np.ndarray:
    """Bound the log curvature of boxes, with slopes of one corner and rows of another.

    Args:
        slope: (n, 4, m) slopes at the four corners of n boxes.
        p, q: (n, 4, m) rows of x and x' there.
        order: the Rényi order a.

    Returns:
        (n, 4, 4): log of sum_i slope_i^2 C(p_i, q_i), rounded up, where
        C(p, q) = (p^a q^(1-a) - q - a(p - q))/((a - 1)(p - q)^2).

    Guarantees:
        Probabilities may be as small as 1e-280: their squares are not formed.
    """
    # theory/vector.md, Proposition 12.
    exponent, factor = _curvature(p / q, order)
    shift = exponent.max(axis=-1)
    # The floor of -700 only adds: no term is lost to underflow.
    factor *= np.exp(np.maximum(exponent - shift[..., None], -700.0))
    # The size of a code's probabilities, a power of two, is taken out: nothing is rounded by that.
    size = np.ldexp(1.0, np.frexp(q.max(axis=-2, keepdims=True))[1])
    factor *= size / q * size
    total = np.matmul((slope / size) ** 2, factor.swapaxes(1, 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(total) + shift[:, None, :]
        # theory/vector.md, Proposition 12: 1300 holds 1,150 of G, 1.05 the second order of all.
        error = 1300 + 9 * order + slope.shape[-1] + 12 * shift[:, None, :] + 10 * np.abs(logs)
        return np.where(total > 0, logs + 1.05 * UNIT * error, -np.inf)


def _curvature(ratio: np.ndarray, order: float) -> tuple[np.ndarray, np.ndarray]:
    """Compute G(r) = (r^a - 1 - a(r - 1))/((a - 1)(r - 1)^2), a the order.

    Returns:
        (exponent, factor) with G(r) = factor·e^exponent, so that nothing overflows.
    """
    change = ratio - 1
    # Near r = 1 numerator and denominator would cancel: G is summed as a series there.
    close = np.abs(change) * (order + 1) <= 1 / 8
    z = change[close]
    # theory/vector.md, Proposition 11: each factor is at most 1/16, so 14 terms leave 2**-56.
    series = np.ones_like(z)
    for k in reversed(range(14)):
        series = 1 + (order - (2 + k)) / (k + 3) * z * series
    factor, exponent = np.empty_like(ratio), np.zeros_like(ratio)
    factor[close] = order / 2 * series
    z, r = change[~close], ratio[~close]
    power = (order - 1) * np.log(r)
    grown = np.maximum(power, 0.0)
    # Both parts are scaled by e^-grown: the larger of r^(order - 1) and 1 never overflows.
    first = -np.sign(z) * r * np.expm1(-np.abs(power)) / (order - 1)
    factor[~close] = (first - z * np.exp(-grown)) / z**2
    exponent[~close] = grown
    return exponent, factor


TOLERANCE = 2.0**-13
"""Boxes whose bound exceeds the best pair found by less than this share are not searched on."""

MAX_WORK_PROBABILITIES = 2**24
"""Probabilities that a search may evaluate before it settles for the bound it has. With half as
many, searches at large orders of channels with many vertices stop earlier, at a looser bound."""

BATCH_SIZE = 2**16
"""Probabilities evaluated at a time: small enough for a processor's cache."""

MIN_SIDE = 2.0**-40
"""Narrowest side of a box, in units of its cell: positions stay exact in float64."""


@dataclass(frozen=True, slots=True)
class Kappa(Interval):
    """The constant K of `kappa`, with a pair that attains its lower end.

    Attributes:
        lower, upper: K lies between them, per squared unit of x.
        order: Rényi order.
        witness: inputs (x, x') with D(P_x || P_x') >= lower·(x - x')^2. The same input twice: pairs
            close to it approach `lower` arbitrarily closely.
    """

    order: float
    witness: tuple[float, float]


def kappa(
    channel: Channel,
    order: float,
    neighboring: Neighboring = "replace_one",
    farthest: float | None = None,
) -> Kappa:
    """Bound the Rényi divergence between inputs by their squared distance.

    Args:
        channel: the channel.
        order: Rényi order in (1, 1e9]. (Between close inputs the pure epsilon is proportional to
            the distance: over the squared distance it is infinite.)
        neighboring: `replace_one`: any two inputs; `zero_out`: any input and 0, both ways.
        farthest: pairs of inputs that are farther apart do not count; above 0. No coordinate moves
            farther than the whole vector: take the root of `squared_distance` in dimension 1, which
            allows for the encoder's rounding. None if all pairs count.

    Returns:
        An Interval that contains the supremum K of D_order(P_x || P_x')/(x - x')^2 over all such
        x, x' in [-clip, clip], per squared unit of x, with a witness for its lower end. It is
        infinite exactly when the channel jumps, or a code becomes impossible where its probability
        changes. Usually it is narrower than 0.02 %; for large orders of channels with many
        vertices the search may stop earlier, with a wider interval.

    Guarantees:
        D_order(P_x || P_x') <= upper·(x - x')^2 for all such inputs as the channel mixes them,
        close or distant, in one cell or not; 0 is also what the encoder rounds it to. Coordinates
        are encoded independently, so for vectors of any dimension
        D_order <= upper·||x - x'||^2. The encoder rounds an input's position in its cell to 2**-32
        first: take the distance from `squared_distance`, which allows for that.
        The same numbers each time (the search is deterministic).

    Raises:
        ValueError: order is not in (1, 1e9], farthest not above 0, or neighboring unknown.
        TypeError: channel is not a Channel.

    References:
        Guo et al. 2022 (I-MVU), Lemma 1, has order·M/2 for K; it is proven for the smooth
        mechanism. Derivations: `docs/theory/vector.md`.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=9.0)
        >>> constant = kappa(channel, order=2.0)
        >>> constant.lower <= 1 / 99 <= constant.upper  # the Fisher information at x = 1
        True
        >>> against_zero = kappa(channel, order=2.0, neighboring="zero_out")
        >>> round(1 / against_zero.upper, 1)
        99.5
    """
    validate.kind("channel", channel, Channel)
    order = validate.renyi_order(order)
    if order > LARGEST_ORDER:
        raise ValueError(
            f"Expected a finite order <= {LARGEST_ORDER:g}, got order={order:g}: pure epsilon "
            'grows with the distance, not with its square; use certify_metric(channel, "l1").'
        )
    validate.choice("neighboring", neighboring, NEIGHBORINGS)
    widest = 2 * channel.clip
    reach = widest if farthest is None else validate.real("farthest", farthest, above=0)
    # theory/vector.md, Proposition 2: pairs in one cell approach order/2 times the Fisher
    # information. Two products and half the order: three of the 4 units.
    close = order / 2 * fisher_information(channel).lower * (1 - 4 * UNIT)
    steepest = certify_metric(channel, "fisher").witness
    if math.isinf(close):
        return Kappa(math.inf, math.inf, order, steepest)
    if neighboring == "zero_out":  # where rows are steepest may be far from 0
        close, steepest = 0.0, (0.0, 0.0)
    lines = CellLines.from_channel(channel)
    reach = math.inf if reach >= widest else reach
    search = BoxSearch(lines, order, close, neighboring=neighboring, farthest=reach)
    upper = float(search.run())
    lower, witness = max((close, steepest), search.attained(), key=lambda ratio: ratio[0])
    return Kappa(lower, upper, order, witness)


def squared_distance(channel: Channel, distance: float, dimension: int) -> float:
    """Bound the squared L2 distance of two vectors as the encoder rounds them.

    Args:
        channel: the channel that every coordinate is sent through.
        distance: upper bound of the L2 distance of the vectors before encoding.
        dimension: number of their coordinates.

    Returns:
        (distance + (2**-32 + 2**-49)·widest cell·sqrt(dimension))^2, rounded up: the factor for
        `kappa`.

    Guarantees:
        The bound holds for all vectors: clipping each coordinate to [-clip, clip] brings them no
        further apart, and the encoder moves each coordinate by at most half a step of 2**-32 of its
        cell.

    Raises:
        ValueError: distance is negative, or dimension is less than 1.

    Example:
        >>> import randquant as rq
        >>> squared_distance(rq.stochastic_rounding(1.0, 2), 2.0, dimension=10**6) < 4.000002
        True
    """
    validate.kind("channel", channel, Channel)
    distance = validate.real("distance", distance, low=0, high=1e150)
    dimension = validate.whole("dimension", dimension, low=1)
    widest = float(np.diff(channel.inputs).max())
    # theory/vector.md, Proposition 14: half a step of 2**-32, four roundings of the position and
    # one of the sum with 1/2, for each of the two vectors.
    moved = (1 + 2.0**-17) / DITHER_STEPS * widest * math.sqrt(dimension)
    # Eight roundings in the sum, twice for the square: 17 of 32 units.
    return (distance + moved) ** 2 * (1 + 32 * UNIT)


class BoxSearch:
    """Branch and bound over boxes of pairs: x in one part of a cell, x' in a part of another.

    A box is cells (2,) and sides (2, 2): where in its cell x begins and ends, then x'. Which pairs
    count, `neighboring` and `farthest` say as for `kappa`.
    """

    def __init__(
        self,
        lines: CellLines,
        order: float,
        close: float,
        tolerance: float = TOLERANCE,
        *,
        neighboring: Neighboring = "replace_one",
        farthest: float = math.inf,
    ):
        self.lines, self.order, self.tolerance = lines, order, tolerance
        self.farthest = farthest
        # The cell of 0, and positions in it that 0 lies between; None if any pair counts.
        self.zero = lines.around_zero() if neighboring == "zero_out" else None
        # The largest ratio of a pair, and its cells and positions; the largest bound of a box that
        # is not split any more.
        self.best, self.pair = close, None
        self.dropped = 0.0

    def run(self) -> float:
        """Return the upper bound; self.pair is the pair that came closest to it."""
        cells, sides = self._roots()
        size = 4 * (self.lines.weights.shape[1] + 6)
        batch, work = max(BATCH_SIZE // size, 1), MAX_WORK_PROBABILITIES // size
        bounds = self._bounds(cells, sides, batch)
        work -= len(cells)
        while True:
            # theory/vector.md, Proposition 8: boxes that are not split keep their bound in
            # `dropped`, so TOLERANCE, MAX_WORK_PROBABILITIES and MIN_SIDE decide how tight the
            # result is, never whether it holds.
            split = bounds > self.best * (1 + self.tolerance)
            split &= np.diff(sides).max(axis=(1, 2)) > MIN_SIDE
            self.dropped = max(self.dropped, bounds[~split].max(initial=0.0))
            cells, sides, bounds = cells[split], sides[split], bounds[split]
            if not len(cells) or work <= 0:
                return max(self.dropped, bounds.max(initial=0.0))
            # Largest bounds first: when the work is used up, what is left is as small as can be.
            ranks = np.argsort(-bounds, kind="stable")
            share = max(batch, len(ranks) // 4)
            chosen, rest = ranks[:share], ranks[share:]
            children = self._halves(cells[chosen], sides[chosen])
            inherited = np.tile(bounds[chosen], 2)
            tightened = np.minimum(self._bounds(*children, batch), inherited)
            work -= len(tightened)
            cells = np.concatenate([cells[rest], children[0]])
            sides = np.concatenate([sides[rest], children[1]])
            bounds = np.concatenate([bounds[rest], tightened])

    def attained(self) -> tuple[float, tuple[float, float]]:
        """Return a proven lower bound: the divergence of the best pair, from exact integers."""
        if self.pair is None:
            return 0.0, (0.0, 0.0)
        x, other = self._witness(*self.pair)
        (p, p_total), (q, q_total) = self.lines.exact(x), self.lines.exact(other)
        total = p_total * q_total
        # Exact integers, whatever the positions: theory/rounding.md, Propositions 3 and 4.
        if x == other or total.bit_length() > 1000:  # beyond float64
            return 0.0, (x, other)
        lower = float(renyi(p * q_total, q * p_total, total, self.order)[0])
        square = float((Fraction(x) - Fraction(other)) ** 2)
        return lower / square * (1 - 8 * UNIT), (x, other)

    def _witness(self, cells: np.ndarray, positions: np.ndarray) -> list[float]:
        # Return inputs near these positions whose pair counts.
        ends = self.lines.inputs[cells], self.lines.inputs[cells + 1]
        pair = np.clip(ends[0] + positions * self.lines.widths[cells], *ends).tolist()
        kept = 0
        if self.zero is not None:
            cell, low, high = self.zero
            kept = 1 if cells[1] == cell and low <= positions[1] <= high else 0
            pair[kept] = 0.0
        x, other = pair[kept], pair[1 - kept]
        # Rounded positions may have moved the two apart.
        if abs(Fraction(x) - Fraction(other)) > self.farthest:
            other = x + math.copysign(self.farthest, other - x)
            if abs(Fraction(x) - Fraction(other)) > self.farthest:
                other = math.nextafter(other, x)
        pair[1 - kept] = other
        return pair

    def _roots(self) -> tuple[np.ndarray, np.ndarray]:
        return self._all_roots() if self.zero is None else self._roots_with_zero(*self.zero)

    def _roots_with_zero(self, cell: int, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
        """Return boxes of every cell and what is around 0, and the other way round."""
        # theory/vector.md, Proposition 18.
        every = np.arange(len(self.lines.widths))
        cells = np.stack([every, np.full_like(every, cell)], axis=1)
        sides = np.tile([[0.0, 1.0], [low, high]], (len(every), 1, 1))
        return np.concatenate([cells, cells[:, ::-1]]), np.concatenate([sides, sides[:, ::-1]])

    def _all_roots(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all pairs of whole cells that a bound from their vertices does not settle.

        The divergence of a pair of cells is largest at vertices (`docs/theory/certificates.md`).
        """
        inputs = self.lines.inputs
        lower, upper = self.lines.divergences(self.order)
        square = (inputs[:, None] - inputs) ** 2
        gap = np.abs(inputs[:, None] - inputs)
        ratio = np.divide(lower, square, out=np.zeros_like(lower), where=square > 0)
        self._consider(ratio, gap, _at_vertices)
        corners = [upper[:-1, :-1], upper[:-1, 1:], upper[1:, :-1], upper[1:, 1:]]
        first, second = np.indices(corners[0].shape)
        ahead = np.maximum(first, second), np.minimum(first, second) + 1
        least_gap = np.where(first == second, 0.0, inputs[ahead[0]] - inputs[ahead[1]])
        with np.errstate(divide="ignore", invalid="ignore"):
            # theory/vector.md, Proposition 6. The gap is within 1 unit, so the quotient is within 4
            # of 8.
            bound = np.max(corners, axis=0) / least_gap**2 * (1 + 8 * UNIT)
            bound = np.where(least_gap > 0, bound, np.inf)
            gaps = np.abs([inputs[first + i] - inputs[second + j] for i in (0, 1) for j in (0, 1)])
            moment = (self.order - 1) * np.array(corners)
            smooth = _smooth(moment, gaps, self.order - 1, axis=0) * (1 + 8 * UNIT)
        bound = np.fmin(bound, np.where(least_gap > 0, smooth, np.inf))
        bound = self._within_reach(bound, least_gap)
        keep = bound > self.best * (1 + self.tolerance)
        self.dropped = float(bound[~keep].max(initial=0.0))
        cells = np.argwhere(keep)
        return cells, np.broadcast_to([0.0, 1.0], (len(cells), 2, 2)).copy()

    def _halves(self, cells: np.ndarray, sides: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # First halves, then second halves: each box is cut across its longer side.
        part = np.diff(sides)[..., 0]
        length = np.where(part > MIN_SIDE, part, 0.0) * self.lines.widths[cells]
        every, longer = np.arange(len(cells)), length.argmax(axis=1)
        middle = sides[every, longer].mean(axis=1)
        first, second = sides.copy(), sides.copy()
        first[every, longer, 1] = second[every, longer, 0] = middle
        return np.concatenate([cells, cells]), np.concatenate([first, second])

    def _bounds(self, cells: np.ndarray, sides: np.ndarray, batch: int) -> np.ndarray:
        parts = range(0, len(cells), batch)
        bounds = [self._bound(cells[i : i + batch], sides[i : i + batch]) for i in parts]
        return np.concatenate([np.empty(0), *bounds])

    def _bound(self, cells: np.ndarray, sides: np.ndarray) -> np.ndarray:
        """Bound divergence over squared distance in n boxes, each by the best of several proofs.

        cells are (n, 2), the cells of x and x'; sides (n, 2, 2), the range of each position in
        them.
        """
        above_one = self.order - 1
        x, y = sides[:, 0][:, [0, 0, 1, 1]], sides[:, 1][:, [0, 1, 0, 1]]  # the four corners
        corners = np.repeat(cells[:, None], 4, axis=1)
        p, q = self.lines.rows(corners[..., 0], x), self.lines.rows(corners[..., 1], y)
        gap, slope = self.lines.chords(corners, x, y)
        logs = log_curvature(slope, p, q, self.order)
        at_corners = logs[:, range(4), range(4)]
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            moment = _log_moment(above_one * gap**2, at_corners)
            ratio = np.where(gap > 0, moment / (above_one * gap**2), 0.0)
            self._consider(ratio, gap, lambda at: (cells[at[0]], np.array([x[at], y[at]])))

            # On the diagonal, and everywhere: the largest curvature, at the least distance.
            crosses = (sides[:, 0, 0] < sides[:, 1, 1]) & (sides[:, 1, 0] < sides[:, 0, 1])
            crosses &= cells[:, 0] == cells[:, 1]
            # theory/vector.md, Proposition 13: gaps are within 6 units, and a smaller one gives
            # more.
            least_gap = np.where(crosses, 0.0, gap.min(axis=1)) * (1 - 16 * UNIT)
            scale, steepest = above_one * least_gap**2, logs.max(axis=(1, 2))
            # theory/vector.md, Proposition 4, and for its 512 units the paragraph on rounding
            # there.
            if 2 < self.order < 3:  # the one case that is not convex in p: see the derivation
                spread = np.abs(np.log(p[:, 2] / p[:, 0])).max(axis=1)
                steepest += 2 * (self.order - 2) * np.log(np.cosh(spread / 2))
                steepest += 512 * UNIT
            grown = _log_moment(scale, steepest)
            bound = np.where(least_gap > 0, grown / scale, np.exp(steepest))
            # theory/vector.md, Proposition 5.
            bound = np.fmin(bound, self._score_range_bounds(cells, sides))
            # theory/vector.md, Proposition 6. Further away: the largest divergence, at the least
            # distance.
            distant = np.where(least_gap > 0, moment.max(axis=1) / scale, np.inf)
            bound = np.fmin(bound, distant)
            # theory/vector.md, Proposition 7: tangents, whose error is of second order in the size
            # of the box.
            smooth = np.where(crosses, np.inf, _smooth(moment, gap, above_one, axis=1))
        # fmin passes over a NaN: each of the bounds holds alone. If all are, nothing is known.
        bound = np.fmin(bound, smooth) * (1 + 32 * UNIT)
        return self._within_reach(np.where(np.isnan(bound), np.inf, bound), least_gap)

    def _within_reach(self, bound: np.ndarray, least_gap: np.ndarray) -> np.ndarray:
        # theory/vector.md, Proposition 17: boxes of which all pairs are too far apart do not count.
        return np.where(least_gap * (1 - 16 * UNIT) > self.farthest, 0.0, bound)

    def _score_range_bounds(self, cells: np.ndarray, sides: np.ndarray) -> np.ndarray:
        """Bound by order/8 times the squared range of the scores d log p_i/dx between x and x'.

        Tight for two equally likely codes, and the best bound at orders beyond hundreds.

        Returns:
            (n,), infinite where a cell lies between x and x'.
        """
        ahead = cells[:, 0] <= cells[:, 1]
        left = np.where(ahead[:, None], sides[:, 0], sides[:, 1])
        right = np.where(ahead[:, None], sides[:, 1], sides[:, 0])
        low, high = cells.min(axis=1), cells.max(axis=1)
        first, last = sides.min(axis=(1, 2)), sides.max(axis=(1, 2))
        same = low == high
        ends = [
            (low, np.where(same, first, left[:, 0])),
            (low, np.where(same, last, 1.0)),
            (high, np.where(same, first, 0.0)),
            (high, np.where(same, last, right[:, 1])),
        ]
        widest = np.zeros(len(cells))
        for cell, position in ends:
            slope = np.diff(self.lines.weights, axis=0)[cell] / self.lines.denominator
            score = slope / self.lines.widths[cell, None] / self.lines.rows(cell, position)
            widest = np.maximum(widest, np.ptp(score, axis=1))
        # theory/vector.md, Proposition 13 (spread): 20 of 32 units. A range reaches from a slope
        # below 0 to one above, so nothing cancels in it.
        bound = self.order / 8 * widest**2 * (1 + 32 * UNIT)
        return np.where(high - low > 1, np.inf, bound)

    def _consider(self, ratio: np.ndarray, gap: np.ndarray, place) -> None:
        # The largest of these ratios is kept, with its pair, if it is the largest so far.
        ratio = np.where(gap <= self.farthest, ratio, 0.0)
        at = tuple(int(i) for i in np.unravel_index(int(ratio.argmax()), ratio.shape))
        if ratio[at] > self.best:
            self.best, self.pair = float(ratio[at]), place(at)


def _smooth(moment: np.ndarray, gap: np.ndarray, above_one: float, axis: int) -> np.ndarray:
    """Bound divergence over squared distance in a box by tangents of both at its middle.

    Args:
        moment, gap: log moments and distances; the four corners of the box are along `axis`.
        above_one: order - 1.
        axis: of the corners.

    Returns:
        Infinite where the tangent of the squared distance reaches 0. x and x' must not meet inside
        the box.
    """
    level, middle = (part.mean(axis=axis, keepdims=True) for part in (moment, gap))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # infinity is a bound
        excess = np.expm1(moment - level)
        # theory/vector.md, Propositions 7 and 13: both tangents rounded to their safe sides.
        top = level + excess + 16 * UNIT * (level + np.abs(excess))
        square = middle * (2 * gap - middle) - 32 * UNIT * middle * (gap + middle)
        bound = (top / (above_one * square)).max(axis=axis)
    return np.where((square > 0).all(axis=axis), bound, np.inf)


def _log_moment(scale: np.ndarray, log_curvature: np.ndarray) -> np.ndarray:
    """Return log(1 + scale·e^log_curvature), 0 at scale 0.

    Rounded up, if scale is within 20 units.
    """
    parts = np.log(scale), log_curvature
    # theory/vector.md, Proposition 13: 20 units of scale, 8 of its logarithm, 2 of the sums.
    padding = 32 * UNIT * (1 + np.abs(parts[0]) + np.abs(parts[1]))
    total = np.logaddexp(0.0, parts[0] + parts[1] + padding) * (1 + 32 * UNIT)
    return np.where((scale > 0) & (log_curvature > -np.inf), total, 0.0)


def _at_vertices(vertices: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    # A vertex is the end of the cell before it; the first one is the start of its own.
    at = np.array(vertices)
    return np.maximum(at - 1, 0), np.minimum(at, 1).astype(np.float64)
