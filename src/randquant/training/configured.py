"""From a run's configuration to the mechanism that protects its updates."""

from __future__ import annotations

from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import update_mechanism
from randquant.training.config import TrainConfig


def mechanism_of(config: TrainConfig) -> UpdateMechanism:
    """Build the mechanism that a run is configured with.

    Raises:
        ValueError: its name is unknown, its parameters are not its own or out of bounds, or it
            does not work under that trust.

    Example:
        >>> noise = {"clip_norm": 1.0, "noise_multiplier": 2.0}
        >>> mechanism_of(TrainConfig("digits", "softmax", "local-gaussian", noise)).trust
        'local'
    """
    return update_mechanism(
        config.mechanism,
        config.parameters,
        trust=config.trust,
        cohort=config.cohort,
        clip_norm=config.clip_norm,
        norm=config.norm,
    )
