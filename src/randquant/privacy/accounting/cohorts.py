"""From a run to the release that accounts for it, whoever sees which clients take part."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from randquant._internal import validate
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.hidden import DRAWS, Draw, rate_of
from randquant.privacy.accounting.neighbours import check_examples
from randquant.privacy.accounting.release import Release, Releasing
from randquant.privacy.accounting.releases import GaussianRelease
from randquant.privacy.accounting.sampled import Sampled
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring, Trust


@dataclass(frozen=True, slots=True)
class HiddenCohorts:
    """How clients take part in a run, if nobody sees which of them do.

    What a client sends must not follow from its number (`UpdateMechanism.of_client`).

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

    @property
    def participations(self) -> int:
        """Rounds that each client takes part in, about."""
        return -(-self.rounds * self.cohort // self.population)

    def all_send(self, trust: Trust | None) -> bool:
        """Whether clients that do not take part send zeros, with a mechanism of that trust."""
        if self.everybody_sends is not None:
            return self.everybody_sends
        # theory/sampling.md, Proposition 18: where clients add the noise, all must add it.
        return self.draw != "fixed" and trust != "central"

    def summands(self, trust: Trust | None) -> int:
        """How many clients' payloads are in a sum, with a mechanism of that trust."""
        return self.population if self.all_send(trust) else self.cohort

    def release(
        self, mechanism: Releasing, dimension: int, rounds: int, neighboring: Neighboring
    ) -> Release | None:
        """The release of the first `rounds` rounds of the run; None without privacy."""
        one = mechanism.release(dimension, 1, neighboring)
        if one is None:
            return None
        everybody, absent = self.all_send(one.trust), None
        if (self.draw == "fixed") == (neighboring == "zero_out"):
            # Absence is a stand-in, or zeros.
            other: Neighboring = "replace_one" if neighboring == "zero_out" else "zero_out"
            absent = mechanism.release(dimension, 1, other)
        rate = rate_of(self.cohort, self.population)
        return Sampled(one, rate, rounds, self.draw, everybody, absent, self.models)

    def gaussian_multiplier(self, epsilon: float, delta: float, neighboring: Neighboring) -> float:
        """About the least noise multiplier with which Gaussian noise on sums meets a target.

        Relative to the distance of updates under `replace_one`; infinite if none is found.
        """
        return _least_multiplier(self, epsilon, delta, neighboring)


def release_of(
    mechanism: Releasing,
    dimension: int,
    rounds: int,
    neighboring: Neighboring = "replace_one",
    *,
    examples: int | None = None,
    numbers: bool = False,
    cohorts: HiddenCohorts | None = None,
) -> Release | None:
    """Return what so many rounds of a mechanism release about one client, or one of its examples.

    Args:
        mechanism: of every update.
        dimension: coordinates of an update, numbers beside it included.
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
    if examples is None:
        if cohorts is not None:
            return cohorts.release(mechanism, dimension, rounds, neighboring)
        return mechanism.release(dimension, rounds, neighboring)
    examples = check_examples(examples)
    if numbers:
        raise ValueError(
            f"Expected no numbers beside an update that counts for one of {examples} examples, "
            "got some: one example may move a number by its whole range; protect clients, or leave "
            "the numbers out."
        )
    if cohorts is not None:
        raise ValueError(
            f"Expected participation that is seen with one of {examples} examples as the unit, got "
            "hidden cohorts: a client that is absent differs by all its examples."
        )
    if mechanism.release(dimension, rounds, neighboring) is None:
        return None
    release = mechanism.example_release(dimension, rounds, neighboring, examples)
    if (release.unit, release.neighboring) != ("example", neighboring):
        raise ValueError(
            f"Expected a release of one example under {neighboring} of {type(mechanism).__name__}, "
            f"got one of a {release.unit} under {release.neighboring}."
        )
    return release


@dataclass(frozen=True, slots=True)
class _Noise(Releasing):
    """Gaussian noise on a sum, by a trusted server."""

    multiplier: float

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release:
        """The multiplier is relative to two updates' distance."""
        apart = 2 if neighboring == "zero_out" else 1
        multiplier = self.multiplier * apart
        return GaussianRelease(multiplier, dimension, rounds, "central", neighboring)


@functools.lru_cache(maxsize=64)
def _least_multiplier(
    cohorts: HiddenCohorts, epsilon: float, delta: float, neighboring: Neighboring
) -> float:
    """By bisection: roughly by Rényi divergences, which are above the truth, then as accounted."""

    def enough(multiplier: float, quick: bool) -> bool:
        release = cohorts.release(_Noise(multiplier), 1, cohorts.rounds, neighboring)
        assert release is not None
        return account([release], delta, quick=quick, attacked=False).epsilon <= epsilon

    low, high = 1e-3, 1e6
    for quick, steps in ((True, 20), (False, 9)):
        for _ in range(steps):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if enough(middle, quick) else (middle, high)
        if quick:
            low = high / 2
    return high if high < 1e5 else math.inf
