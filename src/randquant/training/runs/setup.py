"""Builds a run from its configuration: data, clients, mechanism and schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from randquant.aggregation.alongside import Alongside
from randquant.aggregation.baselines import UNPROTECTED
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.local_training.problem import Problem
from randquant.local_training.raw_units import columns_of, standardized
from randquant.local_training.standardize import FeatureStatistics, StandardizationQuery, plan_query
from randquant.local_training.work import Work
from randquant.privacy.accounting.ledger import Ledger
from randquant.privacy.guarantee import Guarantee
from randquant.rounds.parameter_free import ParameterFreeStep, squared_noise
from randquant.rounds.preparation import UpdatePreparation
from randquant.training.algorithm import State
from randquant.training.config import Task, TrainConfig
from randquant.training.configured import alongside_of, fingerprint_of, mechanism_of
from randquant.training.optimizer import (
    MakeOptimizer,
    OptimizerStep,
    ServerStep,
    torch_optimizer,
)
from randquant.training.records import RoundMetrics
from randquant.training.runs.advice import about_constant, about_loss, about_steps, best_constant
from randquant.training.schedule import Schedule
from randquant.training.server import AUTO


@dataclass(frozen=True, slots=True)
class RunInputs:
    """What a run is trained with and its store does not hold: a run that goes on is given it again.

    Attributes:
        problem: model, clients' data and loss.
        mechanism: the mechanism; None to build it from the configuration.
        optimizer: makes the server's optimiser; None for the configured class of torch.optim.
    """

    problem: Problem
    mechanism: UpdateMechanism | None = None
    optimizer: MakeOptimizer | None = None

    @property
    def task(self) -> Task:
        """What the store of a run on this problem says of it."""
        loss = self.problem.loss
        name = getattr(loss, "__name__", type(loss).__name__)
        if getattr(torch.nn.functional, name, None) is not loss:
            name = f"{loss.__module__}:{name}"
        return Task(len(self.problem.clients), name, self.problem.digest)


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """Everything that a run is trained with; none of it depends on the run's progress.

    Attributes:
        problem: model, clients' data and loss.
        learner: computes the clients' updates.
        mechanism: protects and aggregates them.
        server: the server's step.
        schedule: draws the cohorts and ends the run.
        client_ledger: of a whole client whose participation is seen, where the schedule's ledger is
            of an example, or of hidden cohorts; else None.
        fingerprint: of the mechanism, in hexadecimal; empty if the configuration says it all.
        preparation: what clients do with their updates before they encode them.
    """

    problem: Problem
    learner: Learner
    mechanism: UpdateMechanism
    server: ServerStep
    schedule: Schedule
    client_ledger: Ledger | None
    fingerprint: str
    preparation: UpdatePreparation

    @property
    def dimension(self) -> int:
        """Coordinates of what a client encodes: of its update and its numbers."""
        return self.learner.dimension + self.preparation.extra

    def standardized(self, figures: FeatureStatistics) -> TrainingSetup:
        """Return a copy that trains on standardised data."""
        config, problem = self.schedule.config, standardized(self.problem, figures)
        return replace(self, problem=problem, learner=_learner(config, self.mechanism, problem))

    def advice(self, state: State, metrics: Sequence[RoundMetrics]) -> str:
        """Advise on a run that has ended, from released means and the loss on test data."""
        agreement = state.optimizer.get("agreement")
        if agreement is None:
            return ""  # steps have a rate
        lengths = [each.mean_norm for each in metrics if each.mean_norm is not None]
        size = len(state.parameters)
        found = about_steps(self.schedule.config, self.mechanism, size, lengths, agreement)
        losses = [each.loss for each in metrics if each.loss is not None]
        classes, last = self.problem.labels, metrics[-1].accuracy
        if not found and classes is not None and last is not None:
            found = about_loss(losses, last, classes)
        return found or about_constant(losses, best_constant(self.problem))


def prepare(config: TrainConfig, key: Key, inputs: RunInputs) -> TrainingSetup:
    """Build a run's learner, mechanism and schedule.

    Args:
        config: the run's configuration.
        key: the run's key.
        inputs: its problem, and a mechanism and an optimiser of one's own.

    Raises:
        ValueError: the configuration cannot be trained.
    """
    mechanism, problem = inputs.mechanism, inputs.problem
    if mechanism is None:
        mechanism = mechanism_of(config)
    _check_sums(config, mechanism)
    if len(problem.clients) != config.task.population:
        raise ValueError(
            f"Expected the data of {config.task.population} clients, as the run's population, got "
            f"those of {len(problem.clients)}."
        )
    learner = _learner(config, mechanism, problem)
    preparation = _preparation(config, mechanism, problem)
    size = learner.dimension + preparation.extra
    if preparation.alongside is not None:
        mechanism.expected_error(size)  # TypeError: it does not clip in L2, as Alongside needs
        _check_measured(preparation.alongside, problem)
    of_run: dict[str, Any] = {"delta": config.delta, "neighboring": config.privacy.neighboring}
    of_run["simulated"] = config.seed is not None
    ledger = Ledger(
        mechanism,
        size,
        examples=learner.examples if config.privacy.unit == "example" else None,
        limit=config.stop_at_epsilon,
        cohorts=config.hidden_cohorts,
        spent=spent_of(config, problem) if config.protects else None,
        **of_run,
    )
    # A mean of clipped gradients is itself clipped as a whole: both guarantees hold; but none of
    # a whole client is known of what was spent on its examples, or where nobody sees who was asked.
    plain = (config.privacy.unit == "client" and not ledger.hidden) or ledger.spent is not None
    other = None if plain else Ledger(mechanism, size, **of_run)
    fingerprint = fingerprint_of(config, mechanism, size)
    server = _server_step(config, problem, inputs.optimizer, mechanism)
    schedule = Schedule(config, ledger, key)
    return TrainingSetup(
        problem, learner, mechanism, server, schedule, other, fingerprint, preparation
    )


def standardization_query(config: TrainConfig, problem: Problem) -> StandardizationQuery | None:
    """Plan what a run asks its clients before the first round; None if it does not standardise."""
    wanted, before = config.local.standardize, config.privacy.spent
    if wanted is None:
        return None
    target = math.inf if config.stop_at_epsilon is None else config.stop_at_epsilon, config.delta
    left = target if before is None else before.left_of(*target)
    columns, sizes = columns_of(problem, wanted), problem.clients.sizes
    return plan_query(wanted, columns, sizes, left, config.trust, config.privacy.unit)


def spent_of(config: TrainConfig, problem: Problem) -> Guarantee | None:
    """Return what is spent before a run's first round, or None."""
    before, asked = config.privacy.spent, standardization_query(config, problem)
    if asked is None or asked.terms is None:
        return before
    own = replace(asked.terms.guarantee, simulated=config.seed is not None)
    return own if before is None else before + own


