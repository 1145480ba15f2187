"""From the releases of a run to one (epsilon, delta) guarantee for one client.

What was released is a record (`ChannelRelease`, `GaussianRelease`, `NoiseRelease`); how releases
compose is here.
Derivations: `docs/theory/accounting.md`, for noise on sums `docs/theory/additive.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from randquant import _validate
from randquant.certify import certify
from randquant.channel import Channel
from randquant.composition import compose
from randquant.divergence import UNIT
from randquant.mechanisms.noise import Noise, shift_divergence
from randquant.privacy import Guarantee, Trust

ORDERS: tuple[float, ...] = tuple(float(1 + step) for step in np.geomspace(1e-6, 1e5, 221))
"""Rényi orders tried: 20 per decade of order - 1, so 1.0005 and far below it are covered."""


RESERVE = 2.0**-10
"""Part of delta that is set aside where what is sent is only close to what is certified."""

LARGEST_COHORT = 10**6
"""Most clients in one sum: beyond, its curvature would take long to bound."""


class Release(Protocol):
    """Something that one client's data was released through, possibly many times."""

    @property
    def trust(self) -> Trust:
        """Against whom the bound holds."""
        ...

    @property
    def releases(self) -> int:
        """How many single-coordinate releases there are."""
        ...

    @property
    def distance(self) -> float:
        """Total variation distance, at most, between what is sent and what `renyi` bounds."""
        ...

    def renyi(self, order: float) -> float:
        """Upper bound, in nats, of the Rényi divergence of all of them; order in (1, inf]."""
        ...


@dataclass(frozen=True, slots=True)
class ChannelRelease:
    """One client's coordinates sent through a channel.

    Attributes:
        channel: the channel of every coordinate.
        dimension: coordinates of one update.
        rounds: rounds that the client takes part in.
        trust: `local`, or `aggregate` where the server sees sums of codes only: the bound is the
            same, for a sum reveals no more than its terms.

    Raises:
        ValueError, TypeError: dimension or rounds is not a whole number within 1 (0) and 2**53, or
            trust is another word.
    """

    channel: Channel
    dimension: int
    rounds: int
    trust: Trust = "local"

    def __post_init__(self) -> None:
        _check_size(self.dimension, self.rounds)
        _validate.choice("trust", self.trust, ("local", "aggregate"))

    @property
    def releases(self) -> int:
        """Single-coordinate releases."""
        return self.dimension * self.rounds

    @property
    def distance(self) -> float:
        """None: codes are drawn from exactly the certified integers."""
        return 0.0

    def renyi(self, order: float) -> float:
        """Upper bound of the Rényi divergence of all releases: they are independent, so it adds."""
        if self.releases == 0:
            return 0.0
        return _up(self.releases * _epsilon(self.channel, order))


@dataclass(frozen=True, slots=True)
class GaussianRelease:
    """Whole updates, or sums of them, released with Gaussian noise.

    Attributes:
        noise_multiplier: standard deviation over the L2 distance between neighbouring sums, or
            between two updates of one client.
        dimension: coordinates of one update.
        rounds: rounds that the client takes part in.
        trust: `central` where a trusted server adds the noise to a sum, `local` where each client
            adds it to its update.

    The bound is the real Gaussian's. Sampled in floating point, as baselines do, it is not exact.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.
    """

    noise_multiplier: float
    dimension: int
    rounds: int
    trust: Trust = "central"

    def __post_init__(self) -> None:
        _validate.choice("trust", self.trust, ("local", "central"))
        # Squares of anything beyond would overflow or vanish.
        _validate.real("noise_multiplier", self.noise_multiplier, low=1e-100, high=1e100)
        _check_size(self.dimension, self.rounds)

    @property
    def releases(self) -> int:
        """Single-coordinate releases."""
        return self.dimension * self.rounds

    @property
    def distance(self) -> float:
        """None is counted: the bound is the real Gaussian's."""
        return 0.0

    def renyi(self, order: float) -> float:
        """rounds · order / (2 · noise_multiplier^2) (Mironov 2017, Proposition 7)."""
        if self.rounds == 0:
            return 0.0
        return _up(self.rounds * order / (2 * self.noise_multiplier**2))


@dataclass(frozen=True, slots=True)
class NoiseRelease:
    """Sums over a cohort of integer updates with integer noise, seen as sums only.

    Attributes:
        noise: each client's noise on each coordinate.
        cohort: how many clients' noise is in every sum, at least.
        squared_distance: squared L2 distance, at most, between two updates of one client.
        dimension: coordinates of a sum.
        rounds: rounds that the client takes part in.

    The noise of clients that collude with the server does not count: cohort is what remains.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.
    """

    noise: Noise
    cohort: int
    squared_distance: int
    dimension: int
    rounds: int

    def __post_init__(self) -> None:
        _validate.whole("cohort", self.cohort, low=1, high=LARGEST_COHORT)
        _validate.whole("squared_distance", self.squared_distance, low=0)
        _check_size(self.dimension, self.rounds)

    @property
    def trust(self) -> Trust:
        """The server sees the sum of a cohort's codes."""
        return "aggregate"

    @property
    def releases(self) -> int:
        """Single-coordinate releases."""
        return self.dimension * self.rounds

    @property
    def distance(self) -> float:
        """Every coordinate of every round adds its own."""
        return _up(self.releases * self.noise.distance(self.cohort))

    def renyi(self, order: float) -> float:
        """Every round adds the same (`noise.shift_divergence`)."""
        if self.rounds == 0:
            return 0.0
        curvature = _curvature(self.noise, self.cohort)
        spread = self.noise.spread(self.cohort)
        one = shift_divergence(curvature, spread, self.squared_distance, order)
        return _up(self.rounds * one)


