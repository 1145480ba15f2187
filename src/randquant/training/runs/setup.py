"""Builds a run's learner, mechanism, server step and schedule from its configuration."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from randquant.aggregation.auxiliary_numbers import AuxiliaryNumbers
from randquant.aggregation.baselines import UNPROTECTED
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.local_training.problem import Problem
from randquant.local_training.standardize import FeatureStatistics, StandardizationQuery, plan_query
from randquant.local_training.standardized_model import column_counts, standardized
from randquant.local_training.work import Work
from randquant.privacy.accounting.ledger import Ledger
from randquant.privacy.accounting.relations import under_other_relation
from randquant.privacy.guarantee import Guarantee, Neighboring
from randquant.rounds.parameter_free import ParameterFreeStep, squared_noise
from randquant.rounds.preparation import UpdatePreparation
from randquant.training.algorithm import State
from randquant.training.config import Task, TrainConfig
from randquant.training.configured import (
    configured_mechanism,
    mechanism_fingerprint,
    scalars_with_updates,
)
from randquant.training.optimizer import (
    MakeOptimizer,
    OptimizerStep,
    ServerStep,
    torch_optimizer,
)
from randquant.training.records import RoundMetrics
from randquant.training.runs.advice import (
    about_constant,
    about_loss,
    about_majority,
    about_steps,
    best_constant,
    majority_share,
)
from randquant.training.schedule import Schedule
from randquant.training.server import AUTO


@dataclass(frozen=True, slots=True)
class RunInputs:
    """Inputs of a run that its store does not hold: a run that goes on must be given them again.

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
        """The problem as the store of a run records it."""
        loss = self.problem.loss
        name = getattr(loss, "__name__", type(loss).__name__)
        # A function of one's own may be called like one of torch, and must not pass for it.
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
        client_ledger: the cost to a whole client whose participation is seen, where the schedule's
            ledger is of an example, or of hidden cohorts; else None.
        fingerprint: of the mechanism, in hexadecimal; empty if the configuration determines it.
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
        # A client encodes its update and its numbers as one vector.
        return self.learner.dimension + self.preparation.extra

    def guarantees(self, rounds: int, participations: int) -> dict[str, Guarantee | None]:
        """Account for the declared rounds of a run, under both relations.

        Returns:
            Those fields of a `RunSummary` that are guarantees of the whole run, by name.
        """
        schedule, client = self.schedule, self.client_ledger
        ledger, before = schedule.ledger, None
        if ledger.spent is not None:
            before = functools.partial(spent_before, schedule.config, self.problem)
        stated = schedule.guarantee(rounds, participations)
        counted = schedule.counted_rounds(rounds, participations)
        of_run = functools.partial(ledger.release, counted)
        found = {
            "guarantee": stated,
            "other_relation": under_other_relation(stated, of_run, before),
        }
        if client is not None:
            beside = client.guarantee(participations)
            of_client = functools.partial(client.release, participations)
            found["beside"] = beside
            found["beside_other_relation"] = under_other_relation(beside, of_client)
        return found

    def standardized(self, statistics: FeatureStatistics) -> TrainingSetup:
        """Return a copy that trains on standardised data."""
        config, problem = self.schedule.config, standardized(self.problem, statistics)
        return replace(self, problem=problem, learner=_learner(config, self.mechanism, problem))

    def advice(self, state: State, metrics: Sequence[RoundMetrics]) -> str:
        """Advise on a run that has ended, from released means and the loss on test data."""
        # Post-processing: neither costs privacy. Only the parameter-free step keeps `agreement`;
        # with a learning rate, the steps depend on what the user chose.
        agreement = state.optimizer.get("agreement")
        if agreement is None:
            return ""
        lengths = [each.mean_norm for each in metrics if each.mean_norm is not None]
        size = len(state.parameters)
        advice = about_steps(self.schedule.config, self.mechanism, size, lengths, agreement)
        losses = [each.loss for each in metrics if each.loss is not None]
        classes, last = self.problem.labels, metrics[-1].accuracy
        if not advice and classes is not None and last is not None:
            advice = about_loss(losses, last, classes)
        advice = advice or about_constant(losses, best_constant(self.problem))
        return advice or about_majority(len(losses), last, majority_share(self.problem))


