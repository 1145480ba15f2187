"""Amplification by sampling: what is gained when nobody sees which clients take part in a round.

One bound on Rényi divergences for any mechanism, from its own Rényi curve, at every real order.
Derivations: `docs/theory/sampling.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from randquant import _validate
from randquant.divergence import UNIT
from randquant.privacy import NEIGHBORINGS, Neighboring, Trust
from randquant.releases import ChannelRelease, Release, VectorRelease

LARGEST_ORDER = 512.0
"""Above it only bounds are used that need the curve at that order alone."""

SHIFTS = (0, 1, 2, 3, 4, 6, 8, 12)
"""How many orders higher the mass of a remainder is looked up; any gives a valid bound."""

Scheme = Literal["poisson", "fixed"]
"""`poisson`: each client takes part by its own coin. `fixed`: cohorts of one size, uniformly."""


def amplified(
    renyi: Callable[[float], float],
    rate: float,
    order: float,
    neighboring: Neighboring,
    absent: Callable[[float], float] | None = None,
) -> float:
    """Bound the Rényi divergence of a mechanism that each client takes part in by chance.

    Args:
        renyi: order in (1, inf] to an upper bound, in nats, of the divergence between any two
            neighbouring inputs of the mechanism, in both directions; asked for at `order`, at
            infinity, and at whole orders of GRID.
        rate: probability of taking part, in (0, 1].
        order: in (1, inf].
        neighboring: what `renyi` is for and what the result is for.
        absent: for `replace_one`, if it is known: the same between an input and absence, where
            absence is closer to every input than inputs are to each other.

    Returns:
        An upper bound, in nats, rounded up.

    Guarantees:
        Let P and P' be the mechanism's laws with two inputs of one client and A its law without
        the client. Under `replace_one`, if any two of the three are within `renyi` (and P and P'
        within `absent` of A), then (1 - rate)·A + rate·P and (1 - rate)·A + rate·P' are within the
        result. Under `zero_out` the same holds of (1 - rate)·A + rate·P and A, in both directions.
        Mixtures of such triples are covered, and so are cohorts of a fixed size under
        `replace_one`.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Wang, Balle and Kasiviswanathan 2019, Theorem 9, and Zhu and Wang 2019, Theorems 5 and 6,
        bound the same at whole orders; derived anew in `docs/theory/sampling.md`.

    Example:
        >>> def gaussian(order):  # noise of four times the distance of neighbouring sums
        ...     return order / 32
        >>> bound = amplified(gaussian, 0.01, 8.0, "replace_one")
        >>> gaussian(8.0) / bound > 1000
        True
    """
    rate = _validate.real("rate", rate, above=0, high=1, why="it is a probability")
    order = _validate.renyi_order(order)
    _validate.choice("neighboring", neighboring, NEIGHBORINGS)
    if rate == 1:
        return renyi(order)
    # A, P and A are a triple too.
    bounds = [_mixed(renyi, rate, order, _apart)]
    if neighboring == "zero_out":
        bounds.append(max(_mixed(renyi, rate, order, way) for way in (_forward, _backward)))
    elif absent is not None:
        share = 1 / (1 - 0.5 / order) * (1 + 4 * UNIT)  # 2 order / (2 order - 1)
        there = _mixed(absent, rate, 2 * order - 1, _forward)
        bounds.append(share * there + _mixed(absent, rate, 2 * order, _backward))
    return math.nextafter(min(bounds) * (1 + 16 * UNIT), math.inf)


def _mixed(
    renyi: Callable[[float], float],
    rate: float,
    order: float,
    bound: Callable[[np.ndarray, float, float], float],
) -> float:
    """Least upper bound for two worlds that are mixed with one law, A, at 1 - rate.

    Args:
        bound: which worlds, by log((M - 1)/(order (order - 1) rate^2)) from curve, rate and order.
    """
    bounds = [_log1p_exp(_log(rate) + _log_expm1(renyi(math.inf)))]
    if bound is _backward:
        bounds.append(-math.log1p(-rate) * (1 + 8 * UNIT))
    if order < math.inf:
        moments = [_log(rate) + _log_expm1((order - 1) * renyi(order) * (1 + 2 * UNIT))]
        if order <= LARGEST_ORDER:
            logs = (_log(order), _log(order - 1), 2 * _log(rate))
            excess = bound(_curve(renyi, order), rate, order)
            moments.append(sum(logs) + excess + 8 * UNIT * sum(map(abs, (*logs, excess))))
        bounds.append(_log1p_exp(min(moments)) / (order - 1))
    return min(bounds)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One round's release, in many rounds, each of which a client takes part in by chance.

    Attributes:
        release: of one round (`rounds=1`), as if the client took part.
        rate: probability of taking part; for a fixed size see `of_cohort`.
        rounds: rounds of the whole run, whether the client takes part or not.
        scheme: `poisson`, where each client takes part by its own coin, or `fixed`, where every
            cohort of a size is equally likely (`replace_one` only).
        hidden: every client sends in every round, those that do not take part the encoding of an
            update of zeros. Then not even a server that sees each client's codes knows who takes
            part (`poisson` only).
        absent: for a `replace_one` release and `poisson`, the same release for `zero_out`
            neighbours, which sharpens the bound; of a channel it is known without being given.

    Cohorts of different rounds must be drawn independently, by coins that the adversary does not
    know. A cap on participations makes rounds dependent: account for it by the participations of
    the client called most often, with no Sampled. Under central trust the server must publish a
    sum, or a sum over a public number, in which an absent client counts as zeros.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind, or the adversary
            would see who takes part, so that nothing is amplified.

    Example:
        >>> import randquant as rq
        >>> one = rq.GaussianRelease(noise_multiplier=1.0, dimension=650, rounds=1)
        >>> print(rq.account([Sampled(one, rate=0.02, rounds=300, scheme="fixed")], delta=1e-5))
        epsilon <= 3.6743 at delta = 1e-05 (replace_one, central trust)
    """

    release: Release
    rate: float
    rounds: int
    scheme: Scheme = "poisson"
    hidden: bool = False
    absent: Release | None = None

    def __post_init__(self) -> None:
        _validate.real("rate", self.rate, above=0, high=1, why="it is a probability")
        _validate.whole("rounds", self.rounds, low=0, high=2**53)
        _validate.choice("scheme", self.scheme, ("poisson", "fixed"))
        _check_release(self.release)
        _check_unseen(self.release, self.scheme, self.hidden)
        if self.absent is not None:
            _check_absent(self.absent, self.release, self.scheme)

    @classmethod
    def of_cohort(cls, release: Release, population: int, cohort: int, rounds: int) -> Sampled:
        """Cohorts of a fixed size, drawn uniformly from the population in every round.

        Example:
            >>> import randquant as rq
            >>> one = rq.GaussianRelease(noise_multiplier=1.0, dimension=650, rounds=1)
            >>> Sampled.of_cohort(one, population=200, cohort=4, rounds=300).scheme
            'fixed'
        """
        _validate.whole("population", population, low=1, high=2**53)
        why = "the population is that small"
        _validate.whole("cohort", cohort, low=1, high=population, why=why)
        rate = 1.0 if cohort == population else math.nextafter(cohort / population, 1.0)
        return cls(release, rate, rounds, "fixed")

    @property
    def trust(self) -> Trust:
        """Against whom the bound holds."""
        return self.release.trust

    @property
    def neighboring(self) -> Neighboring:
        """What the two worlds differ by."""
        return self.release.neighboring

    @property
    def releases(self) -> int:
        """Single-coordinate releases, as if the client took part in every round."""
        return self.release.releases * self.rounds

    @property
    def distance(self) -> float:
        """Every round adds its own."""
        return self.release.distance * self.rounds * (1 + 8 * UNIT)

    def renyi(self, order: float) -> float:
        """Upper bound of the Rényi divergence of all rounds (`amplified`, which adds up)."""
        if self.releases == 0:
            return 0.0
        absent = self._absent()
        curve = None if absent is None else absent.renyi
        one = amplified(self.release.renyi, self.rate, order, self.neighboring, curve)
        return self.rounds * one * (1 + 8 * UNIT)

    def _absent(self) -> Release | None:
        """The release for neighbours who differ by one client's absence, if it is known."""
        release, known = self.release, (ChannelRelease, VectorRelease)
        if self.absent is None and self.scheme == "poisson" and isinstance(release, known):
            return replace(release, neighboring="zero_out")
        return self.absent


