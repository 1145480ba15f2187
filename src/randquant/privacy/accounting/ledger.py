"""The guarantee of a client as a function of its participations, computed once for each number."""

from __future__ import annotations

import math
from dataclasses import replace

from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.examples import of_one_example
from randquant.privacy.accounting.release import Release, Releasing
from randquant.privacy.guarantee import Guarantee, Neighboring, Unit


class Ledger:
    """The guarantee of a client as a function of the number of rounds it took part in.

    Args:
        mechanism: the mechanism of every update.
        dimension: coordinates of an update.
        delta: of every guarantee, in [0, 1).
        neighboring: the neighbouring relation.
        limit: an epsilon not to exceed, if any; above it `epsilon` is as tight as `guarantee`.
        examples: for example-level privacy, the fewest clipped examples that an update is the mean
            of; None for client-level privacy.

    Raises:
        ValueError: delta is out of range, or the mechanism does not work in that dimension or at
            example level.

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
    ) -> None:
        self._mechanism = mechanism
        self._dimension = dimension
        self._delta = delta
        self._neighboring: Neighboring = neighboring
        self._limit = math.inf if limit is None else limit
        self._examples = examples
        self._known: dict[int, float | None] = {}
        self.epsilon(1)

    def release(self, participations: int) -> Release | None:
        """The release of a client with so many participations; None without privacy."""
        release = self._mechanism.release(self._dimension, participations, self._neighboring)
        return release if self._examples is None else of_one_example(release, self._examples)

    def guarantee(self, participations: int) -> Guarantee | None:
        """The tightest guarantee that accounting proves; None without privacy."""
        release = self.release(participations)
        if release is None:
            return None
        unit: Unit = "client" if self._examples is None else "example"
        return replace(account([release], self._delta), unit=unit)

    def epsilon(self, participations: int) -> float | None:
        """A proven upper bound of epsilon, computed once; None without privacy.

        It equals `guarantee`'s if quick accounting exceeds the limit, and is never below it: if it
        is within the limit, so is the epsilon of `guarantee`.
        """
        if participations not in self._known:
            self._known[participations] = self._bound(participations)
        return self._known[participations]

    def _bound(self, participations: int) -> float | None:
        release = self.release(participations)
        if release is None:
            return None
        quick = account([release], self._delta, quick=True).epsilon
        if quick <= self._limit:
            return quick
        return account([release], self._delta).epsilon
