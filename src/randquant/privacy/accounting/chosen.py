"""Rounds of which each is one of several releases, chosen by what was released before.

Derivation: `docs/theory/subsets.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from randquant._internal import validate
from randquant.privacy.accounting import release as checks
from randquant.privacy.accounting.martingale import Steps
from randquant.privacy.accounting.release import Release, ReleaseDefaults
from randquant.privacy.guarantee import Neighboring, Trust, Unit, rounded_up


@dataclass(frozen=True, slots=True)
class ChosenRelease(ReleaseDefaults):
    """In each round one of several releases, whichever, by a rule that knows all earlier outcomes.

    Attributes:
        choices: one round of each, under one trust and for the same neighbours.
        rounds: rounds that the client takes part in.

    Guarantees:
        Every bound is at least that of the same number of rounds of any one choice.

    Raises:
        ValueError, TypeError: a choice is no release of one round, relies on hidden participation,
            or has another trust, other neighbours or another unit than the first.
    """

    choices: tuple[Release, ...]
    rounds: int

    def __post_init__(self) -> None:
        validate.kind("choices", self.choices, tuple)
        for each in self.choices:
            checks.check_release("each choice", each)
        facts = {(each.trust, each.neighboring, each.unit) for each in self.choices}
        if len(facts) != 1:
            raise ValueError(
                "Expected choices under one trust, for the same neighbours and unit, got "
                f"{sorted(facts) or 'none'}: a guarantee holds against one kind of adversary."
            )
        for each in self.choices:
            validate.whole("rounds of a choice", each.rounds, low=1, high=1)
            if each.sampled:
                raise ValueError(
                    "Expected choices that hide a client also if it is known to take part, got one "
                    "that relies on sampling: which choice is made may show who takes part."
                )
        checks.check_size(1, self.rounds)

    @property
    def trust(self) -> Trust:
        """That of all choices."""
        return self.choices[0].trust

    @property
    def neighboring(self) -> Neighboring:
        """Those of all choices."""
        return self.choices[0].neighboring

    @property
    def unit(self) -> Unit:
        """That of all choices."""
        return self.choices[0].unit

    @property
    def releases(self) -> int:
        """Single-coordinate releases, at most."""
        return self.rounds * max(each.releases for each in self.choices)

    @property
    def distance(self) -> float:
        """The largest of all choices, in every round."""
        # theory/accounting.md, Proposition 4: distances of rounds add up.
        return rounded_up(self.rounds * max(each.distance for each in self.choices))

    def renyi(self, order: float) -> float:
        """The largest of all choices at this order, in every round."""
        if self.rounds == 0:
            validate.renyi_order(order)
            return 0.0
        # theory/subsets.md, Proposition 6.
        return rounded_up(self.rounds * max(each.renyi(order) for each in self.choices))

    @property
    def squared_mu(self) -> float | None:
        """The largest of all choices in every round; None where one's is not known."""
        known = [each.squared_mu for each in self.choices]
        squares = [square for square in known if square is not None]
        # theory/subsets.md, Proposition 6.
        return None if None in known else rounded_up(self.rounds * max(squares))

    @property
    def steps(self) -> Steps | None:
        """Steps within the bounds of all choices; None where those of one are not known."""
        known = [each.steps for each in self.choices]
        parts = [each for each in known if each is not None]
        if len(parts) < len(known):
            return None
        # theory/subsets.md, Proposition 6: in each round no more energy than the largest.
        energy = rounded_up(self.rounds * max(part.energy for part in parts))
        return replace(Steps.together(parts), energy=energy)

    def under(self, trust: Trust) -> ChosenRelease:
        """The same choices under another trust."""
        return self._each(lambda choice: choice.under(trust))

    def of_one_example(self, examples: int) -> ChosenRelease:
        """The same choices at example level."""
        return self._each(lambda choice: choice.of_one_example(examples))

    def _each(self, change: Callable[[Release], Release]) -> ChosenRelease:
        return replace(self, choices=tuple(change(choice) for choice in self.choices))
