"""From a run's configuration to the mechanism that protects its updates."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from randquant._internal import formatting
from randquant._internal.serialization import to_json
from randquant.aggregation.alongside import Alongside
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import from_record, update_mechanism
from randquant.privacy.guarantee import NEIGHBORINGS
from randquant.training.config import TrainConfig

STATED_ORDERS = (1.25, 2.0, 8.0, 32.0)
"""Rényi orders at which the cost of a mechanism without a record is put on record."""


def mechanism_of(config: TrainConfig) -> UpdateMechanism:
    """Build the mechanism that a run is configured with.

    Raises:
        ValueError: its name is unknown, its parameters are not its own or out of bounds, or it
            does not work under that trust.

    Example:
        >>> from randquant import Privacy
        >>> from randquant.training.config import Task
        >>> noise = {"clip_norm": 1.0, "noise_multiplier": 2.0}
        >>> config = TrainConfig(Task(200), "local-gaussian", noise, cohort=40, trust=None,
        ...                      privacy=Privacy(clip_norm=None))
        >>> mechanism_of(config).trust
        'local'
    """
    if config.own_mechanism:
        if not config.parameters:
            raise ValueError(
                "Expected the run's own mechanism, which no file holds: pass it again as "
                "mechanism=."
            )
        return from_record(config.parameters, "in a run's configuration")
    hidden = config.hidden_cohorts
    return update_mechanism(
        config.mechanism,
        config.parameters,
        trust=config.trust,
        cohort=config.cohort if hidden is None else hidden.summands(None),
        clip_norm=config.privacy.clip_norm,
        coordinates=config.privacy.coordinates,
    )


def sent(config: TrainConfig, dimension: int) -> str:
    """What a client sends in a round, in words.

    Example:
        >>> from randquant import Privacy
        >>> from randquant.training.config import Task
        >>> beside = Privacy(numbers=("accuracy",))
        >>> sent(TrainConfig(Task(200), "rqm", cohort=40, privacy=beside), 650)
        '650 coordinates and 1 number beside them'
    """
    count = len(config.privacy.numbers)
    words = f"{dimension:,} coordinates"
    return words + (f" and {formatting.count(count, 'number')} beside them" if count else "")


def alongside_of(config: TrainConfig, mechanism: UpdateMechanism) -> Alongside | None:
    """Scalars that are sent with each update, or None.

    Raises:
        ValueError: the mechanism does not clip whole updates, or the numbers do not go together.
    """
    privacy = config.privacy
    if not privacy.numbers and privacy.weighted_by is None:
        return None
    if mechanism.clip_norm is None:
        raise ValueError(
            "Expected a clip_norm with numbers, got None: numbers share the norm of an update, "
            "and coordinates are clipped one by one here."
        )
    return Alongside(mechanism.clip_norm, privacy.read_numbers, privacy.weighted_by)


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


def fingerprint_of(config: TrainConfig, mechanism: UpdateMechanism, dimension: int) -> str:
    """Hexadecimal digest of what a configuration does not name by itself.

    That is the channel, which may be read from a file; of a mechanism that was passed as an object
    also its record; or its class and what it costs, where it has no record. Empty for a mechanism
    of this package without a channel.
    """
    channel = mechanism.channel
    stated = "" if channel is None else channel.fingerprint.hex()
    if not config.own_mechanism:
        return stated
    kind = type(mechanism)
    record = record_of(mechanism)
    facts: list[Any] = [kind.__module__, kind.__qualname__, stated, record]
    if not record:
        facts.append(_costs(mechanism, dimension))
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _costs(mechanism: UpdateMechanism, dimension: int) -> list[Any]:
    """What a mechanism from outside this package relies on and costs.

    Otherwise rounds that were sent with less noise would be stated at the cost of more.
    """
    costs: list[Any] = [mechanism.trust, mechanism.cohort, mechanism.clip_norm]
    for neighboring in NEIGHBORINGS:
        try:
            release = mechanism.release(dimension, 1, neighboring)
        except (TypeError, ValueError):
            release = None  # it does not protect these neighbours
        costs += [None if release is None else release.renyi(order) for order in STATED_ORDERS]
    return costs
