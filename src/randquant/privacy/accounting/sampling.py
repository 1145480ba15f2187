"""Secret sampling of cohorts: amplification, and the release that accounts for a run."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from randquant._internal import validate
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.composition import Mixture
from randquant.privacy.accounting.privacy_loss import DominatingPairs, PrivacyLoss
from randquant.privacy.accounting.release_protocol import (
    Release,
    ReleaseDefaults,
    Releasing,
    check_examples,
    check_release,
)
from randquant.privacy.accounting.releases import GaussianRelease
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring, Trust, Unit, rounded_up

# Privacy amplification by sampling: a bound for a subsampled mechanism, from its Rényi curve.
#
# One bound for any mechanism, at every real order. Derivations: `docs/theory/sampling.md`.

LARGEST_ORDER = 256.0
"""Above it only bounds are used that need the curve at that order alone."""

ORDER_SHIFTS = (0, 1, 2, 3, 4, 6, 8, 12)
"""How many orders higher the mass of a remainder is looked up; any gives a valid bound."""


def amplified(
    renyi: Callable[[float], float],
    rate: float,
    order: float,
    neighboring: Neighboring,
    absent: Callable[[float], float] | None = None,
) -> float:
    """Bound the Rényi divergence of a mechanism in which each client takes part at random.

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
    rate = validate.real("rate", rate, above=0, high=1, why="it is a probability")
    order = validate.renyi_order(order)
    validate.choice("neighboring", neighboring, NEIGHBORINGS)
    if rate == 1:
        return renyi(order)
    # theory/sampling.md, Proposition 7: A, P and A are a triple too, so it covers `zero_out`.
    bounds = [_mixed(renyi, rate, order, _apart)]
    if neighboring == "zero_out":
        # theory/sampling.md, Propositions 5 and 6: both directions, for neither covers the other.
        directions = (_forward, _backward)
        bounds.append(max(_mixed(renyi, rate, order, bound) for bound in directions))
    elif absent is not None and not LARGEST_ORDER < 2 * order < math.inf:
        # theory/sampling.md, Proposition 9. The difference is at least 1/2 and off by 2 units, the
        # quotient and the product by 1 each; 2 order - 1 is exact.
        share = 1 / (1 - 0.5 / order) * (1 + 4 * UNIT)  # 2 order / (2 order - 1)
        forward = _mixed(absent, rate, 2 * order - 1, _forward)
        bounds.append(share * forward + _mixed(absent, rate, 2 * order, _backward))
    # theory/sampling.md, Proposition 11: a sum, a quotient and a product since logarithms.
    return math.nextafter(min(bounds) * (1 + 16 * UNIT), math.inf)


def _mixed(
    renyi: Callable[[float], float],
    rate: float,
    order: float,
    bound: Callable[[np.ndarray, float, float], float],
) -> float:
    """Bound the divergence of a pair that is mixed with one law, A, at 1 - rate.

    Args:
        bound: log((M - 1)/(order (order - 1) rate^2)) of that pair from curve, rate and order.
    """
    # theory/sampling.md, Proposition 10: by convexity, at order infinity, which is above every
    # order.
    bounds = [_log1p_exp_above(_log_above(rate) + _log_expm1_above(renyi(math.inf)))]
    if bound is _backward:
        # theory/sampling.md, Proposition 6: A is at most 1/(1 - rate) times the mixture.
        bounds.append(-math.log1p(-rate) * (1 + 8 * UNIT))
    if order < math.inf:
        moments = []
        if not 2 <= order <= LARGEST_ORDER:
            moments = [
                _log_above(rate) + _log_expm1_above((order - 1) * renyi(order) * (1 + 2 * UNIT))
            ]
        if order <= LARGEST_ORDER:
            curve = _curve(renyi, order)
            # theory/sampling.md, Propositions 5 to 7, all in units of order (order - 1) rate^2.
            excesses = [bound(curve, rate, order)]
            if order >= 2:  # M - 1 <= rate · (the mechanism's own), between whole orders mixed
                excesses.append(_between(curve, order) - math.log(rate) * (1 + 8 * UNIT))
            logs = (_log_above(order), _log_above(order - 1), 2 * _log_above(rate))
            moments.append(min(excesses) + sum(logs) + 8 * UNIT * sum(map(abs, logs)))
        bounds.append(_log1p_exp_above(min(moments)) / (order - 1))
    return min(bounds)


