"""A channel as a JSON file with its certificate, which is computed again when it is read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from randquant._internal import files, validate
from randquant._internal.formatting import round_up
from randquant._internal.serialization import to_json, write_json
from randquant.channels.channel import Channel
from randquant.privacy.certificates.coordinate import (
    Certificate,
    MetricCertificate,
    certify,
    certify_metric,
)
from randquant.privacy.guarantee import Interval

FORMAT = "randquant channel, version 1"


def save_channel(
    path: str | Path, channel: Channel, certificate: Certificate | MetricCertificate | None = None
) -> None:
    """Write a channel and its certificate as JSON: exact integers, whole or not at all.

    Args:
        path: the file, replaced if it is there.
        channel: the channel.
        certificate: over all pairs of inputs; pure epsilon is certified unless given.

    Raises:
        ValueError: the certificate is of one pair only.
        OSError: the file cannot be written.

    Example:
        >>> import randquant as rq, tempfile
        >>> path = tempfile.mktemp(suffix=".json")
        >>> save_channel(path, rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42))
        >>> channel, certificate = load_channel(path)
        >>> channel.levels, round(certificate.epsilon.upper, 5)
        (16, 5.46989)
    """
    write_json(validate.path("path", path), channel_record(channel, certificate))


def load_channel(path: str | Path) -> tuple[Channel, Certificate | MetricCertificate]:
    """Read a channel, certify it again, and refuse it where the file says otherwise.

    Args:
        path: a file that `save_channel` wrote.

    Returns:
        (channel, certificate), the certificate computed from the channel that was read.

    Raises:
        ValueError: the file holds no channel, or its fingerprint or certificate does not belong to
            its integers: the file was damaged or changed.
        OSError: the file cannot be read.
    """
    try:
        record = json.loads(files.read_text(validate.path("path", path), "a channel"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected a channel file at {path}, but: {error}.") from error
    return channel_from_record(record, f"file at {path}")


def channel_record(
    channel: Channel, certificate: Certificate | MetricCertificate | None = None
) -> dict[str, Any]:
    """Return a channel and its certificate as JSON data, for files and messages.

    Args:
        channel, certificate: see `save_channel`.
    """
    validate.kind("channel", channel, Channel)
    certificate = certify(channel) if certificate is None else certificate
    wanted = "what certify or certify_metric returns"
    validate.answers("certificate", certificate, wanted, "covers", "epsilon")
    if certificate.covers == "this pair":
        raise ValueError(
            f"Expected a certificate over all pairs of inputs, but it covers {certificate.witness} "
            "only: certify the channel with `certify`."
        )
    if isinstance(certificate, MetricCertificate):
        claim = {"geometry": certificate.geometry}
    else:
        claim = {"order": certificate.order}
    record = {
        "format": FORMAT,
        "inputs": channel.inputs.tolist(),
        "values": channel.values.tolist(),
        "weights": channel.weights.tolist(),
        "denominator": channel.denominator,
        "fingerprint": channel.fingerprint.hex(),
        "certificate": {**claim, "epsilon": certificate.epsilon},
    }
    return to_json(record)


def channel_from_record(
    record: Any, where: str, admit: Callable[[Channel], None] = lambda channel: None
) -> tuple[Channel, Certificate | MetricCertificate]:
    """Read a channel from JSON data and certify it again; the inverse of `channel_record`.

    Args:
        record: the data, from an untrusted source.
        where: names the source in errors.
        admit: may refuse the channel with a ValueError before the work of certifying it begins.

    Raises:
        ValueError: see `load_channel`.
    """
    try:
        if record["format"] != FORMAT:
            raise ValueError(f"its format is {validate.shown(record['format'])}")
        # Lists of anything but numbers could become arrays of text, and take any amount of memory.
        inputs, values = _numbers(record["inputs"]), _numbers(record["values"])
        weights: Any = [_numbers(row) for row in record["weights"]]
        channel = Channel(inputs, values, weights, record["denominator"])
        admit(channel)
        claim = record["certificate"]
        claimed = Interval(*(float(claim["epsilon"][end]) for end in ("lower", "upper")))
        certificate = _certified(channel, claim)
        fingerprint = record["fingerprint"]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise ValueError(f"Expected a channel {where}, but: {reason}.") from error
    # The certificate that counts is the one computed here: a file cannot claim a better one. What
    # it states must agree, so that an edited file is noticed.
    if channel.fingerprint.hex() != fingerprint:
        raise ValueError(
            f"Expected the channel {where} to have the fingerprint {validate.shown(fingerprint)} "
            f"as it says, got {channel.fingerprint.hex()}: it was changed; design or save the "
            "channel again."
        )
    certified = certificate.epsilon
    if not (claimed.lower <= certified.upper and certified.lower <= claimed.upper):
        raise ValueError(
            f"Expected the channel {where} to be certified at epsilon "
            f"{_printed(claimed.upper)} as it says, got {_printed(certified.upper)}: it was "
            "changed; design or save the channel again."
        )
    return channel, certificate


def _printed(epsilon: float) -> str:
    return "no finite one" if math.isinf(epsilon) else round_up(epsilon, 9)


def _numbers(row: Any) -> Any:
    if not (isinstance(row, list) and all(type(number) in (int, float) for number in row)):
        raise ValueError("its inputs, values and weights are not lists of numbers")
    return row


def _certified(channel: Channel, claim: dict[str, Any]) -> Certificate | MetricCertificate:
    if "geometry" in claim:
        return certify_metric(channel, claim["geometry"])
    return certify(channel, math.inf if claim["order"] == "inf" else float(claim["order"]))
