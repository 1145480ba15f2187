"""What a caller of `train` asks for, and the configuration that this becomes."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from dataclasses import dataclass
from typing import Any, Literal

from randquant._internal import validate
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels.keys import Key
from randquant.training.client import Learner
from randquant.training.config import TrainConfig, check_config
from randquant.training.configured import OWN, beside, hidden_cohorts, record_of
from randquant.training.local import Local
from randquant.training.optimizer import MakeOptimizer
from randquant.training.problem import Problem
from randquant.training.runs.setup import Given, problem_of, server_step
from randquant.training.schedule import most_participations
from randquant.training.target import Target, choose, choose_adaptive

DEFAULT_CLIP_NORM = 1.0
"""`clip_norm` of `randquant.train`, where it is left out."""


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """What was asked for: a configuration without a mechanism, and the objects given.

    Attributes:
        problem: model, clients' data and loss.
        config: everything but the mechanism and the server's optimiser.
        mechanism: one's own; None to calibrate one to the target.
        bits: most bits of a code, or `auto`.
        server_optimizer: the name of a class in torch.optim, or what makes an optimiser.
    """

    problem: Problem
    config: TrainConfig
    mechanism: UpdateMechanism | None
    bits: int | Literal["auto"]
    server_optimizer: str | MakeOptimizer

    @property
    def given(self) -> Given:
        """What the run is trained with as objects."""
        make = self.server_optimizer
        return Given(self.problem, self.mechanism, None if isinstance(make, str) else make)

    def complete(self, key: Key) -> TrainConfig:
        """The configuration with its mechanism and optimiser; the key determines the cohorts."""
        config = self._capped()
        if self.mechanism is not None:
            _check_own(config, self.mechanism)
            config = _with_own(config, self.mechanism)
        check_config(config)
        config = _with_optimizer(config, self)
        if self.mechanism is not None:
            return config
        if config.coordinates == "auto":
            target = self._target(config, key)
            return _with_own(config, choose_adaptive(target, config.mechanism))
        chosen = choose(self._target(config, key))
        if chosen.warning:
            warnings.warn(chosen.warning, UserWarning, stacklevel=_callers())
        return dataclasses.replace(
            config, mechanism=chosen.mechanism, parameters=chosen.parameters,
            clip_norm=chosen.clip_norm,
        )  # fmt: skip

    def _capped(self) -> TrainConfig:
        """With a fixed size, all clients take part equally often unless said otherwise."""
        config = self.config
        uncapped = config.sampling != "fixed" or config.trust == "model"
        if uncapped or config.max_participations is not None:
            return config
        balanced = -(-config.rounds * config.cohort // config.population)
        return dataclasses.replace(config, max_participations=balanced)

    def _target(self, config: TrainConfig, key: Key) -> Target:
        if config.stop_at_epsilon is None or config.clip_norm is None:
            missing = "clip_norm" if config.clip_norm is None else "epsilon"
            raise ValueError(
                f"Expected {missing}, or a mechanism of your own, got neither: give epsilon=8 and "
                "clip_norm=1.0, or mechanism=randquant.aggregation.ClippedSGD(clip_norm=1.0) for a "
                "run without privacy."
            )
        trust: Any = validate.choice("trust", config.trust, ("aggregate", "local", "model"))
        hidden = hidden_cohorts(config)
        most = most_participations(config, key) if hidden is None else hidden.participations
        examples = None
        if config.unit == "example":
            examples = Learner(self.problem, Local(config.batch)).examples
        return Target(
            config.stop_at_epsilon, config.delta, config.neighboring, self.bits, trust,
            config.clip_norm, self.problem.dimension + beside(config), config.population,
            config.cohort, config.rounds, most, examples, hidden,
            None if config.coordinates == "auto" else config.coordinates,
        )  # fmt: skip


def _callers() -> int:
    """The `stacklevel` of a warning of our caller that points at who uses the package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("randquant"):
        frame, level = frame.f_back, level + 1
    return level


def _with_own(config: TrainConfig, mechanism: UpdateMechanism) -> TrainConfig:
    """The configuration with a mechanism that it has on record."""
    return dataclasses.replace(
        config, mechanism=OWN, parameters=record_of(mechanism),
        trust="model" if config.trust == "model" else mechanism.trust,
        clip_norm=mechanism.clip_norm, coordinates=None,
    )  # fmt: skip


def calibrated(config: TrainConfig, key: Key, given: Given) -> tuple[TrainConfig, Given]:
    """With the mechanism that `coordinates` of `auto` asks for, and the problem that it is for.

    Args:
        config: of names; one with another number of coordinates is returned as it is.
        key: the run's.
        given: what was passed as objects.

    Raises:
        ValueError: there is nothing to calibrate it to, or it is given noise of its own.
    """
    if config.coordinates != "auto":
        return config, given
    problem = problem_of(config) if given.problem is None else given.problem
    named, wanted = config.mechanism, f"with coordinates auto and {config.mechanism}"
    for name in ("stop_at_epsilon", "clip_norm"):
        if getattr(config, name) is None:
            raise ValueError(f"Expected {name} {wanted}, got none: its noise is calibrated to it.")
    if config.parameters:
        raise ValueError(
            f"Expected no parameters of its own {wanted}, got {', '.join(config.parameters)}: its "
            "noise is calibrated to stop_at_epsilon, for each number of coordinates."
        )
    if config.norm != "l2" or named == OWN:
        raise ValueError(
            f"Expected norm=l2 and a mechanism by its name with coordinates auto, got {named} and "
            f"{config.norm}: a part of an update is clipped in L2."
        )
    request = TrainingRequest(problem, config, None, 1, config.server_optimizer)
    return request.complete(key), dataclasses.replace(given, problem=problem)


def _check_own(config: TrainConfig, mechanism: UpdateMechanism) -> None:
    """Refuse what is no mechanism, and settings that it would not keep to."""
    wanted = "a mechanism for whole updates, such as randquant.plan(...).mechanism"
    validate.answers("mechanism", mechanism, wanted, "record", "encode", "release")
    if config.trust == "local" and mechanism.trust not in ("local", None):
        raise ValueError(
            f"Expected a mechanism of local trust with trust='local', got one of "
            f"{mechanism.trust} trust: leave trust out, or plan with trust='local'."
        )
    if config.coordinates is not None:
        raise ValueError(
            f"Expected no coordinates with a mechanism of your own, got {config.coordinates}: give "
            "them to the mechanism, as VectorMechanism(..., coordinates=...)."
        )
    if config.clip_norm not in (DEFAULT_CLIP_NORM, mechanism.clip_norm):
        raise ValueError(
            f"Expected the clip_norm of the mechanism, {mechanism.clip_norm}, got "
            f"{config.clip_norm}: leave it out; a mechanism clips as it was made."
        )


def _with_optimizer(config: TrainConfig, request: TrainingRequest) -> TrainConfig:
    make = request.server_optimizer
    if not callable(make) and not isinstance(make, str):
        raise TypeError(
            "Expected server_optimizer to be the name of a class in torch.optim, or a function of "
            f"parameters, got {validate.shown(make)}: give lambda p: torch.optim.Adam(p, lr=0.01)."
        )
    if isinstance(make, str):
        config = dataclasses.replace(config, server_optimizer=make)
        server_step(config, request.problem)
        return config
    name, options = server_step(config, request.problem, make).described()
    rate = options.pop("lr", config.learning_rate)
    plain = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in options.items()
        if value is None or isinstance(value, bool | int | float | str | tuple)
    }
    return dataclasses.replace(
        config, server_optimizer=name, server_options=plain, learning_rate=float(rate)
    )
