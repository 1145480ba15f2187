"""Gaussian noise exactly, noise that dominates sums of one bit, and how far runs are from noise.

Many adaptive Gaussian releases are one, whose delta has a closed form (`docs/theory/gaussian.md`).
Sums of one bit are dominated by Gaussian noise. Hidden cohorts need such a dominating pair, and
sums over more than 4096 clients have no tighter bound: without it their epsilon would be up to 31 %
and 5 % larger (`docs/theory/vector-sums.md`, "Beside Gaussian noise"). A run of many small releases
is compared with noise moment by moment: the likelihood ratio of two neighbours is a martingale
(`docs/theory/martingale.md`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

import numpy as np
from scipy.special import erfcx, ndtr, ndtri_exp

from randquant.channels.channel import Channel
from randquant.privacy.accounting.ratios import (
    RATIO_ORDERS,
    Powers,
    RatioMoments,
    ratio_moments,
    rounding,
)
from randquant.privacy.certificates.sum_curvature import kappa_sum
from randquant.privacy.certificates.sum_tools import linearised
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import rounded_up

SPECIAL_ERROR = 1e-12
"""Relative error that is allowed for erfcx and the normal distribution, and for all around them."""


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the least epsilon of one Gaussian release, rounded up.

    Args:
        mu: at least the distance of neighbours over the standard deviation of the noise; >= 0.
        delta: in [0, 1).

    Returns:
        An upper bound of epsilon, in nats, the same for both orders of the neighbours.

    References:
        Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 2.13.

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 4)
        4.3772
    """
    if mu == 0:
        return 0.0
    if delta == 0 or math.isinf(mu):
        return math.inf
    log_delta = math.log(delta) * (1 + 8 * UNIT)
    # A bisection, whose upper end was evaluated at every step and so is proven.
    # theory/gaussian.md, Proposition 2: at the lower end epsilon <= 0, the upper end always holds.
    low = max(-mu / 2, -40.0)
    high = math.sqrt(-2 * log_delta) * (1 + 1e-9) + 1e-9
    if log_gaussian_delta(low, mu) <= log_delta:
        return 0.0
    while (middle := (low + high) / 2) not in (low, high):
        if log_gaussian_delta(middle, mu) <= log_delta:
            high = middle
        else:
            low = middle
    # theory/gaussian.md, Proposition 3: four roundings.
    return max(0.0, mu * (high + mu / 2) + 4 * UNIT * mu * (abs(high) + mu / 2))


def gaussian_noise(epsilon: float, delta: float) -> float:
    """Estimate the deviation of Gaussian noise of this guarantee at distance 1; nothing is proven.

    Args:
        epsilon: in nats, > 0.
        delta: in [0, 1); for 0 the result is 1/epsilon.

    Example:
        >>> round(gaussian_noise(4.3772, 1e-5), 4)
        1.0
    """
    if delta == 0:
        return 1 / epsilon
    low, high = 0.0, 2 * math.sqrt(2 * epsilon) + 40
    for _ in range(60):
        mu = (low + high) / 2
        enough = log_gaussian_delta(epsilon / mu - mu / 2, mu) <= math.log(delta)
        low, high = (mu, high) if enough else (low, mu)
    return 1 / high


def log_gaussian_delta(threshold: float, mu: float) -> float:
    """Bound log delta from above at epsilon = mu · (threshold + mu/2) >= 0.

    Example:
        >>> round(math.exp(log_gaussian_delta(0.0, 1e6)), 6)  # half of the mass lies beyond
        0.5
    """
    root = math.sqrt(2)
    right = float(erfcx((threshold + mu) / root))
    if threshold < 0:
        # theory/gaussian.md, Proposition 1: both parts are below 1.
        value = float(ndtr(-threshold)) - math.exp(-(threshold**2) / 2) * right / 2
        # The allowance also keeps the logarithm finite where the difference cancels.
        return math.log(min(value + 4 * SPECIAL_ERROR, 1.0))
    left = float(erfcx(threshold / root))
    # theory/gaussian.md, Proposition 1: the difference loses digits where mu is small; erfcx is
    # convex, so it falls by at most the distance times its slope at the left end.
    slope = 2 / math.sqrt(math.pi) - root * threshold * left
    tangent = mu / root * (slope + 2 * SPECIAL_ERROR)
    log = math.log(min(left - right + 2 * SPECIAL_ERROR * left, tangent) / 2)
    # theory/gaussian.md, Proposition 3.
    return log - threshold**2 / 2 + 16 * UNIT * (1 + abs(log) + threshold**2)