def _check_release(release: Release) -> None:
    if isinstance(release, Sampled):
        raise ValueError("Expected a release that is not sampled yet: multiply the rates instead.")
    rounds = getattr(release, "rounds", 1)
    if rounds != 1:
        raise ValueError(
            f"Expected a release of one round, got rounds={rounds}: build it with rounds=1, each "
            "round is sampled by itself."
        )


def _check_unseen(release: Release, scheme: Scheme, hidden: bool) -> None:
    if scheme == "fixed" and hidden:
        raise ValueError(
            "Expected scheme='poisson' for hidden participation, got 'fixed': whoever knows the "
            "other members of a cohort of a known size knows whether a client is in it."
        )
    if scheme == "fixed" and release.neighboring == "zero_out":
        raise ValueError(
            "Expected a replace_one release for cohorts of a fixed size, got zero_out: where a "
            "client is left out another takes its place, which is not an update of zeros."
        )
    if release.trust != "central" and not hidden:
        raise ValueError(
            f"Expected central trust or hidden participation, got {release.trust} trust: a server "
            "that sees who takes part gains nothing from sampling; account for the rounds that "
            "the client takes part in, or let every client send (hidden=True, poisson)."
        )


def _check_absent(absent: Release, release: Release, scheme: Scheme) -> None:
    _check_release(absent)
    wanted = ("zero_out", "replace_one", release.trust, "poisson")
    if (absent.neighboring, release.neighboring, absent.trust, scheme) != wanted:
        raise ValueError(
            "Expected absent only for a replace_one release that is sampled by poisson, zero_out "
            f"and under its trust; got {absent.neighboring} under {absent.trust} trust for a "
            f"{release.neighboring} release that is sampled by {scheme}."
        )