def prepare(config: TrainConfig, key: Key, inputs: RunInputs) -> TrainingSetup:
    """Build a run's learner, mechanism and schedule.

    Args:
        config: the run's configuration.
        key: the run's key.
        inputs: its problem, and perhaps the user's own mechanism and optimiser.

    Raises:
        ValueError: the configuration cannot be trained.
        TypeError: the mechanism does not clip in L2, as numbers with updates need.
    """
    problem = inputs.problem
    mechanism = _checked_mechanism(config, inputs.mechanism)
    # The schedule draws from the configured population: with fewer clients' data it would draw
    # clients that do not exist, and with more the stated sampling rate would be wrong.
    if len(problem.clients) != config.task.population:
        raise ValueError(
            f"Expected the data of {config.task.population} clients, as the run's population, got "
            f"those of {len(problem.clients)}."
        )
    learner = _learner(config, mechanism, problem)
    preparation = _preparation(config, mechanism, problem)
    size = learner.dimension + preparation.extra
    if preparation.scalars is not None:
        mechanism.expected_error(size)  # for its TypeError
        _check_numbers(preparation.scalars, problem)
    terms: dict[str, Any] = {"delta": config.delta, "neighboring": config.privacy.neighboring}
    terms["simulated"] = config.seed is not None
    ledger = Ledger(
        mechanism,
        size,
        examples=learner.examples if config.privacy.unit == "example" else None,
        limit=config.stop_at_epsilon,
        cohorts=config.hidden_cohorts,
        spent=spent_before(config, problem) if config.protects else None,
        **terms,
    )
    # A mean of clipped gradients is itself clipped as a whole, so a whole client has a guarantee
    # too. Not if something was spent before: that guarantee is of examples, or of clients whose
    # participation is hidden, and says nothing about a whole client that is seen.
    single = (config.privacy.unit == "client" and not ledger.hidden) or ledger.spent is not None
    client_ledger = None if single else Ledger(mechanism, size, **terms)
    fingerprint = mechanism_fingerprint(config, mechanism, size)
    server = _server_step(config, problem, inputs.optimizer, mechanism)
    schedule = Schedule(config, ledger, key)
    return TrainingSetup(
        problem, learner, mechanism, server, schedule, client_ledger, fingerprint, preparation
    )


def standardization_query(config: TrainConfig, problem: Problem) -> StandardizationQuery | None:
    """Plan the query for a run's feature statistics; None if it does not standardise."""
    standardize, before = config.local.standardize, config.privacy.spent
    if standardize is None:
        return None
    target = math.inf if config.stop_at_epsilon is None else config.stop_at_epsilon, config.delta
    # The query gets a share of what is left, not of the target: spending is a total.
    left = target if before is None else before.remaining(*target)
    columns, sizes = column_counts(problem, standardize), problem.clients.sizes
    return plan_query(standardize, columns, sizes, left, config.trust, config.privacy.unit)


def spent_before(
    config: TrainConfig, problem: Problem, neighboring: Neighboring | None = None
) -> Guarantee | None:
    """Return what is spent before a run's first round, or None.

    Args:
        config: of the run.
        problem: its data.
        neighboring: the relation it is for; by default the one that tables are stated for.

    Raises:
        ValueError: what was spent before the run is a guarantee under another relation.
    """
    before, query = config.privacy.spent, standardization_query(config, problem)
    if before is not None and neighboring not in (None, before.neighboring):
        raise ValueError(f"Expected what was spent under {neighboring}, got {before}.")
    if query is None or query.survey is None:  # without terms it asks nobody: the bounds suffice
        return before
    terms = query.survey
    table = terms.guarantee if neighboring is None else terms.under(neighboring)
    cost = replace(table, simulated=config.seed is not None)
    return cost if before is None else before + cost


