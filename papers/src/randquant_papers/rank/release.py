"""The release of whole updates by a rank mechanism. Derivation: `papers/docs/rank-theory.md`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from randquant.privacy import PrivacyLoss, ReleaseDefaults, renyi
from randquant_papers.rank.checks import Neighboring, relation, whole
from randquant_papers.rank.designs import RankTable

Trust = Literal["local", "aggregate", "central", "model"]
"""What an adversary sees."""


@dataclass(frozen=True, slots=True)
class RankPairs:
    """The pairs of laws that dominate one update sent by its rank.

    Attributes:
        table: the table of ranks.
        neighboring: what an adversary tries to tell apart.
    """

    table: RankTable
    neighboring: Neighboring

    def losses(self, releases: int, delta: float) -> tuple[PrivacyLoss, ...]:
        """The loss of one update, rounded up, for each way."""
        # rank-theory.md, Propositions 1 and 3; rounded by theory/composition.md, Proposition 4.
        pairs = self.table.pairs(self.neighboring)
        # Python integers: the sum of the second pair's rows is beyond 64 bits.
        return tuple(PrivacyLoss.from_rows(p, q, p.sum()) for p, q in pairs)


@dataclass(frozen=True, slots=True)
class RankRelease(ReleaseDefaults):
    """Whole updates, each sent as an index drawn by its rank.

    Attributes:
        table: the table of ranks; its size is that of an update after rotation and padding.
        rounds: rounds that the client takes part in.
        neighboring: the neighbouring relation; a zero update sends a uniform index.
        trust: `local`; or `aggregate`, to be composed with sums: the server still sees each index.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.
    """

    table: RankTable
    rounds: int
    neighboring: Neighboring = "replace_one"
    trust: Trust = "local"

    def __post_init__(self) -> None:
        if not isinstance(self.table, RankTable):
            raise TypeError(f"Expected a RankTable, got {self.table!r}.")
        object.__setattr__(self, "rounds", whole("rounds", self.rounds, low=0, high=2**53))
        relation("neighboring", self.neighboring)
        if self.trust not in ("local", "aggregate"):
            raise ValueError(f"Expected trust to be local or aggregate, got {self.trust!r}.")

    @property
    def releases(self) -> int:
        """The coordinates of all rounds, although one index is sent in each."""
        # A count for reports only: no bound is multiplied by it.
        return self.table.size * self.rounds

    @property
    def distance(self) -> float:
        """Zero: ranks are drawn from exactly the certified integers."""
        return 0.0

    def renyi(self, order: float) -> float:
        """The divergence of the dominating pair, of the worse of both ways, times the rounds."""
        pairs = self.table.pairs(self.neighboring)
        # rank-theory.md, Propositions 1 and 3; rounds by theory/accounting.md, Proposition 1.
        worst = max(float(renyi(p, q, p.sum(), order)[1]) for p, q in pairs)
        # One product, rounded to the nearest float: the next float is above the exact value.
        return math.nextafter(self.rounds * worst, math.inf) if self.rounds else 0.0

    @property
    def dominating_pairs(self) -> tuple[RankPairs, int] | None:
        """The pair of distributions that dominates each round, and the number of rounds."""
        if self.rounds == 0:
            return None
        # theory/composition.md, Proposition 1: dominating pairs compose, also adaptively.
        return RankPairs(self.table, self.neighboring), self.rounds

    def under(self, trust: Trust) -> RankRelease:
        """Return this release: the bound holds for each index, whatever else the server sees."""
        return replace(self, trust=trust)

    def zeroed(self) -> RankRelease:
        """Return this release for `zero_out` neighbours."""
        return replace(self, neighboring="zero_out")
