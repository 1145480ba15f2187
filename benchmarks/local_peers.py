"""Peers of rank mechanisms under local trust, written from the papers, with real samplers.

Both have two levels of density: a set of directions near the update is e^epsilon times as likely as
the rest. Any two updates are told apart best where their sets are disjoint (Proposition 10 of
papers/docs/rank-theory.md), so that a `RankTable` of two levels accounts for both, over any number
of rounds.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, betaln, gammaln, log_expit, ndtri

from randquant.privacy import Neighboring
from randquant_papers.rank import LARGEST_TOTAL, GroupRotation, RankRelease, RankTable

PARTS = 2**30
"""The sphere of PrivUnit in equal parts: its cap is so many of them, exactly."""


@dataclass(frozen=True)
class PrivUnit:
    """A random direction of a cap around the update, or of the rest, scaled.

    Args:
        dimension: coordinates of an update.
        log_ratio: log of the quotient of both densities: the pure epsilon of one update.

    References:
        Bhowmick, Duchi, Freudiger, Kapoor and Rogers 2018, Algorithm 1; Asi, Feldman and Talwar
        2022, who choose the cap's size.
    """

    dimension: int
    log_ratio: float

    @functools.cached_property
    def table(self) -> RankTable:
        """The cap's parts, and the others."""
        best = privunit(self.dimension, self.log_ratio).threshold ** 2
        mass = math.exp(log_cap(self.dimension, math.log(best) - math.log1p(-best)))
        return two_levels(min(max(round(mass * PARTS), 1), PARTS // 2), PARTS, self.log_ratio)

    @property
    def mass(self) -> float:
        """Share of the sphere in the cap."""
        return self.table.counts[0] / PARTS

    @property
    def keep(self) -> float:
        """Probability of a direction in the cap."""
        return self.table.counts[0] * self.table.weights[0] / self.table.total

    @functools.cached_property
    def gain(self) -> float:
        """Mean product of the update, of norm 1, and the direction."""
        a, mass = (self.dimension - 1) / 2, self.mass
        threshold = 1 - 2 * betaincinv(a, a, mass)
        moment = math.exp(a * math.log1p(-(threshold**2)) - math.log(2 * a) - betaln(a, 0.5))
        return moment * (self.keep / mass - (1 - self.keep) / (1 - mass))

    @property
    def bytes(self) -> int:
        """A direction in 32-bit floats."""
        return 4 * self.dimension

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> RankRelease:
        """Of so many rounds."""
        return RankRelease(self.table, rounds, neighboring)

    def decoded(self, update: np.ndarray, client: int) -> np.ndarray:
        """What the server reads of one client's update (dimension,), of norm 1."""
        generator = np.random.default_rng([client, 1])
        a, mass = (self.dimension - 1) / 2, self.mass
        inside = generator.random() < self.keep
        tail = mass * generator.random()
        tail = tail if inside else mass + (1 - mass) / mass * tail
        along = 1 - 2 * betaincinv(a, a, tail)
        across = generator.normal(size=self.dimension)
        across -= (across @ update) * update
        across *= math.sqrt(1 - along**2) / np.linalg.norm(across)
        return (along * update + across) / self.gain


@dataclass(frozen=True)
class RotatedSimplex:
    """The number of one vertex of a simplex, after a public random rotation (RRSC).

    Args:
        dimension: coordinates of an update; the simplex has as many vertices.
        log_ratio: log of the quotient of weights: the pure epsilon of one update.

    References:
        Isik, Chen, Ozgur, Weissman and No 2023, Section 4 (k-closest encoding).
    """

    dimension: int
    log_ratio: float

    @functools.cached_property
    def table(self) -> RankTable:
        """The nearest vertices, and the others."""
        return two_levels(nearest(self.dimension, self.log_ratio), self.dimension, self.log_ratio)

    @functools.cached_property
    def gain(self) -> float:
        """Mean product of the update, of norm 1, and the vertex."""
        table = self.table
        step = (table.weights[0] - table.weights[1]) / table.total
        return step * vertices_sum(self.dimension, table.counts[0])

    @property
    def bytes(self) -> int:
        """The vertex's number."""
        return ((self.dimension - 1).bit_length() + 7) // 8

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> RankRelease:
        """Of so many rounds."""
        return RankRelease(self.table, rounds, neighboring)

    def decoded(self, update: np.ndarray, client: int) -> np.ndarray:
        """What the server reads of one client's update (dimension,), of norm 1."""
        generator, table = np.random.default_rng([client, 2]), self.table
        rotation, size = GroupRotation(self.dimension, 0, client), self.dimension
        count = table.counts[0]
        near = np.argpartition(-rotation.forward(update), count)
        inside = generator.random() < count * table.weights[0] / table.total
        vertex = generator.choice(near[:count] if inside else near[count:])
        point = np.full(size, -1 / size)
        point[vertex] += 1
        return rotation.inverse(point * math.sqrt(size / (size - 1))) / self.gain


def two_levels(count: int, ranks: int, log_ratio: float) -> RankTable:
    """`count` of the ranks at a weight e^log_ratio times that of the others, in integers."""
    unit = int(LARGEST_TOTAL // (count * math.exp(log_ratio) + ranks - count + 1))
    return RankTable((count, ranks - count), (int(unit * math.exp(log_ratio)), unit))


@functools.lru_cache(maxsize=256)
def nearest(size: int, log_ratio: float) -> int:
    """How many nearest vertices have the largest gain: it rises with them, then falls."""
    low, high = 1, size // 2
    while low < high:
        middle = (low + high) // 2
        here, next_one = (
            vertices_sum(size, k) / (k * math.expm1(log_ratio) + size) for k in (middle, middle + 1)
        )
        low, high = (middle + 1, high) if here < next_one else (low, middle)
    return low


@functools.lru_cache(maxsize=4096)
def vertices_sum(size: int, count: int) -> float:
    """Mean of the sum of the largest products of a random unit vector with a simplex's vertices.

    As `rank.top_sum`, with a normal law for a half-normal one: the mean of all coordinates,
    which a vertex's product is less, has mean zero.
    """
    rest = size - count
    centre, spread = math.log(count / rest), math.sqrt(1 / count + 1 / rest)
    reach = 10 * spread + 40 / min(count, rest)
    odds = centre + np.linspace(-reach, reach, 4001)
    exponents = count * log_expit(odds) + rest * log_expit(-odds)
    weights = np.exp(exponents - exponents.max())
    density = np.exp(-0.5 * ndtri(1 / (1 + np.exp(-odds))) ** 2) / math.sqrt(2 * math.pi)
    length = math.sqrt(2) * math.exp(gammaln((size + 1) / 2) - gammaln(size / 2))
    return math.sqrt(size / (size - 1)) * size * float(weights @ density / weights.sum()) / length


@dataclass(frozen=True, slots=True)
class BestCap:
    """PrivUnit of a unit vector u: a random point of the cap {v: <v, u> >= threshold}, or outside.

    Attributes:
        dimension: coordinates.
        keep: probability of a point in the cap.
        threshold: gamma of the cap, in [0, 1).
        scale: E<v, u>: v / scale is unbiased, with an expected squared norm of 1 / scale^2.
        epsilon: the exact pure epsilon.
    """

    dimension: int
    keep: float
    threshold: float
    scale: float
    epsilon: float


def privunit(dimension: int, epsilon: float) -> BestCap:
    """Return the PrivUnit with the least error at a pure epsilon.

    Args:
        dimension: coordinates, >= 1.
        epsilon: pure, in nats, 1e-9 to 1e6.

    Returns:
        The best pair of keep and threshold; its pure epsilon is exactly the target.

    References:
        Bhowmick, Duchi, Freudiger, Kapoor and Rogers 2018 (PrivUnit2); Asi, Feldman and Talwar
        2022 (its best pair is optimal among a wide family of unbiased pure mechanisms).

    Example:
        >>> mechanism = privunit(dimension=1000, epsilon=4.0)
        >>> round(mechanism.deviation, 4)
        0.66
    """
    if dimension == 1:  # the sphere is {-1, 1}: randomised response
        return BestCap(1, 1 / (1 + math.exp(-epsilon)), 0.0, math.tanh(epsilon / 2), epsilon)
    # epsilon is the sum of log(keep / (1 - keep)) and the log odds of missing the cap. The error,
    # as a function of this split, has one minimum.
    low, high = 0.0, 1.0
    while True:
        shares = np.linspace(low, high, 9)
        candidates = [_with(dimension, epsilon, float(share)) for share in shares]
        best = int(np.argmax([candidate.scale for candidate in candidates]))
        if high - low < 1e-4:
            return candidates[best]
        low, high = float(shares[max(best - 1, 0)]), float(shares[min(best + 1, 8)])


def _with(dimension: int, epsilon: float, share: float) -> BestCap:
    """PrivUnit with a cap whose mass has log odds -(1 - share) · epsilon."""
    odds = (1 - share) * epsilon
    log_mass = -_softplus(odds)
    logit = _logit(dimension, log_mass)
    log_mass = log_cap(dimension, logit)  # larger if no float is close enough to 1
    keep = 1 / (1 + math.exp(-share * epsilon))
    # The integral of <v, u> over the cap; outside the cap it is minus that.
    a = (dimension - 1) / 2
    log_moment = -a * _softplus(logit) - math.log(2 * a) - float(betaln(a, 0.5))
    inside = math.exp(log_moment - log_mass)
    outside = math.exp(log_moment) / -math.expm1(log_mass)
    scale = keep * inside - math.exp(-_softplus(share * epsilon)) * outside
    return BestCap(dimension, keep, math.exp(-_softplus(-logit) / 2), scale, epsilon)


def _logit(dimension: int, log_mass: float) -> float:
    """Invert `log_cap`: the logit of the cap with this logarithm of its share, <= log(1/2)."""
    low, high = -80.0, 700.0
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if log_cap(dimension, middle) > log_mass else (low, middle)
    return (low + high) / 2


def log_cap(dimension: int, logit: float) -> float:
    """Logarithm of the share of the unit sphere with <v, u> >= threshold >= 0.

    The threshold is given as logit = log(threshold^2 / (1 - threshold^2)), which is exact at both
    ends. The share is half the regularised incomplete beta function of 1 - threshold^2 at
    (dimension - 1)/2, 1/2, by its continued fraction, on the side where that converges.

    Example:
        >>> round(math.exp(log_cap(3, math.log(1 / 3))), 12)  # threshold 1/2: linear in the height
        0.25
    """
    a, x, rest = (dimension - 1) / 2, math.exp(-_softplus(logit)), math.exp(-_softplus(-logit))
    log_front = -a * _softplus(logit) - 0.5 * _softplus(-logit) - float(betaln(a, 0.5))
    if x < (a + 1) / (a + 2.5):
        return log_front - math.log(2 * a) + math.log(_fraction(a, 0.5, x))
    complement = math.exp(log_front) / 0.5 * _fraction(0.5, a, rest)
    return math.log1p(-complement) - math.log(2)


def _softplus(x: float) -> float:
    """log(1 + e^x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function, by Lentz's method (DLMF 8.17.22)."""
    d = 1 / (1 - (a + b) * x / (a + 1))
    c, value = 1.0, d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1 / (1 + term * d), 1 + term / c
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            return value
    raise ArithmeticError(f"The continued fraction at {a}, {b}, {x} did not converge.")