def step_square(curvature: float) -> float:
    """Bound the squared distance over variance of Gaussian noise that hides shifts by 1 no better.

    Args:
        curvature: upper bound of the second differences of -log p, for a law p on the integers
            that is positive, and whose -log is convex.

    Returns:
        c^2, such that a shift by d is dominated by Gaussian noise with mu = c·d; infinite where
        the law is too narrow.

    Example:
        >>> round(step_square(0.01), 6)  # a variance of 100
        0.010025
    """
    # theory/gaussian.md, Proposition 4.
    if curvature >= 2 * math.log(2) - 1e-9:
        return math.inf
    square = -math.log1p(2 * math.expm1(-curvature / 2))
    # theory/gaussian.md, Proposition 5.
    return square * (1 + 32 * UNIT / (1 + 2 * math.expm1(-curvature / 2)))


MOST_CLIENTS = 2**17
"""More clients are not counted: they only hide more."""

ARRANGEMENTS_FRACTION = 64
"""Arrangement k from an end is bounded together with about k / ARRANGEMENTS_FRACTION others."""

MAX_FINE_CLIENTS = 2**13
"""Of more clients, whole parts of all arrangements are bounded together, at least `MAX_WORK_SIZE` /
clients or `MIN_PART_COUNT` parts: each takes time that grows with the clients."""

MAX_WORK_SIZE, MIN_PART_COUNT = 2**21, 48

MIN_EXACT_PROB = 1e-250
"""Less likely sums are bounded by a formula."""

ROUND_UP_FACTOR = 1 + 1e-9
"""Factor that pays for the rounding of quotients, exponentials and logarithms: some dozens of units
of 2**-53, so that half as much would do, and costs 1e-9 of a bound."""


@functools.lru_cache(maxsize=1024)
def unit_squared_mu(channel: Channel, clients: int, spared: float = 0.0) -> float:
    """Bound the squared distance over variance of Gaussian noise that hides a coordinate no better.

    Args:
        channel: of every client.
        clients: how many codes are in the sum, at least.
        spared: tests whose errors, or powers, are not above this are left out; 0, or at least
            1e-200.

    Returns:
        c^2, per squared unit of x: whatever the others' inputs, the sums for x and x' are no easier
        to tell apart than N(0, 1) and N(c (x - x'), 1), by any set of outcomes, in either order; of
        tests that are left out, hockey-stick divergences are at most `spared_cost` times `spared`.
        Infinite where the channel has more than two codes, or one that is impossible.

    Example:
        >>> import randquant as rq
        >>> bit = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)  # values ±4
        >>> round(unit_squared_mu(bit, 200) * 200 * (4**2 - 1), 2)  # over the variance's inverse
        1.84
    """
    bit = linearised(channel)
    if bit is None:  # more codes: nothing is proven
        return math.inf
    one, narrowest = bit
    low, high = sorted(int(weight) for weight in one.weights[:, 1])
    mirror = low + high == one.denominator
    ends = low / one.denominator, high / one.denominator
    longest = _largest_distance(*ends, clients - 1, mirror, spared)
    # theory/vector-sums.md, Proposition 14: the distance of the ends is at least this.
    return (longest / narrowest) ** 2 * ROUND_UP_FACTOR


def spared_cost(channel: Channel) -> float:
    """Return the largest ratio of two inputs' probabilities of a code of two."""
    bit = linearised(channel)
    if bit is None:
        return math.inf
    weights = bit[0].weights
    return float((weights.max(axis=0) / weights.min(axis=0)).max()) * ROUND_UP_FACTOR


def _largest_distance(
    low: float, high: float, others: int, mirror: bool, spared: float = 0.0
) -> float:
    # Between the laws for the two ends of a client's input, in standard deviations of the noise.
    left, right = (Powers(np.array([1 - end, end])) for end in (low, high))
    error = rounding(min(others + 1, MOST_CLIENTS), 2) + 8 * UNIT
    worst = 0.0
    for at_left, at_right in _arrangement_groups(others, mirror):
        noise = left.law(at_left).convolve(right.law(at_right))
        likely = np.flatnonzero(noise.mass >= MIN_EXACT_PROB)
        first, last = int(likely[0]), int(likely[-1])
        law = noise.mass
        worst = max(worst, _likely_distance(law, low, high, error, first, last, spared))
        # theory/vector-sums.md, Proposition 22: sums beyond are less likely than what is spared.
        if spared:
            continue
        # theory/vector-sums.md, Proposition 17: a sum from above is one of the other bits.
        below = noise.start + first
        above = at_left + at_right - (noise.start + last)
        worst = max(worst, _rare_distance(at_left, at_right, low, high, below))
        worst = max(worst, _rare_distance(at_right, at_left, 1 - high, 1 - low, above))
    return worst * (high - low) * ROUND_UP_FACTOR


