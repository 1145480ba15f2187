"""Builds a run's learner, mechanism, server step and schedule, and advises on a finished run."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import mse_loss

from randquant.aggregation.auxiliary_numbers import AuxiliaryNumbers
from randquant.aggregation.baselines import UNPROTECTED
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels.channel import Channel
from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.local_training.data import StoredExamples, converted
from randquant.local_training.local import Work
from randquant.local_training.problem import Problem
from randquant.local_training.standardize import (
    FeatureStatistics,
    StandardizationQuery,
    column_counts,
    plan_query,
    standardized,
)
from randquant.privacy.accounting.accountant import under_other_relation
from randquant.privacy.accounting.ledger import Ledger
from randquant.privacy.guarantee import Guarantee, Neighboring
from randquant.rounds.offer import UpdatePreparation
from randquant.rounds.parameter_free import ParameterFreeStep, squared_noise
from randquant.training.algorithm import (
    MakeOptimizer,
    OptimizerStep,
    ServerStep,
    State,
    torch_optimizer,
)
from randquant.training.config import (
    AUTO,
    Task,
    TrainConfig,
    configured_mechanism,
    mechanism_fingerprint,
    scalars_with_updates,
)
from randquant.training.run_store import RoundMetrics
from randquant.training.schedule import Schedule


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
        server: the server's step, see `declaring`.
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
        # A `before` that returns None means a cost that nobody derived, and no figure is stated
        # then: so none is passed where nothing was spent.
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

    def declaring(self, rounds: int) -> TrainingSetup:
        """Return a copy whose server steps are those of a run that declared that many rounds.

        The settings may say more, which a `stop_at_epsilon` ends early, or fewer, of a run that is
        shortened: its rounds that a kill cut off must be repeated with the same steps.
        """
        if not isinstance(self.server, ParameterFreeStep):
            return self  # a step with a learning rate does not know the number of rounds
        return replace(self, server=replace(self.server, rounds=rounds))

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
    # After the mechanism, whose clip_norm bounds single examples, and before the ledger, which
    # needs the number of coordinates and the fewest examples.
    learner = _learner(config, mechanism, problem)
    preparation = _preparation(config, mechanism, problem)
    size = learner.dimension + preparation.extra
    if preparation.scalars is not None:
        mechanism.expected_error(size)  # for its TypeError
        _check_numbers(preparation.scalars, problem)
    terms: dict[str, Any] = {"delta": config.delta, "neighboring": config.privacy.neighboring}
    terms["simulated"] = config.seed is not None
    # The baseline has no guarantee that what was spent before could be added to.
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
    # Both count in the run's guarantee: what earlier analyses cost, and what the run itself asks
    # for before its first round.
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
    # Where nobody may learn who takes part, clients are computed apart: how floats are rounded in a
    # group may depend on who else is in it.
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


def stored_channel(config: TrainConfig) -> Channel | None:
    """Return the channel of each coordinate of a run, if its files determine one."""
    mechanism = stored_mechanism(config)
    return None if mechanism is None else mechanism.channel


SCALE = (
    "Scale features, and targets of a regression, to mean 0 and deviation 1 "
    "(Local(standardize=randquant.Standardize(...)) does it from their public bounds)"
)
"""Advice for runs that have not converged."""

CONVERGENCE_THRESHOLD = 0.5
"""Average cosine between round means and the displacement from the start, at or above which a run
is reported as not converged. Runs that learn digits have 0.1 to 0.3, and regressions on raw targets
0.6 to 1: half of it would warn about the former, and twice as much about none."""

MIN_NOISE_DIMENSION = 100
"""Smallest dimension of an update for which noise may be reported to hide the means. The length of
noise in fewer coordinates varies so much that it would be reported for runs that learned well."""

MIN_ROUNDS = 10
"""Rounds, or evaluations, below which there is no advice: the means of half as many may all point
one way by chance, and with twice as many most short runs would get none."""

FIRST_ROUNDS = 5
"""Rounds at the start of a run whose means are also tested without the others; a tenth of the
rounds if that is more. The average of half as many has 1.4 times the noise, and that of twice as
many may hide what the very first ones learned."""

DEVIATIONS_THRESHOLD = 3.0
"""Standard deviations of the noise by which an estimate must differ to count: normal noise alone
exceeds 3 of them once in 370 times, 1.5 once in 7, and 6 practically never."""

LOSS_RISE_THRESHOLD = 1.25
"""Ratio of the last loss on test data to the one it is compared with, above which it is reported.
A ratio near 1 would report changes that do not matter to a user; at 1.5 losses could be half as
high again without a word."""


class _Means(NamedTuple):
    """The released means compared with their noise, in units of clip_norm.

    Attributes:
        squares: estimates (T,) of the squared length of each round's mean update.
        noise: squared length of the noise in one of them.
        threshold: how far an estimate must be from zero to show something.
    """

    squares: np.ndarray
    noise: float
    threshold: float

    @classmethod
    def from_lengths(
        cls, config: TrainConfig, mechanism: UpdateMechanism, size: int, lengths: Sequence[float]
    ) -> _Means | None:
        """Estimate from the lengths of the decoded means; None if their noise is not known.

        It is known if cohorts have a fixed size that is seen, and clients send all coordinates of
        an update that is clipped in L2, and nothing else.
        """
        fixed = config.privacy.sampling == "fixed" and config.trust != "model"
        updates_only = not config.privacy.numbers
        norm = mechanism.clip_norm
        if not (fixed and updates_only and norm and len(lengths) >= MIN_ROUNDS):
            return None
        try:
            error = mechanism.expected_error(size)
        except TypeError:
            return None  # a user's own mechanism that does not state its error
        if error.omitted or error.gain <= 0:
            return None
        noise = size * error.deviation(config.cohort, 0.0) ** 2 / norm**2
        # The squared length of a normal vector has the standard deviation sqrt(2/size) * noise.
        threshold = DEVIATIONS_THRESHOLD * math.sqrt(2 / size) * noise
        return cls(np.square(np.array(lengths) / (error.gain * norm)) - noise, noise, threshold)

    @property
    def hidden(self) -> bool:
        """True if noise hides the means of all rounds, and also those of the first ones."""
        # The first on their own: an average over all rounds would hide what a few have learned.
        first = self.squares[: max(FIRST_ROUNDS, len(self.squares) // 10)]
        return all(
            abs(float(squares.mean())) < self.threshold / math.sqrt(len(squares))
            for squares in (self.squares, first)
        )


def about_steps(
    config: TrainConfig,
    mechanism: UpdateMechanism,
    size: int,
    lengths: Sequence[float],
    agreement: float,
) -> str:
    """Say if parameter-free steps all led one way, or if noise hid all that clients sent.

    It costs no privacy: it is computed from the released means and public settings.

    Args:
        config: the run's.
        mechanism: the run's.
        size: coordinates of an update.
        lengths: the L2 norm of each round's decoded mean.
        agreement: the cosines between each mean and the displacement from the start, added up;
            without noise each is from -1 to 1.

    Returns:
        A sentence with what to do; empty if there is nothing to say, or no way to know.
    """
    means = _Means.from_lengths(config, mechanism, size, lengths)
    if means is None:
        return ""
    rounds = len(lengths)
    # The standard deviation of the noise along one direction, averaged over all rounds.
    slack = DEVIATIONS_THRESHOLD * math.sqrt(means.noise / size / rounds)
    if agreement / rounds - slack >= CONVERGENCE_THRESHOLD:
        return (
            f"The updates of all {rounds} rounds led away from where the model began, to the end, "
            f"so it is probably still on its way. {SCALE}, or raise rounds."
        )
    if size >= MIN_NOISE_DIMENSION and means.hidden and agreement / rounds < slack:
        return (
            "The noise was longer than the mean updates in every round, and hides them even in all "
            "rounds together. More clients, fewer trained parameters (parts), or a larger epsilon "
            "would help."
        )
    return ""


def best_constant(problem: Problem) -> float | None:
    """Return the least loss on test data of a model whose output is the same for all of them.

    None if no test data are in memory, or the loss is not the cross entropy of classes or of
    binary logits, or the mean squared error.
    """
    test, classes = problem.test, problem.labels
    if not isinstance(test, StoredExamples):
        return None
    targets = converted(test.own(test.targets))
    if classes is not None:
        return _entropy(np.bincount(targets.reshape(-1).numpy(), minlength=classes))
    exact = targets.reshape(len(targets), -1).double().numpy()
    if problem.binary:
        shares = exact.mean(0)
        return float(np.mean([_entropy(np.array([share, 1 - share])) for share in shares]))
    # The best constant is the mean of the targets, and its loss their variance.
    return float(exact.var(0).mean()) if problem.loss is mse_loss else None


def _entropy(shares: np.ndarray) -> float:
    # Also of counts. A share of 0 adds nothing, but its logarithm would be infinite.
    shares = shares[shares > 0] / shares.sum()
    return float(-(shares * np.log(shares)).sum())


def about_constant(losses: Sequence[float], constant: float | None) -> str:
    """Say if a model is worse on its test data than the best constant output.

    Args:
        losses: the mean loss of each evaluation (T,).
        constant: see `best_constant`.

    Returns:
        A sentence with what to do; empty if it is not worse, or there is no way to know.

    Example:
        >>> about_constant(10 * [0.5], 0.11)[:56]
        'The loss on test data is 0.5, where the same output for '
        >>> about_constant(10 * [0.1], 0.11)
        ''
    """
    if constant is None or len(losses) < MIN_ROUNDS:
        return ""
    if losses[-1] <= LOSS_RISE_THRESHOLD * constant:
        return ""
    return (
        f"The loss on test data is {losses[-1]:.3g}, where the same output for all, the classes' "
        f"shares or the mean target, would have {constant:.3g}: the model tells nothing apart that "
        "would make up for its errors, whatever its accuracy where one class is frequent. More "
        "clients or rounds, or a larger epsilon would help."
    )


def majority_share(problem: Problem) -> float | None:
    """Return the share of the most frequent class among test data; None without classes there."""
    test = problem.test
    if not isinstance(test, StoredExamples) or not (problem.labels or problem.binary):
        return None
    targets = test.own(test.targets)
    if problem.binary and targets.numel() != len(targets):
        return None  # several tags an example: their shares differ
    classes = targets > 0.5 if problem.binary else targets
    counts = np.bincount(classes.reshape(-1).long().numpy(), minlength=1)
    return float(counts.max() / counts.sum())


def about_majority(evaluations: int, accuracy: float | None, share: float | None) -> str:
    """Say if a classifier is right no more often than one that names the same class for all.

    Example:
        >>> about_majority(10, 0.9, 0.9)[:48]
        'Naming the most frequent class for all would be '
        >>> about_majority(10, 0.91, 0.9)
        ''
    """
    if evaluations < MIN_ROUNDS or accuracy is None or share is None or accuracy > share:
        return ""
    return (
        f"Naming the most frequent class for all would be right for {100 * share:.2f} % of the "
        f"test data, and the model is for {100 * accuracy:.2f} %: it is no better than that. More "
        "clients or rounds, or a larger epsilon would help."
    )


def about_loss(losses: Sequence[float], accuracy: float, classes: int) -> str:
    """Warn if a classifier is overconfident on test data.

    It is if its loss rose, and is above that of predicting the same classes with the accuracy as
    the probability of each.

    Args:
        losses: the mean cross entropy of each evaluation (T,), in nats.
        accuracy: that of the last evaluation, in [0, 1].
        classes: how many there are.

    Returns:
        A sentence with what to do; empty if it is not, or all predictions are right or all wrong.

    Example:
        >>> about_loss([0.7, 0.3] + 9 * [0.6], 0.9, 2)[:52]
        'The loss on test data was lowest after evaluation 2 '
        >>> about_loss([0.7, 0.02] + 9 * [0.04], 0.98, 2)
        ''
    """
    if len(losses) < MIN_ROUNDS or not 0 < accuracy < 1:
        return ""
    if losses[-1] <= LOSS_RISE_THRESHOLD * min(losses):
        return ""
    # The rest of the probability is shared equally by the other classes.
    wrong = 1 - accuracy
    calibrated = -accuracy * math.log(accuracy) - wrong * math.log(wrong / max(classes - 1, 1))
    if losses[-1] <= calibrated:
        return ""
    least = losses.index(min(losses))
    return (
        f"The loss on test data was lowest after evaluation {least + 1} of {len(losses)}, "
        f"{losses[least]:.3g}, and is {losses[-1]:.3g} now, where the same classes with the "
        f"accuracy as their probability would have {calibrated:.3g}: the model is surer than it is "
        "right. Do not take its outputs for probabilities, fit them a temperature on data that are "
        "public, or take fewer rounds."
    )