def account(releases: Iterable[Release], delta: float) -> Guarantee:
    """Compose everything that one client's data was released through into one guarantee.

    Args:
        releases: all releases of that client, coordinates and rounds included.
        delta: in [0, 1); 0 asks for pure differential privacy.

    Returns:
        The best of pure composition (which needs no delta), Rényi composition over ORDERS and,
        where one channel was used throughout, composition of its privacy loss. Under local
        trust the latter also gives `lower`.

    Guarantees:
        The composed mechanism is (epsilon, delta)-differentially private, neighbouring
        `replace_one`, also when later releases depend on the outcome of earlier ones. Where the
        releases as sent are only close to what their Rényi bounds are for, a part of delta,
        RESERVE, pays for the distance; where it does not, epsilon is infinite.

    Raises:
        ValueError: delta is out of range, there is no release, or they assume different trust.
        TypeError: releases is not a list of releases, or delta not a number.

    References:
        Mironov 2017, Proposition 1 (composition); Canonne, Kamath and Steinke 2020,
        Proposition 12 (conversion to epsilon and delta); `composition.compose`.

    Example:
        >>> import randquant as rq
        >>> channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
        >>> print(account([ChannelRelease(channel, dimension=650, rounds=20)], delta=1e-5))
        epsilon <= 60257.7 at delta = 1e-05 (replace_one, local trust)
    """
    if not isinstance(releases, Iterable):
        raise TypeError(
            f"Expected a list of releases, got {type(releases).__name__}: put it in []."
        )
    releases = list(releases)  # an iterator could be read only once
    delta = _validate.real("delta", delta, low=0, below=1, why="delta is a small probability")
    trusts: set[Trust] = {release.trust for release in releases}
    if len(trusts) != 1:
        raise ValueError(
            f"Expected releases under one trust, got {sorted(trusts) or 'none'}: "
            "a guarantee holds against one kind of adversary."
        )
    total = sum(release.releases for release in releases)
    distance = _up(math.fsum(release.distance for release in releases))
    candidates = [(_composed(releases, math.inf), math.inf)]
    if delta > 0 and total > 0:
        left = delta * (1 - RESERVE) if distance > 0 else delta
        candidates.append(_by_renyi(releases, left))
    epsilon, order = min(candidates, key=lambda found: found[0])
    if not _affordable(distance, epsilon, delta):
        epsilon, order = math.inf, math.inf
    trust, lower = trusts.pop(), 0.0
    channel = _only_channel(releases)
    if channel is not None:
        composed = compose(channel, total, delta)
        if composed.epsilon.upper < epsilon:
            epsilon, order = composed.epsilon.upper, composed.order
        if trust == "local":
            lower = composed.epsilon.lower
    return Guarantee(epsilon, delta, "replace_one", trust, order, total, lower)


def _only_channel(releases: Sequence[Release]) -> Channel | None:
    """The channel of all releases, if there is just one."""
    used = {r.channel if isinstance(r, ChannelRelease) else None for r in releases}
    return used.pop() if len(used) == 1 else None


def _by_renyi(releases: Sequence[Release], delta: float) -> tuple[float, float]:
    """(epsilon, order), the least over ORDERS: over every tenth, then about the best of these."""

    def at(place: int) -> tuple[float, int]:
        order = ORDERS[place]
        return _to_epsilon(_composed(releases, order), order, delta), place

    _, near = min(at(place) for place in range(0, len(ORDERS), 10))
    around = range(max(near - 9, 0), min(near + 10, len(ORDERS)))
    epsilon, place = min(at(place) for place in around)
    return epsilon, ORDERS[place]


def _affordable(distance: float, epsilon: float, delta: float) -> bool:
    """Whether (1 + e^epsilon) · distance is within the reserved part of delta."""
    if distance == 0 or math.isinf(epsilon):
        return True
    cost = math.log(distance) + epsilon + math.log1p(math.exp(-epsilon))
    return delta > 0 and cost + 1e-9 * (1 + abs(cost)) <= math.log(delta * RESERVE)


def _check_size(dimension: int, rounds: int) -> None:
    _validate.whole("dimension", dimension, low=1, high=2**53)
    _validate.whole("rounds", rounds, low=0, high=2**53)


def _composed(releases: Sequence[Release], order: float) -> float:
    return _up(math.fsum(release.renyi(order) for release in releases))


def _to_epsilon(divergence: float, order: float, delta: float) -> float:
    """Least epsilon that a Rényi bound gives at delta, rounded up.

    epsilon = divergence + log(1 - 1/order) - (log(delta) + log(order)) / (order - 1)
    """
    if math.isinf(divergence):
        return math.inf
    terms = (
        divergence,
        math.log((order - 1) / order),  # order - 1 is exact; log1p(-1/order) would not be
        -math.log(delta) / (order - 1),
        -math.log(order) / (order - 1),
    )
    slack = UNIT * (4 + 64 * sum(abs(term) for term in terms))
    return max(0.0, math.fsum(terms) + slack)


def _up(value: float) -> float:
    """Above the exact product or sum that `value` rounds."""
    return value * (1 + 8 * UNIT)


@functools.lru_cache(maxsize=4096)
def _epsilon(channel: Channel, order: float) -> float:
    return certify(channel, order).epsilon.upper


@functools.lru_cache(maxsize=64)
def _curvature(noise: Noise, cohort: int) -> float:
    return noise.curvature(cohort)
