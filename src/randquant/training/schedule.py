"""Cohorts, how they are drawn, and a run's privacy cost: all fixed before any data is seen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from randquant._internal import validate
from randquant._internal.formatting import round_up
from randquant.channels.keys import Key
from randquant.privacy.accounting.ledger import Ledger
from randquant.privacy.guarantee import Guarantee
from randquant.training.config import TrainConfig
from randquant.training.run_store import SentRounds


def sample_poisson(population: int, rate: float, round: int, key: Key) -> list[int]:
    """Draw the cohort of a round by Poisson sampling: each client independently.

    Args:
        population: how many clients there are.
        rate: probability of taking part, in (0, 1].
        round, key: with the other arguments they determine the draw.

    Returns:
        Clients in increasing order; their number varies, and may be 0.

    Guarantees:
        Each client takes part with a probability of at most `rate`, less than 2**-64 below it.
        A seed's key is for simulation: amplification (`sampled.Sampled`) needs random choices that
        the adversary does not know.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> key = Key.from_seed(0)
        >>> sample_poisson(10, 0.3, round=1, key=key) == sample_poisson(10, 0.3, round=1, key=key)
        True
    """
    population = validate.whole("population", population, low=1, high=2**31)
    rate = validate.real("rate", rate, above=0, high=1, why="it is a probability")
    if rate == 1:
        return list(range(population))
    words = key.fold_in("poisson cohort", round).words(population)
    # Rounded down, and exact: a float product could exceed the rate that amplification is stated
    # for.
    limit = np.uint64(Fraction(rate) * 2**64 // 1)
    return np.flatnonzero(words < limit).tolist()


def sample_hidden(population: int, cohort: int, round: int, key: Key) -> list[int]:
    """Draw a cohort of a fixed size that is secret and uniform: all cohorts are equally likely.

    The words of a `Key` are unpredictable without it, unlike the generator of `sample_cohort`.

    Returns:
        `cohort` different clients in increasing order.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> len(sample_hidden(10, 4, round=1, key=Key.from_seed(0)))
        4
    """
    population = validate.whole("population", population, low=1, high=2**31)
    cohort = validate.whole(
        "cohort", cohort, low=1, high=population, why="the population is that small"
    )
    round_key, attempt = key.fold_in("hidden cohort", round), 0
    # Different words are in every order equally often. Equal ones would be sorted in one order,
    # which depends on the clients' numbers.
    while np.unique(words := round_key.fold_in(attempt).words(population)).size < population:
        attempt += 1
    return sorted(np.argsort(words)[:cohort].tolist())


def sample_capped(
    participations: np.ndarray,
    cohort: int,
    *,
    round: int,
    rounds: int,
    max_participations: int,
    key: Key,
) -> list[int]:
    """Draw the cohort of a round so that no client exceeds its cap on participations.

    Args:
        participations: (N,) whole numbers, rounds that each client has taken part in so far.
        cohort: how many clients take part in every round.
        round: the round to draw for, from 1 to `rounds`.
        rounds: rounds of the whole run.
        max_participations: most rounds that one client may take part in.
        key: with `participations` and `round` it determines the draw; data does not matter.

    Returns:
        `cohort` different clients in increasing order.

    Guarantees:
        No client exceeds the cap, and the remaining rounds can always be filled: if the first
        round can be drawn, all rounds can. Clients that could take part in every remaining round
        are selected first, as many as necessary; the others are drawn uniformly from all clients
        below the cap. Rounds depend on each other, so amplification by sampling
        (`sampled.Sampled`) does not apply: account for the most participations of any client.

    Raises:
        ValueError: an argument is out of bounds, or the remaining rounds cannot be filled.
        TypeError: an argument is of the wrong kind.

    References:
        Gale 1957 (which rows and columns a table of zeros and ones can have).

    Example:
        >>> calls = np.zeros(10, dtype=np.int64)
        >>> for round in range(1, 6):
        ...     drawn = sample_capped(
        ...         calls, 4, round=round, rounds=5, max_participations=2, key=Key.from_seed(0)
        ...     )
        ...     calls[drawn] += 1
        >>> calls.tolist()
        [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """
    participations = np.asarray(participations)
    if participations.ndim != 1 or participations.dtype.kind not in "iu":
        raise TypeError(
            "Expected participations (N,) of whole numbers, got "
            f"{participations.dtype} of shape {participations.shape}."
        )
    population = participations.size
    cohort = validate.whole(
        "cohort", cohort, low=1, high=population, why="the population is that small"
    )
    rounds = validate.whole("rounds", rounds, low=1, high=2**31)
    round = validate.whole("round", round, low=1, high=rounds)
    max_participations = validate.whole("max_participations", max_participations, low=1, high=2**31)
    remaining = rounds - round + 1
    left = max_participations - participations.astype(np.int64)
    # Gale: a client fills at most one place per round and `left` places in total. All remaining
    # rounds can be filled if and only if no place is missing.
    spare = int(np.clip(left, 0, remaining).sum()) - cohort * remaining
    if spare < 0:
        raise ValueError(
            f"Expected max_participations large enough for {remaining} more rounds of {cohort} of "
            f"{population} clients, got {max_participations}: places for {-spare} are missing; "
            "raise it, or lower cohort or rounds."
        )
    # Clients that could fill a place in every remaining round: only those lose a place for good
    # by not being selected now. The others can use all they have left in later rounds.
    eager = np.flatnonzero(left >= remaining)
    words = key.fold_in("capped cohort", round).words(2)
    generator = np.random.Generator(np.random.Philox(key=words))
    # Each of them that is not selected uses up one spare place, so all but `spare` are selected.
    first = generator.choice(eager, max(eager.size - spare, 0), replace=False)
    # So that nobody who was selected is drawn once more below.
    left[first] = 0
    others = generator.choice(np.flatnonzero(left > 0), cohort - first.size, replace=False)
    return sorted([*first.tolist(), *others.tolist()])


def capped_cohorts(
    population: int, cohort: int, rounds: int, *, max_participations: int, key: Key
) -> Iterator[list[int]]:
    """Draw the cohorts of a whole run by `sample_capped`, from the first round on.

    Raises:
        ValueError, TypeError: as `sample_capped`, before the first cohort is drawn or never.

    Example:
        >>> key = Key.from_seed(1)
        >>> cohorts = list(capped_cohorts(6, 2, 9, max_participations=3, key=key))
        >>> len(cohorts), sorted(client for drawn in cohorts for client in drawn)
        (9, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5])
    """
    population = validate.whole("population", population, low=1, high=2**31)
    rounds = validate.whole("rounds", rounds, low=1, high=2**31)
    calls = np.zeros(population, dtype=np.int64)
    for round in range(1, rounds + 1):
        drawn = sample_capped(
            calls,
            cohort,
            round=round,
            rounds=rounds,
            max_participations=max_participations,
            key=key,
        )
        calls[drawn] += 1
        yield drawn


def sample_cohort(population: int, cohort: int, round: int, key: Key) -> list[int]:
    """Draw who takes part in a round: `cohort` of `population` clients, uniformly, no repeats.

    The draw depends on (key, round) alone, never on data, so that who took part may be public.
    """
    population = validate.whole("population", population, low=1, high=2**31)
    cohort = validate.whole(
        "cohort", cohort, low=1, high=population, why="the population is that small"
    )
    words = key.fold_in("cohort", round).words(2)
    generator = np.random.Generator(np.random.Philox(key=words))
    return sorted(generator.choice(population, cohort, replace=False).tolist())


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
        ledger: the cost of participations; its limit is the configuration's.
        key: the run's; cohorts are drawn with it.

    Guarantees:
        After every round that `step` allows, each client's epsilon is at most
        `config.stop_at_epsilon`, and no client took part more often than
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
        """Return the highest epsilon of any client; None without privacy.

        Args:
            rounds: rounds of the run.
            participations: the most of them that any client took part in.
        """
        # With hidden cohorts the adversary cannot tell who took part, so the bound is the same for
        # all clients and grows with every round.
        return self.ledger.epsilon(self.counted_rounds(rounds, participations))

    def guarantee(self, rounds: int, participations: int) -> Guarantee | None:
        # The tightest one for the same rounds as `epsilon`; None without privacy.
        return self.ledger.guarantee(self.counted_rounds(rounds, participations))

    def counted_rounds(self, rounds: int, participations: int) -> int:
        return rounds if self.ledger.hidden else participations

    def step(self, done: int, participations: np.ndarray) -> Step:
        """Return the round that comes after `done` rounds.

        Args:
            done: rounds that are done.
            participations: (N,) whole numbers, how many of these each client took part in.

        Raises:
            ValueError: the first round would exceed `stop_at_epsilon`.
        """
        so_far = int(participations.max())
        # The bound of one client holds for all: cost rises with participations, and nobody has
        # taken part more often than `so_far`.
        limit, spent = self.config.stop_at_epsilon, self.epsilon(done, so_far)
        if done == self.config.rounds:
            return Step(None, so_far, spent)
        cohort = self._cohort(done + 1, participations)
        # An empty cohort has no maximum: -1 + 1 leaves `so_far` as it is.
        most = max(so_far, int(participations[cohort].max(initial=-1)) + 1)
        # The cost is looked at before the round is sent: what was sent cannot be taken back.
        epsilon = self.epsilon(done + 1, most)
        if limit is None or epsilon is None or epsilon <= limit:
            return Step(cohort, most, epsilon)
        if done == 0:  # a run without a round has no result, so this is an error and not an end
            raise ValueError(
                f"Expected stop_at_epsilon >= {_text(epsilon)}, which one round costs, got "
                f"{limit}: take a mechanism with more noise, or a larger cohort under aggregate "
                "trust."
            )
        reason = f"epsilon would have become {_text(epsilon)}, above {limit}"
        stopped = f"before round {done + 1} of {self.config.rounds}: {reason}"
        return Step(None, so_far, spent, stopped)

    def check(self, sent_rounds: SentRounds) -> None:
        """Refuse a configuration with fewer rounds than were sent, or more than were declared.

        Args:
            sent_rounds: the run's record of declared and sent rounds.

        Raises:
            ValueError: fewer rounds than were sent, more than were declared before the first, or a
                `stop_at_epsilon` below what the declared rounds cost.
        """
        if sent_rounds.round > self.config.rounds:
            raise ValueError(
                f"Expected rounds >= {sent_rounds.round}, which were sent, got "
                f"{self.config.rounds}: what was sent cannot be taken back."
            )
        # Until something is sent, or without privacy, there is no guarantee to keep.
        if not sent_rounds.binding:
            return
        # theory/accounting.md, Proposition 8: a run may be ended early because of what its models
        # showed, so its cost is that of all declared rounds, whenever it ends.
        cost, limit = (
            self.epsilon(sent_rounds.declared, sent_rounds.participations),
            self.config.stop_at_epsilon,
        )
        if limit is not None and cost is not None and cost > limit:
            raise ValueError(
                f"Expected stop_at_epsilon >= {_text(cost)}, which the {sent_rounds.declared} "
                f"rounds declared before the first cost, got {limit}: the guarantee covers them "
                "all, however the run ends."
            )
        # theory/accounting.md, Proposition 9: no epsilon covers rounds that are added because of
        # what the first ones showed.
        if (rounds := self.declared()[0]) > sent_rounds.declared:
            raise ValueError(
                f"Expected at most the {sent_rounds.declared} rounds declared before the first, "
                f"got {rounds}: no guarantee covers rounds that were added after others were seen. "
                "Begin a new run from this model; the epsilons of the two add up, and their deltas."
            )

    def declared(self) -> tuple[int, int]:
        """Return the number of rounds of the run and the most participations of any client.

        Both follow from the configuration and the key, so they are known before the first round.

        Raises:
            ValueError: the first round would exceed `stop_at_epsilon`.
        """
        hidden, most = self.ledger.hidden, most_participations(self.config, self.key)
        low, high = 0, self.config.rounds if hidden else most
        if self._affords(high):
            return self.config.rounds, most
        # Epsilon rises with rounds and takes long to compute: bisection asks for it about
        # log2(rounds) times. `low` is within the limit throughout, `high` above it.
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._affords(middle) else (low, middle)
        if hidden and low:
            return low, most_participations(self.config.changed(rounds=low), self.key)
        # Cohorts are drawn as in the run, until one has a client that has used up its `low`
        # participations: `step` stops before the same round.
        done, participations = 0, np.zeros(self.config.task.population, dtype=np.int64)
        while (
            participations[cohort := self._cohort(done + 1, participations)].max(initial=-1) < low
        ):
            participations[cohort] += 1
            done += 1
        if not done:
            self.step(done, participations)  # raises the error that says what one round costs
        return done, int(participations.max())

    def _affords(self, rounds: int) -> bool:
        # `rounds` are participations of a client, or with hidden cohorts rounds of the run.
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
        key: the run's.
    """
    if config.privacy.sampling == "poisson":
        rate = config.cohort / config.task.population
        return sample_poisson(config.task.population, rate, round, key)
    if config.trust == "model":
        # Amplification needs a draw that the adversary cannot predict: words of the secret key.
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
    """Return the most rounds that any client takes part in if all configured rounds are done.

    Cohorts depend on no data, so this is known before the first round.

    Example:
        >>> from randquant import Privacy
        >>> from randquant.training.config import Task
        >>> privacy = Privacy(max_participations=2)
        >>> config = TrainConfig(Task(10), "rqm", cohort=4, rounds=5, privacy=privacy)
        >>> most_participations(config, Key.from_seed(0))
        2
    """
    places, cap = config.rounds * config.cohort, config.privacy.max_participations
    # Pigeonhole: if every client took part cap - 1 times, places would be left. The answer follows
    # without drawing all cohorts, which takes long for large populations.
    if cap is not None and places > (cap - 1) * config.task.population:
        return cap
    participations = np.zeros(config.task.population, dtype=np.int64)
    for round in range(1, config.rounds + 1):
        participations[sample(config, round, participations, key)] += 1
    return int(participations.max())


def _text(epsilon: float) -> str:
    return "infinity" if math.isinf(epsilon) else round_up(epsilon)