def _curve(renyi: Callable[[float], float], order: float) -> np.ndarray:
    """Bound the logs of V_k = (e^((k-1) D_k) - 1)/(k (k-1)) from above, for k = 0, 1, 2, …

    V_1 bounds the divergence of order 1, entry 0 is not used. (k - 1) D_k is convex in k: between
    GRID orders it is below its chord.
    """
    top = math.ceil(order) + ORDER_SHIFTS[-1] + 1
    # theory/sampling.md, Proposition 12: a convex function is below its chords.
    orders = [k for k, before in zip(GRID[1:], GRID, strict=False) if before < top]
    moments = np.array([0.0, *((k - 1) * renyi(float(k)) for k in orders)])
    known, whole = np.array([1, *orders]), np.arange(2, top + 1)
    place = np.searchsorted(known, whole) - 1
    part = (whole - known[place]) / (known[place + 1] - known[place])
    with np.errstate(invalid="ignore"):  # 0 · inf, where the curve ends
        chord = (1 - part) * moments[place] + part * moments[place + 1]
    chord = np.where(np.isnan(chord), np.inf, chord) * (1 + 8 * UNIT)
    # 16 units: 8 of the logarithm, 1 of the difference; `_log_expm1_above` raises its own.
    spread = np.log(whole * (whole - 1.0))
    logs = np.array([_log_expm1_above(float(x)) for x in chord]) - spread + 16 * UNIT * (1 + spread)
    # theory/sampling.md, Proposition 3: the divergence of order 1 is at most V_1.
    two = float(moments[1])  # D_2 is above D_1, and so is V_2
    first = min(float(logs[0]), _log_above(two) if two > 0 else -math.inf)
    return np.concatenate([[-np.inf, first], logs])


def _forward(curve: np.ndarray, rate: float, order: float) -> float:
    # (1 - rate)·A + rate·P against A.
    if order < 2:
        # theory/sampling.md, Proposition 5; the order between 1 and 2 is within 3 units.
        return _between(curve, 2 - rate * (2 - order), 16 * UNIT)
    weights = _binomial(order - 2, rate)
    return _log_sum_above(weights + curve[2 : 2 + len(weights)])


def _backward(curve: np.ndarray, rate: float, order: float) -> float:
    # A against (1 - rate)·A + rate·P.
    # theory/sampling.md, Proposition 6: within 5 units of the order itself.
    return _between(curve, max(2.0, rate * (order + 1) - 1), 8 * UNIT * order)


def _between(curve: np.ndarray, order: float, rounded: float = 0.0) -> float:
    """Mix V at the whole orders around `order`, which may be off by `rounded`.

    Returns:
        The logarithm, rounded up.
    """
    least = math.floor(order)
    part = order - least
    if part == rounded == 0:
        return float(curve[least])
    # theory/sampling.md, Proposition 11: what the order may be off is added to both weights.
    weights = np.log([1 - part + rounded, part + rounded])
    return _log_sum_above(weights + 16 * UNIT * (1 + np.abs(weights)) + curve[least : least + 2])


