"""Releases of sampled rounds: each client takes part at random, and nobody sees who does.

When participation is hidden, and how much that amplifies privacy: `docs/theory/sampling.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from randquant._internal import validate
from randquant.privacy.accounting.amplification import amplified
from randquant.privacy.accounting.composition.mixture import Mixture
from randquant.privacy.accounting.release import (
    Release,
    ReleaseDefaults,
    check_release,
    whole_times,
)
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import Neighboring, Trust, rounded_up

Scheme = Literal["poisson", "fixed"]
"""`poisson`: each client takes part independently of the others. `fixed`: cohorts of one size,
drawn uniformly."""


@dataclass(frozen=True, slots=True)
class Sampled(ReleaseDefaults):
    """One round's release, repeated in many rounds in each of which a client takes part at random.

    Attributes:
        release: of one round (`rounds=1`), as if the client took part.
        rate: probability of taking part; for a fixed size see `of_cohort`.
        rounds: rounds of the whole run, whether the client takes part or not.
        scheme: `poisson`, where each client takes part independently, or `fixed`, where every
            cohort of a size is equally likely (`replace_one` only).
        hidden: every client sends in every round, those that do not take part the encoding of an
            update of zeros. Then not even a server that sees each client's codes knows who takes
            part (`poisson` only).
        absent: for a `replace_one` release and `poisson`, the same release for `zero_out`
            neighbours, which sharpens the bound; of a channel it is known without being given.

    Cohorts of different rounds must be drawn independently, with randomness that the adversary
    does not know. A cap on participations makes rounds dependent: account for it by the
    participations of the client called most often, without Sampled. Under central trust the server
    must publish a sum, or a sum over a public number, in which an absent client counts as zeros.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind, or the adversary
            would see who takes part, so that nothing is amplified.

    Example:
        >>> import randquant as rq
        >>> one = rq.GaussianRelease(noise_multiplier=1.0, dimension=650, rounds=1)
        >>> print(rq.account([Sampled(one, rate=0.02, rounds=300, scheme="fixed")], delta=1e-5))
        epsilon <= 2.51194 at delta = 1e-05 (replace_one, central trust, hidden cohorts)
    """

    release: Release
    rate: float
    rounds: int
    scheme: Scheme = "poisson"
    hidden: bool = False
    absent: Release | None = None

    def __post_init__(self) -> None:
        validate.real("rate", self.rate, above=0, high=1, why="it is a probability")
        validate.whole("rounds", self.rounds, low=0, high=2**53)
        validate.choice("scheme", self.scheme, ("poisson", "fixed"))
        check_one_round("release", self.release)
        check_unseen(self.release, self.scheme, self.hidden)
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
        validate.whole("population", population, low=1, high=2**53)
        why = "the population is that small"
        validate.whole("cohort", cohort, low=1, high=population, why=why)
        # theory/sampling.md, Proposition 1: a rate that is rounded up covers the true one.
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
    def sampled(self) -> bool:
        """Yes."""
        return True

    @property
    def releases(self) -> int:
        """Single-coordinate releases, as if the client took part in every round."""
        return self.release.releases * self.rounds

    @property
    def distance(self) -> float:
        """Total variation distance of all rounds: those of single rounds add up."""
        # theory/rounding.md, Proposition 8.
        return self.release.distance * self.rounds * (1 + 8 * UNIT)

    def renyi(self, order: float) -> float:
        """Upper bound of the Rényi divergence of all rounds: amplified bounds add up."""
        if self.releases == 0:
            return 0.0
        # theory/sampling.md, Proposition 1: rounds are drawn independently, so they add up, and one
        # draw decides for all coordinates of a round: the whole release is amplified.
        absent = self._absent()
        curve = None if absent is None else absent.renyi
        per_round = amplified(self.release.renyi, self.rate, order, self.neighboring, curve)
        # theory/rounding.md, Proposition 8: two roundings.
        return self.rounds * per_round * (1 + 8 * UNIT)

    @property
    def worlds(self) -> tuple[Mixture, int] | None:
        """Where Gaussian noise hides no more, the worlds of one round, easiest to tell apart."""
        apart = distance_of(self.release)
        if apart is None:
            return None
        if self.neighboring == "zero_out":
            # theory/sampling.md, Proposition 13.
            return Mixture.of_absence(self.rate, apart), self.rounds
        away = None if self.absent is None else distance_of(self.absent)
        gaussian = self.release.gaussian_multiplier is not None
        if gaussian and away is not None and away < apart:
            # theory/sampling.md, Proposition 13: absence is between the two.
            return Mixture.of_exchange(self.rate, (away, -away)), self.rounds
        # theory/sampling.md, Proposition 14: absence is like either, whichever is worse.
        return Mixture.of_exchange(self.rate, (apart, 0.0)), self.rounds

    def repeated(self, times: int) -> Sampled:
        """In so many times the rounds."""
        return replace(self, rounds=self.rounds * whole_times(times))

    def _absent(self) -> Release | None:
        """The release for neighbours who differ by one client's absence, if it is known."""
        # theory/sampling.md, Proposition 9: a client that does not take part counts as zeros, so
        # absence is the `zero_out` neighbour; with a stand-in (`fixed`) it is not.
        if self.absent is None and self.scheme == "poisson":
            return self.release.zeroed()
        return self.absent


