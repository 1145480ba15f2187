"""Sampling of the clients of a round: at random, or with a cap on each one's participations."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from randquant._internal import validate
from randquant.channels.keys import Key


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