def _apart(curve: np.ndarray, rate: float, order: float) -> float:
    # (1 - rate)·A + rate·P against (1 - rate)·A + rate·P'.
    # theory/sampling.md, Proposition 7: `joined` is of P and P', `rest` of each with A.
    joined = _binomial(order - 1, rate)
    rest = [_remainder(curve, 1 + rate * order), _remainder(curve, rate * (order + 1))]
    if order < 2:
        rest.append(_remainder(curve, rate * (2 - order)))
    else:
        weights = _binomial(order - 2, rate)
        logs = [_log_tilt(by) + curve[2 + by : 2 + by + len(weights)] for by in ORDER_SHIFTS]
        rest.append(_log_sum_above(weights + np.min(logs, axis=0)))
    absent = math.log1p(-rate) * (1 - 4 * UNIT)
    main = _log_sum_above(joined + curve[1 : 1 + len(joined)])
    return _log_sum_above(np.array([main, *(absent + part for part in rest)]))


def _remainder(curve: np.ndarray, decay: float) -> float:
    # The integral of (g - 1) g^(-1 - decay) H_g over g > 1.
    # theory/sampling.md, Proposition 8: any of ORDER_SHIFTS gives a bound. The decay has 2
    # roundings.
    decay *= 1 - 4 * UNIT  # less decay gives more
    return min(_log_tilt(decay + by) + float(curve[2 + by]) for by in ORDER_SHIFTS)


def _log_tilt(decay: float) -> float:
    # The largest (g - 1) g^(-1 - decay) over g > 1.
    if decay == 0:
        return 0.0
    value = decay * math.log(decay / (1 + decay)) - math.log1p(decay)
    # theory/sampling.md, Proposition 11: the quotient is within 2 units, which decay multiplies.
    return value + UNIT * (32 * (1 + abs(value)) + 4 * decay)


def _binomial(trials: float, rate: float) -> np.ndarray:
    """Return log w_k, raised, with (1 - rate + rate·g)^trials <= sum w_k g^k for every g > 0.

    Binomial probabilities; between whole numbers of trials, the mix of both.
    """
    least = math.floor(trials)
    part = trials - least
    if part == 0:
        return _log_binomial(least, rate)
    below = np.append(_log_binomial(least, rate), -np.inf) + math.log1p(-part)
    above = _log_binomial(least + 1, rate) + math.log(part)
    # theory/sampling.md, Proposition 4; `_log_binomial` raises by 16 units, of which 6 are its own,
    # so that 10 units of each logarithm pay for these sums.
    return np.logaddexp(below, above) + 64 * UNIT * (1 + abs(math.log(part)))


def _log_binomial(trials: int, rate: float) -> np.ndarray:
    k = np.arange(trials + 1)
    coefficients = _log_coefficients(trials)
    successes, failures = k * math.log(rate), (trials - k) * math.log1p(-rate)
    error = 16 * UNIT * (1 + coefficients - successes - failures)
    return coefficients + successes + failures + error


@functools.lru_cache(maxsize=64)
def _log_coefficients(trials: int) -> np.ndarray:
    return np.array([math.log(math.comb(trials, k)) for k in range(trials + 1)])


def _log_sum_above(logs: np.ndarray) -> float:
    peak = float(logs.max())
    if math.isinf(peak):
        return peak
    # Rounded up. Two differences, exp and log: below 32 units of the largest; n - 1 sums.
    largest = float(np.abs(logs[np.isfinite(logs)]).max())
    total = float(np.exp(logs - peak).sum())
    return peak + math.log(total) + UNIT * (len(logs) + 32 + 32 * largest)


def _log_above(value: float) -> float:
    log = math.log(value)
    return log + 8 * UNIT * abs(log)


def _log_expm1_above(value: float) -> float:
    if value <= 0:
        return -math.inf
    if math.isinf(value):
        return math.inf
    log = value + math.log(-math.expm1(-value))
    return log + 32 * UNIT * (1 + abs(log) + value)


def _log1p_exp_above(value: float) -> float:
    if math.isinf(value):
        return max(value, 0.0)
    return float(np.logaddexp(0.0, value + 8 * UNIT * (1 + abs(value)))) * (1 + 32 * UNIT)


