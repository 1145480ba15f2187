"""Many releases of one channel: epsilon at delta, between two proven values.

Upper bound: the composed privacy loss of a pair that dominates all pairs of inputs. Lower bound:
the composed loss of one actual pair of inputs. Derivations: `docs/theory/composition.md`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import Channel
from randquant.privacy.accounting.composition.envelope import SLIP, dominating_pair, strongest_pair
from randquant.privacy.accounting.composition.fourier import by_fourier, joined
from randquant.privacy.accounting.composition.loss import (
    PrivacyLoss,
    Worlds,
    best_tilt,
    crossing,
)
from randquant.privacy.accounting.composition.mixture import Mixture
from randquant.privacy.accounting.composition.normal import by_normal
from randquant.privacy.certificates.coordinate import certify
from randquant.privacy.divergence import UNIT, hockey_stick
from randquant.privacy.guarantee import Interval, at_most

FOURIER_UP_TO = 2**17
"""Most releases for which a grid is used: above, the normal approximation is closer."""

NORMAL_FROM = 2**9
"""Fewest releases for which the normal approximation is tried."""

JOINED = 2**14
"""Cells of the loss of a round together with its share of plain Gaussian noise."""

GENTLE = (0.5, 4.0, 32.0)
"""Tilts that are tried where a larger one may put all mass on the largest loss."""

TILTED_UP_TO = 2**40
"""Most releases whose tilt is found in floating point; above, Rényi composition is as close."""


@dataclass(frozen=True, slots=True)
class Composition:
    """The privacy of many releases of one channel.

    Attributes:
        epsilon: the least epsilon at which all of them together are (epsilon, delta)-private
            lies in this interval, however inputs are chosen.
        order: the Rényi order about which the upper end was computed.
    """

    epsilon: Interval
    order: float


def compose(channel: Channel, releases: int, delta: float, *, quick: bool = False) -> Composition:
    """Bound epsilon of many releases of one channel from both sides.

    Args:
        channel: the channel.
        releases: how many coordinates are sent in all, from 0 to 2**106.
        delta: in [0, 1).
        quick: bound from below by a single release, and from above, where there are NORMAL_FROM
            releases or more, by the normal approximation alone: that takes about a millisecond, and
            is mostly less than 1.5 % above what is found otherwise.

    Returns:
        A Composition. Its upper end is infinite where this method has no bound.

    Guarantees:
        All pairs of inputs are covered by the upper end, also when inputs depend on what was sent
        before. No accountant can state less than the lower end: it is attained by two inputs of
        the channel, the same two in every release.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Zhu, Dong and Wang 2022 (adaptive composition of dominating pairs); Doroshenko, Ghazi,
        Kamath, Kumar and Manurangsi 2022 (splitting losses between grid points); Alghamdi et al.
        2023 (tilted losses and the Berry-Esseen theorem).

    Example:
        >>> import randquant as rq
        >>> channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
        >>> found = compose(channel, 10**6, delta=1e-5).epsilon
        >>> bool(4.575e6 < found.lower < found.upper < 4.584e6)
        True
    """
    validate.kind("channel", channel, Channel)
    quick = validate.flag("quick", quick)
    releases = validate.whole("releases", releases, low=0, high=2**106)
    delta = validate.real("delta", delta, low=0, below=1, why="delta is a small probability")
    if releases == 0:
        return Composition(Interval(0.0, 0.0), math.inf)
    if delta == 0:
        pure = certify(channel).epsilon
        # theory/accounting.md, Proposition 3. Up to 2**106 releases: 1 unit, the product 1.
        lower, upper = pure.lower * releases * (1 - 4 * UNIT), pure.upper * releases
        return Composition(Interval(lower, upper * (1 + 4 * UNIT)), math.inf)
    single, above = _single(channel, delta)
    if releases == 1:
        return Composition(single, math.inf)
    # theory/composition.md, Proposition 3: infinite losses alone use up delta.
    if above.infinite_of(releases) >= delta:
        upper, tilt = math.inf, 1.0
    elif releases > TILTED_UP_TO:
        upper, tilt = math.inf, 1e-6
    else:
        tilt = best_tilt(above, releases, delta)
        upper = _epsilon(above, releases, delta, tilt, quick and releases >= NORMAL_FROM)
    if quick:
        return Composition(Interval(at_most(single.lower, upper), upper), 1 + tilt)
    # theory/composition.md, Proposition 10: any pair of inputs gives a lower end.
    p, q = strongest_pair(channel, releases, delta, tilt * 2.0 ** np.arange(-9, 4))
    below = PrivacyLoss.of(p, q, channel.denominator, upward=False)
    lower = max(single.lower, reached_epsilon(below, releases, delta))
    return Composition(Interval(lower, upper), 1 + tilt)


def compose_worlds(
    worlds: Worlds, parts: int, delta: float, plain: float = 0.0
) -> tuple[float, float]:
    """Bound epsilon of many parts of a run that are each dominated by the same worlds.

    Args:
        worlds: what dominates each part, whatever happened before it.
        parts: how many, at least 1.
        delta: in (0, 1).
        plain: squared distance over variance of Gaussian noise that dominates all else in the run.

    Returns:
        (epsilon, order): an upper bound, infinite where this method has none, and the Rényi order
        about which it was computed.

    Example:
        >>> compose_worlds(Mixture.of_absence(0.01, 1.0), 1000, 1e-5)[0] < 1.9
        True
    """
    if parts > TILTED_UP_TO:
        return math.inf, math.inf
    # theory/sampling.md, Proposition 15: every way in which the run may be attacked.
    losses = [_with_noise(loss, parts, delta, plain) for loss in worlds.losses(parts, delta)]
    return max(_attacked(loss, parts, delta) for loss in losses)


def _with_noise(loss: PrivacyLoss, parts: int, delta: float, plain: float) -> PrivacyLoss:
    """The loss of a part together with its share of plain Gaussian noise."""
    if plain == 0:
        return loss
    # theory/sampling.md, Proposition 20: a share rounded up, and noise that is always there.
    share = math.sqrt(plain / parts) * (1 + 8 * UNIT)
    (noise,) = Mixture.of_exchange(1.0, (share, 0.0)).losses(parts, delta)
    return joined(loss, noise, JOINED)


def reached_epsilon(loss: PrivacyLoss, parts: int, delta: float) -> float:
    """Bound epsilon of many parts of a run from below, by inputs that have a loss in each part.

    Args:
        loss: of one part, rounded down.
        parts: how many, at least 1.
        delta: in [0, 1).

    Example:
        >>> loss = PrivacyLoss(np.array([-1.0, 1.0]), np.array([0.25, 0.75]), 0.0, upward=False)
        >>> round(reached_epsilon(loss, 4, 0.1), 4)  # 4 + log(1 - 0.1 / 0.75**4)
        3.6201
    """
    # theory/composition.md, Proposition 10: any pair of inputs gives a lower end.
    # theory/composition.md, Proposition 9: fewer parts tell less.
    parts = min(parts, TILTED_UP_TO)
    if loss.infinite_of(parts) > delta:
        return math.inf
    if delta == 0:
        # theory/accounting.md, Proposition 3: largest losses add up; the product is 1 unit.
        return max(float(loss.losses.max(initial=0.0)) * parts * (1 - 4 * UNIT), 0.0)
    if not loss.losses.any():
        return 0.0
    return max(_epsilon(loss, parts, delta, tilt) for tilt in _tilts(loss, parts, delta))


def _tilts(loss: PrivacyLoss, parts: int, delta: float) -> set[float]:
    """The tilt of Rényi composition, and smaller ones where that leaves the largest loss alone."""
    tilt = best_tilt(loss, parts, delta)
    # theory/composition.md, Proposition 3: any tilt gives a bound.
    return {tilt, *GENTLE} if tilt > GENTLE[-1] else {tilt}


def _attacked(loss: PrivacyLoss, parts: int, delta: float) -> tuple[float, float]:
    """(epsilon, order) of so many parts of one loss."""
    if loss.infinite_of(parts) >= delta:
        return math.inf, math.inf
    return min(
        (_epsilon(loss, parts, delta, tilt), 1 + tilt) for tilt in _tilts(loss, parts, delta)
    )


@functools.lru_cache(maxsize=16)
def _single(channel: Channel, delta: float) -> tuple[Interval, PrivacyLoss]:
    """Epsilon of one release, and the privacy loss that dominates it."""
    p, q = dominating_pair(channel)
    above = PrivacyLoss.of(p, q, channel.denominator, upward=True, slip=SLIP)
    return _one(p, q, channel.denominator, delta), above


def _epsilon(
    loss: PrivacyLoss, releases: int, delta: float, tilt: float, quick: bool = False
) -> float:
    """Least epsilon that is proven at delta for an upward loss, greatest for the other."""
    curves = []
    if releases <= FOURIER_UP_TO and not quick:
        curves.append(by_fourier(loss, releases, tilt))
    if releases >= NORMAL_FROM:
        curves.append(by_normal(loss, releases, tilt))
    crossings = []
    log_delta = math.log(delta)
    # A logarithm, 8 units, and a difference: the curve must pass delta by more than that.
    margin = 24 * UNIT * (1 + abs(log_delta)) * (1 if loss.upward else -1)
    for known_curve in curves:
        if known_curve is None:
            continue
        curve, centre = known_curve
        # Every point of the curve is proven, so any point on its safe side is a bound, also where
        # the search did not converge.
        edges = crossing(lambda at, curve=curve: curve(at) - log_delta + margin, centre, 1 / tilt)
        crossings.append(edges[1] if loss.upward else edges[0])
    known = [edge for edge in crossings if edge is not None]
    if loss.upward:
        return min(known, default=math.inf)
    return max(known, default=0.0)


def _one(p: np.ndarray, q: np.ndarray, total: int, delta: float) -> Interval:
    """Epsilon of a single release: where the largest hockey-stick divergence is delta."""
    # A crossing lies below log(2**62) = 43.
    top = 45.0  # no ratio of two weights is above 2**62

    def excess(end: int, epsilon: float) -> float:
        return float(hockey_stick(p, q, total, epsilon)[end]) - delta

    if excess(1, top) > 0:
        upper = math.inf
    else:
        upper = crossing(lambda at: excess(1, at), 1.0, 1.0)[1] or 0.0
        # theory/composition.md, Propositions 2 and 10: from 32 on, 2 SLIP may be rounded away.
        upper = max(upper + SLIP * 2, math.nextafter(upper, math.inf))
    lower = math.inf if excess(0, top) > 0 else crossing(lambda at: excess(0, at), 1.0, 1.0)[0]
    return Interval(lower or 0.0, upper)
