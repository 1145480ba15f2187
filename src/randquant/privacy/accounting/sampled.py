"""Releases of sampled rounds: each client takes part at random, and nobody sees who does.

When participation is hidden, and how much that amplifies privacy: `docs/theory/sampling.md`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from randquant._internal import validate
from randquant.privacy.accounting.amplification import amplified
from randquant.privacy.accounting.attacks import DrawnRound
from randquant.privacy.accounting.composition.mixture import Mixture
from randquant.privacy.accounting.hidden import (
    DRAWS,
    Draw,
    check_absent,
    check_one_round,
    check_unseen,
    distance_of,
    rate_of,
)
from randquant.privacy.accounting.release import Release, ReleaseDefaults
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import Neighboring, Trust


@dataclass(frozen=True, slots=True)
class Sampled(ReleaseDefaults):
    """One round's release, repeated in many rounds in each of which a client takes part at random.

    Attributes:
        release: of one round (`rounds=1`), as if the client took part.
        rate: probability of taking part; for a fixed size see `of_cohort`.
        rounds: rounds of the whole run, whether the client takes part or not.
        scheme: `poisson`, where each client takes part independently, or `fixed`, where every
            cohort of a size is equally likely.
        hidden: every client sends in every round, those that do not take part the encoding of an
            update of zeros. Then not even a server that sees each client's codes knows who takes
            part (`poisson` only).
        absent: the same release between the client and its absence. For `replace_one` and
            `poisson` that is the one for `zero_out` neighbours, which sharpens the bound; of a
            channel it is known without being given. For `zero_out` and `fixed`, where another
            client takes its place, it is the one for `replace_one` neighbours, and must be given.
        models: the adversary sees the published models only, and not what the server sees: the
            bound is under `model` trust, which may be claimed as docs/sampling.md says. Clients may
            then add the noise of a release under `local` or `aggregate` trust if `scheme` is
            `fixed`, or `hidden`.

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
    scheme: Draw = "poisson"
    hidden: bool = False
    absent: Release | None = None
    models: bool = False

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.real("rate", self.rate, above=0, high=1, why="it is a probability")
        validate.whole("rounds", self.rounds, low=0, high=2**53)
        validate.choice("scheme", self.scheme, DRAWS)
        check_one_round("release", self.release)
        check_unseen(self.release, self.scheme, self.hidden, self.models)
        check_absent(self.absent, self.release, self.scheme)

    @classmethod
    def of_cohort(cls, release: Release, population: int, cohort: int, rounds: int) -> Sampled:
        """Cohorts of a fixed size, drawn uniformly from the population in every round.

        Example:
            >>> import randquant as rq
            >>> one = rq.GaussianRelease(noise_multiplier=1.0, dimension=650, rounds=1)
            >>> Sampled.of_cohort(one, population=200, cohort=4, rounds=300).scheme
            'fixed'
        """
        population = validate.whole("population", population, low=1, high=2**53)
        why = "the population is that small"
        cohort = validate.whole("cohort", cohort, low=1, high=population, why=why)
        return cls(release, rate_of(cohort, population), rounds, "fixed")

    @property
    def trust(self) -> Trust:
        """Against whom the bound holds."""
        return "model" if self.models else self.release.trust

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
        per_round = _of_one_round(self.release, self._absent(), self.rate, self.scheme, order)
        # theory/rounding.md, Proposition 8: two roundings.
        return self.rounds * per_round * (1 + 8 * UNIT)

    @property
    def worlds(self) -> tuple[Mixture, int] | None:
        """Where Gaussian noise hides no more, the worlds of one round, easiest to tell apart."""
        apart, away = distance_of(self.release), distance_of(self.absent)
        if apart is None:
            return None
        gaussian = self.release.gaussian_multiplier is not None
        if self.scheme == "fixed" and self.neighboring == "zero_out":
            if away is None:
                return None
            if gaussian and away <= 2 * apart:
                # theory/sampling.md, Proposition 19: the stand-in is opposite the client.
                return Mixture.of_zeros(self.rate, apart), self.rounds
            # theory/sampling.md, Proposition 14: zeros are an update too.
            return Mixture.of_exchange(self.rate, (away, 0.0)), self.rounds
        if self.neighboring == "zero_out":
            # theory/sampling.md, Proposition 13.
            return Mixture.of_absence(self.rate, apart), self.rounds
        if gaussian and away is not None and away < apart:
            # theory/sampling.md, Proposition 13: absence is between the two.
            return Mixture.of_exchange(self.rate, (away, -away)), self.rounds
        # theory/sampling.md, Proposition 14: absence is like either, whichever is worse.
        return Mixture.of_exchange(self.rate, (apart, 0.0)), self.rounds

    @property
    def attacks(self) -> tuple[tuple[DrawnRound, int], ...]:
        """Inputs that are easy to tell apart from each other and from absence, in every round."""
        apart, away = distance_of(self.release), distance_of(self.absent)
        gaussian = self.release.gaussian_multiplier is not None
        # theory/composition.md, Proposition 12: models show sums, not the codes of one client.
        if self.models and self.release.trust == "local":
            return ()
        zeroed = self.scheme == "fixed" and self.neighboring == "zero_out"
        if zeroed and gaussian and apart and away and away < 2 * apart * (1 - 1e-9):
            return ()  # a stand-in is nearer than the opposite update, which is attacked with
        # theory/composition.md, Proposition 12: taking part less often tells less.
        rate = self.rate * (1 - 8 * UNIT)
        rounds = self.release.attacked_rounds(self.scheme == "fixed")
        return tuple((DrawnRound(seen, rate), self.rounds) for seen in rounds)

    def _absent(self) -> Release | None:
        """The release for neighbours who differ by one client's absence, if it is known."""
        # theory/sampling.md, Proposition 9: a client that does not take part counts as zeros, so
        # absence is the `zero_out` neighbour; with a stand-in (`fixed`) it is not.
        if self.absent is None and self.scheme == "poisson":
            return self.release.zeroed()
        return self.absent


@functools.lru_cache(maxsize=4096)
def _of_one_round(
    release: Release, absent: Release | None, rate: float, scheme: Draw, order: float
) -> float:
    """Upper bound of the Rényi divergence of one round."""
    if scheme == "fixed" and release.neighboring == "zero_out":
        # theory/sampling.md, Proposition 19: any two of the three laws are within it.
        assert absent is not None
        return amplified(absent.renyi, rate, order, "replace_one")
    curve = None if absent is None else absent.renyi
    return amplified(release.renyi, rate, order, release.neighboring, curve)
