"""From a run's configuration to the mechanism that protects its updates."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from randquant._internal.serialization import to_json
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import update_mechanism
from randquant.aggregation.saved import from_record
from randquant.training.config import TrainConfig

OWN = "own"
"""Name of a mechanism, a data set or a model that was passed as an object."""


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
    if config.mechanism == OWN:
        if not config.parameters:
            raise ValueError(
                "Expected the run's own mechanism, which no file holds: pass it again as "
                "mechanism=."
            )
        return from_record(config.parameters, "in a run's configuration")
    return update_mechanism(
        config.mechanism,
        config.parameters,
        trust=config.trust,
        cohort=config.cohort,
        clip_norm=config.clip_norm,
        norm=config.norm,
    )


def record_of(mechanism: UpdateMechanism) -> dict[str, Any]:
    """A mechanism's record, from which it can be made again; empty if it has none.

    Example:
        >>> from randquant.aggregation import SignSGD
        >>> record_of(SignSGD(clip_norm=1.0, noise_multiplier=2.0))["mechanism"]
        'sign-sgd'
    """
    try:
        return to_json(mechanism.record())
    except TypeError:
        return {}


def fingerprint_of(config: TrainConfig, mechanism: UpdateMechanism) -> str:
    """Hexadecimal digest of what a configuration does not name by itself.

    That is the channel, which may be read from a file; of a mechanism that was passed as an object
    also its record, or its class. Empty for a mechanism of this package without a channel.
    """
    channel = mechanism.channel
    stated = "" if channel is None else channel.fingerprint.hex()
    if config.mechanism != OWN:
        return stated
    kind = type(mechanism)
    facts = [kind.__module__, kind.__qualname__, stated, record_of(mechanism)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