def optimizer_step(
    config: TrainConfig, problem: Problem, make: MakeOptimizer | None = None
) -> OptimizerStep:
    """The step of torch's optimiser as configured, or of one of one's own; SGD for auto.

    Raises:
        ValueError: the optimiser is unknown, or cannot take such steps.
    """
    server = config.server
    named: Any = server.optimizer if make is None else make
    if isinstance(named, str):
        name = "SGD" if named == AUTO else named
        named = torch_optimizer(name, server.learning_rate or 1.0, server.options)
    return OptimizerStep(named, problem.shapes)


def _server_step(
    config: TrainConfig, problem: Problem, make: MakeOptimizer | None, mechanism: UpdateMechanism
) -> ServerStep:
    """The server's step, without a rate where updates have one length and nobody gave one."""
    untuned = common_length(config, mechanism) is not None
    if make is not None or config.server.optimizer != AUTO or not untuned:
        return optimizer_step(config, problem, make)
    return ParameterFreeStep.for_mechanism(
        mechanism, problem.shapes, extra=len(config.privacy.numbers), clients=config.cohort,
        rounds=config.rounds, predicts="numbers" if problem.trial.classes is None else "classes",
    )  # fmt: skip


def common_length(config: TrainConfig, mechanism: UpdateMechanism) -> float | None:
    """The L2 norm that updates are scaled to; None if they are clipped only.

    A single example's gradient is scaled to it, where examples are protected.
    """
    untuned = config.local.learning_rate == "auto" or config.privacy.unit == "example"
    return mechanism.clip_norm if untuned else None


