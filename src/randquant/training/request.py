"""Completes the settings of a caller to a configuration with its mechanism and optimiser."""

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
from randquant.training.configured import mechanism_record
from randquant.training.runs.setup import RunInputs, optimizer_step, spent_before
from randquant.training.schedule import most_participations
from randquant.training.server import AUTO


def complete(config: TrainConfig, inputs: RunInputs, key: Key) -> TrainConfig:
    """Return the configuration with its mechanism and optimiser.

    Args:
        config: all settings but the mechanism; its optimiser may be a function.
        inputs: the problem, and the user's own mechanism unless one is to be calibrated.
        key: the run's; it determines the cohorts.
    """
    config = _with_cap(config)
    if inputs.mechanism is not None:
        _check_mechanism(config, inputs.mechanism)
        config = _with_mechanism(config, inputs.mechanism)
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


def _with_cap(config: TrainConfig) -> TrainConfig:
    # By default all clients take part equally often: the guarantee is that of the most
    # participations, and uneven ones would raise it. Other ways of sampling allow no cap.
    uncapped = config.privacy.sampling != "fixed" or config.trust == "model"
    if uncapped or config.privacy.max_participations is not None:
        return config
    balanced = -(-config.rounds * config.cohort // config.task.population)
    return config.changed(max_participations=balanced)


def _need(config: TrainConfig, problem: Problem, key: Key) -> tuple[Need, int | None]:
    # Second, the smallest number of examples of a client, if examples are protected.
    privacy = config.privacy
    if config.stop_at_epsilon is None or privacy.clip_norm is None:
        missing = "clip_norm" if privacy.clip_norm is None else "epsilon"
        raise ValueError(
            f"Expected {missing}, or a mechanism of your own, got None for both: give epsilon=8 "
            "and clip_norm=1.0, or mechanism=randquant.aggregation.ClippedSGD(clip_norm=1.0) for a "
            "run without privacy."
        )
    trust: Any = validate.choice("trust", config.trust, ("aggregate", "local", "model"))
    hidden = config.hidden_cohorts
    most = most_participations(config, key) if hidden is None else hidden.participations
    examples = None
    if privacy.unit == "example":
        examples = Learner(problem, Work(config.local.batch)).examples
    # Calibrated to what is left of the target, so that the total meets it.
    target = config.stop_at_epsilon, config.delta
    spent = spent_before(config, problem)
    left = target if spent is None else spent.remaining(*target)
    need = Need(
        problem.dimension + len(privacy.numbers), config.task.population, config.cohort,
        config.rounds, *left, trust, privacy, most, hidden,
    )  # fmt: skip
    return need, examples


def _with_mechanism(config: TrainConfig, mechanism: UpdateMechanism) -> TrainConfig:
    return config.changed(
        mechanism=OWN, parameters=mechanism_record(mechanism),
        trust="model" if config.trust == "model" else mechanism.trust,
        clip_norm=mechanism.clip_norm,
    )  # fmt: skip


def _check_mechanism(config: TrainConfig, mechanism: UpdateMechanism) -> None:
    wanted = "a mechanism for whole updates, such as randquant.plan(...).mechanism"
    validate.answers("mechanism", mechanism, wanted, "record", "encode", "release")
    privacy = config.privacy
    if config.trust == "local" and mechanism.trust not in ("local", None):
        raise ValueError(
            f"Expected a mechanism of local trust with trust='local', got a mechanism of "
            f"{mechanism.trust} trust: leave trust out, or plan with trust='local'."
        )
    if privacy.coordinates is not None:
        raise ValueError(
            f"Expected no coordinates with a mechanism of your own, got {privacy.coordinates}: "
            "give them to the mechanism, as VectorMechanism(..., coordinates=...)."
        )
    if privacy.noise != "clients":
        raise ValueError(
            f"Expected no noise with a mechanism of your own, got {privacy.noise!r}: give "
            "randquant.aggregation.HelperNoise(...), whose sums have a helper's noise."
        )
    # The default cannot be told from no clip_norm at all, so it is no contradiction.
    if privacy.clip_norm not in (CLIP_NORM, mechanism.clip_norm):
        raise ValueError(
            f"Expected the clip_norm of the mechanism, {mechanism.clip_norm}, got "
            f"{privacy.clip_norm}: leave it out; a mechanism clips as it was made."
        )


def _with_optimizer(config: TrainConfig, problem: Problem) -> TrainConfig:
    if config.server.optimizer == AUTO:  # torch's take a second to import, and are not needed
        return config
    # Built also if it has a name: settings that it refuses must fail before the run is created.
    step = optimizer_step(config, problem)
    if isinstance(config.server.optimizer, str):
        return config
    name, options = step.described()
    rate = options.pop("lr", 1.0)
    # For the record only: a run that goes on is given the function again.
    recorded = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in options.items()
        if value is None or isinstance(value, bool | int | float | str | tuple)
    }
    return config.changed(server_optimizer=name, server_options=recorded, learning_rate=float(rate))
