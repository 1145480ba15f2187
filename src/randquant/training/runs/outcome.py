"""What a round and a run have come to: their metrics and results."""

from __future__ import annotations

import dataclasses
import time

from randquant.local_training.client import Learner
from randquant.training.algorithm import State
from randquant.training.records import RoundCost, RoundMetrics, RunSummary, SentRounds
from randquant.training.runs.setup import TrainingSetup
from randquant.training.schedule import Step


def measured(number: int, cost: RoundCost, sent: SentRounds, step: Step) -> RoundMetrics:
    """The metrics of a round that was not evaluated."""
    return RoundMetrics(
        **dataclasses.asdict(cost),
        round=number,
        participations=step.participations,
        epsilon=step.epsilon,
        delta=sent.delta,
        neighboring=sent.neighboring,
    )


def same(logged: RoundMetrics, again: RoundMetrics) -> RoundMetrics:
    """The metrics of a round that is sent a second time; its bits must be the same.

    The training loss alone would not tell: it is of a client's first step, and another loss, model
    or example may change the update only.
    """
    names = ["train_loss", "bytes_up", "participations", "numbers", "mean"]
    if any(getattr(logged, name) != getattr(again, name) for name in names):
        raise ValueError(
            f"Expected round {logged.round} to give what it gave before the run was stopped, got "
            "something else, which would be a second release: use the machine, libraries "
            "and data that the run started with, or begin a new run."
        )
    return logged


def evaluated(metrics: RoundMetrics, learner: Learner, state: State) -> RoundMetrics:
    """The metrics of a round with accuracy and loss on the test data."""
    started = time.perf_counter()
    learner.load(state.parameters)
    evaluation = learner.evaluate()
    return dataclasses.replace(
        metrics,
        accuracy=evaluation.accuracy,
        loss=evaluation.loss,
        seconds_evaluate=time.perf_counter() - started,
    )


def summarized(
    setup: TrainingSetup, state: State, metrics: list[RoundMetrics], upload: int, sent: SentRounds
) -> RunSummary:
    """The results of a run that has ended."""
    schedule = setup.schedule
    most = sent.participations
    dimension = setup.learner.dimension
    stopped = schedule.step(state.round, state.participations).stopped
    if state.round < sent.declared:
        # theory/accounting.md, Proposition 8: whoever ended it may have looked at the model.
        stopped = f"before round {state.round + 1} of {sent.declared}: the guarantee is of them all"
    last = metrics[-1]  # the last round is always evaluated
    return RunSummary(
        accuracy=last.accuracy,
        loss=last.loss,
        advice=setup.advice(state, metrics),
        dimension=dimension,
        bytes_per_upload=upload,
        participations=most,
        guarantee=schedule.guarantee(sent.declared, most),
        rounds=state.round,
        stopped=stopped,
        bytes_as_codes=setup.mechanism.payload_bytes(setup.dimension),
        spent=schedule.ledger.spent,
        beside=None if setup.client_ledger is None else setup.client_ledger.guarantee(most),
    )
