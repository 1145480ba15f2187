"""From the settings that a caller gives to a configuration with a mechanism."""

from __future__ import annotations

import warnings
from typing import Any

from randquant._internal import validate
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.local_training.problem import Problem
from randquant.local_training.work import Work
from randquant.planning.choice import choose
from randquant.planning.plans import Need
from randquant.planning.privacy import CLIP_NORM
from randquant.training.config import OWN, TrainConfig, check_config
from randquant.training.configured import record_of
from randquant.training.runs.setup import RunInputs, optimizer_step, spent_of
from randquant.training.schedule import most_participations
from randquant.training.server import AUTO


def complete(config: TrainConfig, inputs: RunInputs, key: Key) -> TrainConfig:
    """The configuration with its mechanism and optimiser.

    Args:
        config: everything but the mechanism, and with the optimiser as it was given.
        inputs: the problem, and a mechanism of one's own unless one is to be calibrated.
        key: the run's; it determines the cohorts.
    """
    config = _capped(config)
    if inputs.mechanism is not None:
        _check_own(config, inputs.mechanism)
        config = _with_own(config, inputs.mechanism)
    check_config(config)
    config = _with_optimizer(config, inputs.problem)
    if inputs.mechanism is not None:
        return config
    need, examples = _need(config, inputs.problem, key)
    chosen = choose(need, examples=examples)
    if chosen.warning:
        warnings.warn(chosen.warning, UserWarning, stacklevel=validate.callers())
    return config.changed(
        mechanism=chosen.mechanism, parameters=chosen.parameters, clip_norm=chosen.clip_norm
    )


def _capped(config: TrainConfig) -> TrainConfig:
    """With a fixed size, all clients take part equally often unless said otherwise."""
    uncapped = config.privacy.sampling != "fixed" or config.trust == "model"
    if uncapped or config.privacy.max_participations is not None:
        return config
    balanced = -(-config.rounds * config.cohort // config.task.population)
    return config.changed(max_participations=balanced)


def _need(config: TrainConfig, problem: Problem, key: Key) -> tuple[Need, int | None]:
    """The target of a run, and the fewest examples of an update if examples are protected."""
    privacy = config.privacy
    if config.stop_at_epsilon is None or privacy.clip_norm is None:
        missing = "clip_norm" if privacy.clip_norm is None else "epsilon"
        raise ValueError(
            f"Expected {missing}, or a mechanism of your own, got None of both: give epsilon=8 and "
            "clip_norm=1.0, or mechanism=randquant.aggregation.ClippedSGD(clip_norm=1.0) for a "
            "run without privacy."
        )
    trust: Any = validate.choice("trust", config.trust, ("aggregate", "local", "model"))
    hidden = config.hidden_cohorts
    most = most_participations(config, key) if hidden is None else hidden.participations
    examples = None
    if privacy.unit == "example":
        examples = Learner(problem, Work(config.local.batch)).examples
    target = config.stop_at_epsilon, config.delta
    spent = spent_of(config, problem)
    left = target if spent is None else spent.left_of(*target)
    need = Need(
        problem.dimension + len(privacy.numbers), config.task.population, config.cohort,
        config.rounds, *left, trust, privacy, most, hidden,
    )  # fmt: skip
    return need, examples


def _with_own(config: TrainConfig, mechanism: UpdateMechanism) -> TrainConfig:
    """The configuration with a mechanism that it has on record."""
    return config.changed(
        mechanism=OWN, parameters=record_of(mechanism),
        trust="model" if config.trust == "model" else mechanism.trust,
        clip_norm=mechanism.clip_norm,
    )  # fmt: skip


def _check_own(config: TrainConfig, mechanism: UpdateMechanism) -> None:
    """Check that `mechanism` is valid and compatible with the settings."""
    wanted = "a mechanism for whole updates, such as randquant.plan(...).mechanism"
    validate.answers("mechanism", mechanism, wanted, "record", "encode", "release")
    privacy = config.privacy
    if config.trust == "local" and mechanism.trust not in ("local", None):
        raise ValueError(
            f"Expected a mechanism of local trust with trust='local', got one of "
            f"{mechanism.trust} trust: leave trust out, or plan with trust='local'."
        )
    if privacy.coordinates is not None:
        raise ValueError(
            f"Expected no coordinates with a mechanism of your own, got {privacy.coordinates}: "
            "give them to the mechanism, as VectorMechanism(..., coordinates=...)."
        )
    if privacy.clip_norm not in (CLIP_NORM, mechanism.clip_norm):
        raise ValueError(
            f"Expected the clip_norm of the mechanism, {mechanism.clip_norm}, got "
            f"{privacy.clip_norm}: leave it out; a mechanism clips as it was made."
        )


def _with_optimizer(config: TrainConfig, problem: Problem) -> TrainConfig:
    """The configuration with its optimiser by name and options, which was tried."""
    if config.server.optimizer == AUTO:  # torch's take a second to import, and are not needed
        return config
    step = optimizer_step(config, problem)
    if isinstance(config.server.optimizer, str):
        return config
    name, options = step.described()
    rate = options.pop("lr", 1.0)
    plain = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in options.items()
        if value is None or isinstance(value, bool | int | float | str | tuple)
    }
    return config.changed(server_optimizer=name, server_options=plain, learning_rate=float(rate))
