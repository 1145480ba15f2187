"""Exact laws of a coordinate of a secure sum, and the moments of their likelihood ratio.

Derivations: `docs/theory/vector-sums.md`, "Rounding", and `docs/theory/martingale.md`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numba
import numpy as np

from randquant._internal.progress import report
from randquant.channels.channel import Channel
from randquant.privacy.certificates.sum_laws import largest_ratio
from randquant.privacy.divergence import UNIT

# Laws of sums of clients that each draw from one of two laws, with proven rounding.

MIN_PROB = 1e-300
"""Smaller probabilities are taken for 0 while laws are convolved: what that loses is paid for."""

MIN_BINOMIAL_COUNT = 2**12
"""Fewest equal bits whose sum's law is computed outward from its mode: halving is slower."""


@dataclass(frozen=True, slots=True)
class ChainLaw:
    """Probabilities (L,) of start, start + 1, …; outside there is next to nothing."""

    start: int
    mass: np.ndarray

    def convolve(self, other: ChainLaw) -> ChainLaw:
        """Return the law of the sum, nearly exact: products and sums of positive numbers."""
        mass = np.convolve(self.mass, other.mass)
        # theory/vector-sums.md, Proposition 6: products beyond the range of floats are lost. Fewer
        # than 2n + 64 such losses stay below 1e-294 an entry, which counts where entries are 1e-275
        # or more.
        some = np.flatnonzero(mass >= MIN_PROB)
        first, last = int(some[0]), int(some[-1])
        return ChainLaw(self.start + other.start + first, mass[first : last + 1])


class Powers:
    """Laws of sums of clients with equal inputs, by halving; computed laws are kept."""

    def __init__(self, row: np.ndarray):
        self._known = {0: ChainLaw(0, np.ones(1)), 1: ChainLaw(0, row)}

    def law(self, count: int) -> ChainLaw:
        """Return the law of the sum of `count` codes."""
        if (
            count not in self._known
            and count >= MIN_BINOMIAL_COUNT
            and len(self._known[1].mass) == 2
        ):
            self._known[count] = _binomial(self._known[1].mass, count)
        if count not in self._known:
            # Halves: the error is n log n, where adding one client at a time would make it n^2.
            half = count // 2
            self._known[count] = self.law(half).convolve(self.law(count - half))
        return self._known[count]


def _binomial(row: np.ndarray, count: int) -> ChainLaw:
    # Term by term from the mode outward: both probabilities of the row are positive.
    total = float(row.sum())
    mode = min(int((count + 1) * row[1] / total), count)
    # theory/vector-sums.md, Proposition 6: beyond, all is below 1e-300.
    reach = math.isqrt(350 * count) + 2
    below = np.arange(mode, max(mode - reach, 0), -1)
    above = np.arange(mode, min(mode + reach, count))
    odds = row[1] / row[0]
    parts = [
        np.cumprod(below / ((count - below + 1) * odds))[::-1],
        np.ones(1),
        np.cumprod((count - above) * odds / (above + 1)),
    ]
    mass = np.concatenate(parts)
    mass *= total**count / mass.sum()
    some = np.flatnonzero(mass >= MIN_PROB)
    first, last = int(some[0]), int(some[-1])
    return ChainLaw(mode - len(below) + first, mass[first : last + 1])


def sums(left: np.ndarray, right: np.ndarray, clients: int) -> Iterator[ChainLaw]:
    """Yield the laws of the sum when k = 0, 1, … n clients draw from `right`, the rest from `left`.

    Args:
        left, right: (m,) probabilities.
        clients: n.

    Guarantees:
        Each probability from 1e-275 on is within `rounding(n, m)` of the truth, relatively.
    """
    some_left, some_right = Powers(left), Powers(right)

    def between(low: int, high: int, common: ChainLaw) -> Iterator[ChainLaw]:
        """Yield the laws for k from low to high; `common` is that of the clients they share."""
        if low == high:
            yield common
            return
        # theory/vector-sums.md, Proposition 2: n convolutions with short laws in all.
        middle = (low + high) // 2
        yield from between(low, middle, common.convolve(some_left.law(high - middle)))
        yield from between(middle + 1, high, common.convolve(some_right.law(middle + 1 - low)))

    return between(0, clients, some_left.law(0))


def rounding(clients: int, levels: int) -> float:
    """Bound the relative error of `sums` and `Powers.law(clients)`: convolutions add their terms.

    A sum of n is convolved from halves, so its error, in units, is twice that of n/2 and n/2 times
    levels - 1, and at most n (1 + (levels - 1)/2 · log2 n) + 2n; the path down the tree of `sums`
    meets such laws of n/2, n/4, … and adds n (levels - 1).
    """
    depth = clients.bit_length()
    # theory/vector-sums.md, Proposition 6; `depth` is at least log2(clients).
    units = clients * ((levels - 1) * (depth / 2 + 1) + 4) + 8 * depth + 16
    return 1.05 * units * UNIT


# Moments of the likelihood ratio, whatever the other clients send.
#
# For channels without a vertex between the ends of the inputs.