def _grid() -> tuple[int, ...]:
    orders = list(range(1, 17))
    while orders[-1] < LARGEST_ORDER + ORDER_SHIFTS[-1] + 1:
        orders.append(math.ceil(orders[-1] * 1.25))
    return tuple(orders)


GRID = _grid()
"""Whole orders at which a curve is asked for: 1 to 16, then 25 % apart."""


# How hidden cohorts are drawn, and what is refused of them.
#
# When participation is hidden: `docs/theory/sampling.md`, Propositions 1 and 18.

Draw = Literal["fixed", "poisson"]
"""How cohorts are drawn. `fixed`: of one size, every cohort equally likely. `poisson`: each client
takes part in each round independently."""

DRAWS: tuple[Draw, ...] = ("fixed", "poisson")


def sampling_rate(cohort: int, population: int) -> float:
    """Return the probability of taking part in a round, rounded up.

    Example:
        >>> sampling_rate(200, 200)
        1.0
    """
    # theory/sampling.md, Proposition 1: a rate that is rounded up covers the true one.
    return 1.0 if cohort == population else math.nextafter(cohort / population, 1.0)


SPARED_DELTA_SHARE = 2.0**-10
"""Share of delta that pays for tests that hardly ever say anything, where that helps."""


def gaussian_distance(release: Release | None, spared: float) -> float | None:
    """Bound the distance of neighbours under Gaussian noise that dominates a release.

    Args:
        release: of one round.
        spared: how much more its hockey-stick divergences may be than that noise's.

    Returns:
        A distance in standard deviations, rounded up; None if no such noise is known.
    """
    if release is None:
        return None
    # Zero where every test is spared: then all of them are compared.
    square = release.squared_mu_except(spared) or release.squared_mu
    # theory/rounding.md, Proposition 8.
    return rounded_up(math.sqrt(square)) if square else None


def check_one_round(name: str, release: Release) -> None:
    """Refuse a release that is sampled already, of several rounds, or of one example."""
    check_release(name, release)
    if release.sampled:
        raise ValueError("Expected a release that is not sampled yet: multiply the rates instead.")
    if release.rounds != 1:
        raise ValueError(
            f"Expected a release of one round, got rounds={release.rounds}: build it with "
            "rounds=1, each round is sampled by itself."
        )
    # theory/sampling.md, Proposition 1: absence is far from both neighbours.
    if release.unit != "client":
        raise ValueError(
            f"Expected {name} with unit='client', got unit={release.unit!r}: an absent client "
            "differs from one that takes part by all its examples, so nothing is amplified."
        )


def check_unseen(release: Release, draw: Draw, hidden: bool, models: bool) -> None:
    """Refuse rounds in which the adversary sees who takes part."""
    # theory/sampling.md, Proposition 1: an adversary who knows the others counts them.
    if draw == "fixed" and hidden:
        raise ValueError(
            "Expected scheme='poisson' for hidden participation, got 'fixed': an adversary who "
            "knows all other members of a cohort of a known size knows if a client is in it."
        )
    if release.trust == "central" or hidden:
        return
    # theory/sampling.md, Proposition 18: without the client its noise is missing from the sum.
    if models and draw != "fixed":
        raise ValueError(
            f"Expected hidden participation (hidden=True) where clients add the noise, got a "
            f"release under {release.trust} trust: the noise of absent clients would be missing; "
            "let every client send, or draw cohorts of a fixed size."
        )
    # theory/sampling.md, Proposition 1: who sees the release must not see who takes part.
    if not models:
        raise ValueError(
            f"Expected central trust or hidden participation, got {release.trust} trust: a server "
            "that sees who takes part gains nothing from sampling; account for the rounds that "
            "the client takes part in, or let every client send (hidden=True, poisson)."
        )


