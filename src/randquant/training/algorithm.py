"""Distributed SGD with a quantising mechanism, as a pair of functions `init` and `apply`.

One round is Algorithm 1 of the RQM paper: a cohort computes updates, each client clips, encodes
and packs its own, the server adds up the codes, decodes the mean and takes a step. An update is a
gradient, or the model difference after local SGD (DP-FedAvg).
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import numpy as np

from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.privacy.accounting.sampling import HiddenCohorts
from randquant.rounds.preparation import UpdatePreparation
from randquant.training.cohort import RoundCollector
from randquant.training.optimizer import OptimizerState, ServerStep
from randquant.training.records import RoundCost


@dataclass(frozen=True, slots=True)
class State:
    """Where a run stands.

    Attributes:
        round: rounds finished.
        parameters: (d,) float32, the global model.
        participations: (N,) int64, rounds that each client has taken part in.
        optimizer: the state of the server's optimiser.
    """

    round: int
    parameters: np.ndarray
    participations: np.ndarray
    optimizer: OptimizerState = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """`init()` gives the first State; `apply(state, cohort, key)` one round's (State, RoundCost).

    Both are pure: a round that raises leaves its state as it was.
    """

    init: Callable[[], State]
    apply: Callable[[State, Sequence[int], Key], tuple[State, RoundCost]]


def distributed_sgd(
    learner: Learner,
    mechanism: UpdateMechanism,
    *,
    population: int,
    server: ServerStep,
    pool: Executor,
    workers: int,
    hidden: HiddenCohorts | None = None,
    public_seed: int = 0,
    preparation: UpdatePreparation = UpdatePreparation(),  # noqa: B008 - it is frozen
) -> Algorithm:
    """Federated SGD or averaging, one step of the server a round (RQM paper, Algorithm 1).

    Args:
        learner: computes the clients' updates.
        mechanism: protects and aggregates them.
        population: how many clients there are.
        server: the server's step.
        pool, workers: threads that clients are simulated on; they do not change the result.
        hidden: how clients take part if nobody sees which of them do; None if it is seen.
        public_seed: of what all clients know and the key must not give away: which coordinates are
            sent in each round, if not all are.
        preparation: what clients do with their updates before they encode them.

    Returns:
        The algorithm as an (init, apply) pair.
    """

    def init() -> State:
        participations = np.zeros(population, dtype=np.int64)
        return State(0, learner.parameters(), participations, server.init())

    collect = RoundCollector(learner, mechanism, pool, workers, hidden, preparation)
    public = Key.from_seed(public_seed).fold_in("rounds")

    def apply(state: State, cohort: Sequence[int], key: Key) -> tuple[State, RoundCost]:
        if len(set(cohort)) < len(cohort):
            [twice, *_] = [client for client, count in Counter(cohort).items() if count > 1]
            raise ValueError(
                f"Expected each client once in a cohort, got client {twice} more than once: "
                "remove it."
            )
        # Poisson sampling selected nobody: nothing is sent, nothing changes. If nobody sees who
        # takes part, nobody may see that nobody does: the sum of zeros is noisy like any other.
        if not cohort and hidden is None:
            return replace(state, round=state.round + 1), RoundCost(None, 0, 0.0, 0.0)
        started = time.perf_counter()
        learner.load(state.parameters)
        number = state.round + 1
        seed = int(public.fold_in(number).words(1)[0])
        collected = collect(cohort, key.fold_in(number), seed)
        parameters, stepped = _stepped(server, state, collected.mean)
        participations = state.participations.copy()
        participations[cohort] += 1
        total = time.perf_counter() - started
        return State(number, parameters, participations, stepped), RoundCost(
            train_loss=float(collected.losses.mean()) if cohort else None,
            bytes_up=collected.bytes_up,
            seconds_gradient=min(collected.seconds_gradient, total),
            seconds_protect=max(total - collected.seconds_gradient, 0.0),
            mean=hashlib.sha256(collected.mean.tobytes()).hexdigest(),
            mean_norm=float(np.linalg.norm(collected.mean.astype(np.float64))),
            noise_norm=collected.noise_norm,
            numbers=collected.numbers,
        )

    return Algorithm(init, apply)


def _stepped(
    server: ServerStep, state: State, mean: np.ndarray
) -> tuple[np.ndarray, OptimizerState]:
    stepped = server.step(state.parameters, mean, state.optimizer)
    if not np.isfinite(stepped[0]).all():
        raise ValueError(
            "Expected finite parameters after the step, got NaN or infinity: training has "
            "diverged; lower learning_rate."
        )
    return stepped