RATIO_ORDERS = (1, 2, 4, 8, 16, 32, 64)
"""Powers of the ratio with which its sixth moment is weighed."""

CELL_COUNT = 32
"""Parts of the path between the two vertices, in each of which the third moment is bounded."""

MAX_LOSS = 2.0
"""A code may change a likelihood by e to this; moments of stronger ones are of no use."""

MAX_CLIENTS = 2**12
"""Most clients whose arrangements are all tried."""

MIN_KEPT_PROB = 1e-200
"""Outcomes less likely than this in both laws are left out, and paid for."""


@dataclass(frozen=True, slots=True)
class RatioMoments:
    """Bounds for the ratio rho of two laws of a sum, under the second; distance 1 is end to end.

    One client's input is moved by D, at most 1; the rest may be anywhere. All are rounded up.

    Attributes:
        second, fifth, sixth: E|rho - 1|^k, or |E(rho - 1)^5|, is at most D^k times this.
        third: |E(rho - 1)^3| is at most D^3 times this.
        skew: |E(rho - 1)^3 - 3 (E(rho - 1)^2)^2| is at most D^2 times this.
        excess: |E(rho - 1)^4 - 3 (E(rho - 1)^2)^2| is at most D^4 times this.
        tilted: E (rho - 1)^6 rho^a is at most D^6 times this, for a in RATIO_ORDERS.
    """

    second: float
    third: float
    skew: float
    excess: float
    fifth: float
    sixth: float
    tilted: tuple[float, ...]


@functools.lru_cache(maxsize=1024)
def ratio_moments(channel: Channel, clients: int) -> RatioMoments | None:
    """Bound the moments of the likelihood ratio of a sum of codes.

    Args:
        channel: the channel of every client.
        clients: how many clients' codes are in the sum, at least.

    Returns:
        The bounds; None where the channel has other vertices than the ends, a code changes a
        likelihood too much, or there are more than MAX_CLIENTS clients.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)
        >>> moments = ratio_moments(channel, 100)
        >>> round(moments.second * 100 * 15 / 4, 2)  # of Gaussian noise of variance 100 (4^2 - 1)
        1.01
    """
    rows = channel.weights / channel.denominator
    if len(rows) != 2 or clients > MAX_CLIENTS:
        return None
    used = rows[:, rows.any(axis=0)]
    # Codes that are never sent keep their places, for places add up.
    if not (used > 0).all():
        return None
    ratio, loss = largest_ratio(used)
    if loss > MAX_LOSS:
        return None
    # theory/martingale.md, Proposition 2: a channel that mirrors itself needs half of them.
    mirrored = np.array_equal(channel.weights[0], channel.weights[1][::-1])
    count = (clients + 1) // 2 if mirrored else clients
    tables = _Tables.empty(count)
    laws = itertools.pairwise(sums(rows[0], rows[1], clients))
    error = rounding(clients, channel.levels)
    for k, (first, second) in enumerate(itertools.islice(laws, count)):
        if k % 64 == 0:
            report("arrangements of the other clients", k, count)
        a, b = _on_common_sums(first, second)
        _fill(a, b, MIN_KEPT_PROB, error, tables.ends[k], tables.path[k], tables.tilted[k])
    length = clients * (channel.levels - 1) + 1
    return tables.bounds(error, length, ratio)


def _on_common_sums(first: ChainLaw, second: ChainLaw) -> tuple[np.ndarray, np.ndarray]:
    # Outside them one law has less than MIN_PROB, so the other has less than MIN_KEPT_PROB.
    start = max(first.start, second.start)
    stop = min(first.start + len(first.mass), second.start + len(second.mass))
    return (
        first.mass[start - first.start : stop - first.start],
        second.mass[start - second.start : stop - second.start],
    )


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _fill(first, second, keep, error, ends, path, tilted):
    """Sum up the moments of one arrangement of the others.

    Args:
        first, second: (L,) laws a and b of the sum with the client at either end.
        keep: outcomes below it in both laws are left out.
        error: relative error of each entry.
        ends: (2, 5, 3), filled with the moments 2 to 6 of b - a under a and under b: signed,
            absolute, and absolute with b - a raised by what rounding may have taken.
        path: (CELL_COUNT + 1, 2, 3), the same of the moments 2 and 3 under the mixes of a and b.
        tilted: (2, len(RATIO_ORDERS)), the sixth moments times powers of b/a under a, and back.
    """
    cells = path.shape[0] - 1
    right = np.arange(cells + 1) / cells
    left = right[::-1].copy()
    totals = np.zeros((5, cells + 1))
    for z in range(first.shape[0]):
        a, b = first[z], second[z]
        if max(a, b) < keep:
            continue
        change = b - a
        # theory/vector-sums.md, Proposition 7: errors of both laws, 1.25 times counted.
        raised = abs(change) + 2.5 * error * max(a, b)
        for end in range(2):
            q, p = (a, b) if end == 0 else (b, a)
            inverse = 1.0 / q
            step, high = change * inverse, raised * inverse
            signed, above = change, raised
            for power in range(5):
                signed *= step
                above *= high
                ends[end, power, 0] += signed
                ends[end, power, 1] += abs(signed)
                ends[end, power, 2] += above
            # theory/martingale.md, Proposition 2: E (rho - 1)^6 rho^a at the two corners.
            weight = p * inverse
            for place in range(tilted.shape[1]):
                tilted[end, place] += above * weight
                weight *= weight
        # Several cells at once: no branch, and one division.
        for cell in range(cells + 1):
            # A mix with positive parts: within 3 units of itself.
            inverse = 1.0 / (left[cell] * a + right[cell] * b)
            step, high = change * inverse, raised * inverse
            second_moment, above = change * step, raised * high
            totals[0, cell] += second_moment
            totals[1, cell] += above
            totals[2, cell] += second_moment * step
            totals[3, cell] += abs(second_moment * step)
            totals[4, cell] += above * high
    for cell in range(cells + 1):  # numba takes seconds to compile an assignment of arrays
        path[cell, 0, 0] = path[cell, 0, 1] = totals[0, cell]
        path[cell, 0, 2] = totals[1, cell]
        path[cell, 1, 0], path[cell, 1, 1] = totals[2, cell], totals[3, cell]
        path[cell, 1, 2] = totals[4, cell]


