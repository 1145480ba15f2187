"""Attacks on whole runs, an oracle for accounts: what two inputs lose is below every upper bound.

`lower_end` bounds the epsilon of a run from below, by inputs that are easy to tell apart. Its
rounding is proven too, so that an account below it is wrong. Derivations:
`docs/theory/composition.md`, Propositions 10 to 13.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mpmath
import numpy as np
from noise_laws import log_law
from scipy.special import ndtr

from randquant.channels import Channel
from randquant.privacy import (
    RESERVED_SHARE,
    UNIT,
    ChainLaw,
    ChannelRelease,
    GaussianRelease,
    Neighboring,
    NoiseRelease,
    Powers,
    PrivacyLoss,
    Release,
    Sampled,
    Tilted,
    VectorRelease,
    account,
    at_most,
    best_tilt,
    certify,
    crossing,
    dominating_pair,
    hockey_stick,
    log_ratio,
    powered,
    rounding,
)
from randquant.privacy.accounting.accountant import _reserve_pays
from randquant.privacy.accounting.privacy_loss import (
    BERRY_ESSEEN,
    MAX_GRID_SIZE,
    MIN_WEIGHT,
    _reach,
    _smoothed,
    log_moments,
)
from randquant.privacy.divergence import Noise

# The loss of a pair of inputs, and of many independent copies of it, rounded down.

FOURIER_UP_TO = 2**17
"""Most copies whose losses are added up on a grid."""

NORMAL_FROM = 2**9
"""Fewest copies for which the normal approximation is tried."""

TILTED_UP_TO = 2**40
"""More copies than that are not looked at: fewer tell less."""

GENTLE = (0.5, 4.0, 32.0)
"""Tilts that are tried where a larger one may put all mass on the largest loss."""

RARE_ROUNDING = 24.0
"""Losses that were rounded down unusually little, with a probability of e^-24, are left out."""


@dataclass(frozen=True, slots=True)
class LowerLoss:
    """The loss log(p/q) of one release under p: losses and masses are rounded down.

    Attributes:
        losses: (k,) float64, finite, in nats.
        masses: (k,) float64, the probability of each.
        infinite: the probability of a code that q never sends.
    """

    losses: np.ndarray
    masses: np.ndarray
    infinite: float

    @staticmethod
    def from_rows(p: np.ndarray, q: np.ndarray, total: int) -> LowerLoss:
        """Round down the loss of a pair of rows of integers."""
        ratio = log_ratio(p, q)
        # theory/composition.md, Proposition 4, as for `PrivacyLoss.of`, downward.
        mass = (p / float(total)).astype(np.float64) * (1 - 4 * UNIT)
        infinite = float(mass[np.isposinf(ratio)].sum()) * (1 - len(p) * UNIT)
        finite = np.isfinite(ratio)
        losses = ratio[finite] - 18 * UNIT * np.abs(ratio[finite])
        return LowerLoss(losses, mass[finite], min(infinite, 1.0))

    def infinite_probability(self, releases: int) -> float:
        """Probability that any of the releases has infinite loss, rounded down."""
        if self.infinite in (0, 1):
            return float(self.infinite)
        # theory/composition.md, Proposition 4: 17 of 40 units.
        return -math.expm1(releases * math.log1p(-self.infinite)) * (1 - 40 * UNIT)

    def tilted(self, releases: int, tilt: float) -> Tilted:
        """Multiply the masses by e^(tilt · loss - constant); small weights are dropped."""
        constant = float(log_moments(self, np.array([tilt]))[0])
        exponents = tilt * self.losses - constant
        weights = self.masses * np.exp(exponents)
        # theory/composition.md, Proposition 4: dropping takes some losses away.
        weights = np.where(weights < MIN_WEIGHT, 0.0, weights)
        # theory/composition.md, Proposition 3: the relative error of a weight.
        largest = float((np.abs(tilt * self.losses) + np.abs(exponents)).max())
        return Tilted(self, releases, tilt, constant, weights, 1.01 * UNIT * (largest + 12))


def log_delta_below(tilted: Tilted, epsilon: float, integral: float) -> float:
    """log of the hockey-stick divergence at epsilon, rounded down, as `Tilted.log_delta` is up."""
    whole = tilted.loss.infinite_probability(tilted.releases)
    if integral <= 0:
        return math.log(whole) if whole > 0 else -math.inf
    first, second = tilted.releases * tilted.constant, tilted.tilt * epsilon
    slack = 12 * UNIT * (abs(first) + abs(second) + abs(math.log(integral)) + 1)
    slack += 1.01 * tilted.releases * tilted.error
    log_finite = first - second + math.log(integral) - slack
    if whole == 0:
        return log_finite
    both = float(np.logaddexp(log_finite, math.log(whole)))
    return both - 40 * UNIT * (1 + abs(both))


def on_grid_below(loss: LowerLoss, step: float) -> tuple[LowerLoss, np.ndarray, np.ndarray]:
    """Round losses down to multiples of a step: (loss, index, how much each was rounded down)."""
    # theory/composition.md, Proposition 5, downward.
    index = np.floor(loss.losses / step)
    rounded = LowerLoss(index * step, loss.masses, loss.infinite)
    return rounded, index.astype(np.int64), loss.losses - index * step


def rounded_down_by(tilted: Tilted, lost: np.ndarray, step: float) -> tuple[float, float]:
    """(shift, bound): rounding down took less than shift from a sum with tilted mass <= bound."""
    mass = tilted.weights / tilted.weights.sum()
    mean = float(mass @ lost)
    variance = 1.001 * float(mass @ (lost - mean) ** 2) + 1e-9 * step**2
    # theory/composition.md, Proposition 5: Bernstein's inequality, as in `_reach`.
    n, third = tilted.releases, step * RARE_ROUNDING / 3
    least = n * mean * (1 - 1e-9) - third - math.sqrt(third**2 + 2 * n * variance * RARE_ROUNDING)
    return (least, 1.1 * math.exp(-RARE_ROUNDING)) if least > 0 else (0.0, 0.0)


Curve = tuple[Callable[[float], float], float]
"""A lower bound of log delta as a function of epsilon, and the epsilon near which it is best."""


def by_fourier_below(loss: LowerLoss, releases: int, tilt: float) -> Curve:
    """Bound log delta of many releases from below on a grid, as `by_fourier` does from above."""
    reach, _ = _reach(loss.tilted(releases, tilt), 0.0)
    step = 2.0 ** math.ceil(math.log2(max(2.1 * reach / MAX_GRID_SIZE, 1e-12)))
    rounded, index, lost = on_grid_below(loss, step)
    tilted = rounded.tilted(releases, tilt)
    mean, _ = tilted.centre
    reach, outside = _reach(tilted, 4 * step)
    first = max(math.floor((releases * mean - reach) / step) - 2, releases * int(index.min()))
    size = min(MAX_GRID_SIZE, 1 << (math.ceil(2 * reach / step) + 8).bit_length())
    if size * step < 2 * reach + 6 * step:
        outside = 1.0  # never so, but a bound must not rest on it
    sums, error = powered(tilted.weights, index, first, size, releases)
    points = (first + np.arange(size)) * step
    shift, unlikely = rounded_down_by(tilted, lost, step)

    def log_delta(epsilon: float) -> float:
        from_here = max(math.floor((epsilon - shift) / step) - first, 0)
        over = np.maximum(points[from_here:] - (epsilon - shift), 0.0)
        farthest = float(over[-1]) if over.size else 0.0
        moved = 4 * UNIT * (abs(epsilon) + farthest)
        # theory/composition.md, Propositions 3, 6 and 7, each error subtracted.
        kernel = -np.exp(-tilt * over) * np.expm1(-over)
        terms = sums[from_here:] * kernel
        slack = error * float(np.sqrt(kernel @ kernel)) * 1.001
        slack += float(np.abs(terms).sum()) * (UNIT * (size + 80) + 2 * tilt * moved)
        slack += moved * float(np.abs(sums[from_here:]).sum())
        slack += (outside + unlikely) * tilted.peak * 1.001 + 1e-290
        return log_delta_below(tilted, epsilon - shift, float(terms.sum()) - slack)

    return log_delta, releases * mean + shift


def by_normal_below(loss: LowerLoss, releases: int, tilt: float) -> Curve | None:
    """Bound log delta from below by the Berry-Esseen theorem, as `by_normal` does from above."""
    tilted = loss.tilted(releases, tilt)
    total = math.fsum(tilted.weights)
    mass = tilted.weights / total
    mean = math.fsum(mass * loss.losses)
    apart = loss.losses - mean
    variance = math.fsum(mass * apart**2)
    largest = float(np.abs(loss.losses).max())
    if variance <= 1e-6 * largest**2:
        return None
    third = math.fsum(mass * np.abs(apart) ** 3)
    # theory/composition.md, Proposition 8.
    distance = BERRY_ESSEEN * 1.001 * third / (variance**1.5 * math.sqrt(releases))
    distance += 24 * UNIT * largest * math.sqrt(releases / variance)
    distance += 64 * UNIT * largest**2 / variance
    spread = math.sqrt(releases * variance)
    slack = releases * (len(mass) + 4) * UNIT

    def log_delta(epsilon: float) -> float:
        value, error = _smoothed(releases * mean - epsilon, spread, tilt, tilted.peak)
        error += 2 * tilted.peak * (distance + 4 * UNIT * abs(epsilon) / spread)
        scale = math.exp(releases * math.log(total) - slack - 20 * UNIT)
        return log_delta_below(tilted, epsilon, (value - error) * scale)

    return log_delta, releases * mean


def reached_epsilon(loss: LowerLoss, parts: int, delta: float) -> float:
    """Bound epsilon of many parts of a run from below, by inputs that have a loss in each part.

    Args:
        loss: of one part.
        parts: how many, at least 1.
        delta: in [0, 1).

    Example:
        >>> loss = LowerLoss(np.array([-1.0, 1.0]), np.array([0.25, 0.75]), 0.0)
        >>> round(reached_epsilon(loss, 4, 0.1), 4)  # 4 + log(1 - 0.1 / 0.75**4)
        3.6201
    """
    # theory/composition.md, Propositions 9 and 10: any pair of inputs gives a lower end, and fewer
    # parts tell less.
    parts = min(parts, TILTED_UP_TO)
    if loss.infinite_probability(parts) > delta:
        return math.inf
    if delta == 0:
        # theory/accounting.md, Proposition 3: largest losses add up; the product is 1 unit.
        return max(float(loss.losses.max(initial=0.0)) * parts * (1 - 4 * UNIT), 0.0)
    if not loss.losses.any():
        return 0.0
    tilt = best_tilt(loss, parts, delta)
    tilts = {tilt, *GENTLE} if tilt > GENTLE[-1] else {tilt}
    return max(epsilon_below(loss, parts, delta, tilt) for tilt in tilts)


def epsilon_below(loss: LowerLoss, parts: int, delta: float, tilt: float) -> float:
    """Greatest epsilon at which a curve is still above delta; 0 where none is known."""
    curves = [by_fourier_below(loss, parts, tilt)] if parts <= FOURIER_UP_TO else []
    curves += [by_normal_below(loss, parts, tilt)] if parts >= NORMAL_FROM else []
    log_delta = math.log(delta)
    # A logarithm, 8 units, and a difference: the curve must be above delta by more than that.
    margin = 24 * UNIT * (1 + abs(log_delta))
    found = [
        crossing(lambda at, curve=curve: curve(at) - log_delta - margin, centre, 1 / tilt)[0]
        for curve, centre in filter(None, curves)
    ]
    return max((edge for edge in found if edge is not None), default=0.0)


def gaussian_epsilon_below(mu: float, delta: float) -> float:
    """Epsilon of one Gaussian release from below, to 40 digits and then a millionth of a percent.

    Args:
        mu: at most the distance of neighbours over the standard deviation of the noise; >= 0.
        delta: in (0, 1).

    References:
        Balle and Wang 2018, Theorem 8.
    """
    with mpmath.workdps(40):
        m, low, high = mpmath.mpf(mu), mpmath.mpf(0), mpmath.mpf(mu) * (40 + mpmath.mpf(mu))

        def excess(epsilon: mpmath.mpf) -> mpmath.mpf:
            far = mpmath.exp(epsilon) * mpmath.ncdf(-m / 2 - epsilon / m)
            return mpmath.ncdf(m / 2 - epsilon / m) - far - delta

        if mu == 0 or excess(low) <= 0:
            return 0.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(low) * (1 - 4 * UNIT)


# One round: its laws with either input of a client, and without it.

CELLS = 2**12
"""Outcomes are merged into so many cells, at most: whoever merges them sees less."""

REACH = 14.0
"""Outcomes farther away, in standard deviations, are left out."""

WIDEST = 2**19
"""Integer noise that reaches farther is not attacked."""

MOST_CODES = 2**18
"""Codes that are added up, at most, each counted as the square of its largest value."""

Place = tuple[float, float, float]
"""Inputs of a client in the first world and in the second, and of whoever is there in its place,
in units of the longest update."""


def places_of(neighboring: Neighboring, stand_in: bool) -> tuple[Place, ...]:
    """Where inputs are easy to tell apart, although the client may be absent.

    Args:
        neighboring: what the two worlds differ by.
        stand_in: another client takes the place of an absent one, with any update; else zeros do.

    Example:
        >>> places_of("replace_one", stand_in=False)
        ((1.0, -1.0, 0.0),)
    """
    # theory/sampling.md, Propositions 13, 14 and 19: the worst positions of Gaussian noise.
    if neighboring == "replace_one":
        return ((1.0, -1.0, -1.0 if stand_in else 0.0),)
    aside = ((1.0, 0.0, -1.0),) if stand_in else ()
    return (*aside, (1.0, 0.0, 0.0))


@dataclass(frozen=True, slots=True)
class Laws:
    """Masses of the same outcomes under three laws; some outcomes may be left out.

    Attributes:
        first, second: (k,) with the client's input in the first and in the second world.
        absent: (k,) without the client.
        error: (k,) relative error of each of the three, at most.
    """

    first: np.ndarray
    second: np.ndarray
    absent: np.ndarray
    error: np.ndarray

    def merged(self) -> Laws:
        """The same in at most CELLS cells of neighbouring outcomes."""
        width = -(-len(self.error) // CELLS)
        if width <= 1:
            return self
        starts = np.arange(0, len(self.error), width)
        first, second, absent = (
            np.add.reduceat(law, starts) for law in (self.first, self.second, self.absent)
        )
        # theory/composition.md, Proposition 12: a unit for each mass that is added.
        error = np.maximum.reduceat(self.error, starts) + width * UNIT
        return Laws(first, second, absent, error)


class SeenRound(Protocol):
    """Inputs of one round, and what is seen of them."""

    def laws(self) -> Laws:
        """The laws of what is seen."""
        ...


@dataclass(frozen=True, slots=True)
class NormalRound:
    """A number with noise of standard deviation 1.

    Attributes:
        first, second: the client's input in either world, relative to its absence.

    Example:
        >>> laws = NormalRound(1.0, 0.0).laws()
        >>> round(float(laws.first.sum()), 6), round(float(laws.first @ laws.error), 9)
        (1.0, 0.0)
    """

    first: float
    second: float

    def laws(self) -> Laws:
        """Masses of cells of the line."""
        # theory/composition.md, Proposition 12: the adversary sees the cell, and no tails.
        shifts = (self.first, self.second, 0.0)
        edges = np.linspace(min(shifts) - REACH, max(shifts) + REACH, CELLS + 1)
        (first, one), (second, other), (absent, another) = (_cells(edges - at) for at in shifts)
        return Laws(first, second, absent, np.max([one, other, another], axis=0))


@dataclass(frozen=True, slots=True)
class IntegerRound:
    """A coordinate of a sum with integer noise.

    Attributes:
        noise: of each client.
        clients: whose noise is in the sum.
        first, second: the client's input in either world, relative to its absence.
        modulus: of the sum; None if it is not reduced.
    """

    noise: Noise
    clients: int
    first: int
    second: int
    modulus: int | None = None

    def laws(self) -> Laws:
        """Masses of the integers around."""
        return _of_integers(self)


@dataclass(frozen=True, slots=True)
class SumRound:
    """The sum of all codes of some coordinates of a sum of clients.

    Attributes:
        channel: of every coordinate.
        clients: in the sum.
        coordinates: in which the client's entries differ, all by as much.
        place: the client's entries in either world, and those in its place where it is absent.
        others: entries of all others.
    """

    channel: Channel
    clients: int
    coordinates: int
    place: Place
    others: float

    def laws(self) -> Laws:
        """Masses of the sum."""
        return _of_codes(self)


def few_enough(channel: Channel, clients: int, coordinates: int) -> int:
    """How many coordinates are looked at, of so many that may differ; 0 if a sum is too long."""
    # theory/composition.md, Proposition 12: an attack may use fewer, and its update is shorter.
    return min(coordinates, MOST_CODES // (clients * (channel.levels - 1) ** 2))


def _cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normal masses of cells, and their relative errors; 1 where nothing is left."""
    left, right = edges[:-1], edges[1:]
    # On either side of zero the smaller tails are subtracted.
    sign = np.where(left + right > 0, 1.0, -1.0)
    near, far = np.where(sign > 0, left, right) * sign, np.where(sign > 0, right, left) * sign
    tails = ndtr(-near), ndtr(-far)
    mass = tails[0] - tails[1]
    # theory/sampling.md, Proposition 17: tails are right within 16 (1 + x^2) units of themselves.
    off = sum(16 * UNIT * (1 + z**2) * t for z, t in zip((near, far), tails, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(mass > 0, off / mass + 4 * UNIT, 1.0)
    return mass, np.minimum(error, 1.0)


@functools.lru_cache(maxsize=16)
def _of_integers(seen: IntegerRound) -> Laws:
    shifts = (seen.first, seen.second, 0)
    span = max(shifts) - min(shifts)
    reach = math.ceil(REACH * math.sqrt(seen.clients * seen.noise.variance)) + span + 40
    if reach > WIDEST:
        nothing = np.empty(0)
        return Laws(nothing, nothing, nothing, nothing)
    logs, error = log_law(seen.noise, seen.clients, reach)
    reach = len(logs) - 1
    mass, off = np.exp(logs), error + 8 * UNIT * (1 + np.abs(logs))
    # theory/composition.md, Proposition 12: what is beyond falls at least geometrically.
    ratio = min(float(mass[-1] / mass[-2]) * (1 + 1e-6), 1 - 1e-9) if mass[-1] > 0 else 0.0
    beyond = 2 * float(mass[-1]) * ratio / (1 - ratio)
    total = 2 * float(mass.sum()) - 1 + beyond
    doubt = (2 * float(mass @ off) + beyond) / total + 2 * (reach + 8) * UNIT
    low, high = max(shifts) - reach, min(shifts) + reach
    places = [np.abs(np.arange(low, high + 1) - shift) for shift in shifts]
    first, second, absent = (mass[place] / total for place in places)
    error = np.max([off[place] for place in places], axis=0) + 1.1 * doubt
    laws = Laws(first, second, absent, error)
    if seen.modulus is not None:
        # Of each law, outcomes farther than `reach` from the middle of another are not among them.
        outside = (2 * float(mass[max(reach - span + 1, 0) :].sum()) + beyond) / total
        laws = _folded(laws, seen.modulus, 1.1 * outside)
    return laws.merged()


def _folded(laws: Laws, modulus: int, outside: float) -> Laws:
    """The laws of integers modulo `modulus`, of which so much mass is not among them."""
    rows = np.zeros((3, -(-len(laws.error) // modulus), modulus))
    kept = rows.reshape(3, -1)[:, : len(laws.error)]
    kept[:] = laws.first, laws.second, laws.absent
    errors = np.zeros(rows.shape[1] * modulus)
    errors[: len(laws.error)] = laws.error
    error = errors.reshape(-1, modulus).max(axis=0) + rows.shape[1] * UNIT
    folded = rows.sum(axis=1)
    least = folded.min(axis=0)
    # theory/composition.md, Proposition 12: what is not among them may be anywhere.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        error = np.where(least > 0, error + outside / least, 1.0)
    return Laws(folded[0], folded[1], folded[2], np.minimum(error, 1.0))


@functools.lru_cache(maxsize=16)
def _of_codes(seen: SumRound) -> Laws:
    channel, count = seen.channel, seen.coordinates
    # theory/composition.md, Proposition 12: the others' codes of all coordinates, and the client's.
    others = _added(channel, seen.others, (seen.clients - 1) * count)
    laws = [others.convolve(_added(channel, place, count)) for place in seen.place]
    low = min(law.start for law in laws)
    length = max(law.start + len(law.mass) for law in laws) - low
    rows = np.zeros((3, length))
    for row, law in zip(rows, laws, strict=True):
        row[law.start - low : law.start - low + len(law.mass)] = law.mass
    # theory/composition.md, Proposition 12: as for one coordinate of so many clients.
    error = np.full(length, 2 * rounding(seen.clients * count, channel.levels))
    return Laws(rows[0], rows[1], rows[2], error).merged()


@functools.lru_cache(maxsize=32)
def _added(channel: Channel, place: float, count: int) -> ChainLaw:
    """The law of the sum of so many codes of one input, as the encoder draws them."""
    row, total = channel.mix(place)
    return Powers(np.array([int(weight) / total for weight in row])).law(count)


# Whole runs.

MOST_CLIENTS = 2**17
"""Sums of more clients are not attacked."""

VERTICES = 5
"""Vertices that the others are put at, at most."""

INSIDE = 1 - 2.0**-20
"""Updates are so much shorter than their threshold: rounding of norms does not clip them."""

LEAST = 1e-250
"""Less likely outcomes are left out; those that are so in the other world count as that likely."""

PRECISE = 1e-4
"""Outcomes whose masses are known less well are left out."""

SIZE = 2**17
"""Points of the grid on which scores are added up."""

MOST_ROUNDS = 2**20
"""Scores of more rounds are not added up."""

UNLIKELY = 1e-18
"""Scores of outcomes less likely are those of others."""

FINEST = 2**15
"""Values of the score of one round, at most."""


class RunAttack(Protocol):
    """Two inputs of a client, the same in every part of a run, and inputs of all others."""

    def attained(self) -> tuple[LowerLoss, ...]:
        """The loss of one part, rounded down, for each order of the two worlds."""
        ...

    def together(self, times: int) -> tuple[LowerLoss, ...]:
        """The loss of so many parts at once, in the same order, if it is known more closely."""
        ...


@dataclass(frozen=True, slots=True)
class DrawnRound:
    """One round, in which the client takes part with some probability.

    Attributes:
        seen: the round's inputs, and what is seen of them.
        rate: the probability of taking part; 1 for a round that it surely takes part in.
    """

    seen: SeenRound
    rate: float

    def attained(self) -> tuple[LowerLoss, ...]:
        """The loss of this round, rounded down, either world first."""
        return _both_ways(*self._worlds())

    def together(self, times: int) -> tuple[LowerLoss, ...]:
        """The loss of the sum of the scores of so many rounds, rounded down."""
        if times > MOST_ROUNDS:
            return ()
        # theory/composition.md, Proposition 13, with the log-ratio of a round as its score.
        first, second, error = _precise(*self._worlds())
        return _summed(first, second, times, error)

    def _worlds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The laws of what is seen in either world, and their errors."""
        laws = self.seen.laws()
        # theory/composition.md, Proposition 12: 3 units for the mix.
        first, second = (
            (1 - self.rate) * laws.absent + self.rate * law for law in (laws.first, laws.second)
        )
        return first, second, laws.error + 8 * UNIT


def on_updates(
    channel: Channel, clients: int, neighboring: Neighboring, lengths: Iterable[tuple[int, float]]
) -> tuple[tuple[DrawnRound, int], ...]:
    """Attacks on a round, each with the number of coordinates that it is repeated in.

    Args:
        channel: the channel of every coordinate.
        clients: in a sum.
        neighboring: the other world has the opposite update (`replace_one`), or zeros.
        lengths: (m, h): updates that may be h long, in either direction, in each of m coordinates.
    """
    if clients > MOST_CLIENTS:
        return ()
    # theory/composition.md, Proposition 11: others at any vertex give a lower end.
    last = len(channel.inputs) - 1
    vertices = sorted({round(last * k / (VERTICES - 1)) for k in range(VERTICES)})
    found: dict[DrawnRound, int] = {}
    for count, length in lengths:
        # No norm is clipped, and the encoder reads the place from float32 exactly.
        far = min(float(np.float32(length * INSIDE)), channel.clip)
        places = (far, -far if neighboring == "replace_one" else 0.0, 0.0)
        for vertex in vertices if clients > 1 else vertices[:1]:  # alone, nobody is anywhere
            others = channel.vertex_input(vertex)
            attack = DrawnRound(SumRound(channel, clients, 1, places, others), 1.0)
            # Lengths are alternatives: of two that float32 makes one, the repeated one counts.
            found[attack] = max(found.get(attack, 0), count)
    return tuple(found.items())


def on_rounds(
    channel: Channel,
    clients: int,
    neighboring: Neighboring,
    stand_in: bool,
    coordinates: int,
    length: float,
) -> tuple[SumRound, ...]:
    """Inputs of one round that may be absent, in as many coordinates as are looked at.

    Args:
        channel: the channel of every coordinate.
        clients: in a sum.
        neighboring: what the two worlds differ by.
        stand_in: another client takes an absent one's place, and all others do as it does; else an
            absent client's entries are zeros, and all others do as the client, or the opposite.
        coordinates: in which updates may be so long.
        length: of updates in each of them, in either direction.
    """
    count = few_enough(channel, clients, coordinates)
    if not count:
        return ()
    # No norm is clipped, and the encoder reads the place from float32 exactly.
    far = min(float(np.float32(length * INSIDE)), channel.clip)
    # theory/composition.md, Proposition 12: others at any place give a lower end.
    return tuple(
        SumRound(channel, clients, count, (one * far, other * far, absent * far), others * far)
        for one, other, absent in places_of(neighboring, stand_in)
        for others in ((absent,) if stand_in else (1.0, -1.0)[:clients])
    )


def attacked_epsilon(attacks: Iterable[tuple[RunAttack, int]], delta: float, order: float) -> float:
    """Bound epsilon of a run from below by the best, it seems, of some attacks.

    Args:
        attacks: each with the number of parts of the run that it is repeated in.
        delta: in [0, 1).
        order: the Rényi order at which they are compared.

    Example:
        >>> attacked_epsilon([], 1e-5, 2.0)
        0.0
    """
    # What the same attack tells in several releases adds up; others may be left out.
    total: dict[RunAttack, int] = {}
    for attack, times in attacks:
        total[attack] = total.get(attack, 0) + times
    losses = [
        (loss, times, attack, way)
        for attack, times in total.items()
        for way, loss in enumerate(attack.attained() if times else ())
        if loss.infinite > 0 or len(loss.losses)
    ]
    tilt = np.array([min(max(order - 1, 0.5), 1e4)])

    def strength(candidate: tuple[LowerLoss, int, RunAttack, int]) -> float:
        loss, times, _, _ = candidate
        return math.inf if loss.infinite > 0 else times * float(log_moments(loss, tilt)[0])

    # Whichever is taken, it is a lower end: one composition takes a tenth of a second.
    best = max(losses, key=strength, default=None)
    if best is None:
        return 0.0
    loss, times, attack, way = best
    at_once = attack.together(times)[way : way + 1]
    return max(
        reached_epsilon(each, parts, delta)
        for each, parts in ((loss, times), *((one, 1) for one in at_once))
    )


def _precise(*laws: np.ndarray) -> list[np.ndarray]:
    """The same laws, the last of them the errors, where they are known well."""
    # theory/composition.md, Proposition 13: runs with other outcomes are told apart no more.
    some = (np.min(laws[:-1], axis=0) > LEAST) & (laws[-1] < PRECISE)
    return [law[some] for law in laws]


def _summed(
    first: np.ndarray, second: np.ndarray, rounds: int, error: np.ndarray
) -> tuple[LowerLoss, ...]:
    """The loss of the sum of so many rounds' log-ratios, either world first.

    Args:
        first, second: laws of a round's outcomes in either world.
        rounds: how many scores are added up.
        error: relative error of each mass.
    """
    # theory/composition.md, Proposition 13: relative errors of all rounds.
    relative = 1.1 * rounds * float(error.max(initial=0.0))
    score, likely = np.log(first / second), first > UNLIKELY
    # The laws of a pair may be so far apart that what is known of both is likely in neither.
    if relative > 0.1 or not likely.any():
        return ()
    score = np.clip(score, score[likely].min(), score[likely].max())
    mean = float(first @ score) / float(first.sum())
    spread = math.sqrt(rounds * float(first @ (score - mean) ** 2))
    step = max(float(np.ptp(score)) / FINEST, 32 * spread / SIZE, 1e-300)
    low = float(score.min())
    place = np.rint((score - low) / step).astype(np.int64)
    start = round(rounds * (mean - low) / step) - SIZE // 2
    return _certain([powered(law, place, start, SIZE, rounds) for law in (first, second)], relative)


def _certain(found: list[tuple[np.ndarray, float]], relative: float) -> tuple[LowerLoss, ...]:
    """The losses of two laws on the grid, whose errors' lengths are known; `relative` besides."""
    width = SIZE // CELLS
    # theory/composition.md, Proposition 13: of a cell, the root of its width times the length.
    cells = [
        (sums.reshape(CELLS, width).sum(axis=1), 1.01 * math.sqrt(width) * error + width * UNIT)
        for sums, error in found
    ]
    losses = []
    for (one, off), (other, other_off) in (cells, cells[::-1]):
        surely, most = one - off, np.maximum(other, 0.0) + other_off
        used = surely > 0
        loss = np.log(surely[used] / most[used])
        loss -= 2.1 * relative + 8 * UNIT + 18 * UNIT * np.abs(loss)
        losses.append(LowerLoss(loss, surely[used] * (1 - 1.1 * relative), 0.0))
    return tuple(losses)


def _both_ways(first: np.ndarray, second: np.ndarray, error: np.ndarray) -> tuple[LowerLoss, ...]:
    """The loss of two laws with relative errors, rounded down, either one first."""
    found = []
    for law, other in ((first, second), (second, first)):
        used = (law > LEAST) & (error < PRECISE)
        mass, off = law[used], error[used]
        loss = np.log(mass / np.maximum(other[used], LEAST))
        # theory/composition.md, Proposition 12, as in Proposition 11.
        loss -= 2.1 * off + 8 * UNIT + 18 * UNIT * np.abs(loss)
        found.append(LowerLoss(loss, mass * (1 - 1.1 * off), 0.0))
    return tuple(found)


# The attacks on each kind of release.

OTHER_ATTACKS: dict[type, Callable[[Any], tuple[tuple[RunAttack, int], ...]]] = {}
"""Attacks on releases of other packages, which their tests add."""


def attacks_on(release: Release) -> tuple[tuple[RunAttack, int], ...]:
    """Return attacks on parts of the run, each with how many parts it is repeated in."""
    match release:
        case ChannelRelease():
            if release.trust == "local" and release.neighboring == "replace_one":
                return ()  # `lower_end` tries all pairs of inputs
            ends = [(release.releases, release.channel.clip)]
            return on_updates(release.channel, release.cohort, release.neighboring, ends)
        case VectorRelease():
            lengths = [
                (count * release.rounds, _largest_distance(release) / math.sqrt(count))
                for count in {_fewest_coordinates(release), release.dimension}
            ]
            return on_updates(release.channel, release.cohort, release.neighboring, lengths)
        case NoiseRelease():
            rounds = attacked_rounds(release, False)
            return tuple((DrawnRound(seen, 1.0), release.rounds) for seen in rounds)
        case Sampled():
            return _on_sampled(release)
    return OTHER_ATTACKS.get(type(release), lambda _: ())(release)


def attacked_rounds(release: Release, stand_in: bool) -> tuple[SeenRound, ...]:
    """Return inputs of one round that are easy to tell apart, and the client's absence.

    Args:
        release: of one round.
        stand_in: another client takes its place, with any update; else zeros do.
    """
    match release:
        case ChannelRelease():
            size, length = release.dimension, release.channel.clip
        case VectorRelease():
            size = _fewest_coordinates(release)
            length = _largest_distance(release) / math.sqrt(size)
        case GaussianRelease():
            halves = 2 if release.neighboring == "replace_one" else 1
            reach = (1 - 8 * UNIT) / (halves * release.relative_deviation)
            return tuple(
                NormalRound((one - absent) * reach, (other - absent) * reach)
                for one, other, absent in places_of(release.neighboring, stand_in)
            )
        case NoiseRelease():
            return _integer_rounds(release, stand_in)
        case _:
            return ()
    return on_rounds(release.channel, release.cohort, release.neighboring, stand_in, size, length)


def _integer_rounds(release: NoiseRelease, stand_in: bool) -> tuple[IntegerRound, ...]:
    """Updates along one coordinate, as long as may be."""
    # Opposite updates are twice as far apart as either is from zero.
    worlds = 2 if release.neighboring == "replace_one" else 1
    reach = math.isqrt(release.squared_distance) // worlds
    # theory/composition.md, Proposition 12: integers are sent as they are.
    return tuple(
        IntegerRound(
            release.noise,
            release.cohort,
            round((one - absent) * reach),
            round((other - absent) * reach),
        )
        for one, other, absent in places_of(release.neighboring, stand_in)
    )


def _largest_distance(release: VectorRelease) -> float:
    """Largest norm of what one client, or one of its examples, sends."""
    whole = release.clip_norm if release.whole_norm is None else release.whole_norm
    return min(release.clip_norm, whole / (release.examples or 1))


def _fewest_coordinates(release: VectorRelease) -> int:
    """As few coordinates as hold the whole norm, within the clip."""
    return min(
        max(int((_largest_distance(release) / release.channel.clip) ** 2), 1), release.dimension
    )


def _on_sampled(run: Sampled) -> tuple[tuple[DrawnRound, int], ...]:
    """Inputs that are easy to tell apart from each other and from absence, in every round."""
    release, absent = run.release, run.absent
    # theory/composition.md, Proposition 12: models show sums, not the codes of one client.
    if run.models and release.trust == "local":
        return ()
    if run.scheme == "fixed" and run.neighboring == "zero_out" and absent is not None:
        apart, away = release.squared_mu, absent.squared_mu
        gaussian = release.gaussian_multiplier is not None
        if gaussian and apart and away and math.sqrt(away / apart) < 2 * (1 - 1e-9):
            return ()  # a stand-in is nearer than the opposite update, which is attacked with
    # theory/composition.md, Proposition 12: taking part less often tells less.
    rate = run.rate * (1 - 8 * UNIT)
    rounds = attacked_rounds(release, run.scheme == "fixed")
    return tuple((DrawnRound(seen, rate), run.rounds) for seen in rounds)


# One channel throughout: all pairs of its inputs.


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


def single_below(channel: Channel, delta: float) -> float:
    """Bound epsilon of one release from below: where the largest divergence is delta."""
    p, q = dominating_pair(channel)

    def excess(epsilon: float) -> float:
        return float(hockey_stick(p, q, channel.denominator, epsilon)[0]) - delta

    # No ratio of two weights is above 2**62, whose log is 43.
    return math.inf if excess(45.0) > 0 else crossing(excess, 1.0, 1.0)[0] or 0.0


def channel_below(channel: Channel, releases: int, delta: float) -> float:
    """Bound epsilon of many releases of one channel from below, by the same two inputs in each.

    Args:
        channel: the channel.
        releases: how many coordinates are sent in all.
        delta: in [0, 1).
    """
    if releases == 0:
        return 0.0
    if delta == 0:
        # theory/accounting.md, Proposition 3: one product.
        return certify(channel).epsilon.lower * releases * (1 - 4 * UNIT)
    single = single_below(channel, delta)
    if releases == 1:
        return single
    # theory/composition.md, Proposition 10: any pair of inputs gives a lower end.
    p, q = dominating_pair(channel)
    above = PrivacyLoss.from_rows(p, q, channel.denominator)
    hopeless = above.infinite_probability(releases) >= delta
    tilt = 1.0 if hopeless else best_tilt(above, min(releases, 2**40), delta)
    p, q = strongest_pair(channel, releases, delta, tilt * 2.0 ** np.arange(-9, 4))
    loss = LowerLoss.from_rows(p, q, channel.denominator)
    return max(single, reached_epsilon(loss, releases, delta))


def lower_end(releases: Sequence[Release], delta: float) -> float:
    """Bound epsilon of a run from below: no account may state less.

    Raises:
        ArithmeticError: the account states less.
    """
    guarantee = account(releases, delta)
    order = guarantee.order if math.isfinite(guarantee.order) else 1e4
    attacks = [attack for release in releases for attack in attacks_on(release)]
    distance = math.fsum(release.distance for release in releases) * (1 + 8 * UNIT)
    # theory/accounting.md, Proposition 4, the other way: what is sent is only close to these laws.
    known = delta * (1 + 2 * RESERVED_SHARE) if distance > 0 else delta
    lower = attacked_epsilon(attacks, known, order)
    if not _reserve_pays(distance, lower, delta):
        lower = 0.0
    # theory/gaussian.md, Proposition 1: inputs as far apart as may be, always in one direction.
    square = math.fsum(
        each.rounds / each.gaussian_multiplier**2
        for each in releases
        if each.gaussian_multiplier is not None
    )
    lower = max(lower, gaussian_epsilon_below(math.sqrt(square) * (1 - 8 * UNIT), delta))
    channels = {
        each.coordinate_channel if each.neighboring == "replace_one" else None for each in releases
    }
    # Of sums only attacks count: secure aggregation may hide the codes that lose it.
    if len(channels) == 1 and guarantee.trust == "local" and (channel := channels.pop()):
        lower = max(lower, channel_below(channel, guarantee.releases, delta))
    return at_most(lower, guarantee.epsilon)
