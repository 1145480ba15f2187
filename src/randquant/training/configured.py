"""The mechanism of a run's configuration: built, described and fingerprinted."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from randquant._internal import formatting
from randquant._internal.serialization import to_json
from randquant.aggregation.auxiliary_numbers import AuxiliaryNumbers
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import from_record, update_mechanism
from randquant.privacy.guarantee import NEIGHBORINGS
from randquant.training.config import TrainConfig

STATED_ORDERS = (1.25, 2.0, 8.0, 32.0)
"""Rényi orders at which the cost of a mechanism without a record enters its fingerprint.

Mechanisms with different noise differ at some of these, from small to large. More would make every
start of a run slower. They must not change: the digests in stores depend on them.
"""


def configured_mechanism(config: TrainConfig) -> UpdateMechanism:
    """Build the mechanism of a run's configuration.

    Raises:
        ValueError: its name is unknown, it does not have such parameters or they are out of
            bounds, or it does not work under that trust.

    Example:
        >>> from randquant import Privacy
        >>> from randquant.training.config import Task
        >>> noise = {"clip_norm": 1.0, "noise_multiplier": 2.0}
        >>> config = TrainConfig(Task(200), "local-gaussian", noise, cohort=40, trust=None,
        ...                      privacy=Privacy(clip_norm=None))
        >>> configured_mechanism(config).trust
        'local'
    """
    if config.own_mechanism:
        if not config.parameters:
            raise ValueError(
                "Expected the mechanism object of the run, got None: no file holds it; pass it "
                "again as mechanism=."
            )
        return from_record(config.parameters, "in a run's configuration")
    hidden = config.hidden_cohorts
    return update_mechanism(
        config.mechanism,
        config.parameters,
        trust=config.trust,
        # Calibrated for how many payloads a sum holds, which may be more than take part.
        cohort=config.cohort if hidden is None else hidden.summands(None),
        clip_norm=config.privacy.clip_norm,
        coordinates=config.privacy.coordinates,
    )


def describe_upload(config: TrainConfig, dimension: int) -> str:
    """Describe a client's upload in a round.

    Example:
        >>> from randquant import Privacy
        >>> from randquant.training.config import Task
        >>> privacy = Privacy(numbers=("accuracy",))
        >>> describe_upload(TrainConfig(Task(200), "rqm", cohort=40, privacy=privacy), 650)
        '650 coordinates and 1 number beside them'
    """
    count = len(config.privacy.numbers)
    words = f"{dimension:,} coordinates"
    return words + (f" and {formatting.count(count, 'number')} beside them" if count else "")


def scalars_with_updates(
    config: TrainConfig, mechanism: UpdateMechanism
) -> AuxiliaryNumbers | None:
    """Return the scalars that are sent with each update, or None.

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
    return AuxiliaryNumbers(mechanism.clip_norm, privacy.read_numbers, privacy.weighted_by)


def mechanism_record(mechanism: UpdateMechanism) -> dict[str, Any]:
    """Return a record from which a mechanism can be rebuilt; empty if it has none.

    Example:
        >>> from randquant.aggregation import SignSGD
        >>> mechanism_record(SignSGD(clip_norm=1.0, noise_multiplier=2.0))["mechanism"]
        'sign-sgd'
    """
    try:
        return to_json(mechanism.record())
    except TypeError:
        return {}


def mechanism_fingerprint(config: TrainConfig, mechanism: UpdateMechanism, dimension: int) -> str:
    """Return a hexadecimal digest of the parts of a mechanism that its configuration leaves open.

    These are the channel, which may be read from a file; of a mechanism that was passed as an
    object also its class and its record, or its cost where it has no record. Empty for a mechanism
    of this package without a channel.
    """
    channel = mechanism.channel
    channel_text = "" if channel is None else channel.fingerprint.hex()
    if not config.own_mechanism:
        return channel_text
    kind = type(mechanism)
    record = mechanism_record(mechanism)
    facts: list[Any] = [kind.__module__, kind.__qualname__, channel_text, record]
    if not record:
        facts.append(_costs(mechanism, dimension))
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _costs(mechanism: UpdateMechanism, dimension: int) -> list[Any]:
    # A class says nothing of its parameters: without its costs, a run could go on with more noise,
    # and the rounds that were sent with less would be stated at the lower cost.
    costs: list[Any] = [mechanism.trust, mechanism.cohort, mechanism.clip_norm]
    for neighboring in NEIGHBORINGS:
        try:
            release = mechanism.release(dimension, 1, neighboring)
        except (TypeError, ValueError):
            release = None  # it does not protect these neighbours
        costs += [None if release is None else release.renyi(order) for order in STATED_ORDERS]
    return costs