@dataclass(frozen=True, slots=True)
class _Tables:
    """Moments by arrangement of the other clients, as `_fill` sums them."""

    ends: np.ndarray
    path: np.ndarray
    tilted: np.ndarray

    @classmethod
    def empty(cls, count: int) -> _Tables:
        return cls(
            np.zeros((count, 2, 5, 3)),
            np.zeros((count, CELL_COUNT + 1, 2, 3)),
            np.zeros((count, 2, len(RATIO_ORDERS))),
        )

    def bounds(self, error: float, length: int, ratio: float) -> RatioMoments:
        """Return the largest moments over all arrangements, rounded up."""
        # theory/martingale.md, Proposition 6: what was left out, and relative errors.
        lost = 4.0 * length * MIN_KEPT_PROB * ratio**6
        slack = 64 * error + (length + 512) * UNIT
        value, absolute, above = np.moveaxis(self.ends, -1, 0)
        # The sum of what each difference may be off by, and the relative errors of both sums.
        off = above * (1 + slack) - absolute * (1 - slack) + lost
        most = (np.abs(value) + off).max(axis=1)  # (count, 5), at the worse end
        second, third, _, fifth, sixth = most.max(axis=0)
        # theory/martingale.md, Proposition 4: how far M_4 - 3 M_2^2 moves between the ends.
        square = 3 * value[..., 0] ** 2
        at_ends = np.abs(value[..., 2] - square) + off[..., 2] + 7 * second * off[..., 0]
        moves = 3 * most[:, 3] + 6 * most[:, 0] * most[:, 1]
        excess = float((at_ends.max(axis=1) + moves / 2).max()) * (1 + 64 * UNIT)
        return RatioMoments(
            float(second),
            float(third),
            self._skew(slack, lost) * (1 + 64 * UNIT),
            excess,
            float(fifth),
            float(sixth),
            tuple(
                float(self.tilted[..., i].max()) * (1 + 3 * power * slack)
                + lost * ratio ** float(power)
                for i, power in enumerate(RATIO_ORDERS)
            ),
        )

    def _skew(self, slack: float, lost: float) -> float:
        """Bound |D M_3 - 3 M_2^2 D^2| over all segments of the path between the vertices.

        D is the length of a segment, with the sign of its direction.
        """
        value, absolute, above = np.moveaxis(self.path, -1, 0)
        off = above * (1 + slack) - absolute * (1 - slack) + lost
        # theory/martingale.md, Proposition 4: M_3 falls along the path, M_2 is convex.
        high, low = (value + off)[:, :-1, 1], (value - off)[:, 1:, 1]
        steep = np.maximum(np.abs(high), np.abs(low)) / CELL_COUNT
        two = (value + off)[..., 0]
        most = 3 * np.maximum(two[:, 1:], two[:, :-1]) ** 2
        two = (value - off)[..., 0]
        least = 3 * np.maximum(np.minimum(two[:, 1:], two[:, :-1]) - steep, 0.0) ** 2
        # A segment that starts in a part is at most as long as one from that part's farther end.
        right = 1 - np.arange(CELL_COUNT) / CELL_COUNT  # farthest end to the right, and to the left
        left = np.arange(1, CELL_COUNT + 1) / CELL_COUNT
        largest = [
            _max_of_parabola(high, least, right),
            right * (most * right - low),
            _max_of_parabola(-low, least, left),
            left * (most * left + high),
        ]
        return max(0.0, *(float(part.max()) for part in largest))


def _max_of_parabola(slope: np.ndarray, curvature: np.ndarray, end: np.ndarray) -> np.ndarray:
    # The largest x (slope - curvature x) over 0 <= x <= end.
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.where(curvature > 0, slope / (2 * curvature), np.inf)
    at = np.clip(best, 0.0, end)
    return at * (slope - curvature * at)
