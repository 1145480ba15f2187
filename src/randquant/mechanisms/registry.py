"""The table of all mechanisms by name, from their own modules or registered by a user."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from randquant._internal import validate
from randquant.channels.channel import Channel
from randquant.mechanisms.record import (
    CoordinateFamily,
    MechanismRecord,
    Tuning,
    UpdateFamily,
    UpdateSetting,
)

_known: dict[str, MechanismRecord] = {}


def records_in(package: str) -> Iterator[MechanismRecord]:
    """Yield the records that a package's modules list in `RECORDS`, in the order of their names.

    Modules are found by Python's import system, in a folder or a zip file; subpackages are skipped.

    Args:
        package: full name, such as `randquant.mechanisms`.
    """
    places = importlib.import_module(package).__path__
    names = [module.name for module in pkgutil.iter_modules(places) if not module.ispkg]
    for name in sorted(names):
        yield from getattr(importlib.import_module(f"{package}.{name}"), "RECORDS", ())


def add(record: MechanismRecord) -> None:
    """Add a record to the table.

    Raises:
        ValueError: its name is taken by a mechanism of any kind.
    """
    if record.name in _known:
        raise ValueError(f"Expected a name that is not taken, got {record.name!r}: choose another.")
    _known[record.name] = record


def known_mechanisms() -> dict[str, MechanismRecord]:
    """Return every record in the table, by name: channels first, then by place and name.

    Whole-update mechanisms are included once `randquant.aggregation` is imported; its
    `all_mechanisms` therefore always includes them.
    """
    ordered = sorted(_known.values(), key=lambda r: (r.whole_update, r.place, r.name))
    return {record.name: record for record in ordered}


def channel_mechanisms() -> dict[str, MechanismRecord]:
    """Return the records whose constructor returns a Channel, by name.

    Example:
        >>> record = channel_mechanisms()["pbm"]
        >>> record.parameters
        ('clip', 'theta', 'trials', 'inputs', 'mixing')
        >>> record.meaning("theta")
        'success probability is 1/2 + theta x / clip; 0 to 1/2'
    """
    return {name: r for name, r in known_mechanisms().items() if not r.whole_update}


def build(name: str, parameters: Mapping[str, Any]) -> Channel:
    """Build a mechanism's channel from its name and parameters.

    Raises:
        ValueError: the name is unknown, or a parameter is missing, unknown or out of bounds.

    Example:
        >>> build("pbm", {"clip": 1.0, "theta": 0.25, "trials": 15}).levels
        16
    """
    channels = channel_mechanisms()
    record = channels[validate.choice("mechanism", name, channels)]
    return validate.call(name, record.constructor, parameters)


def notes_on(name: str, parameters: Mapping[str, Any]) -> list[str]:
    """Return a sentence on each parameter that a mechanism chose by itself.

    Args:
        name: a mechanism's; one that is not in the table has no notes.
        parameters: those that were given.
    """
    record = _known.get(name)
    return [] if record is None else record.notes(parameters)


def register(
    name: str,
    constructor: Callable[..., Channel],
    *,
    help: Mapping[str, str] | None = None,
    example: Mapping[str, Any] | None = None,
    coordinate: CoordinateFamily | None = None,
    update: Callable[[UpdateSetting], UpdateFamily] | None = None,
) -> None:
    """Add a mechanism: every command, table and plot of this process then includes it.

    Args:
        name: lower-case letters, digits and hyphens; not yet taken.
        constructor: takes `clip` and other parameters by name, returns a Channel, and raises
            ValueError for invalid parameters. If they are annotated with `int` or `float`, and the
            number of codes is called `levels`, then commands can read them, and `randquant
            compare` searches one or two `float` parameters for a target epsilon.
        help: one line on each parameter, by name, for `--help`.
        example: parameters of an example.
        coordinate: the numbers that `randquant compare` searches, and their grids, if they do not
            follow from the signature.
        update: from a setting to the number that `randquant plan` searches; without it, `plan`
            leaves the mechanism out.

    Raises:
        ValueError: the name is taken or malformed, the constructor takes no `clip`, or help names
            an unknown parameter.

    References:
        `docs/own-mechanism.md`, with a complete example.

    Example:
        >>> from randquant.mechanisms.random_rounding import stochastic_rounding
        >>> register("wide-rounding", lambda clip, levels: stochastic_rounding(clip, levels, clip))
        >>> build("wide-rounding", {"clip": 1.0, "levels": 2}).levels
        2
        >>> unregister("wide-rounding")
    """
    tuning = Tuning(coordinate, update)
    record = MechanismRecord(name, constructor, help or {}, example or {}, tuning)
    if "clip" not in record.parameters:
        raise ValueError(
            f"Expected the constructor of {name} to take clip and its other parameters by name."
        )
    add(record)


def unregister(name: str) -> None:
    """Remove a mechanism, for example to register it again after a change.

    Raises:
        ValueError: no mechanism has that name.
    """
    del _known[validate.choice("mechanism", name, known_mechanisms())]


for _record in records_in(__package__ or "randquant.mechanisms"):
    add(_record)