def _learner(config: TrainConfig, mechanism: UpdateMechanism, problem: Problem) -> Learner:
    work, hidden = _work(config, mechanism, problem), config.hidden_cohorts is not None
    return Learner(problem, work, config.local.device, apart=hidden)


def _work(config: TrainConfig, mechanism: UpdateMechanism, problem: Problem) -> Work:
    norm = mechanism.clip_norm if config.privacy.unit == "example" else None
    if config.privacy.unit == "example" and norm is None:
        raise ValueError(
            "Expected a clip_norm with unit example, got None: it bounds what one example can "
            "change."
        )
    return config.local.work(norm)


def _preparation(
    config: TrainConfig, mechanism: UpdateMechanism, problem: Problem
) -> UpdatePreparation:
    """What a client does with its update; a mean of single examples' gradients is not scaled."""
    alongside = alongside_of(config, mechanism)
    length = common_length(config, mechanism) if config.privacy.unit == "client" else None
    if length is None:
        return UpdatePreparation(alongside=alongside)
    sent = problem.dimension + len(config.privacy.numbers)
    noise = squared_noise(mechanism, sent, config.cohort, length)
    return UpdatePreparation(length, noise, alongside)


def _check_measured(scalars: Alongside, problem: Problem) -> None:
    """Refuse a number that the clients of a problem do not have."""
    if problem.trial.classes is None and "accuracy" in [each.name for each in scalars.numbers]:
        raise ValueError(
            "Expected a classification for the number accuracy, got another task: send loss, with "
            "bounds of its own."
        )


def _mechanism(config: TrainConfig) -> UpdateMechanism:
    mechanism = mechanism_of(config)
    _check_sums(config, mechanism)
    return mechanism


def _check_sums(config: TrainConfig, mechanism: UpdateMechanism) -> None:
    if mechanism.trust != "aggregate":
        return
    hidden = config.hidden_cohorts
    if config.privacy.sampling != "fixed" and hidden is None:
        raise ValueError(
            f"Expected sampling fixed with {config.mechanism} under aggregate trust, got "
            f"{config.privacy.sampling}: its guarantee needs a fixed number of clients in a sum."
        )
    summands = config.cohort if hidden is None else hidden.summands(mechanism.trust)
    if mechanism.cohort > summands:
        raise ValueError(
            f"Expected cohort >= {mechanism.cohort}, whose noise in a sum the mechanism's "
            f"guarantee relies on, got {summands}: raise cohort, or build the mechanism for "
            "that cohort."
        )


def without_privacy(
    config: TrainConfig, rounds: int, mechanism: UpdateMechanism | None = None
) -> TrainConfig:
    """The same run with the same clipping and updates sent as floats, for `rounds` rounds.

    Args:
        config: the run.
        rounds: how many rounds.
        mechanism: the run's mechanism; None to build it from the configuration.
    """
    mechanism = _mechanism(config) if mechanism is None else mechanism
    clip = {k: v for k, v in config.parameters.items() if k in ("clip", "clip_norm")}
    if mechanism.channel is not None or config.own_mechanism:
        whole, channel = mechanism.clip_norm, mechanism.channel
        clip = {"clip_norm": whole}
        if whole is None and channel is not None:
            clip = {"clip": channel.clip}
    return config.changed(
        mechanism=UNPROTECTED, parameters=clip, trust=None, clip_norm=None,
        coordinates=None, stop_at_epsilon=None, rounds=rounds, baseline=False,
    )  # fmt: skip


def stored_mechanism(config: TrainConfig) -> UpdateMechanism | None:
    """Return the mechanism that a run's updates are sent through, if its files say it."""
    if config.own_mechanism and not config.parameters:
        return None  # of a class from outside this package, which no file holds
    return _mechanism(config)
