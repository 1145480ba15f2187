"""Builds a run from its configuration: data, clients, mechanism and schedule."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels.channel import Channel
from randquant.privacy.accounting.ledger import Ledger
from randquant.training.client import Learner
from randquant.training.config import TrainConfig
from randquant.training.configured import mechanism_of
from randquant.training.local import Local
from randquant.training.named import named_problem
from randquant.training.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run is trained with; none of it depends on the run's progress.

    Attributes:
        learner: computes the clients' updates.
        mechanism: protects and aggregates them.
        schedule: draws the cohorts and ends the run.
        public: number of public examples that features were fitted on.
    """

    learner: Learner
    mechanism: UpdateMechanism
    schedule: Schedule
    public: int

    @property
    def fingerprint(self) -> str:
        """Of the channel that updates are sent through, in hexadecimal; empty for none."""
        channel = self.mechanism.channel
        return "" if channel is None else channel.fingerprint.hex()


def prepare(config: TrainConfig) -> Prepared:
    """Load a run's data and build its learner, mechanism and schedule.

    Raises:
        ValueError: the configuration cannot be trained.
    """
    mechanism = _mechanism(config)
    problem = named_problem(config)
    learner = Learner(problem, _local(config, mechanism), config.device)
    ledger = Ledger(
        mechanism,
        learner.dimension,
        examples=learner.examples if config.unit == "example" else None,
        delta=config.delta,
        neighboring=config.neighboring,
        limit=config.stop_at_epsilon,
    )
    return Prepared(learner, mechanism, Schedule(config, ledger), problem.public)


def _local(config: TrainConfig, mechanism: UpdateMechanism) -> Local:
    norm = mechanism.clip_norm if config.unit == "example" else None
    if config.unit == "example" and norm is None:
        raise ValueError(
            "Expected a clip_norm with unit example, got none: it bounds what one example can "
            "change."
        )
    return Local(config.batch, config.local_epochs, config.local_learning_rate, norm)


def _mechanism(config: TrainConfig) -> UpdateMechanism:
    mechanism = mechanism_of(config)
    if config.sampling == "poisson" and mechanism.trust == "aggregate":
        raise ValueError(
            f"Expected sampling fixed with {config.mechanism} under aggregate trust, got poisson: "
            "its guarantee needs a fixed number of clients in a sum."
        )
    return mechanism


def without_privacy(config: TrainConfig, rounds: int) -> TrainConfig:
    """The same run with the same clipping and updates sent as floats, for `rounds` rounds."""
    channel = channel_of(config)
    clip = {k: v for k, v in config.parameters.items() if k in ("clip", "clip_norm")}
    if channel is not None:
        whole = config.clip_norm
        clip = {"clip": channel.clip} if whole is None else {"clip_norm": whole}
    return dataclasses.replace(
        config, mechanism="clipped-sgd", parameters=clip, trust=None, clip_norm=None,
        stop_at_epsilon=None, rounds=rounds,
    )  # fmt: skip


def channel_of(config: TrainConfig) -> Channel | None:
    """Return the channel that a run's updates are sent through, if one is."""
    return _mechanism(config).channel
