"""Composition of privacy losses on a grid: dominating pairs, mixtures, and the rule."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr

from randquant._internal import validate
from randquant.channels.channel import Channel
from randquant.privacy.accounting.privacy_loss import (
    DominatingPairs,
    PrivacyLoss,
    best_tilt,
    by_fourier,
    by_normal,
    crossing,
    joined,
)
from randquant.privacy.certificates.coordinate import certify
from randquant.privacy.divergence import UNIT, hockey_stick

# A pair of rows that dominates all pairs of a channel's rows: easier to tell apart than any.
#
# A test that accepts a set of codes has a point (Q(S), P(S)). The points of all ordered pairs of
# vertices, convexified, are the power curve of a pair that dominates them all:
# `docs/theory/composition.md`.

LOSS_ERROR = 16 * UNIT
"""Error, in nats, that is added to the losses of a dominating pair: nearly equal ratios may be
sorted wrongly. A ratio is right to 16 units, so half as much would not be proven."""


def dominating_pair(channel: Channel) -> tuple[np.ndarray, np.ndarray]:
    """Return integer rows (p, q) whose hockey-stick curve is the largest of all ordered pairs'.

    Args:
        channel: the channel.

    Returns:
        (p, q): (k,) int64, both summing to the channel's denominator, p/q falling.

    Guarantees:
        For every epsilon, each pair of inputs has a hockey-stick divergence at epsilon of at
        most that of (p, q) at epsilon - LOSS_ERROR.

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