def _arrangement_groups(others: int, mirror: bool) -> Iterator[tuple[int, int]]:
    # Of each group the least numbers of other clients at either end: every arrangement in it has at
    # least these, so the group bounds it.
    grouped = others + 1 - MOST_CLIENTS
    if others > MAX_FINE_CLIENTS:
        grouped = max(grouped, others // max(MAX_WORK_SIZE // others, MIN_PART_COUNT))
    done = 0
    while done <= others // 2:
        # theory/vector-sums.md, Proposition 1: clients that are not counted only hide more.
        more = min(max(done // ARRANGEMENTS_FRACTION, grouped), others - done)
        yield others - done - more, done
        if not mirror:
            yield done, others - done - more
        done += more + 1


def _likely_distance(
    noise: np.ndarray,
    low: float,
    high: float,
    error: float,
    first: int,
    last: int,
    spared: float = 0.0,
) -> float:
    likely, kept = noise[first : last + 1], slice(first, last + 1)
    below = np.append(0.0, np.cumsum(noise)[:-1])[kept]
    above = np.append(np.cumsum(noise[::-1])[-2::-1], 0.0)[kept]
    # theory/vector-sums.md, Proposition 18: sums of positive terms.
    error += (len(noise) + 8) * UNIT
    least, counts = np.inf, np.True_
    for share in (low, high):
        tail = np.minimum(below + (1 - share) * likely, above + share * likely)
        least = np.minimum(least, _density(tail * (1 - error)))
        counts = counts & (tail * (1 + error) > spared)
    return float((likely / least).max(where=counts, initial=0.0)) * (1 + error)


def _density(tail: np.ndarray) -> np.ndarray:
    # A lower bound of the normal density where `tail`, at most one half, of the mass lies beyond.
    tail = np.minimum(tail, 0.5)
    quantile = np.maximum(-ndtri_exp(np.log(tail)), 0.0)
    # theory/vector-sums.md, Proposition 18: it is concave in the tail, and 0 at 0.
    left = ndtr(-quantile) * (1 + 32 * UNIT * (1 + quantile**2))
    # 8 units and those of the exponent, twice.
    density = np.exp(-(quantile**2) / 2) / math.sqrt(2 * math.pi)
    return density * np.minimum(tail / left, 1.0) * (1 - 4 * UNIT * (8 + quantile**2))


def _rare_distance(at_left: int, at_right: int, low: float, high: float, below: int) -> float:
    if below == 0:
        return 0.0
    sums = np.arange(below)
    # theory/vector-sums.md, Proposition 17: odds of a bit, as if tilted, that make `sums` likely.
    odds = _odds(at_left, at_right, low, high, np.maximum(sums, 0.5))
    moments = sum(
        count * (np.log1p(end * odds / (1 - end)) + math.log1p(-end))
        for count, end in ((at_left, low), (at_right, high))
    )
    rare = -(moments - np.log(odds) * sums) * (1 - 1e-9)
    if rare.min() < 32:
        return math.inf
    outer = np.sqrt(2 * rare)
    quantile = np.sqrt(2 * (rare - math.log(math.sqrt(2 * math.pi)) - np.log(outer + 1 / outer)))
    falls = _odds(at_left, at_right, low, high, np.maximum(sums - 2, 0)) * (1 - 1e-9)
    return float((1 / ((1 - high + _falling_sums(falls)) * quantile)).max()) * ROUND_UP_FACTOR


def _falling_sums(falls: np.ndarray) -> np.ndarray:
    # Lower bounds of f_j + f_j f_(j-1) + …; at each step the number of terms doubles.
    tails, products, reach = falls.copy(), falls.copy(), 1
    while reach < len(falls) and products[reach:].max() > UNIT:
        # All terms are positive: whatever is left out makes the sum smaller.
        tails[reach:] += products[reach:] * tails[:-reach]
        products[reach:] *= products[:-reach]
        products[:reach], reach = 0.0, 2 * reach
    return tails


def _odds(at_left: int, at_right: int, low: float, high: float, mean: np.ndarray) -> np.ndarray:
    first, second = low / (1 - low), high / (1 - high)
    square = first * second * (at_left + at_right - mean)
    linear = at_left * first + at_right * second - mean * (first + second)
    root = np.sqrt(linear**2 + 4 * square * mean)
    # Of two forms the one in which nothing cancels.
    return np.where(linear > 0, 2 * mean / (linear + root), (root - linear) / (2 * square))


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


def sum_round_loss(
    channel: Channel, clients: int, square: float, farthest: float, rounds: int
) -> RoundLoss | None:
    """Bound the steps of sums of whole updates: one for each coordinate of each round.

    Args:
        channel: the channel of every coordinate of every client.
        clients: how many clients' codes are in a sum, at least.
        square: largest squared distance of one client's updates, as the encoder rounds them.
        farthest: largest distance of one coordinate of them.
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
    # theory/martingale.md, Proposition 2: in units of the distance between the ends.
    width = float(channel.inputs[-1] - channel.inputs[0])
    reach = width if bit is None else bit[1]
    share, square = share * width**2 * ROUND_UP_FACTOR, square / reach**2 * ROUND_UP_FACTOR
    longest = min(farthest / reach * ROUND_UP_FACTOR, 1.0)
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
