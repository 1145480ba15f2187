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
from pathlib import Path
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant._internal.serialization import pack_arrays, unpack_arrays
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.privacy.accounting.sampling import HiddenCohorts
from randquant.rounds.preparation import UpdatePreparation
from randquant.training.cohort import RoundCollector
from randquant.training.optimizer import OptimizerState, ServerStep, from_tensors, to_tensors
from randquant.training.records import RoundCost


@dataclass(frozen=True, slots=True)
class State:
    """The progress of a run: all that the next round depends on, but for settings and key.

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

    def to_bytes(self, identity: str) -> bytes:
        """Return a checkpoint of the run with that identity, with a checksum."""
        optimizer_arrays, optimizer = to_tensors(self.optimizer)
        arrays = {"parameters": self.parameters, "participations": self.participations}
        record = {"identity": identity, "round": self.round, "optimizer": optimizer}
        return pack_arrays(record, arrays | optimizer_arrays)

    @classmethod
    def from_bytes(cls, content: bytes, identity: str, path: Path) -> State:
        """Read a checkpoint of the run with that identity.

        Args:
            content: the checkpoint.
            identity: see `SentRounds.identity`.
            path: the file it was in, for messages.

        Raises:
            ValueError: the content is damaged, or of another run.
        """
        try:
            record, arrays = unpack_arrays(content)
            stored_identity = record["identity"]
            number = validate.whole("round", record["round"], low=0)
            parameters, participations = arrays["parameters"], arrays["participations"]
            optimizer = from_tensors(arrays, record["optimizer"])
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"Expected a checkpoint in {path}, got a damaged one: {error}"
            ) from None
        # An intact checkpoint of other settings would train on with another guarantee. The two
        # digests are not shown: neither says what differs.
        if stored_identity != identity:
            raise ValueError(
                f"Expected the configuration that the checkpoint in {path} was made with, got a "
                "different one: its rounds would not have the guarantee that is printed. Restore "
                "its run or begin a new one."
            )
        return cls(number, parameters, participations, optimizer)


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
    pool: Executor, workers: int,
    hidden: HiddenCohorts | None = None,
    public_seed: int = 0,
    preparation: UpdatePreparation = UpdatePreparation(),  # noqa: B008 - it is frozen
    engine: Any = None,
) -> Algorithm:  # fmt: skip
    """Build federated SGD or averaging, one server step a round (RQM paper, Algorithm 1).

    Args:
        learner: computes the clients' updates.
        mechanism: protects and aggregates them.
        population: how many clients there are.
        server: the server's step.
        pool, workers: threads that clients are simulated on; they do not change the result.
        hidden: how clients are sampled if nobody sees which of them take part; None if that is
            seen.
        public_seed: draws what all clients know, such as which coordinates are sent in a round.
            It must not be derived from the key, which is secret.
        preparation: what clients do with their updates before they encode them.
        engine: see `RoundCollector`.

    Returns:
        The algorithm as an (init, apply) pair.
    """

    def init() -> State:
        participations = np.zeros(population, dtype=np.int64)
        return State(0, learner.parameters(), participations, server.init())

    collect = RoundCollector(learner, mechanism, pool, workers, hidden, preparation, engine)
    # Not derived from the secret key: clients see these draws.
    public = Key.from_seed(public_seed).fold_in("rounds")

    def apply(state: State, cohort: Sequence[int], key: Key) -> tuple[State, RoundCost]:
        if len(set(cohort)) < len(cohort):
            # The cost of a round covers one update of each client.
            [repeated, *_] = [client for client, count in Counter(cohort).items() if count > 1]
            raise ValueError(
                f"Expected each client once in a cohort, got client {repeated} more than once: "
                "remove it."
            )
        # Poisson sampling selected nobody: nothing is sent, nothing changes. With hidden cohorts
        # an unchanged model would reveal that (theory/sampling.md, Proposition 18), so the round
        # goes on with the noisy sum of zeros.
        if not cohort and hidden is None:
            return replace(state, round=state.round + 1), RoundCost(None, 0, 0.0, 0.0)
        started = time.perf_counter()
        learner.load(state.parameters)
        number = state.round + 1
        # Everything random in a round follows from these two, so a round that is repeated after a
        # kill sends the same bits: no new release, and no second epsilon.
        seed = int(public.fold_in(number).words(1)[0])
        collected = collect(cohort, key.fold_in(number), seed)
        parameters, optimizer = _server_step(server, state, collected.mean)
        participations = state.participations.copy()  # the old state stays valid if a step fails
        participations[cohort] += 1
        total = time.perf_counter() - started
        return State(number, parameters, participations, optimizer), RoundCost(
            train_loss=float(collected.losses.mean()) if cohort else None,
            bytes_up=collected.bytes_up,
            # Workers' seconds are added up and divided, which may exceed the round by a little.
            seconds_gradient=min(collected.seconds_gradient, total),
            seconds_protect=max(total - collected.seconds_gradient, 0.0),
            # The digest tells a repeated round from a different one without keeping the mean.
            mean=hashlib.sha256(collected.mean.tobytes()).hexdigest(),
            mean_norm=float(np.linalg.norm(collected.mean.astype(np.float64))),
            noise_norm=collected.noise_norm,
            numbers=collected.numbers,
        )

    return Algorithm(init, apply)


def _server_step(
    server: ServerStep, state: State, mean: np.ndarray
) -> tuple[np.ndarray, OptimizerState]:
    parameters, optimizer = server.step(state.parameters, mean, state.optimizer)
    # Raised before a checkpoint is written: NaN would be kept, and every later round be wasted.
    if not np.isfinite(parameters).all():
        raise ValueError(
            "Expected finite parameters after the step, got NaN or infinity: training has "
            "diverged; lower learning_rate."
        )
    return parameters, optimizer
