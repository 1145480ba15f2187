"""The attack on a rank mechanism, for `lower_ends`: importing this adds it."""

from dataclasses import dataclass

import lower_ends

from randquant_papers.rank import RankRelease


@dataclass(frozen=True, slots=True)
class RankAttack:
    """An update and its negative, or zero, in each round."""

    release: RankRelease

    def attained(self) -> tuple[lower_ends.LowerLoss, ...]:
        # papers/docs/rank-theory.md, Propositions 1 and 3.
        pairs = self.release.table.pairs(self.release.neighboring)
        return tuple(lower_ends.LowerLoss.from_rows(p, q, p.sum()) for p, q in pairs)

    def together(self, times: int) -> tuple[lower_ends.LowerLoss, ...]:
        return ()


lower_ends.OTHER_ATTACKS[RankRelease] = lambda release: ((RankAttack(release), release.rounds),)