def _curve(renyi: Callable[[float], float], order: float) -> np.ndarray:
    """Logs of V_k = (e^((k-1) D_k) - 1)/(k (k-1)), raised, for k = 0, 1, 2, …

    V_1 bounds the divergence of order 1, entry 0 is not used. (k - 1) D_k is convex in k: between
    GRID orders it is below its chord.
    """
    top = math.ceil(order) + SHIFTS[-1] + 1
    asked = [k for k, before in zip(GRID[1:], GRID, strict=False) if before < top]
    moments = np.array([0.0, *((k - 1) * renyi(float(k)) for k in asked)])
    known, whole = np.array([1, *asked]), np.arange(2, top + 1)
    place = np.searchsorted(known, whole) - 1
    part = (whole - known[place]) / (known[place + 1] - known[place])
    with np.errstate(invalid="ignore"):  # 0 · inf, where the curve ends
        chord = (1 - part) * moments[place] + part * moments[place + 1]
    chord = np.where(np.isnan(chord), np.inf, chord) * (1 + 8 * UNIT)
    spread = np.log(whole * (whole - 1.0))
    logs = np.array([_log_expm1(float(x)) for x in chord]) - spread + 16 * UNIT * (1 + spread)
    two = float(moments[1])  # D_2 is above D_1, and so is V_2
    first = min(float(logs[0]), _log(two) if two > 0 else -math.inf)
    return np.concatenate([[-np.inf, first], logs])


def _forward(curve: np.ndarray, rate: float, order: float) -> float:
    """Of (1 - rate)·A + rate·P against A."""
    if order < 2:
        return _between(curve, 2 - rate * (2 - order))
    weights = _binomial(order - 2, rate)
    return _log_sum(weights + curve[2 : 2 + len(weights)])


def _backward(curve: np.ndarray, rate: float, order: float) -> float:
    """Of A against (1 - rate)·A + rate·P."""
    return _between(curve, max(2.0, rate * (order + 1) - 1))


def _between(curve: np.ndarray, order: float) -> float:
    """log of the mix of V at the whole orders around this one."""
    least = math.floor(order)
    part, rounded = order - least, 8 * UNIT * order
    weights = np.log([1 - part + rounded, part + rounded])
    return _log_sum(weights + 16 * UNIT * np.abs(weights) + curve[least : least + 2])


