"""Mechanisms as JSON data and files; channels are certified again on loading."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from randquant._internal import files, sealed, validate
from randquant.aggregation.coordinate import ChannelMechanism
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import all_mechanisms
from randquant.aggregation.vector import VectorMechanism
from randquant.channels.channel import Channel
from randquant.privacy.certificates.file import channel_from_record
from randquant.privacy.certificates.work import check_work

FORMAT = "randquant mechanism, version 1"


def _survey(survey: str) -> UpdateMechanism:
    """A table's, which a process that has asked none finds by its name: it is of a later room."""
    module = importlib.import_module("randquant.statistics.survey_mechanism")
    return module.SurveyMechanism(survey)


OF_OTHERS: dict[str, Callable[..., UpdateMechanism]] = {
    "coordinates": ChannelMechanism,
    "survey": _survey,
    "vector": VectorMechanism,
}
"""Mechanisms of channels and of tables, by a record's field `mechanism`. All other mechanisms have
their name in the registry there."""


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
        >>> mechanism = SignSGD(clip_norm=1.0, noise_multiplier=2.0)
        >>> from_record(mechanism.record()) == mechanism
        True
    """
    if not isinstance(record, Mapping):
        raise TypeError(f"Expected a mechanism's record, got {validate.shown(record)}.")
    fields = dict(record)
    known = all_mechanisms().items()
    whole = {name: record.constructor for name, record in known if record.whole_update}
    kinds = {**OF_OTHERS, **whole}
    kind = validate.choice("mechanism", fields.pop("mechanism", None), kinds)
    _check_fields(kinds[kind], fields)
    if "channel" in fields:
        summed = fields.get("trust") == "aggregate"
        clients = validate.whole("cohort", fields.get("cohort", 1), low=1) if summed else 1

        def admit(channel: Channel) -> None:
            if bounded:
                check_work(channel, clients, clipped="clip_norm" in fields)

        fields["channel"], _ = channel_from_record(fields["channel"], where, admit)
    return kinds[kind](**fields)


def _check_fields(constructor: Callable[..., UpdateMechanism], fields: Mapping[str, Any]) -> None:
    parameters = inspect.signature(constructor).parameters
    wanted = [name for name, each in parameters.items() if each.default is each.empty]
    if unknown := sorted(map(str, fields.keys() - parameters.keys())):
        raise ValueError(f"Expected fields {', '.join(parameters)}, got {', '.join(unknown)} too.")
    if missing := [name for name in wanted if name not in fields]:
        raise ValueError(f"Expected fields {', '.join(wanted)}, got no {', '.join(missing)}.")


def save(mechanism: UpdateMechanism, path: str | Path) -> None:
    """Write a mechanism as JSON with a checksum, a channel with its certificate, atomically.

    Raises:
        TypeError: the mechanism is not one of this package.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> from randquant.aggregation import SignSGD
        >>> path = tempfile.mktemp(suffix=".json")
        >>> save(SignSGD(clip_norm=1.0, noise_multiplier=2.0), path)
        >>> load(path)
        SignSGD(clip_norm=1.0, noise_multiplier=2.0)
    """
    wanted = "a mechanism for whole updates, such as VectorMechanism(channel, clip_norm)"
    validate.answers("mechanism", mechanism, wanted, "record", "encode", "release")
    sealed.write(validate.path("path", path), {"format": FORMAT, **mechanism.record()})


def load(path: str | Path) -> UpdateMechanism:
    """Read a mechanism that `save` wrote, and certify its channel again.

    Raises:
        ValueError: the file holds no mechanism, or the checksum does not match its content, or the
            channel's certificate its weights: the file was damaged or changed.
        OSError: the file cannot be read.
    """
    text = files.read_text(validate.path("path", path), "a mechanism")
    try:
        record, _ = sealed.unseal(text.encode())
        if record.pop("format", None) != FORMAT:
            raise ValueError("it is a file of another format")
        return from_record(record, f"in {path}")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise ValueError(f"Expected a mechanism in {path}, but: {reason}.") from error
