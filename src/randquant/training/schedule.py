"""Who takes part in each round of a run and what that costs: decided before any data is seen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from randquant._internal.rounding import round_up
from randquant.channels.keys import Key
from randquant.privacy.accounting.ledger import Ledger
from randquant.privacy.guarantee import Guarantee
from randquant.training.config import TrainConfig
from randquant.training.participation import (
    sample_capped,
    sample_cohort,
    sample_hidden,
    sample_poisson,
)
from randquant.training.records import SentRounds


@dataclass(frozen=True, slots=True)
class Step:
    """The next round of a run.

    Attributes:
        cohort: who takes part (empty if Poisson sampling selected nobody); None if the run is over.
        participations: the most rounds that any client has taken part in, this one included.
        epsilon: proven upper bound of that client's epsilon; None without privacy.
        stopped: why the run is over before its last round; empty otherwise.
    """

    cohort: list[int] | None
    participations: int
    epsilon: float | None
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Draws cohorts as configured, and ends a run before its epsilon would be exceeded.

    Args:
        config: the run.
        ledger: what its participations cost; its limit is the configuration's.
        key: of the run, which cohorts are drawn with.

    Guarantees:
        After every round that `step` allows, each client's epsilon is at most
        `config.stop_at_epsilon`, and nobody took part more often than
        `config.privacy.max_participations`. Neither cohorts nor the end depend on data.

    Raises:
        ValueError: there is an epsilon to stop at, but no mechanism that protects.
    """

    config: TrainConfig
    ledger: Ledger
    key: Key

    def __post_init__(self) -> None:
        if self.config.stop_at_epsilon is not None and self.ledger.epsilon(1) is None:
            raise ValueError(
                "Expected a mechanism that protects with stop_at_epsilon, got "
                f"{self.config.mechanism}: it has no epsilon to stop at."
            )

    def epsilon(self, rounds: int, participations: int) -> float | None:
        """What so many rounds cost the client that took part most often; None without privacy.

        If nobody sees who takes part, participations do not count, but all rounds.
        """
        return self.ledger.epsilon(rounds if self.ledger.hidden else participations)

    def guarantee(self, rounds: int, participations: int) -> Guarantee | None:
        """The tightest guarantee for the same; None without privacy."""
        return self.ledger.guarantee(rounds if self.ledger.hidden else participations)

    def step(self, done: int, participations: np.ndarray) -> Step:
        """Return the round that comes after `done` rounds.

        Args:
            done: rounds that are done.
            participations: (N,) whole numbers, how many of them each client took part in.

        Raises:
            ValueError: the first round would exceed `stop_at_epsilon`.
        """
        so_far = int(participations.max())
        limit, spent = self.config.stop_at_epsilon, self.epsilon(done, so_far)
        if done == self.config.rounds:
            return Step(None, so_far, spent)
        cohort = self._cohort(done + 1, participations)
        most = max(so_far, int(participations[cohort].max(initial=-1)) + 1)
        epsilon = self.epsilon(done + 1, most)
        if limit is None or epsilon is None or epsilon <= limit:
            return Step(cohort, most, epsilon)
        if done == 0:
            raise ValueError(
                f"Expected stop_at_epsilon >= {_shown(epsilon)}, which one round costs, got "
                f"{limit}: take a mechanism with more noise, or a larger cohort under aggregate "
                "trust."
            )
        why = f"epsilon would have become {_shown(epsilon)}, above {limit}"
        return Step(None, so_far, spent, f"before round {done + 1} of {self.config.rounds}: {why}")

    def check(self, sent: SentRounds) -> None:
        """Refuse a configuration that takes back what was sent, or exceeds what was declared.

        Raises:
            ValueError: fewer rounds than were sent, more than were declared before the first, or a
                `stop_at_epsilon` below what the declared rounds cost.
        """
        if sent.round > self.config.rounds:
            raise ValueError(
                f"Expected rounds >= {sent.round}, which were sent, got {self.config.rounds}: what "
                "was sent cannot be taken back."
            )
        if not sent.binding:
            return
        cost, limit = self.epsilon(sent.declared, sent.participations), self.config.stop_at_epsilon
        if limit is not None and cost is not None and cost > limit:
            raise ValueError(
                f"Expected stop_at_epsilon >= {_shown(cost)}, which the {sent.declared} rounds "
                f"declared before the first cost, got {limit}: the guarantee covers them all, "
                "however the run ends."
            )
        # theory/accounting.md, Proposition 9: no figure covers an end that is put off by looking.
        if (rounds := self.declared()[0]) > sent.declared:
            raise ValueError(
                f"Expected at most the {sent.declared} rounds declared before the first, got "
                f"{rounds}: no guarantee covers rounds that were added after others were seen. "
                "Begin a new run from this model; the epsilons of the two add up, and their deltas."
            )

    def declared(self) -> tuple[int, int]:
        """How many rounds the run is to have, and in how many the client called most often is.

        Both follow from the configuration and the key, so they are known before the first round.

        Raises:
            ValueError: the first round would exceed `stop_at_epsilon`.
        """
        hidden, most = self.ledger.hidden, most_participations(self.config, self.key)
        low, high = 0, self.config.rounds if hidden else most
        if self._affords(high):
            return self.config.rounds, most
        # Epsilon rises with rounds and takes long to compute: it is for few numbers of them.
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._affords(middle) else (low, middle)
        if hidden and low:
            return low, most_participations(self.config.changed(rounds=low), self.key)
        done, participations = 0, np.zeros(self.config.task.population, dtype=np.int64)
        while (
            participations[cohort := self._cohort(done + 1, participations)].max(initial=-1) < low
        ):
            participations[cohort] += 1
            done += 1
        if not done:
            self.step(done, participations)  # it says what the first round costs
        return done, int(participations.max())

    def _affords(self, rounds: int) -> bool:
        """Whether so many rounds of one client, or of a run that hides who takes part, may be."""
        limit, cost = self.config.stop_at_epsilon, self.ledger.epsilon(rounds)
        return limit is None or cost is None or cost <= limit

    def _cohort(self, round: int, participations: np.ndarray) -> list[int]:
        return sample(self.config, round, participations, self.key)


