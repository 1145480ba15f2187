"""Privacy losses on a grid, their sums by Fourier transforms, and their tails."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import erfcx

from randquant.privacy.divergence import UNIT, log_ratio

# Privacy loss as a finite measure of floats, exponentially tilted so that its tail is central.
#
# Everything is rounded towards the safe side of a bound, so the floats are treated as exact
# afterwards. Derivations: `docs/theory/composition.md`.

MAX_EXPONENT = 600.0
"""Largest |tilt · loss|: e to it does not overflow."""

TILT_STEP = 20
"""Places of a grid of tilts that a first look skips: about the root of its length, which needs the
fewest evaluations. Twice as much changes no bound, only the time."""

MIN_WEIGHT = 1e-300
"""Smaller tilted masses would lose digits: they are raised to it."""


@dataclass(frozen=True, slots=True)
class PrivacyLoss:
    """The loss log(p/q) of one release, under p.

    Attributes:
        losses: (k,) float64, finite, in nats.
        masses: (k,) float64, the probability of each.
        infinite: the probability of a code that q never sends.

    Everything errs towards more loss.
    """

    losses: np.ndarray
    masses: np.ndarray
    infinite: float

    @staticmethod
    def from_rows(
        p: np.ndarray, q: np.ndarray, total: int, *, loss_error: float = 0.0
    ) -> PrivacyLoss:
        """Round up the loss of a pair of rows of integers; loss_error is added to each loss.

        Rows may hold Python integers beyond 64 bits.
        """
        ratio = log_ratio(p, q)
        mass = (p / float(total)).astype(np.float64)
        # theory/composition.md, Proposition 4: 2 of 4 units; of Python integers 3.
        mass *= 1 + 4 * UNIT
        # theory/composition.md, Proposition 4: a unit for each mass that is added.
        infinite = float(mass[np.isposinf(ratio)].sum()) * (1 + len(p) * UNIT)
        finite = np.isfinite(ratio)
        losses = ratio[finite]
        # theory/composition.md, Proposition 4: 16 units of the logarithm and two sums.
        losses = losses + 18 * UNIT * np.abs(losses) + loss_error * (1 + 4 * UNIT)
        return PrivacyLoss(losses, mass[finite], min(infinite, 1.0))

    def infinite_probability(self, releases: int) -> float:
        """Return the probability that any of the releases has infinite loss, rounded up."""
        if self.infinite == 0:
            return 0.0
        if self.infinite == 1:
            return 1.0
        # theory/composition.md, Proposition 4: 17 of 40 units.
        some = -math.expm1(releases * math.log1p(-self.infinite))
        return min(1.0, some * (1 + 40 * UNIT))


class DominatingPairs(Protocol):
    """Pairs of laws that dominate a part of a run, such as a round, given all earlier parts."""

    def losses(self, releases: int, delta: float) -> tuple[PrivacyLoss, ...]:
        """Return the loss of one part, rounded up, for each order of the two laws of a run.

        Args:
            releases: number of parts that are composed.
            delta: of the composed guarantee; a small share of it may be spent.
        """
        ...


@dataclass(frozen=True, slots=True)
class Tilted:
    """A privacy loss whose masses are multiplied by e^(tilt · loss - constant).

    With T(epsilon) the integral of g(x) = e^(-tilt x) (1 - e^-x), x = total loss - epsilon > 0,
    over `releases` independent losses of these weights, the hockey-stick divergence is
    e^(releases · constant - tilt · epsilon) T(epsilon) plus the share of infinite losses.

    Attributes:
        loss: what was tilted.
        releases: how many are composed.
        tilt: the exponent, > 0; 1 + tilt is a Rényi order.
        constant: chosen so that the weights sum to nearly 1.
        weights: (k,) float64.
        error: relative error, at most, of each weight.
    """

    loss: PrivacyLoss
    releases: int
    tilt: float
    constant: float
    weights: np.ndarray
    error: float

    @staticmethod
    def from_loss(loss: PrivacyLoss, releases: int, tilt: float) -> Tilted:
        """Tilt a loss; any tilt gives valid bounds."""
        # theory/composition.md, Proposition 3: any constant and any tilt give bounds.
        constant = float(log_moments(loss, np.array([tilt]))[0])
        exponents = tilt * loss.losses - constant
        weights = loss.masses * np.exp(exponents)
        # theory/composition.md, Proposition 4: raising a weight only adds loss.
        weights = np.maximum(weights, MIN_WEIGHT)
        # theory/composition.md, Proposition 3: the relative error of a weight.
        largest = float((np.abs(tilt * loss.losses) + np.abs(exponents)).max())
        return Tilted(loss, releases, tilt, constant, weights, 1.01 * UNIT * (largest + 12))

    @property
    def peak(self) -> float:
        # g is largest at e^-x = tilt/(tilt + 1), where it is below 1/(tilt + 1).
        # A sum and a quotient: 2 of 4 units.
        return (1 + 4 * UNIT) / (1 + self.tilt)

    @property
    def centre(self) -> tuple[float, float]:
        """Estimate mean and variance of one tilted loss, normalised."""
        mass = self.weights / self.weights.sum()
        mean = float(mass @ self.loss.losses)
        return mean, float(mass @ (self.loss.losses - mean) ** 2)

    def log_delta(self, epsilon: float, integral: float) -> float:
        """Bound the log of the hockey-stick divergence at epsilon from above.

        Args:
            epsilon: the argument.
            integral: T(epsilon), already rounded up.
        """
        whole = self.loss.infinite_probability(self.releases)
        if integral <= 0:
            return math.log(whole) if whole > 0 else -math.inf
        first, second = self.releases * self.constant, self.tilt * epsilon
        # theory/composition.md, Proposition 3: a logarithm, two products, three sums.
        slack = 12 * UNIT * (abs(first) + abs(second) + abs(math.log(integral)) + 1)
        slack += 1.01 * self.releases * self.error
        log_finite = first - second + math.log(integral) + slack
        if whole == 0:
            return log_finite
        # Of the two, errors count by their share: 8 units of a logarithm, 3 sums, exp, log1p.
        both = float(np.logaddexp(log_finite, math.log(whole)))
        return both + 40 * UNIT * (1 + abs(both))


def log_moments(loss: PrivacyLoss, tilts: np.ndarray) -> np.ndarray:
    """Estimate the log of the sum of mass · e^(tilt · loss), for each tilt."""
    with np.errstate(divide="ignore"):
        exponents = tilts[:, None] * loss.losses + np.log(loss.masses)
    shift = exponents.max(axis=-1)
    return shift + np.log(np.exp(exponents - shift[:, None]).sum(axis=-1))


def best_tilt(loss: PrivacyLoss, releases: int, delta: float) -> float:
    """Estimate the tilt at which Rényi composition gives the least epsilon."""
    # theory/composition.md, Proposition 3: no exponential of a tilted loss overflows.
    cap = MAX_EXPONENT / max(float(np.abs(loss.losses).max(initial=0.0)), 1e-12)
    tilts = np.geomspace(min(1e-9, cap / 2), cap, 400)

    def bound(some: np.ndarray) -> np.ndarray:
        return (releases * log_moments(loss, some) - math.log(delta)) / some

    for _ in range(2):
        # Rényi composition's own best order, from a grid that is refined twice; not proven to be
        # best, which nothing rests on. The bound falls, then rises: log moments are convex.
        coarse_best = TILT_STEP * int(bound(tilts[::TILT_STEP]).argmin())
        first = max(coarse_best - TILT_STEP + 1, 0)
        at = first + int(bound(tilts[first : coarse_best + TILT_STEP]).argmin())
        tilts = np.linspace(tilts[max(at - 1, 0)], tilts[min(at + 1, len(tilts) - 1)], 101)
    return float(tilts[50])


def crossing(
    falling: Callable[[float], float], start: float, step: float
) -> tuple[float | None, float | None]:
    """Close in on where a function of epsilon >= 0 falls through 0.

    Returns:
        (a, b): a with falling(a) > 0 and b with falling(b) <= 0, as close as the search got;
        None where none was found. The function may be wrong far from its crossing.
    """
    low, high = _bracket(falling, max(start, 0.0), step)
    if low is None or high is None:
        return (low and low[0]), (high and high[0])
    before = math.inf
    for turn in range(60):
        width, tolerance = high[0] - low[0], 1e-9 * high[0] + 1e-13
        # Tightness only: both ends are evaluated points.
        if width <= tolerance:
            break
        middle = low[0] + width / 2
        # Bisection where two steps did not halve the width, or values are infinite.
        if width < before / 2 and math.isfinite(low[1]) and math.isfinite(high[1]):
            secant = low[0] + width * low[1] / (low[1] - high[1])
            nearer = low[0] if low[1] < -high[1] else high[0]
            # Every other time as far beyond it as the nearer end is before: both ends close in.
            away = max(abs(secant - nearer), tolerance / 4) * (turn % 2)
            middle = secant + math.copysign(away, secant - nearer)
            if not low[0] < middle < high[0]:
                middle = low[0] + width / 2
        before = width if turn % 2 else before
        value = falling(middle)
        low, high = ((middle, value), high) if value > 0 else (low, (middle, value))
    return low[0], high[0]


Point = tuple[float, float]


def _bracket(
    falling: Callable[[float], float], start: float, step: float
) -> tuple[Point | None, Point | None]:
    # Steps double, so that a start that is far off costs a few evaluations.
    at, low, high = start, None, None
    value = falling(at)
    for _ in range(80):
        if value > 0:
            low = (at, value)
            at += step
        else:
            high = (at, value)
            if at == 0:
                break
            at = max(at - step, 0.0)
        if low is not None and high is not None:
            break
        step *= 2
        value = falling(at)
    return low, high


# Many releases of one loss by fast Fourier transform on a grid, with every error bounded.

MAX_GRID_SIZE = 2**18
"""Points of the grid, at most: 2 MiB an array. Any number gives a bound. With half of it epsilon is
0.15 % larger in 10,000 rounds in which a client takes part with a probability of 0.01, and mostly
less than 0.01 % without sampling; with twice of it the former is 0.04 % smaller."""

MAX_TAIL_EXPONENT = 40.0
"""Events of tilted probability e^-40 are left out, and paid for."""


def on_grid(loss: PrivacyLoss, step: float) -> tuple[PrivacyLoss, np.ndarray]:
    """Put a loss on multiples of a step that is a power of two.

    Each loss is split between its two neighbours such that p and q keep their masses: the two can
    be merged back, so the split pair is easier to tell apart.

    Returns:
        (loss, index): (k,) int64, the losses over the step.
    """
    # theory/composition.md, Proposition 5.
    below = np.floor(loss.losses / step)
    above = loss.losses - below * step  # right within a unit: step is a power of two
    part = np.minimum(np.expm1(-above) / math.expm1(-step), 1.0)
    # theory/composition.md, Proposition 5: 18 of 24 units are needed. Both parts are raised.
    rest = (1 - part * (1 - 24 * UNIT)) * (1 + 4 * UNIT)
    masses = np.concatenate([loss.masses * rest, loss.masses * part * (1 + 24 * UNIT)])
    index = np.concatenate([below, below + 1])
    masses *= 1 + 4 * UNIT
    return PrivacyLoss(index * step, masses, loss.infinite), index.astype(np.int64)


def joined(first: PrivacyLoss, second: PrivacyLoss, cells: int) -> PrivacyLoss:
    """Return the loss of two independent releases together, on a grid of about `cells` cells.

    Example:
        >>> one = PrivacyLoss(np.array([0.0, 1.0]), np.array([0.5, 0.5]), 0.0)
        >>> both = joined(one, one, 4)
        >>> float(both.losses[both.masses > 0].max())
        2.0
    """
    span = max(float(np.ptp(first.losses)), float(np.ptp(second.losses)), 1e-12)
    step = 2.0 ** math.ceil(math.log2(span / cells))
    grids = [on_grid(loss, step) for loss in (first, second)]
    rows = [np.bincount(index - index.min(), weights=loss.masses) for loss, index in grids]
    start = sum(int(index.min()) for _, index in grids)
    masses = np.convolve(rows[0], rows[1])
    # theory/sampling.md, Proposition 20: each mass is a sum of as many products as a row has.
    masses *= 1 + (sum(len(index) for _, index in grids) + 8) * UNIT
    losses = (start + np.arange(len(masses))) * step
    infinite = min((first.infinite + second.infinite) * (1 + 4 * UNIT), 1.0)
    return PrivacyLoss(losses, masses, infinite)


def by_fourier(
    loss: PrivacyLoss, releases: int, tilt: float
) -> tuple[Callable[[float], float], float]:
    """Bound log delta of many releases as a function of epsilon.

    Args:
        loss: of one release.
        releases: how many are composed, 2 to 2**20.
        tilt: see `Tilted`; any gives valid bounds, the Rényi-optimal one good ones.

    Returns:
        (log_delta, centre): a function of epsilon whose values are above the truth, and the
        epsilon near which it is best.
    """
    start = Tilted.from_loss(loss, releases, tilt)
    reach, _ = _reach(start, 0.0)
    step = 2.0 ** math.ceil(math.log2(max(2.1 * reach / MAX_GRID_SIZE, 1e-12)))
    split, index = on_grid(loss, step)
    tilted = Tilted.from_loss(split, releases, tilt)
    mean, _ = tilted.centre
    reach, outside = _reach(tilted, 4 * step)
    first = math.floor((releases * mean - reach) / step) - 2
    first = max(first, releases * int(index.min()))
    size = min(MAX_GRID_SIZE, 1 << (math.ceil(2 * reach / step) + 8).bit_length())
    if size * step < 2 * reach + 6 * step:
        # theory/composition.md, Proposition 6.
        outside = 1.0  # never so, but a bound must not rest on it
    sums, error = powered(tilted.weights, index, first, size, releases)
    points = (first + np.arange(size)) * step

    def log_delta(epsilon: float) -> float:
        from_here = max(math.floor(epsilon / step) - first, 0)
        over = np.maximum(points[from_here:] - epsilon, 0.0)
        farthest = float(over[-1]) if over.size else 0.0
        moved = 4 * UNIT * (abs(epsilon) + farthest)  # error of each difference
        # theory/composition.md, Proposition 3: g at the points of the grid.
        kernel = -np.exp(-tilt * over) * np.expm1(-over)
        terms = sums[from_here:] * kernel
        integral, size_of = float(terms.sum()), float(np.abs(terms).sum())
        # theory/composition.md, Proposition 7, to `moved`; then Proposition 6.
        slack = error * float(np.sqrt(kernel @ kernel)) * 1.001
        slack += size_of * (UNIT * (size + 80) + 2 * tilt * moved)
        slack += moved * float(np.abs(sums[from_here:]).sum())  # 1 - e^-x has slope 1 at most
        slack += outside * tilted.peak * 1.001 + 1e-290  # last: what underflows
        return tilted.log_delta(epsilon, integral + slack)

    return log_delta, releases * mean


def _reach(tilted: Tilted, margin: float) -> tuple[float, float]:
    # (distance from the mean, bound of the tilted mass of total losses beyond it, on both sides).
    mean, variance = tilted.centre
    spread = float(np.abs(tilted.loss.losses - mean).max()) + margin
    # theory/composition.md, Proposition 6: Bernstein's inequality; mean and variance are computed,
    # which 1.001 and 1e-9 cover many times over.
    variance = 1.001 * variance + 1e-9 * spread**2
    n, third = tilted.releases, spread * MAX_TAIL_EXPONENT / 3
    bernstein = third + math.sqrt(third**2 + 2 * n * variance * MAX_TAIL_EXPONENT)
    everything = n * spread * (1 + 1e-9)
    if everything <= bernstein:
        return everything, 0.0
    return bernstein * (1 + 1e-6), 2.1 * math.exp(-MAX_TAIL_EXPONENT)


def powered(
    weights: np.ndarray,
    index: np.ndarray,
    first: int,
    size: int,
    power: int,
) -> tuple[np.ndarray, float]:
    """Compute the power-fold convolution from index `first` on, modulo size, and its error in L2.

    Args:
        weights: (k,) of the indices, not negative.
        index: (k,) int64.
        first: the first index of the result.
        size: its length.
        power: how many factors there are.

    Returns:
        (sums, error): sums[i] is the mass of all total indices congruent to first + i; the
        vector of their errors has at most this Euclidean length.
    """
    base = int(index.min())
    place = (index - base) % size
    one = np.bincount(place, weights=weights, minlength=size)
    spectrum = np.fft.rfft(one)
    result, square, left = np.ones_like(spectrum), spectrum, power
    while left:
        if left & 1:
            result = result * square
        left >>= 1
        if left:
            square = square * square
    sums = np.fft.irfft(result, size)
    sums = np.roll(sums, (power * base - first) % size)
    # theory/composition.md, Proposition 7: from here to the end.
    transform = 16 * UNIT * math.log2(size)
    largest, length = _transform_size(weights, one, transform)
    growth = math.exp(power * max(math.log(largest), 0.0))
    rounding = power * (int(np.bincount(place).max()) + 5) * UNIT
    error = 1.02 * growth * length * ((power + 1) * transform + rounding)
    return sums, error + 1e-290


def _transform_size(weights: np.ndarray, one: np.ndarray, transform: float) -> tuple[float, float]:
    # (largest component of the transform, L2 length), rounded up; `transform` is its relative
    # error.
    length = float(np.sqrt(one @ one)) * 1.001
    largest = float(weights.sum()) * (1 + len(weights) * UNIT)
    return largest + 1.01 * transform * math.sqrt(len(one)) * length, length


# Many releases of one loss by the Berry-Esseen theorem for its tilted law: good for large n.

BERRY_ESSEEN = 0.4748
"""Distance of distributions of a sum of n independent equal terms from the normal one is at most
this · E|X - EX|^3 / (sd^3 · sqrt(n)) (Shevtsova 2011, Theorem 1)."""

ERFCX_ERROR = 1e-12
"""Relative error that is allowed for erfcx."""


def by_normal(
    loss: PrivacyLoss, releases: int, tilt: float
) -> tuple[Callable[[float], float], float] | None:
    """Bound log delta of many releases as a function of epsilon; as `by_fourier`.

    Returns:
        (log_delta, centre), or None where the tilted loss hardly varies.
    """
    tilted = Tilted.from_loss(loss, releases, tilt)
    total = math.fsum(tilted.weights)
    mass = tilted.weights / total
    mean = math.fsum(mass * loss.losses)
    apart = loss.losses - mean
    variance = math.fsum(mass * apart**2)
    largest = float(np.abs(loss.losses).max())
    if variance <= 1e-6 * largest**2:
        return None
    third = math.fsum(mass * np.abs(apart) ** 3)
    # theory/composition.md, Proposition 8: 1.001 pays for variance and third moment.
    distance = BERRY_ESSEEN * 1.001 * third / (variance**1.5 * math.sqrt(releases))
    # The mean is within 24 units of the largest loss, the variance within 64 of its square.
    distance += 24 * UNIT * largest * math.sqrt(releases / variance)
    distance += 64 * UNIT * largest**2 / variance
    spread = math.sqrt(releases * variance)
    growth = releases * math.log(total)
    # The total mass to the n-th: its sum and logarithm, n times.
    slack = releases * (len(mass) + 4) * UNIT

    def log_delta(epsilon: float) -> float:
        offset = releases * mean - epsilon
        value, error = _smoothed(offset, spread, tilt, tilted.peak)
        # theory/composition.md, Proposition 8: g rises once and falls once, so it varies by 2
        # peaks.
        error += 2 * tilted.peak * (distance + 4 * UNIT * abs(epsilon) / spread)
        scale = math.exp(growth + (slack + 20 * UNIT))
        return tilted.log_delta(epsilon, (value + error) * scale)

    return log_delta, releases * mean


def _smoothed(offset: float, spread: float, tilt: float, peak: float) -> tuple[float, float]:
    """Return (value, error) of the mean of g(X), X > 0, for X normal (offset, spread^2).

    E[e^(-k X); X > 0] = e^(-offset^2 / (2 spread^2)) erfcx((k spread - offset/spread)/sqrt 2)/2.
    """
    first, second = ((rate * spread - offset / spread) / math.sqrt(2) for rate in (tilt, tilt + 1))
    # Beyond, erfcx would overflow: g lies between 0 and its peak, which always holds.
    if first < -20 or abs(offset / spread) > 35:
        return peak / 2, peak / 2
    height = math.exp(-((offset / spread) ** 2) / 2) / 2
    left, right = float(erfcx(first)), float(erfcx(second))
    # The argument's own error, relative to the derivative -2 x erfcx(x) and less.
    moved = 8 * UNIT * ((tilt + 1) * spread + abs(offset / spread)) * (2 + 2 * abs(first))
    return height * (left - right), height * (left + right) * (ERFCX_ERROR + moved)
