"""Releases of rounds of which each client takes part in a few that it draws itself, in secret.

When that amplifies privacy, and by how much: `docs/theory/sampling.md`, Random allocation.
"""

from __future__ import annotations

from dataclasses import dataclass

from randquant._internal import validate
from randquant.privacy.accounting.attacks import DrawnRun
from randquant.privacy.accounting.composition.allocation import Allocation
from randquant.privacy.accounting.hidden import (
    HiddenRelease,
    check_absent,
    check_one_round,
    check_unseen,
    distance_of,
)
from randquant.privacy.accounting.release import Release
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import rounded_up


@dataclass(frozen=True, slots=True)
class Allocated(HiddenRelease):
    """One round's release, in a run in which a client takes part in a number of rounds at random.

    Attributes:
        release: of one round (`rounds=1`), as if the client took part.
        participations: rounds that the client takes part in: every set of so many is as likely.
        total: rounds of the run.
        hidden: every client sends in every round, those that do not take part the encoding of an
            update of zeros.
        runs: how many runs, each with its own draw.
        models: the adversary sees the published models only, see `Sampled`.
        absent: for a `replace_one` release, the same one for `zero_out` neighbours.

    It may be claimed if

    - each client draws its own rounds, independently of all others, and nobody else learns them:
      the adversary sees what a trusted server publishes (central trust), or everybody sends in
      every round (`hidden`);
    - an update depends on the client's data, its own randomness, and what was published, not on
      which rounds it took part in before: clients that keep a state between rounds are excluded;
    - what is published is a sum, or a sum over a public number: the size of a round's cohort is
      random, and not divided by.

    For `zero_out` neighbours and Gaussian noise, or noise that dominates what it hides
    (`squared_mu`), the worst pair of worlds is composed. For `replace_one` and the same noise,
    given `absent`, both worlds are compared with one without the client. For other releases the
    bound is that of `participations` rounds that everybody sees: nothing is amplified.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind, or the adversary
            would see who takes part.

    References:
        Feldman and Shenfeld 2025 (random allocation); proven here in `docs/theory/sampling.md`.

    Example:
        >>> import randquant as rq
        >>> one = rq.GaussianRelease(1.0, dimension=650, rounds=1, neighboring="zero_out")
        >>> print(rq.account([Allocated(one, participations=10, total=1000)], delta=1e-5))
        epsilon <= 1.7016 at delta = 1e-05 (zero_out, central trust, hidden cohorts)
    """

    release: Release
    participations: int
    total: int
    hidden: bool = False
    runs: int = 1
    models: bool = False
    absent: Release | None = None

    def __post_init__(self) -> None:
        validate.whole("total", self.total, low=1, high=2**53)
        why = "the run has so many rounds"
        validate.whole("participations", self.participations, low=0, high=self.total, why=why)
        validate.whole("runs", self.runs, low=0, high=2**53)
        check_one_round("release", self.release)
        # theory/sampling.md, Proposition 18: as for independent rounds, nobody may see who is in.
        check_unseen(self.release, "drawn", self.hidden, self.models)
        check_absent(self.absent, self.release, "poisson")

    @property
    def rounds(self) -> int:
        """Rounds of all runs, whether the client takes part or not."""
        return self.total * self.runs

    @property
    def releases(self) -> int:
        """Single-coordinate releases that the client takes part in."""
        return self.release.releases * self.participations * self.runs

    @property
    def distance(self) -> float:
        """Total variation distance of all rounds: also where the client sends zeros."""
        # theory/rounding.md, Proposition 8.
        return self.release.distance * self.rounds * (1 + 8 * UNIT)

    def renyi(self, order: float) -> float:
        """As if everybody saw the rounds that the client takes part in."""
        if not self.releases:
            return 0.0
        # theory/sampling.md, Proposition 19: its last sentence.
        return self.participations * self.runs * self.release.renyi(order) * (1 + 8 * UNIT)

    @property
    def squared_mu(self) -> float | None:
        """The same, where Gaussian noise hides no more."""
        # theory/gaussian.md, Proposition 1; with theory/sampling.md, Proposition 19, as above.
        square = self.release.squared_mu
        return None if square is None else rounded_up(self.participations * self.runs * square)

    @property
    def worlds(self) -> tuple[Allocation, int] | None:
        """Of Gaussian noise and absence: as many blocks of rounds as there are participations."""
        through = self.neighboring == "replace_one"
        apart = distance_of(self.absent if through else self.release)
        if apart is None or not self.participations:
            return None
        # theory/sampling.md, Propositions 19 and 25.
        block = Allocation(apart, self.total // self.participations, through)
        return block, self.participations * self.runs

    @property
    def attacks(self) -> tuple[tuple[DrawnRun, int], ...]:
        """The same inputs in every round that the client takes part in."""
        if not self.participations:
            return ()
        # theory/composition.md, Proposition 13: zeros where the client is absent.
        rounds = self._attacked_rounds(False)
        return tuple(
            (DrawnRun(each, self.participations, self.total), self.runs) for each in rounds
        )