def optimizer_step(
    config: TrainConfig, problem: Problem, make: MakeOptimizer | None = None
) -> OptimizerStep:
    """Build the step of the configured optimiser of torch, SGD for auto, or of `make` if given.

    Raises:
        ValueError: the optimiser is unknown, or cannot take such steps.
    """
    server = config.server
    optimizer: Any = server.optimizer if make is None else make
    if isinstance(optimizer, str):
        name = "SGD" if optimizer == AUTO else optimizer
        optimizer = torch_optimizer(name, server.learning_rate or 1.0, server.options)
    return OptimizerStep(optimizer, problem.shapes)


def _server_step(
    config: TrainConfig, problem: Problem, make: MakeOptimizer | None, mechanism: UpdateMechanism
) -> ServerStep:
    # The parameter-free step relies on updates that all have the same length.
    scaled = common_length(config, mechanism) is not None
    if make is not None or config.server.optimizer != AUTO or not scaled:
        return optimizer_step(config, problem, make)
    return ParameterFreeStep.for_mechanism(
        mechanism, problem.shapes, extra=len(config.privacy.numbers), clients=config.cohort,
        rounds=config.rounds, predicts="numbers" if problem.dry_run.classes is None else "classes",
    )  # fmt: skip


def common_length(config: TrainConfig, mechanism: UpdateMechanism) -> float | None:
    """Return the L2 norm that updates are scaled to; None if they are only clipped.

    If examples are protected, each example's gradient is scaled to it.
    """
    scaled = config.local.learning_rate == "auto" or config.privacy.unit == "example"
    return mechanism.clip_norm if scaled else None


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
    scalars = scalars_with_updates(config, mechanism)
    # If examples are protected, their gradients are scaled one by one: to scale their mean again
    # would let one example change it by more than its share.
    length = common_length(config, mechanism) if config.privacy.unit == "client" else None
    if length is None:
        return UpdatePreparation(scalars=scalars)
    coordinates = problem.dimension + len(config.privacy.numbers)
    noise = squared_noise(mechanism, coordinates, config.cohort, length)
    return UpdatePreparation(length, noise, scalars)


def _check_numbers(scalars: AuxiliaryNumbers, problem: Problem) -> None:
    if problem.dry_run.classes is None and "accuracy" in [each.name for each in scalars.numbers]:
        raise ValueError(
            "Expected a classification for the number accuracy, got a task without classes: send "
            "loss, with bounds of its own."
        )


def _checked_mechanism(
    config: TrainConfig, mechanism: UpdateMechanism | None = None
) -> UpdateMechanism:
    if mechanism is None:
        mechanism = configured_mechanism(config)
    if mechanism.trust != "aggregate":
        return mechanism
    # Under aggregate trust a client is protected by the noise of all others in the same sum: a
    # smaller sum than the mechanism was built for has less noise than its guarantee states.
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
    return mechanism


def without_privacy(
    config: TrainConfig, rounds: int, mechanism: UpdateMechanism | None = None
) -> TrainConfig:
    """Return the configuration of the baseline: the same clipping, updates sent as floats.

    Args:
        config: the run.
        rounds: how many rounds the baseline has.
        mechanism: the run's mechanism; None to build it from the configuration.
    """
    mechanism = _checked_mechanism(config) if mechanism is None else mechanism
    clip = {k: v for k, v in config.parameters.items() if k in ("clip", "clip_norm")}
    # Where the configuration does not state the clipping, the mechanism or its channel does.
    if mechanism.channel is not None or config.own_mechanism:
        clip_norm, channel = mechanism.clip_norm, mechanism.channel
        clip = {"clip_norm": clip_norm}
        if clip_norm is None and channel is not None:  # it clips coordinates, not whole updates
            clip = {"clip": channel.clip}
    return config.changed(
        mechanism=UNPROTECTED, parameters=clip, trust=None, clip_norm=None,
        coordinates=None, stop_at_epsilon=None, rounds=rounds, baseline=False,
    )  # fmt: skip


def stored_mechanism(config: TrainConfig) -> UpdateMechanism | None:
    """Return the mechanism of a run if its files determine it, else None."""
    if config.own_mechanism and not config.parameters:
        return None  # an object of a class from outside this package, which no file holds
    return _checked_mechanism(config)
