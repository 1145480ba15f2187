"""Mechanisms by their names, from the command line and from files."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from randquant._internal import files, validate
from randquant.aggregation.channel_mechanisms import ChannelMechanism, VectorMechanism
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels.channel import Channel
from randquant.mechanisms.registry import (
    MechanismRecord,
    add,
    build,
    known_mechanisms,
    parameters_from_file,
    records_in,
    stored_parameters,
)
from randquant.privacy.certificates.coordinate import channel_from_record
from randquant.privacy.certificates.sum_curvature import check_work
from randquant.privacy.guarantee import Trust

# Mechanisms for whole updates by name: every channel, and the mechanisms without a channel.


def all_mechanisms() -> dict[str, MechanismRecord]:
    """Return every mechanism's record by name: channels first, then whole updates.

    Example:
        >>> record = all_mechanisms()["skellam"]
        >>> record.whole_update, record.trusts, record.run_settings
        (True, ('aggregate',), ('cohort', 'coordinates', 'subset_seed'))
    """
    return known_mechanisms()


MOVED_NAMES = ("rank", "graded-rank")
"""Mechanisms of earlier versions that files, offers and commands may still name."""


def known_name(name: Any, known: Iterable[str]) -> str:
    """Check a mechanism's name, and return it.

    Raises:
        ValueError: it is unknown; the error says which are known, or where a mechanism has moved.
    """
    if isinstance(name, str) and name in MOVED_NAMES:
        raise ValueError(
            f"Expected a mechanism of randquant, got {name!r}: it is in the package "
            "randquant-papers, as randquant_papers.rank."
        )
    return validate.choice("mechanism", name, known)


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
    record = known[known_name(name, known)]
    run = _RunSettings(trust, cohort, clip_norm, coordinates)
    return (_whole_update_mechanism if record.whole_update else _channel_mechanism)(
        record, parameters, run
    )


@dataclass(frozen=True, slots=True)
class _RunSettings:
    """Settings of `update_mechanism`."""

    trust: Trust | None
    cohort: int | None
    clip_norm: float | None
    coordinates: int | None


def _channel_mechanism(
    record: MechanismRecord, parameters: Mapping[str, Any], run: _RunSettings
) -> UpdateMechanism:
    if run.trust is not None and str(run.trust):
        validate.choice("trust", run.trust, (*record.trusts, "model"))
    summed = run.trust in ("aggregate", "model") or "local" not in record.trusts
    trust: Trust = "aggregate" if summed else "local"
    channel = build(record.name, parameters)
    cohort = validate.whole("cohort", 1 if run.cohort is None else run.cohort, low=1)
    # Where the server sees each code, other clients hide nobody, however many there are.
    cohort = cohort if summed else 1
    if run.clip_norm is not None:
        return VectorMechanism(channel, run.clip_norm, trust, cohort, coordinates=run.coordinates)
    if run.coordinates is not None:
        raise ValueError(
            f"Expected clip_norm with coordinates={validate.shown(run.coordinates)}, got "
            "clip_norm=None: a subset of coordinates is sent only of updates that are clipped and "
            "rotated as a whole."
        )
    return ChannelMechanism(channel, trust, cohort)


def _whole_update_mechanism(
    record: MechanismRecord, parameters: Mapping[str, Any], run: _RunSettings
) -> UpdateMechanism:
    name, settings = record.name, record.run_settings
    if run.clip_norm is not None:
        raise ValueError(
            f"Expected clip_norm among {name}'s own parameters only, got another, "
            f"clip_norm={validate.shown(run.clip_norm)}: leave one out."
        )
    if run.coordinates is not None and "coordinates" not in settings:
        raise ValueError(f"Expected no coordinates with {name}, which sends all of them.")
    optional: dict[str, Any] = {
        "cohort": run.cohort, "clients": run.cohort, "coordinates": run.coordinates,
    }  # fmt: skip
    used = {k: value for k, value in optional.items() if k in settings and value is not None}
    if used:
        parameters = {**parameters, **used}
    mechanism = validate.call(name, record.constructor, parameters)
    if run.trust and run.trust not in (mechanism.trust, "model"):
        known = mechanism.trust or "none: it protects nothing"
        raise ValueError(f"Expected {name}'s own trust ({known}), got {run.trust!r}: leave it out.")
    return mechanism


for _record in records_in("randquant.aggregation"):
    add(_record)


# Mechanisms as JSON data and files; channels are certified again on loading.

FORMAT = "randquant mechanism, version 1"


def _survey_mechanism(survey: str) -> UpdateMechanism:
    # Its room is to the right of this one, so it is imported by name, when a file first asks for
    # it.
    module = importlib.import_module("randquant.statistics.table")
    return module.SurveyMechanism(survey)


CONSTRUCTORS: dict[str, Callable[..., UpdateMechanism]] = {
    "coordinates": ChannelMechanism,
    "survey": _survey_mechanism,
    "vector": VectorMechanism,
}
"""Constructors of mechanisms of channels and of tables, by the field `mechanism` of their records.
All other records name a mechanism of the registry."""


def from_record(
    record: Mapping[str, Any], where: str = "in a record", bounded: bool = False
) -> UpdateMechanism:
    """Invert `UpdateMechanism.record`, and certify the channel again if there is one.

    Args:
        record: JSON data, which need not be trusted.
        where: where it came from, for errors: `in an offer`.
        bounded: whether to refuse a channel whose certificate takes more than about a minute.

    Raises:
        ValueError, TypeError: it is not a mechanism's record, or the channel's certificate differs
            from the recorded one.

    Example:
        >>> from randquant.aggregation import SignSGD
        >>> mechanism = SignSGD(clip_norm=1.0, noise_multiplier=4.0)
        >>> from_record(mechanism.record()) == mechanism
        True
    """
    if not isinstance(record, Mapping):
        raise TypeError(f"Expected a mechanism's record, got {validate.shown(record)}.")
    fields = dict(record)
    known = all_mechanisms().items()
    whole = {name: record.constructor for name, record in known if record.whole_update}
    kinds = {**CONSTRUCTORS, **whole}
    kind = known_name(fields.pop("mechanism", None), kinds)
    # Before the constructor is called: a stranger's record may have any fields, and the error
    # should name those of the file.
    fields = parameters_from_file(kind, fields)
    _check_fields(kind, kinds[kind], fields)
    if "channel" in fields:
        summed = fields.get("trust") == "aggregate"
        clients = validate.whole("cohort", fields.get("cohort", 1), low=1) if summed else 1

        # Before the channel is certified: its sender chose how long that would take.
        def admit(channel: Channel) -> None:
            if bounded:
                check_work(channel, clients, clipped="clip_norm" in fields)

        fields["channel"], _ = channel_from_record(fields["channel"], where, admit)
    return kinds[kind](**fields)


def _check_fields(
    kind: str, constructor: Callable[..., UpdateMechanism], fields: Mapping[str, Any]
) -> None:
    # All by their names in files.
    parameters = stored_parameters(kind, inspect.signature(constructor).parameters)
    fields = stored_parameters(kind, fields)
    wanted = [name for name, each in parameters.items() if each.default is each.empty]
    if unknown := sorted(map(str, fields.keys() - parameters.keys())):
        raise ValueError(f"Expected fields {', '.join(parameters)}, got {', '.join(unknown)} too.")
    if missing := [name for name in wanted if name not in fields]:
        raise ValueError(f"Expected fields {', '.join(wanted)}, got no {', '.join(missing)}.")


RECORDED_MODULES = {
    "AdditiveMechanism": "randquant.aggregation.additive",
    "CentralGaussian": "randquant.aggregation.baselines",
    "ChannelMechanism": "randquant.aggregation.coordinate",
    "ClippedSGD": "randquant.aggregation.baselines",
    "HelperNoise": "randquant.aggregation.helper_noise",
    "LocalGaussian": "randquant.aggregation.baselines",
    "SignSGD": "randquant.aggregation.sign_sgd",
    "SurveyMechanism": "randquant.statistics.survey_mechanism",
    "VectorMechanism": "randquant.aggregation.vector",
}
"""Modules by which stored runs know the mechanisms of this package, by class: those of release
0.1.0, wherever a class is today."""


def recorded_module(kind: type) -> str:
    """Return the module by which stored runs know a mechanism's class; a user's own is its module.

    Example:
        >>> from randquant.aggregation import VectorMechanism
        >>> recorded_module(VectorMechanism)
        'randquant.aggregation.vector'
    """
    if kind.__module__.partition(".")[0] != __name__.partition(".")[0]:
        return kind.__module__
    return RECORDED_MODULES.get(kind.__qualname__, kind.__module__)


def save(mechanism: UpdateMechanism, path: str | Path) -> None:
    """Write a mechanism as JSON with a checksum, a channel with its certificate, atomically.

    Raises:
        TypeError: the mechanism is not one of this package.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> from randquant.aggregation import SignSGD
        >>> path = tempfile.mktemp(suffix=".json")
        >>> save(SignSGD(clip_norm=1.0, noise_multiplier=4.0), path)
        >>> load(path)
        SignSGD(clip_norm=1.0, noise_multiplier=4.0)
    """
    wanted = "a mechanism for whole updates, such as VectorMechanism(channel, clip_norm)"
    validate.answers("mechanism", mechanism, wanted, "record", "encode", "release")
    files.write(validate.path("path", path), {"format": FORMAT, **mechanism.record()})


def load(path: str | Path) -> UpdateMechanism:
    """Read a mechanism that `save` wrote, and certify its channel again.

    Raises:
        ValueError: the file holds no mechanism, or the checksum does not match its content, or the
            channel's certificate its weights: the file was damaged or changed.
        OSError: the file cannot be read.
    """
    text = files.read_text(validate.path("path", path), "a mechanism")
    try:
        record, _ = files.unseal(text.encode())
        if record.pop("format", None) != FORMAT:
            raise ValueError("it is a file of another format")
        return from_record(record, f"in {path}")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise ValueError(f"Expected a mechanism in {path}, but: {reason}.") from error
