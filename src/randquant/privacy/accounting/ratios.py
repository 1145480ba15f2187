"""Moments of the likelihood ratio of one coordinate of a secure sum, whatever the others send.

For channels without a vertex between the ends of the inputs. Derivations:
`docs/theory/martingale.md`.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numba
import numpy as np

from randquant._internal.progress import report
from randquant.channels.channel import Channel
from randquant.privacy.accounting.rounds import ChainLaw, rounding, sums
from randquant.privacy.certificates.sum_laws import largest_ratio
from randquant.privacy.divergence import UNIT

LADDER = (1, 2, 4, 8, 16, 32, 64)
"""Powers of the ratio with which its sixth moment is weighed."""

CELLS = 32
"""Parts of the way between the two vertices, in each of which the third moment is bounded."""

LARGEST_LOSS = 2.0
"""A code may change a likelihood by e to this; moments of stronger ones are of no use."""

LARGEST_SUM = 2**12
"""Most clients whose arrangements are all tried."""

KEEP = 1e-200
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
        tilted: E (rho - 1)^6 rho^a is at most D^6 times this, for a in LADDER.
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
        The bounds; None where the channel has other vertices than the ends, a code says too much,
        or there are more clients than are tried.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)
        >>> found = ratio_moments(channel, 100)
        >>> round(found.second * 100 * 15 / 4, 2)  # of Gaussian noise of variance 100 (4^2 - 1)
        1.01
    """
    rows = channel.weights / channel.denominator
    if len(rows) != 2 or clients > LARGEST_SUM:
        return None
    used = rows[:, rows.any(axis=0)]
    # Codes that are never sent keep their places, for places add up.
    if not (used > 0).all():
        return None
    ratio, loss = largest_ratio(used)
    if loss > LARGEST_LOSS:
        return None
    # theory/martingale.md, Proposition 2: a channel that mirrors itself needs half of them.
    mirrored = np.array_equal(channel.weights[0], channel.weights[1][::-1])
    count = (clients + 1) // 2 if mirrored else clients
    tables = _Tables.empty(count)
    laws = itertools.pairwise(sums(rows[0], rows[1], clients))
    error = rounding(clients, channel.levels)
    for k, (first, second) in enumerate(itertools.islice(laws, count)):
        if k % 64 == 0:
            report("how the others are spread", k, count)
        a, b = _aligned(first, second)
        _fill(a, b, KEEP, error, tables.ends[k], tables.way[k], tables.tilted[k])
    length = clients * (channel.levels - 1) + 1
    return tables.bounds(error, length, ratio)


def _aligned(first: ChainLaw, second: ChainLaw) -> tuple[np.ndarray, np.ndarray]:
    """Both laws over the sums that have mass in both."""
    # Outside them one law has less than LOST, so the other has less than KEEP.
    start = max(first.start, second.start)
    stop = min(first.start + len(first.mass), second.start + len(second.mass))
    return (
        first.mass[start - first.start : stop - first.start],
        second.mass[start - second.start : stop - second.start],
    )


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _fill(first, second, keep, error, ends, way, tilted):
    """Sum up the moments of one arrangement of the others.

    Args:
        first, second: (L,) laws a and b of the sum with the client at either end.
        keep: outcomes below it in both laws are left out.
        error: relative error of each entry.
        ends: (2, 5, 3), filled with the moments 2 to 6 of b - a under a and under b: signed,
            absolute, and absolute with b - a raised by what rounding may have taken.
        way: (CELLS + 1, 2, 3), the same of the moments 2 and 3 under the mixes of a and b.
        tilted: (2, len(LADDER)), the sixth moments times powers of b/a under a, and back.
    """
    cells = way.shape[0] - 1
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
        way[cell, 0, 0] = way[cell, 0, 1] = totals[0, cell]
        way[cell, 0, 2] = totals[1, cell]
        way[cell, 1, 0], way[cell, 1, 1] = totals[2, cell], totals[3, cell]
        way[cell, 1, 2] = totals[4, cell]


@dataclass(frozen=True, slots=True)
class _Tables:
    """What `_fill` fills, for every arrangement of the others."""

    ends: np.ndarray
    way: np.ndarray
    tilted: np.ndarray

    @classmethod
    def empty(cls, count: int) -> _Tables:
        return cls(
            np.zeros((count, 2, 5, 3)),
            np.zeros((count, CELLS + 1, 2, 3)),
            np.zeros((count, 2, len(LADDER))),
        )

    def bounds(self, error: float, length: int, ratio: float) -> RatioMoments:
        """The largest over all arrangements, rounded up."""
        # theory/martingale.md, Proposition 6: what was left out, and relative errors.
        lost = 4.0 * length * KEEP * ratio**6
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
                for i, power in enumerate(LADDER)
            ),
        )

    def _skew(self, slack: float, lost: float) -> float:
        """Largest |D M_3 - 3 M_2^2 D^2| over ways of length D, of either sign."""
        value, absolute, above = np.moveaxis(self.way, -1, 0)
        off = above * (1 + slack) - absolute * (1 - slack) + lost
        # theory/martingale.md, Proposition 4: M_3 falls along the way, M_2 is convex.
        high, low = (value + off)[:, :-1, 1], (value - off)[:, 1:, 1]
        steep = np.maximum(np.abs(high), np.abs(low)) / CELLS
        two = (value + off)[..., 0]
        most = 3 * np.maximum(two[:, 1:], two[:, :-1]) ** 2
        two = (value - off)[..., 0]
        least = 3 * np.maximum(np.minimum(two[:, 1:], two[:, :-1]) - steep, 0.0) ** 2
        # From a place in a part no way is longer than from its nearer or farther end.
        right = 1 - np.arange(CELLS) / CELLS  # farthest way to the right, and to the left
        left = np.arange(1, CELLS + 1) / CELLS
        found = [
            _highest(high, least, right),
            right * (most * right - low),
            _highest(-low, least, left),
            left * (most * left + high),
        ]
        return max(0.0, *(float(part.max()) for part in found))


def _highest(slope: np.ndarray, bend: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Largest x (slope - bend x) over 0 <= x <= end."""
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.where(bend > 0, slope / (2 * bend), np.inf)
    at = np.clip(best, 0.0, end)
    return at * (slope - bend * at)