def check_absent(absent: Release | None, release: Release, scheme: Draw) -> None:
    """Refuse a release that is not between a client and its absence."""
    zeroed = release.neighboring == "zero_out"
    if absent is None:
        if zeroed and scheme == "fixed":
            raise ValueError(
                "Expected absent for a zero_out release and cohorts of a fixed size, got None: "
                "where a client is left out another takes its place, so give the same release for "
                "replace_one neighbours."
            )
        return
    check_one_round("absent", absent)
    fits = zeroed == (scheme == "fixed") and absent.neighboring != release.neighboring
    if not fits or absent.trust != release.trust:
        raise ValueError(
            "Expected absent under the release's own trust, zero_out for a replace_one release "
            "that is sampled by poisson, or replace_one for a zero_out release of a fixed size; "
            f"got {absent.neighboring} under {absent.trust} trust for a {release.neighboring} "
            f"release under {release.trust} trust that is sampled by {scheme}."
        )


@dataclass(frozen=True, slots=True)
class HiddenRound:
    """The dominating pairs of one round in which a client takes part at random: see `Sampled`."""

    release: Release
    absent: Release | None
    rate: float
    scheme: Draw

    def losses(self, releases: int, delta: float) -> tuple[PrivacyLoss, ...]:
        """Return the loss of one of `releases` rounds, rounded up, for each direction."""
        return self.pairs(delta * SPARED_DELTA_SHARE / releases).losses(releases, delta)

    def pairs(self, lost: float) -> Mixture:
        """Return the pairs of a round, to a probability of an infinite loss in it."""
        # theory/sampling.md, Proposition 13: rate times what either divergence may be above.
        spared = min(lost / self.rate, 1.0) * (1 - 8 * UNIT)  # a small rate may overflow it
        known, all_tests = (
            [gaussian_distance(release, most) for release in (self.release, self.absent)]
            for most in (spared, 0.0)
        )
        (apart, away), lost = known, 0.0 if known == all_tests else lost
        assert apart is not None
        # theory/sampling.md, Propositions 14 and 19: how far either law is from absence.
        if self.release.neighboring == "replace_one":
            first = second = away or apart
        elif self.scheme == "poisson":
            first, second = apart, 0.0
        else:
            assert away is not None
            first, second = away, apart
        return Mixture.from_distances(self.rate, apart, first, second, lost)


# Releases of sampled rounds: each client takes part at random, and nobody sees who does.
#
# When participation is hidden, and how much that amplifies privacy: `docs/theory/sampling.md`.


