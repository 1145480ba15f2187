"""Mechanisms for whole updates by name: every channel, and the mechanisms without a channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from randquant._internal import validate
from randquant.aggregation.coordinate import ChannelMechanism
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.vector import VectorMechanism
from randquant.mechanisms.record import MechanismRecord
from randquant.mechanisms.registry import add, build, known_mechanisms, records_in
from randquant.privacy.guarantee import Trust


def all_mechanisms() -> dict[str, MechanismRecord]:
    """Every mechanism's record by name: channels first, then mechanisms for whole updates.

    Example:
        >>> record = all_mechanisms()["skellam"]
        >>> record.whole_update, record.trusts, record.run_settings
        (True, ('aggregate',), ('cohort', 'coordinates', 'subset_seed'))
    """
    return known_mechanisms()


def update_mechanism(
    name: str,
    parameters: Mapping[str, Any],
    *,
    trust: Trust | None = None,
    cohort: int | None = None,
    clip_norm: float | None = None,
    coordinates: int | None = None,
) -> UpdateMechanism:
    """Build a mechanism for whole updates from its name and parameters.

    Args:
        name: of any registered mechanism.
        parameters: the mechanism's own parameters, by name.
        trust: `local`, `aggregate` or `central`; None for the mechanism's own (`local` for
            channels). `model`: the adversary sees less than the server; the mechanism is that of
            a sum where there is one (`aggregate`), else its own.
        cohort: fewest clients in a sum; their randomness protects each of them if the server sees
            sums only.
        clip_norm: clipping threshold of a whole update's norm, for a channel; None to clip each
            coordinate instead. (Mechanisms without a channel have a parameter for it.)
        coordinates: how many coordinates of a rotated update are sent in a round; None for all.

    Raises:
        ValueError: the name is unknown, a parameter is missing, unknown or out of bounds, or the
            mechanism does not work under that trust.
    """
    known = all_mechanisms()
    record = known[validate.choice("mechanism", name, known)]
    run = _RunSettings(trust, cohort, clip_norm, coordinates)
    return (_whole if record.whole_update else _of_channel)(record, parameters, run)


@dataclass(frozen=True, slots=True)
class _RunSettings:
    """Settings of `update_mechanism`."""

    trust: Trust | None
    cohort: int | None
    clip_norm: float | None
    coordinates: int | None


def _of_channel(
    record: MechanismRecord, parameters: Mapping[str, Any], run: _RunSettings
) -> UpdateMechanism:
    """The channel on every coordinate, after clipping the norm if there is a threshold."""
    if run.trust is not None and str(run.trust):
        validate.choice("trust", run.trust, (*record.trusts, "model"))
    summed = run.trust in ("aggregate", "model") or "local" not in record.trusts
    trust: Trust = "aggregate" if summed else "local"
    channel = build(record.name, parameters)
    cohort = validate.whole("cohort", 1 if run.cohort is None else run.cohort, low=1)
    cohort = cohort if summed else 1
    if run.clip_norm is not None:
        return VectorMechanism(channel, run.clip_norm, trust, cohort, coordinates=run.coordinates)
    if run.coordinates is not None:
        raise ValueError(
            f"Expected clip_norm with coordinates={validate.shown(run.coordinates)}, got none: "
            "only of updates that are clipped and rotated as a whole a subset of coordinates is "
            "sent."
        )
    return ChannelMechanism(channel, trust, cohort)


def _whole(
    record: MechanismRecord, parameters: Mapping[str, Any], run: _RunSettings
) -> UpdateMechanism:
    """A mechanism with its own threshold and its own trust."""
    name, settings = record.name, record.run_settings
    if run.clip_norm is not None:
        raise ValueError(
            f"Expected clip_norm among {name}'s own parameters only, got another: leave one out."
        )
    if run.coordinates is not None and "coordinates" not in settings:
        raise ValueError(f"Expected no coordinates with {name}, which sends all of them.")
    own: dict[str, Any] = {"cohort": run.cohort, "coordinates": run.coordinates}
    if given := {key: own[key] for key in own if key in settings and own[key] is not None}:
        parameters = {**parameters, **given}
    mechanism = validate.call(name, record.constructor, parameters)
    if run.trust and run.trust not in (mechanism.trust, "model"):
        known = mechanism.trust or "none: it protects nothing"
        raise ValueError(f"Expected {name}'s own trust ({known}), got {run.trust!r}: leave it out.")
    return mechanism


for _package in ("randquant.aggregation", "randquant.aggregation.rank"):
    for _record in records_in(_package):
        add(_record)