def _apart(curve: np.ndarray, rate: float, order: float) -> float:
    """Of (1 - rate)·A + rate·P against (1 - rate)·A + rate·P'."""
    joined = _binomial(order - 1, rate)
    rest = [_remainder(curve, 1 + rate * order), _remainder(curve, rate * (order + 1))]
    if order < 2:
        rest.append(_remainder(curve, rate * (2 - order)))
    else:
        weights = _binomial(order - 2, rate)
        logs = [_log_tilt(by) + curve[2 + by : 2 + by + len(weights)] for by in SHIFTS]
        rest.append(_log_sum(weights + np.min(logs, axis=0)))
    absent = math.log1p(-rate) * (1 - 4 * UNIT)
    main = _log_sum(joined + curve[1 : 1 + len(joined)])
    return _log_sum(np.array([main, *(absent + part for part in rest)]))


def _remainder(curve: np.ndarray, decay: float) -> float:
    """log of a bound of the integral of (g - 1) g^(-1 - decay) H_g over g > 1."""
    decay *= 1 - 4 * UNIT  # less decay gives more
    return min(_log_tilt(decay + by) + float(curve[2 + by]) for by in SHIFTS)


def _log_tilt(decay: float) -> float:
    """log of the largest (g - 1) g^(-1 - decay) over g > 1, raised."""
    if decay == 0:
        return 0.0
    value = decay * math.log(decay / (1 + decay)) - math.log1p(decay)
    return value + 32 * UNIT * (1 + abs(value))


def _binomial(trials: float, rate: float) -> np.ndarray:
    """Logs of weights w_k, raised, with (1 - rate + rate·g)^trials <= sum w_k g^k for every g > 0.

    Binomial probabilities; between whole numbers of trials, the mix of both.
    """
    least = math.floor(trials)
    part = trials - least
    if part == 0:
        return _log_binomial(least, rate)
    below = np.append(_log_binomial(least, rate), -np.inf) + math.log1p(-part)
    above = _log_binomial(least + 1, rate) + math.log(part)
    return np.logaddexp(below, above) + 64 * UNIT * (1 + abs(math.log(part)))


def _log_binomial(trials: int, rate: float) -> np.ndarray:
    k = np.arange(trials + 1)
    ways, taken, left = _log_ways(trials), k * math.log(rate), (trials - k) * math.log1p(-rate)
    return ways + taken + left + 16 * UNIT * (1 + ways - taken - left)


@functools.lru_cache(maxsize=64)
def _log_ways(trials: int) -> np.ndarray:
    return np.array([math.log(math.comb(trials, k)) for k in range(trials + 1)])


def _log_sum(logs: np.ndarray) -> float:
    """log of the sum of e^logs, raised."""
    peak = float(logs.max())
    if math.isinf(peak):
        return peak
    largest = float(np.abs(logs[np.isfinite(logs)]).max())
    total = float(np.exp(logs - peak).sum())
    return peak + math.log(total) + UNIT * (len(logs) + 32 + 32 * largest)


def _log(value: float) -> float:
    """log, raised."""
    log = math.log(value)
    return log + 8 * UNIT * abs(log)


def _log_expm1(value: float) -> float:
    """log(e^value - 1), raised; -inf at 0."""
    if value <= 0:
        return -math.inf
    if math.isinf(value):
        return math.inf
    log = value + math.log(-math.expm1(-value))
    return log + 32 * UNIT * (1 + abs(log) + value)


def _log1p_exp(value: float) -> float:
    """log(1 + e^value), raised."""
    if math.isinf(value):
        return max(value, 0.0)
    return float(np.logaddexp(0.0, value + 8 * UNIT * (1 + abs(value)))) * (1 + 32 * UNIT)


def _grid() -> tuple[int, ...]:
    orders = list(range(1, 17))
    while orders[-1] < LARGEST_ORDER + SHIFTS[-1] + 1:
        orders.append(math.ceil(orders[-1] * 1.15))
    return tuple(orders)


GRID = _grid()
"""Whole orders at which a curve is asked for: 1 to 16, then 15 % apart."""
