"""The guarantee of a client by its rounds."""

from __future__ import annotations

import math
from dataclasses import replace

from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.release import Release, Releasing
from randquant.privacy.accounting.sampling import HiddenCohorts, run_release
from randquant.privacy.guarantee import Guarantee, Neighboring


class Ledger:
    """The guarantee of a client by the number of rounds it took part in.

    With hidden cohorts nobody sees that number, and the guarantee is by the rounds of the run.

    Args:
        mechanism: the mechanism of every update.
        dimension: coordinates of an update.
        delta: of every guarantee, in [0, 1).
        neighboring: the neighbouring relation.
        limit: an epsilon not to exceed, if any; above it `epsilon` is as tight as `guarantee`.
        examples: for example-level privacy, the fewest clipped examples that an update is the mean
            of; None for client-level privacy.
        cohorts: how clients take part, if nobody sees which of them do; None if it is seen.
        simulated: whether the run draws its noise from a seed, which its guarantees say.
        spent: what the same people have spent before. All figures are totals with it, at `delta`,
            and `limit` is a total's.

    Raises:
        ValueError: delta is out of range, the mechanism does not work in that dimension or at
            example level, or cohorts cannot be hidden with it; or `spent` leaves nothing, or
            protects something else, or against somebody else.

    References:
        Dwork et al. 2006 (Our data, ourselves), Theorem 1, on what was spent before.

    Example:
        >>> from randquant.aggregation.registry import update_mechanism
        >>> mechanism = update_mechanism("local-gaussian", {"clip_norm": 1, "noise_multiplier": 9})
        >>> ledger = Ledger(mechanism, 100, delta=1e-5)
        >>> [round(ledger.epsilon(rounds), 3) for rounds in (0, 1, 10)]
        [0.0, 0.382, 1.347]
    """

    def __init__(
        self,
        mechanism: Releasing,
        dimension: int,
        *,
        delta: float,
        neighboring: Neighboring = "replace_one",
        limit: float | None = None,
        examples: int | None = None,
        cohorts: HiddenCohorts | None = None,
        simulated: bool = False,
        spent: Guarantee | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._dimension = dimension
        self._delta, self.spent = delta, spent
        self._limit = math.inf if limit is None else limit
        self._left = (self._limit, delta) if spent is None else spent.remaining(self._limit, delta)
        self._neighboring: Neighboring = neighboring
        self.examples = examples
        self._cohorts = cohorts
        self._simulated = simulated
        self._known: dict[int, float | None] = {}
        if self.epsilon(1) is None and spent is not None:
            raise ValueError(
                f"Expected a mechanism that protects with spent={spent}, got {mechanism!r}, "
                "which has no guarantee."
            )

    @property
    def hidden(self) -> bool:
        # Nobody sees who takes part, so the rounds are those of the run.
        return self._cohorts is not None

    def release(self, rounds: int, neighboring: Neighboring | None = None) -> Release | None:
        return run_release(
            self._mechanism, self._dimension, rounds, neighboring or self._neighboring,
            examples=self.examples, cohorts=self._cohorts,
        )  # fmt: skip

    def guarantee(self, rounds: int) -> Guarantee | None:
        """Account for this many rounds as tightly as can be proven; None without privacy."""
        release = self.release(rounds)
        if release is None:
            return None
        run = replace(account([release], self._left[1]), simulated=self._simulated)
        # theory/accounting.md, Proposition 9: the deltas add up to at most the whole one.
        return run if self.spent is None else replace(run + self.spent, delta=self._delta)

    def epsilon(self, rounds: int) -> float | None:
        """Bound epsilon from above, once for each number of rounds; None without privacy.

        It equals `guarantee`'s if quick accounting exceeds the limit, and is never below it: if it
        is within the limit, so is the epsilon of `guarantee`.
        """
        if rounds not in self._known:
            self._known[rounds] = self._bound(rounds)
        return self._known[rounds]

    def _bound(self, rounds: int) -> float | None:
        release = self.release(rounds)
        if release is None:
            return None
        # The quick bound is proven too, and never below the full one: where it keeps the limit, no
        # second is spent on digits that decide nothing.
        limit, delta = self._left
        quick = account([release], delta, quick=True)
        total = quick.epsilon if self.spent is None else (quick + self.spent).epsilon
        if quick.epsilon <= limit and self._cohorts is None:
            return total
        if self._cohorts is not None and 0 < rounds < self._cohorts.rounds:
            # What is seen of a run is seen of the whole run, which is accounted for once.
            whole = self.epsilon(self._cohorts.rounds)
            assert whole is not None
            if min(total, whole) <= self._limit:
                return min(total, whole)
        guarantee = self.guarantee(rounds)
        assert guarantee is not None
        return guarantee.epsilon