@dataclass(frozen=True, slots=True)
class Sampled(ReleaseDefaults):
    """One round's release, repeated in many rounds in each of which a client takes part at random.

    Attributes:
        release: of one round (`rounds=1`), as if the client took part.
        rate: probability of taking part; for a fixed size see `from_cohort`.
        rounds: rounds of the whole run, whether the client takes part or not.
        scheme: `poisson`, where each client takes part independently, or `fixed`, where every
            cohort of a size is equally likely.
        hidden: every client sends in every round, those that do not take part the encoding of an
            update of zeros. Then not even a server that sees each client's codes knows who takes
            part (`poisson` only).
        absent: the same release between the client and its absence. For `replace_one` and
            `poisson` that is the one for `zero_out` neighbours, which sharpens the bound; of a
            channel it is known without being given, and without it zeros must be one of the
            updates. For `zero_out` and `fixed`, where another client takes its place, it is the
            one for `replace_one` neighbours, and must be given.
        models: the adversary sees the published models only, and not what the server sees: the
            bound is under `model` trust, which may be claimed as docs/sampling.md says. Clients may
            then add the noise of a release under `local` or `aggregate` trust if `scheme` is
            `fixed`, or `hidden`.

    Cohorts of different rounds must be drawn independently, with randomness that the adversary
    does not know. A cap on participations makes rounds dependent: account for it by the
    most participations of any client, without Sampled. Under central trust the server
    must publish a sum, or a sum over a public number, in which an absent client counts as zeros.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind, or the adversary
            would see who takes part, so that nothing is amplified.

    Example:
        >>> import randquant as rq
        >>> one = rq.GaussianRelease(relative_deviation=1.0, dimension=650, rounds=1)
        >>> print(rq.account([Sampled(one, rate=0.02, rounds=300, scheme="fixed")], delta=1e-5))
        epsilon <= 2.51194 at delta = 1e-05 (replace_one, central trust, hidden cohorts)
    """

    release: Release
    rate: float
    rounds: int
    scheme: Draw = "poisson"
    hidden: bool = False
    absent: Release | None = None
    models: bool = False

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.real("rate", self.rate, above=0, high=1, why="it is a probability")
        validate.whole("rounds", self.rounds, low=0, high=2**53)
        validate.choice("scheme", self.scheme, DRAWS)
        # A text such as "false" would count as true: as a claim that nobody sees who takes part.
        validate.flag("hidden", self.hidden)
        validate.flag("models", self.models)
        check_one_round("release", self.release)
        check_unseen(self.release, self.scheme, self.hidden, self.models)
        check_absent(self.absent, self.release, self.scheme)

    @classmethod
    def from_cohort(
        cls,
        release: Release,
        population: int,
        cohort: int,
        rounds: int,
        *,
        absent: Release | None = None,
        models: bool = False,
    ) -> Sampled:
        """Sample cohorts of a fixed size uniformly from the population in every round.

        The rate is rounded up, as that of a hand-made `Sampled` must be.

        Args:
            release, rounds, absent, models: as in `Sampled`.
            population, cohort: how many clients there are, and how many take part in a round.

        Example:
            >>> import randquant as rq
            >>> one = rq.GaussianRelease(relative_deviation=1.0, dimension=650, rounds=1)
            >>> Sampled.from_cohort(one, population=200, cohort=4, rounds=300).scheme
            'fixed'
        """
        population = validate.whole("population", population, low=1, high=2**53)
        why = "the population is that small"
        cohort = validate.whole("cohort", cohort, low=1, high=population, why=why)
        rate = sampling_rate(cohort, population)
        return cls(release, rate, rounds, "fixed", absent=absent, models=models)

    @property
    def trust(self) -> Trust:
        return "model" if self.models else self.release.trust

    @property
    def neighboring(self) -> Neighboring:
        return self.release.neighboring

    @property
    def sampled(self) -> bool:
        return True

    @property
    def releases(self) -> int:
        # As if the client took part in every round.
        return self.release.releases * self.rounds

    @property
    def distance(self) -> float:
        # theory/rounding.md, Proposition 8.
        return self.release.distance * self.rounds * (1 + 8 * UNIT)

    def renyi(self, order: float) -> float:
        """Bound the Rényi divergence of all rounds: amplified bounds add up."""
        if self.releases == 0:
            return 0.0
        # theory/sampling.md, Proposition 1: rounds are drawn independently, so they add up, and one
        # draw decides for all coordinates of a round: the whole release is amplified.
        per_round = _round_divergence(self.release, self._absent(), self.rate, self.scheme, order)
        # theory/rounding.md, Proposition 8: two roundings.
        return self.rounds * per_round * (1 + 8 * UNIT)

    @property
    def dominating_pairs(self) -> tuple[DominatingPairs, int] | None:
        """Return one round if Gaussian noise dominates the release, and the rounds."""
        stand_in = self.scheme == "fixed" and self.neighboring == "zero_out"
        needed = (self.release, self.absent) if stand_in else (self.release,)
        if None in [gaussian_distance(each, 0.0) for each in needed]:
            return None
        one = HiddenRound(self.release, self._absent(), self.rate, self.scheme)
        # Of Gaussian noise rounds of different dimensions are alike, and are composed as such.
        gaussian = self.release.gaussian_multiplier is not None
        return (one.pairs(0.0) if gaussian else one), self.rounds

    def _absent(self) -> Release | None:
        # theory/sampling.md, Proposition 9: a client that does not take part counts as zeros, so
        # absence is the `zero_out` neighbour; with a stand-in (`fixed`) it is not.
        if self.absent is None and self.scheme == "poisson":
            return self.release.zeroed()
        return self.absent


