"""A pair of rows that dominates all pairs of a channel's rows: easier to tell apart than any.

A test that accepts a set of codes has a point (Q(S), P(S)). The points of all ordered pairs of
vertices, convexified, are the power curve of a pair that dominates them all:
`docs/theory/composition.md`.
"""

from __future__ import annotations

import math

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import Channel
from randquant.privacy.divergence import UNIT, log_ratio

SLIP = 16 * UNIT
"""Added to the losses of a dominating pair: nearly equal ratios may be sorted wrongly."""


def dominating_pair(channel: Channel) -> tuple[np.ndarray, np.ndarray]:
    """Return integer rows (p, q) whose hockey-stick curve is the largest of all ordered pairs'.

    Args:
        channel: the channel.

    Returns:
        (p, q): (k,) int64, both summing to the channel's denominator, p/q falling.

    Guarantees:
        For every epsilon, each pair of inputs has a hockey-stick divergence at epsilon of at
        most that of (p, q) at epsilon - SLIP.

    References:
        Zhu, Dong and Wang 2022 (dominating pairs); Dong, Roth and Su 2022 (trade-off functions).

    Example:
        >>> import randquant as rq
        >>> p, q = dominating_pair(rq.stochastic_rounding(1.0, 2, margin=1.0))
        >>> [float(w / p.sum()) for w in p], [float(w / q.sum()) for w in q]
        ([0.75, 0.25], [0.25, 0.75])
    """
    validate.kind("channel", channel, Channel)
    # theory/composition.md, Proposition 1: of all ordered pairs of vertices.
    points = [_pruned(*_curve_points(row, channel.weights)) for row in channel.weights]
    false, true = _pruned(*(np.concatenate(axis) for axis in zip(*points, strict=True)))
    corners = [(0, 0)]
    for point in zip(false.tolist(), true.tolist(), strict=True):
        while len(corners) > 1 and _not_above(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    everything = (channel.denominator, channel.denominator)
    if corners[-1] != everything:
        corners.append(everything)  # by codes that p never sends
    # The steps of the hull are the rows, exactly: whole numbers with the channel's total.
    steps = np.diff(np.array(corners, dtype=np.int64), axis=0)
    return steps[:, 1], steps[:, 0]


def strongest_pair(
    channel: Channel, releases: int, delta: float, tilts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ordered pair of rows for which Rényi composition gives the largest epsilon.

    Args:
        channel: the channel.
        releases: how many are composed.
        delta: in (0, 1).
        tilts: Rényi orders, less one, that are tried.

    Returns:
        (p, q): rows of the channel. A good pair, not provably the worst: any gives a lower bound.
    """
    rows = channel.weights
    epsilon = np.array([_renyi_epsilon(p, channel, releases, delta, tilts) for p in rows])
    first, second = divmod(int(epsilon.argmax()), len(rows))
    return rows[first], rows[second]


def _renyi_epsilon(
    row: np.ndarray, channel: Channel, releases: int, delta: float, tilts: np.ndarray
) -> np.ndarray:
    """(V,) roughly: epsilon of the row against every vertex, infinite losses paid by delta."""
    ratio = log_ratio(np.broadcast_to(row, channel.weights.shape), channel.weights)
    finite = np.isfinite(ratio)
    lost = np.where(np.isposinf(ratio), row / channel.denominator, 0.0).sum(axis=-1)
    exponents = tilts[:, None, None] * np.where(finite, ratio, 0.0)
    shift = exponents.max(axis=-1)
    mass = np.where(finite, row / channel.denominator, 0.0)
    with np.errstate(divide="ignore"):
        moment = shift + np.log((mass * np.exp(exponents - shift[..., None])).sum(axis=-1))
        none_lost = np.exp(releases * np.log1p(-np.minimum(lost, 1.0)))  # is a code impossible
    epsilon = ((releases * moment - math.log(delta)) / tilts[:, None]).min(axis=0)
    return np.where(1 - none_lost > delta, np.inf, epsilon)


def _curve_points(row: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Q(S), P(S)) for P the row, every Q, and S the codes with the largest ratios P/Q."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = row.astype(np.float64) / others.astype(np.float64)
    # theory/composition.md, Proposition 2: sorted by ratios that are rounded, hence SLIP.
    order = np.argsort(-np.where(np.isnan(ratio), -1.0, ratio), axis=-1)
    true = np.cumsum(row[order], axis=-1)
    false = np.cumsum(np.take_along_axis(others, order, axis=-1), axis=-1)
    return false.ravel(), true.ravel()


def _pruned(false: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points that may be corners of the upper hull, from left to right; corners are all kept."""
    order = np.lexsort((-true, false))
    false, true = false[order], true[order]
    keep = np.append(True, true[1:] > np.maximum.accumulate(true)[:-1])
    false, true = false[keep], true[keep]
    while len(false) > 2:
        right, up = np.diff(false).astype(np.float64), np.diff(true).astype(np.float64)
        rising, falling = up[:-1] * right[1:], up[1:] * right[:-1]
        # Below the chord of its neighbours beyond doubt, hence no corner.
        # theory/composition.md, Proposition 2: 7 units would do.
        below = rising < falling * (1 - 16 * UNIT)
        if 8 * np.count_nonzero(below) < len(false):
            break
        keep = np.concatenate([[True], ~below, [True]])
        false, true = false[keep], true[keep]
    return false, true


def _not_above(left: tuple[int, int], middle: tuple[int, int], right: tuple[int, int]) -> bool:
    """Whether the middle point is on or below the chord; exact, in Python integers."""
    rising = (middle[1] - left[1]) * (right[0] - middle[0])
    return rising <= (right[1] - middle[1]) * (middle[0] - left[0])
