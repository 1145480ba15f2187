"""Compare a run of many small releases with Gaussian noise: bound how much larger its delta can be.

The likelihood ratio of a pair of neighbours is a martingale; its steps are compared with those of
Gaussian noise, moment by moment. Derivations: `docs/theory/martingale.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

from randquant.channels.channel import Channel
from randquant.privacy.accounting.gaussian import gaussian_epsilon, log_gaussian_delta
from randquant.privacy.accounting.ratios import RATIO_ORDERS, RatioMoments, ratio_moments
from randquant.privacy.certificates.sum_bits import linearised
from randquant.privacy.certificates.sum_curvature import kappa_sum
from randquant.privacy.guarantee import rounded_up

ROUND_UP_FACTOR = 1 + 1e-9
"""Factor that pays for the rounding of sums of non-negative terms: fewer than a hundred operations
each, about 1e-14, so that half as much would do, and costs 1e-9 of a bound."""

MAX_NORMAL_DERIVATIVES = (0.39894229, 0.24197073, 0.39894229, 0.55058805, 1.19682685)
"""Largest absolute values of the normal density and of its first four derivatives, rounded up."""

MAX_SEARCH_STEPS = 60
"""Most pairs of tilt and smoothing that are tried. Any of them gives a proven bound."""


@dataclass(frozen=True, slots=True)
class RoundLoss:
    """Bounds of the moments of the likelihood ratio's steps, one step a coordinate and round.

    Attributes:
        energy: what the steps' Rényi divergences of order 2 add up to at most.
        largest: of a single step.
        apart: for k = 3, 4, 5, how far the k-th moment of a step may be from that of Gaussian
            noise, over the step's share of the energy.
        sixth: the sixth moment of both, likewise, times no power of the ratio and times those of
            RATIO_ORDERS.
    """

    energy: float
    largest: float = 0.0
    apart: tuple[float, float, float] = (0.0, 0.0, 0.0)
    sixth: tuple[float, ...] = (0.0,) * (1 + len(RATIO_ORDERS))

    @classmethod
    def from_moments(
        cls, moments: RatioMoments, share: float, longest: float, energy: float
    ) -> RoundLoss:
        """Scale the moments of a channel to a run.

        Args:
            moments: in units of the distance between the ends of the inputs.
            share: the Rényi divergence of order 2 at a distance D is at most share · D^2.
            longest: longest distance in one coordinate, at most 1.
            energy: share times the squared distances of all coordinates and rounds.
        """
        # theory/martingale.md, Proposition 3: x is the second moment, log(1 + x) its Gaussian's
        # share of the energy.
        x = max(moments.second * longest**2, 1e-18)
        log = math.log1p(x)
        third = moments.third * longest + 3 * (moments.second * longest) ** 2
        fourth = moments.excess * longest**2 / share + (16 + 15 * x + 6 * x**2 + x**3) * x**3 / log
        fifth = moments.fifth * longest**3 / share + _lognormal_moment(5, 0, x) / log
        sixth = [
            moment * longest**4 / share + _lognormal_moment(6, power, x) / log
            for power, moment in zip(
                (0, *RATIO_ORDERS), (moments.sixth, *moments.tilted), strict=True
            )
        ]
        return cls(
            energy * ROUND_UP_FACTOR,
            share * longest**2 * ROUND_UP_FACTOR,
            (
                (min(moments.skew, third) / share + x**3 / log) * ROUND_UP_FACTOR,
                fourth * ROUND_UP_FACTOR,
                fifth * ROUND_UP_FACTOR,
            ),
            tuple(moment * ROUND_UP_FACTOR for moment in sixth),
        )

    @classmethod
    def combined(cls, parts: Sequence[RoundLoss]) -> RoundLoss:
        # The steps may come in any order: each bound is that of the worst release.
        # theory/martingale.md, Proposition 5: every step is within the largest of each bound.
        return cls(
            rounded_up(math.fsum(part.energy for part in parts)),
            max(part.largest for part in parts),
            tuple(map(max, *(part.apart for part in parts), (0.0,) * 3)),
            tuple(map(max, *(part.sixth for part in parts), (0.0,) * (1 + len(RATIO_ORDERS)))),
        )

    def moments(self, tilt: float) -> tuple[float, float, float, float]:
        """Bound moments 3 to 6 where the ratio is raised to the power 1 + tilt."""
        rest = tilt - 5
        power = next((place for place, a in enumerate(RATIO_ORDERS, 1) if a >= rest), None)
        if rest <= 0:
            sixth = self.sixth[0]
        elif power is None:
            sixth = math.inf
        else:
            # theory/martingale.md, Proposition 3: a mix of the ratio's powers 0 and a.
            part = rest / (7 * RATIO_ORDERS[power - 1])
            sixth = (1 - part) * self.sixth[0] + part * self.sixth[power]
        return *self.apart, sixth * ROUND_UP_FACTOR


def sum_round_loss(channel: Channel, clients: int, square: float, rounds: int) -> RoundLoss | None:
    """Bound the steps of sums of whole updates: one for each coordinate of each round.

    Args:
        channel: the channel of every coordinate of every client.
        clients: how many clients' codes are in a sum, at least.
        square: largest squared distance of one client's updates, as the encoder rounds them.
        rounds: how many sums.

    Returns:
        The steps; None where the channel's moments are not known, or all its rows are equal: then
        there is no step, and every other bound is 0.
    """
    # theory/martingale.md, Proposition 2: two codes are a bit, in units of where it is steepest.
    bit = linearised(channel) if len(channel.inputs) > 2 else None
    channel = channel if bit is None else bit[0]
    moments = ratio_moments(channel, clients)
    # Without moments there is no bound, so the curvature, which takes seconds, is not computed.
    share = math.inf if moments is None else kappa_sum(channel, clients, 2.0).upper
    if moments is None or not 0 < share < math.inf:
        return None
    # theory/martingale.md, Proposition 2: in units of the distance between the ends, which no
    # update exceeds in a coordinate.
    width = float(channel.inputs[-1] - channel.inputs[0])
    reach = width if bit is None else bit[1]
    share, square = share * width**2 * ROUND_UP_FACTOR, square / reach**2 * ROUND_UP_FACTOR
    longest = min(math.sqrt(square) * ROUND_UP_FACTOR, 1.0)
    return RoundLoss.from_moments(moments, share, longest, rounds * share * square)


def martingale_epsilon(steps: RoundLoss, delta: float) -> tuple[float, float]:
    """Bound epsilon of a run of such steps by the best tilt and smoothing; return (epsilon, order).

    Args:
        steps: of the whole run.
        delta: in [0, 1).

    Example:
        >>> import randquant as rq
        >>> from randquant.privacy.accounting.ratios import ratio_moments
        >>> bit = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)
        >>> moments = ratio_moments(bit, 200)
        >>> steps = RoundLoss.from_moments(moments, moments.second, 1.0, energy=2.0)
        >>> [round(martingale_epsilon(steps, 1e-5)[0] / gaussian_epsilon(2**0.5, 1e-5), 3)]
        [1.006]
    """
    if delta == 0 or not 0 < steps.energy < math.inf:
        return (math.inf, math.inf) if steps.energy > 0 else (0.0, math.inf)
    known: dict[tuple[int, int], float] = {}
    gaussian = gaussian_epsilon(math.sqrt(steps.energy), delta)
    # Where the Gaussian's delta falls like e^(-tilt · epsilon); any tilt and smoothing would do.
    tilt = max(gaussian / steps.energy - 0.5, 0.01)
    least = math.sqrt(steps.largest * steps.energy)

    def at(place: tuple[int, int]) -> float:
        if place not in known:
            smoothing = steps.largest + least * 2.0 ** (place[1] / 2)
            known[place] = epsilon_at(steps, delta, tilt * 1.1 ** place[0], smoothing)
        return known[place]

    best, stride = (-1, -6), 2
    while stride and len(known) < MAX_SEARCH_STEPS:
        row, column = best
        around = [(row + stride, column), (row - stride, column)]
        around += [(row, column + stride), (row, column - stride)]
        nearer = min((best, *around), key=at)
        best, stride = (nearer, stride) if nearer != best else (nearer, stride // 2)
    return at(best), 1 + tilt * 1.1 ** best[0]


def epsilon_at(steps: RoundLoss, delta: float, tilt: float, smoothing: float) -> float:
    """Bound epsilon from above by one tilt >= 0 and one smoothing > steps.largest."""
    moments = steps.moments(tilt)
    whole = steps.energy + smoothing
    mu = math.sqrt(whole) * ROUND_UP_FACTOR
    # theory/martingale.md, Proposition 5: log of the errors of all steps, but for e^(-t epsilon).
    growth = tilt * (1 + tilt) / 2 + sum(
        abs(_choose(1 + tilt, k)) * moment for k, moment in enumerate(moments, 3)
    )
    errors = _integrated_errors(moments, tilt, smoothing - steps.largest, whole - steps.largest)
    if not growth * whole < 1e6 or math.isinf(errors):
        return math.inf
    log_errors = math.log(errors * ROUND_UP_FACTOR) if errors > 0 else -math.inf
    log_errors += growth * whole * ROUND_UP_FACTOR

    def epsilon(threshold: float) -> float:
        return mu * (threshold + mu / 2)

    def enough(threshold: float) -> bool:
        # Its rounding, of a few units, is far below the slack.
        power = log_errors - tilt * epsilon(threshold) * (2 - ROUND_UP_FACTOR)
        if power > 0:
            return False
        price = math.exp(log_gaussian_delta(threshold, mu)) + math.exp(power)
        return price * ROUND_UP_FACTOR <= delta

    low, high = max(-mu / 2, -40.0), math.sqrt(-2 * math.log(delta)) + 1.0
    while not enough(high):
        high *= 2
        if high > 1e6:
            return math.inf
    if enough(low) and low > -40:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return max(0.0, epsilon(high) * ROUND_UP_FACTOR)


def _integrated_errors(moments: Sequence[float], tilt: float, low: float, high: float) -> float:
    # Over what is left of the energy, from low to high; `moments` are 3 to 6.
    total, polynomial = 0.0, [1.0]
    for k, moment in enumerate(moments, 3):
        # theory/martingale.md, Proposition 4: the k-th derivative of the price, in powers of the
        # normal density's derivatives.
        shift = 2 + tilt - k
        polynomial = [
            shift * before + after
            for before, after in zip([*polynomial, 0.0], [0.0, *polynomial], strict=True)
        ]
        total += moment / math.factorial(k) * math.fsum(
            abs(part) * MAX_NORMAL_DERIVATIVES[place] * _power_integral(place, low, high)
            for place, part in enumerate(polynomial)
        )  # fmt: skip
    return total


def _power_integral(place: int, low: float, high: float) -> float:
    # Integral of x^(-(place + 1)/2) from low to high.
    if place == 1:
        return math.log(high / low)
    power = (1 - place) / 2
    return (high**power - low**power) / power


def _choose(top: float, k: int) -> float:
    return math.prod((top - i) / (i + 1) for i in range(k))


@functools.lru_cache(maxsize=4096)
def _lognormal_moment(power: int, tilt: int, x: float) -> float:
    # E (L - 1)^power L^tilt for a lognormal L of mean 1 and variance x.
    # theory/martingale.md, Proposition 3: E L^b = (1 + x)^(b (b - 1)/2); x >= 1e-18 and at most
    # its third power cancel, far from the last of 120 digits.
    with localcontext(Context(prec=120)):
        base, total = 1 + Decimal(x), Decimal(0)
        for k in range(power + 1):
            exponent = (k + tilt) * (k + tilt - 1) // 2
            total += math.comb(power, k) * (-1) ** (power - k) * base**exponent
        return float(total) * ROUND_UP_FACTOR