def _curve_points(row: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # (Q(S), P(S)) for P the row, every Q, and S the codes with the largest ratios P/Q.
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = row.astype(np.float64) / others.astype(np.float64)
    # theory/composition.md, Proposition 2: sorted by ratios that are rounded, hence LOSS_ERROR.
    order = np.argsort(-np.where(np.isnan(ratio), -1.0, ratio), axis=-1)
    true = np.cumsum(row[order], axis=-1)
    false = np.cumsum(np.take_along_axis(others, order, axis=-1), axis=-1)
    return false.ravel(), true.ravel()


def _pruned(false: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Points that may be corners of the upper hull, from left to right: all corners are kept, and
    # `dominating_pair` drops the rest exactly.
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
    # Python integers: products of weights exceed 64 bits.
    rising = (middle[1] - left[1]) * (right[0] - middle[0])
    return rising <= (right[1] - middle[1]) * (middle[0] - left[0])


# The privacy loss of a round of Gaussian noise in which a client takes part at random.
#
# Both laws of a pair are mixtures of normal laws on a line. Everything is rounded up:
# `docs/theory/sampling.md`.

CELL_COUNT = 2**12
"""Number of cells that each side of the line is cut into. Any number gives a bound; with half as
many epsilon is about 0.01 % larger."""

TAIL_DELTA_SHARE = 2.0**-20
"""Share of delta that outcomes beyond the last cell may cost."""

Shifts = tuple[float, float]
"""(m, n) with m > n and m >= 0: how far the client moves the noise under either law of a pair."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Dominating pairs of one sampled round of Gaussian noise, given all earlier rounds.

    A pair (m, n) has the laws (1 - rate) N(0) + rate N(m) and (1 - rate) N(0) + rate N(n), with
    N(t) the normal law of mean t and variance 1.

    Attributes:
        rate: probability of taking part, in (0, 1].
        directions: pairs for each order of the two laws of a whole run. In each, the pair with
            the largest hockey-stick divergences at epsilon >= 0, and the one whose divergences in
            the other direction are the largest, which decides at epsilon <= 0.
        lost: probability of an infinite loss besides, for what the pairs do not dominate.
    """

    rate: float
    directions: tuple[tuple[Shifts, Shifts], ...]
    lost: float = 0.0

    @classmethod
    def from_distances(
        cls, rate: float, apart: float, first: float, second: float, lost: float = 0.0
    ) -> Mixture:
        """Return the pairs of a round in which three laws are bounded two by two.

        Args:
            rate: probability of taking part.
            apart: the laws of a client that takes part, in either world, are no easier to tell
                apart than N(0) and N(apart).
            first, second: the same between its law in the first, or second, world and absence.
            lost: of a round, see `Mixture`.

        Example:
            >>> pairs = Mixture.from_distances(0.1, apart=1.0, first=2.0, second=1.0)
            >>> ((m, n), _), _ = pairs.directions
            >>> m, round(n, 9)  # absence is beyond the second law
            (2.0, 1.0)
        """
        # theory/sampling.md, Proposition 13; a difference that is rounded down bounds as well.
        forward, backward = (
            (away, 0.0 if away == apart else math.nextafter(away - apart, -math.inf))
            for away in (first, second)
        )
        orders = ((forward, backward), (backward, forward))
        return cls(rate, orders[:1] if forward == backward else orders, lost)

    def losses(self, releases: int, delta: float) -> tuple[PrivacyLoss, ...]:
        """Return the loss of one of `releases` rounds, rounded up, for each direction."""
        # theory/sampling.md, Proposition 17: any reach gives a bound.
        reach = math.sqrt(2 * (math.log(releases) - math.log(delta) - math.log(TAIL_DELTA_SHARE)))
        return tuple(self._loss(above, below, reach) for above, below in self.directions)

    def _loss(self, above: Shifts, below: Shifts, reach: float) -> PrivacyLoss:
        # Positive losses of one pair, negative ones of the other, and the remaining mass at zero.
        gains, gained, rest = _positive(self.rate, above, reach)
        pains, pained, error = _negative(self.rate, below, reach)
        # theory/sampling.md, Propositions 15 and 17: what is left, and all errors below zero.
        neither = max(1.0 - float(gained.sum()) - rest - float(pained.sum()), 0.0) + error
        losses = np.concatenate([gains, [0.0], pains])
        masses = np.concatenate([gained, [neither], pained]) * (1 + 8 * UNIT)
        # theory/sampling.md, Proposition 13: what the divergences may be above the pairs' own.
        return PrivacyLoss(losses, masses, min((rest + self.lost) * (1 + 4 * UNIT), 1.0))


def _positive(rate: float, shifts: Shifts, reach: float) -> tuple[np.ndarray, np.ndarray, float]:
    # Cells in which the first law is likelier; beyond the last one the loss counts as infinite.
    m, n = shifts
    middle = math.nextafter((m + n) / 2, -math.inf)
    x = np.linspace(middle, m + reach, CELL_COUNT + 1)
    loss, slack = _log_ratio(rate, shifts, x)
    top, bottom = loss + slack, loss - slack
    tail, error = _tail(rate, m, x)
    tail = tail + error
    inside = np.maximum(-np.diff(tail), 0.0)
    # theory/sampling.md, Proposition 16: most of a cell's mass that goes to its upper end.
    steepest = np.maximum((-n if n <= 0 else 2 * n) - x[:-1], 0.0)
    part = 1 - expit(-steepest * np.diff(x)) * np.exp(bottom[:-1] - top[1:])
    part = np.minimum(part * (1 + 32 * UNIT) + 32 * UNIT, 1.0)
    masses = np.append(inside * (1 - part), 0.0) + np.append(0.0, inside * part)
    return np.maximum(top, 0.0), masses, float(tail[-1]) + 1e-300


def _negative(rate: float, shifts: Shifts, reach: float) -> tuple[np.ndarray, np.ndarray, float]:
    # Cells in which the second law is likelier.
    m, n = shifts
    middle = math.nextafter((m + n) / 2, math.inf)
    x = np.linspace(middle, max(middle, 0.0) + reach, CELL_COUNT + 1)
    loss, slack = _log_ratio(rate, shifts, x)
    tail, error = _tail(rate, n, x)
    inside = np.maximum(-np.diff(tail), 0.0)
    # theory/sampling.md, Proposition 16: here the lower end of a ratio is the larger loss.
    steepest = np.maximum(x[1:] + m + max(n, 0.0) - 3 * min(n, 0.0), 0.0)
    part = np.minimum(expit(steepest * np.diff(x)) + 32 * UNIT, 1.0)
    masses = np.append(inside * part, float(tail[-1])) + np.append(0.0, inside * (1 - part))
    return slack - loss, masses, float(error.max()) + 64 * UNIT


def _tail(rate: float, shift: float, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Probability of more than x under (1 - rate) N(0) + rate N(shift), and a bound of its error.
    value, error = np.zeros_like(x), np.zeros_like(x)
    for weight, away in ((1 - rate, x), (rate, x - shift)):
        part = weight * ndtr(-away)
        value += part
        # theory/sampling.md, Proposition 17: 16 units of 1 + x^2, and 8 for what is added up.
        error += part * UNIT * (24 + 16 * away**2)
    return value, error


def _log_ratio(rate: float, shifts: Shifts, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    (first, error), (second, another) = (_log_relative(rate, shift, x) for shift in shifts)
    return first - second, error + another + 2 * UNIT * np.abs(first - second)


def _log_relative(rate: float, shift: float, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # log(1 - rate + rate e^(shift x - shift^2 / 2)), and a bound of its error.
    exponent = shift * (x - shift / 2)
    with np.errstate(divide="ignore", over="ignore"):
        change = rate * np.expm1(exponent)
        small_log = np.log1p(np.clip(change, -0.5, 0.5))
        large_log = np.logaddexp(np.log1p(-rate), math.log(rate) + exponent)
    # theory/sampling.md, Proposition 17: a small change is precise relative to itself.
    small, size = np.abs(change) <= 0.5, np.abs(exponent)
    error = np.where(small, 32 * np.abs(small_log) + 2 * size, 32 * (1 + np.abs(large_log) + size))
    return np.where(small, small_log, large_log), error * UNIT


# Many releases of one channel: epsilon at delta.
#
# The composed privacy loss of a pair that dominates all pairs of inputs. Derivations:
# `docs/theory/composition.md`.

MAX_FOURIER_RELEASES = 2**17
"""Most releases for which a grid is used: above, the normal approximation is closer, and the grid's
error grows with the releases."""

MIN_NORMAL_RELEASES = 2**9
"""Fewest releases for which the normal approximation is tried."""

JOINED_CELL_COUNT = 2**14
"""Cells of the loss of a round together with its share of plain Gaussian noise."""

FALLBACK_TILT_STEPS = (0.5, 4.0, 32.0)
"""Tilts that are tried where a larger one may put all mass on the largest loss."""

MAX_TILTED_RELEASES = 2**40
"""Most releases whose tilt is found in floating point; above, Rényi composition is as close."""


def compose(
    channel: Channel, releases: int, delta: float, *, quick: bool = False
) -> tuple[float, float]:
    """Bound epsilon of many releases of one channel.

    Args:
        channel: the channel.
        releases: how many coordinates are sent in all, from 0 to 2**106.
        delta: in [0, 1).
        quick: from MIN_NORMAL_RELEASES releases on, bound by the normal approximation alone: that
            takes about a millisecond, and is mostly less than 1.5 % above the full bound.

    Returns:
        (epsilon, order): an upper bound, infinite where this method has none, and the Rényi order
        about which it was computed.

    Guarantees:
        All pairs of inputs are covered, also when inputs depend on what was sent before.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Zhu, Dong and Wang 2022 (adaptive composition of dominating pairs); Doroshenko, Ghazi,
        Kamath, Kumar and Manurangsi 2022 (splitting losses between grid points); Alghamdi et al.
        2023 (tilted losses and the Berry-Esseen theorem).

    Example:
        >>> import randquant as rq
        >>> channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
        >>> epsilon, _ = compose(channel, 10**6, delta=1e-5)
        >>> bool(4.575e6 < epsilon < 4.584e6)
        True
    """
    validate.kind("channel", channel, Channel)
    quick = validate.flag("quick", quick)
    releases = validate.whole("releases", releases, low=0, high=2**106)
    delta = validate.real("delta", delta, low=0, below=1, why="delta is a small probability")
    if releases == 0:
        return 0.0, math.inf
    if delta == 0:
        # theory/accounting.md, Proposition 3. Up to 2**106 releases: 1 unit, the product 1.
        return certify(channel).epsilon.upper * releases * (1 + 4 * UNIT), math.inf
    single, loss = _single_release(channel, delta)
    if releases == 1:
        return single, math.inf
    # theory/composition.md, Proposition 3: infinite losses alone use up delta.
    if loss.infinite_probability(releases) >= delta:
        return math.inf, 2.0
    if releases > MAX_TILTED_RELEASES:
        return math.inf, 1 + 1e-6
    tilt = best_tilt(loss, releases, delta)
    return _epsilon(
        loss, releases, delta, tilt, quick and releases >= MIN_NORMAL_RELEASES
    ), 1 + tilt


def compose_pairs(
    pairs: DominatingPairs, parts: int, delta: float, plain: float = 0.0
) -> tuple[float, float]:
    """Bound epsilon of many parts of a run that are each dominated by the same pairs.

    Args:
        pairs: dominating pairs of each part, given all earlier ones.
        parts: number of parts, at least 1.
        delta: in (0, 1).
        plain: squared distance over variance of Gaussian noise that dominates all else in the run.

    Returns:
        (epsilon, order): an upper bound, infinite where this method has none, and the Rényi order
        about which it was computed.

    Example:
        >>> pairs = Mixture.from_distances(0.01, apart=1.0, first=1.0, second=0.0)
        >>> compose_pairs(pairs, 1000, 1e-5)[0] < 1.9
        True
    """
    if parts > MAX_TILTED_RELEASES:
        return math.inf, math.inf
    # theory/sampling.md, Proposition 15: a guarantee is over both orders of the neighbours, so the
    # worse direction counts.
    losses = [_with_noise(loss, parts, delta, plain) for loss in pairs.losses(parts, delta)]
    return max(_composed_loss(loss, parts, delta) for loss in losses)


def _with_noise(loss: PrivacyLoss, parts: int, delta: float, plain: float) -> PrivacyLoss:
    if plain == 0:
        return loss
    # theory/sampling.md, Proposition 20: a share rounded up, and noise that is always there.
    share = math.sqrt(plain / parts) * (1 + 8 * UNIT)
    (noise,) = Mixture.from_distances(1.0, share, share, share).losses(parts, delta)
    return joined(loss, noise, JOINED_CELL_COUNT)


def _tilts_to_try(loss: PrivacyLoss, parts: int, delta: float) -> set[float]:
    tilt = best_tilt(loss, parts, delta)
    # theory/composition.md, Proposition 3: any tilt gives a bound.
    return {tilt, *FALLBACK_TILT_STEPS} if tilt > FALLBACK_TILT_STEPS[-1] else {tilt}


def _composed_loss(loss: PrivacyLoss, parts: int, delta: float) -> tuple[float, float]:
    if loss.infinite_probability(parts) >= delta:
        return math.inf, math.inf
    return min(
        (_epsilon(loss, parts, delta, tilt), 1 + tilt) for tilt in _tilts_to_try(loss, parts, delta)
    )


@functools.lru_cache(maxsize=16)
def _single_release(channel: Channel, delta: float) -> tuple[float, PrivacyLoss]:
    # The loss is that of the dominating pair, so it bounds every pair of inputs.
    p, q = dominating_pair(channel)
    above = PrivacyLoss.from_rows(p, q, channel.denominator, loss_error=LOSS_ERROR)
    return _release_epsilon(p, q, channel.denominator, delta), above


def _epsilon(
    loss: PrivacyLoss, releases: int, delta: float, tilt: float, quick: bool = False
) -> float:
    curves = []
    if releases <= MAX_FOURIER_RELEASES and not quick:
        curves.append(by_fourier(loss, releases, tilt))
    if releases >= MIN_NORMAL_RELEASES:
        curves.append(by_normal(loss, releases, tilt))
    crossings = []
    log_delta = math.log(delta)
    # A logarithm, 8 units, and a difference: the curve must pass delta by more than that.
    margin = 24 * UNIT * (1 + abs(log_delta))
    for known_curve in curves:
        if known_curve is None:
            continue
        curve, centre = known_curve
        # Every point of the curve is proven, so any point on its safe side is a bound, also where
        # the search did not converge.
        edges = crossing(lambda at, curve=curve: curve(at) - log_delta + margin, centre, 1 / tilt)
        crossings.append(edges[1])
    return min((edge for edge in crossings if edge is not None), default=math.inf)


def _release_epsilon(p: np.ndarray, q: np.ndarray, total: int, delta: float) -> float:
    # A crossing lies below log(2**62) = 43.
    top = 45.0  # no ratio of two weights is above 2**62

    def excess(epsilon: float) -> float:
        return float(hockey_stick(p, q, total, epsilon)[1]) - delta

    if excess(top) > 0:
        return math.inf
    upper = crossing(excess, 1.0, 1.0)[1] or 0.0
    # theory/composition.md, Propositions 2 and 10: from 32 on, 2 LOSS_ERROR may be rounded away.
    return max(upper + LOSS_ERROR * 2, math.nextafter(upper, math.inf))