def distance_of(release: Release) -> float | None:
    """How far apart Gaussian noise keeps neighbours that hides no more; None if unknown.

    Args:
        release: of one round.

    Returns:
        A distance in standard deviations, rounded up.
    """
    square = release.squared_mu
    # theory/rounding.md, Proposition 8.
    return rounded_up(math.sqrt(square)) if square else None


def check_one_round(name: str, release: Release) -> None:
    """Refuse what is sampled already, or of many rounds."""
    check_release(name, release)
    if release.sampled:
        raise ValueError("Expected a release that is not sampled yet: multiply the rates instead.")
    if release.rounds != 1:
        raise ValueError(
            f"Expected a release of one round, got rounds={release.rounds}: build it with "
            "rounds=1, each round is sampled by itself."
        )


def check_unseen(release: Release, scheme: Scheme, hidden: bool) -> None:
    """Refuse rounds in which the adversary sees who takes part."""
    # theory/sampling.md, Proposition 1: an adversary who knows the others counts them.
    if scheme == "fixed" and hidden:
        raise ValueError(
            "Expected scheme='poisson' for hidden participation, got 'fixed': whoever knows the "
            "other members of a cohort of a known size knows whether a client is in it."
        )
    # The same: behind a stand-in A and P are `replace_one` neighbours only.
    if scheme == "fixed" and release.neighboring == "zero_out":
        raise ValueError(
            "Expected a replace_one release for cohorts of a fixed size, got zero_out: where a "
            "client is left out another takes its place, which is not an update of zeros."
        )
    # The same: the participation must be unknown to whoever sees the release.
    if release.trust != "central" and not hidden:
        raise ValueError(
            f"Expected central trust or hidden participation, got {release.trust} trust: a server "
            "that sees who takes part gains nothing from sampling; account for the rounds that "
            "the client takes part in, or let every client send (hidden=True, poisson)."
        )


def _check_absent(absent: Release, release: Release, scheme: Scheme) -> None:
    check_one_round("absent", absent)
    wanted = ("zero_out", "replace_one", release.trust, "poisson")
    if (absent.neighboring, release.neighboring, absent.trust, scheme) != wanted:
        raise ValueError(
            "Expected absent only for a replace_one release that is sampled by poisson, zero_out "
            f"and under its trust; got {absent.neighboring} under {absent.trust} trust for a "
            f"{release.neighboring} release that is sampled by {scheme}."
        )