def sample(config: TrainConfig, round: int, participations: np.ndarray, key: Key) -> list[int]:
    """Draw the cohort of a round as configured, in increasing order.

    Args:
        config: the run.
        round: 1 for the first.
        participations: (N,) whole numbers, rounds that each client has taken part in before.
        key: of the run.
    """
    if config.privacy.sampling == "poisson":
        rate = config.cohort / config.task.population
        return sample_poisson(config.task.population, rate, round, key)
    if config.trust == "model":
        return sample_hidden(config.task.population, config.cohort, round, key)
    if config.privacy.max_participations is None:
        return sample_cohort(config.task.population, config.cohort, round, key)
    return sample_capped(
        participations,
        config.cohort,
        round=round,
        rounds=config.rounds,
        max_participations=config.privacy.max_participations,
        key=key,
    )


def most_participations(config: TrainConfig, key: Key) -> int:
    """How often the client called most often takes part if all configured rounds are done.

    Cohorts depend on no data, so they are known before the first round.

    Example:
        >>> from randquant import Privacy
        >>> from randquant.training.config import Task
        >>> privacy = Privacy(max_participations=2)
        >>> config = TrainConfig(Task(10), "rqm", cohort=4, rounds=5, privacy=privacy)
        >>> most_participations(config, Key.from_seed(0))
        2
    """
    places, most = config.rounds * config.cohort, config.privacy.max_participations
    if most is not None and places > (most - 1) * config.task.population:
        return most  # fewer each would not fill the places
    participations = np.zeros(config.task.population, dtype=np.int64)
    for round in range(1, config.rounds + 1):
        participations[sample(config, round, participations, key)] += 1
    return int(participations.max())


def _shown(epsilon: float) -> str:
    return "infinity" if math.isinf(epsilon) else round_up(epsilon)