@functools.lru_cache(maxsize=4096)
def _round_divergence(
    release: Release, absent: Release | None, rate: float, scheme: Draw, order: float
) -> float:
    if absent is None or (scheme == "poisson" and release.neighboring == "zero_out"):
        return amplified(release.renyi, rate, order, release.neighboring)

    def all_three(order: float) -> float:
        # theory/sampling.md, Propositions 7 and 19: absence may be farther than the other two laws
        # are from each other, where zeros are none of the updates.
        return max(release.renyi(order), absent.renyi(order))

    curve = absent.renyi if scheme == "poisson" else None
    return amplified(all_three, rate, order, "replace_one", curve)


# From a run to the release that accounts for it, with secret or visible participation.


@dataclass(frozen=True, slots=True)
class HiddenCohorts:
    """Secret sampling: the participation of clients in a run in which nobody sees who takes part.

    What a client sends must not follow from its number, or the server could tell who takes part.

    Attributes:
        draw: `fixed` cohorts, each equally likely; or `poisson`, each client in each round
            independently.
        population, cohort: clients, and clients a round, on average: the public number that sums
            are divided by. How many others happen to have would tell who takes part.
        rounds: of the whole run.
        models: whether the adversary sees the models only; else it sees what the server sees.
        everybody_sends: clients that do not take part send the encoding of an update of zeros;
            None for: where the guarantee needs it.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> import randquant as rq
        >>> noise = rq.GaussianRelease(1.0, dimension=650, rounds=1)
        >>> HiddenCohorts("fixed", population=200, cohort=4, rounds=300).participations
        6
    """

    draw: Draw
    population: int
    cohort: int
    rounds: int
    models: bool = True
    everybody_sends: bool | None = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.choice("draw", self.draw, DRAWS)
        validate.whole("population", self.population, low=1, high=2**53)
        validate.whole("cohort", self.cohort, low=1, high=self.population)
        validate.whole("rounds", self.rounds, low=1, high=2**53)
        validate.flag("models", self.models)  # as in `Sampled`
        if self.everybody_sends is not None:
            validate.flag("everybody_sends", self.everybody_sends)

    @property
    def participations(self) -> int:
        # The average number of rounds that a client takes part in, rounded up.
        return -(-self.rounds * self.cohort // self.population)

    def all_send(self, trust: Trust | None) -> bool:
        """Tell if clients that do not take part send zeros, with a mechanism of that trust."""
        if self.everybody_sends is not None:
            return self.everybody_sends
        # theory/sampling.md, Proposition 18: where clients add the noise, all must add it.
        return self.draw != "fixed" and trust != "central"

    def summands(self, trust: Trust | None) -> int:
        # Zeros that absent clients send are in the sum too.
        return self.population if self.all_send(trust) else self.cohort

    def release(
        self, mechanism: Releasing, dimension: int, rounds: int, neighboring: Neighboring
    ) -> Release | None:
        """Return the release of the first `rounds` rounds of the run; None without privacy."""
        one = mechanism.release(dimension, 1, neighboring)
        if one is None:
            return None
        everybody, absent = self.all_send(one.trust), None
        if (self.draw == "fixed") == (neighboring == "zero_out"):
            # In place of an absent client another one takes part (`fixed`), or zeros count.
            other: Neighboring = "replace_one" if neighboring == "zero_out" else "zero_out"
            absent = mechanism.release(dimension, 1, other)
        rate = sampling_rate(self.cohort, self.population)
        return Sampled(one, rate, rounds, self.draw, everybody, absent, self.models)

    def gaussian_multiplier(self, epsilon: float, delta: float, neighboring: Neighboring) -> float:
        """Estimate the least relative deviation of Gaussian noise on sums that meets a target.

        Relative to the distance of updates under `replace_one`, 2 · clip_norm; infinite if none is
        found.
        """
        return _least_multiplier(self, epsilon, delta, neighboring)


def run_release(
    mechanism: Releasing,
    dimension: int,
    rounds: int,
    neighboring: Neighboring = "replace_one",
    *,
    examples: int | None = None,
    numbers: bool = False,
    cohorts: HiddenCohorts | None = None,
) -> Release | None:
    """Return the release of a mechanism's rounds about one client, or one of its examples.

    Args:
        mechanism: of every update.
        dimension: coordinates of an update, including scalars sent with it.
        rounds: rounds that the client takes part in; with `cohorts`, rounds of the run.
        neighboring: the neighbouring relation.
        examples: fewest examples whose clipped gradients an update is the mean of, if one example
            is to be protected; None for all data of a client.
        numbers: whether clients join numbers of their data to the update.
        cohorts: how clients take part, if nobody sees which of them do; None if it is seen.

    Returns:
        The release; None if the mechanism protects nothing.

    Raises:
        ValueError: no distance of one example is derived for this mechanism, for numbers or for
            hidden cohorts.
    """
    validate.answers("mechanism", mechanism, "a mechanism", "release")
    validate.choice("neighboring", neighboring, NEIGHBORINGS)
    validate.flag("numbers", numbers)
    release = _one_run(mechanism, dimension, rounds, neighboring, examples, numbers, cohorts)
    unit: Unit = "client" if examples is None else "example"
    # A mechanism of somebody's own may know one relation only, whatever it is asked for.
    if release is not None and (release.unit, release.neighboring) != (unit, neighboring):
        raise ValueError(
            f"Expected {type(mechanism).__name__} to release one {unit} under {neighboring}, got "
            f"a release of one {release.unit} under {release.neighboring}."
        )
    return release


def _one_run(
    mechanism: Releasing,
    dimension: int,
    rounds: int,
    neighboring: Neighboring,
    examples: int | None,
    numbers: bool,
    cohorts: HiddenCohorts | None,
) -> Release | None:
    if examples is None:
        if cohorts is not None:
            return cohorts.release(mechanism, dimension, rounds, neighboring)
        return mechanism.release(dimension, rounds, neighboring)
    examples = check_examples(examples)
    if numbers:
        raise ValueError(
            f"Expected no numbers with an update whose unit is one of {examples} examples, got "
            f"numbers={numbers}: one example may move a number by its whole range; protect "
            "clients, or leave the numbers out."
        )
    if cohorts is not None:
        raise ValueError(
            f"Expected participation that is seen with one of {examples} examples as the unit, got "
            "hidden cohorts: a client that is absent differs by all its examples."
        )
    if mechanism.release(dimension, rounds, neighboring) is None:
        return None
    return mechanism.example_release(dimension, rounds, neighboring, examples)


@dataclass(frozen=True, slots=True)
class _Noise(Releasing):
    """Gaussian noise on a sum, by a trusted server."""

    multiplier: float

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release:
        # The multiplier is relative to the distance of two updates; zeros are half as far away.
        apart = 2 if neighboring == "zero_out" else 1
        multiplier = self.multiplier * apart
        return GaussianRelease(multiplier, dimension, rounds, "central", neighboring)


@functools.lru_cache(maxsize=64)
def _least_multiplier(
    cohorts: HiddenCohorts, epsilon: float, delta: float, neighboring: Neighboring
) -> float:
    # A bisection by quick accounts, which are above the full ones, then by full ones.

    def enough(multiplier: float, quick: bool) -> bool:
        release = cohorts.release(_Noise(multiplier), 1, cohorts.rounds, neighboring)
        assert release is not None
        return account([release], delta, quick=quick).epsilon <= epsilon

    low, high = 1e-3, 1e6
    for quick, steps in ((True, 20), (False, 9)):
        for _ in range(steps):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if enough(middle, quick) else (middle, high)
        if quick:
            low = high / 2
    return high if high < 1e5 else math.inf
