"""Options shared by several commands, mainly the parameters of mechanisms."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from randquant.aggregation.registry import all_mechanisms
from randquant.cli.values import reader
from randquant.mechanisms.record import MechanismRecord
from randquant.mechanisms.registry import channel_mechanisms

TRUST = "what the server sees: local (codes) or aggregate (sums only); default the mechanism's own"
NORM = "norm that --clip-norm bounds: l2 (default) or l1"
NEIGHBORING = "neighbours: replace_one (default: another update) or zero_out (the zero update)"
DATA_DIR = "folder of the data files; digits and breast-cancer need none"


def mechanism_options(
    parser: argparse.ArgumentParser, records: Mapping[str, MechanismRecord]
) -> None:
    """Add an option for every parameter of these mechanisms, except settings of a run."""
    texts: dict[str, dict[str, list[str]]] = {}
    kinds: dict[str, Callable[[str], Any]] = {}
    for name, record in records.items():
        for parameter in record.parameters:
            users = texts.setdefault(parameter, {})
            users.setdefault(record.meaning(parameter), []).append(name)
            kinds[parameter] = reader(record.signature[parameter])
    for parameter, users in texts.items():
        text = "; ".join(f"{meaning} ({', '.join(names)})" for meaning, names in users.items())
        parser.add_argument(flag(parameter), type=kinds[parameter], help=text)
    parser.set_defaults(parameter_names=list(texts))


def given_parameters(options: argparse.Namespace) -> dict[str, Any]:
    """Return the mechanism parameters that were given, by name."""
    given = {name: getattr(options, name) for name in options.parameter_names}
    return {name: value for name, value in given.items() if value is not None}


def own_parameters(mechanism: str, options: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    """Split the given parameters into a mechanism's own and a channel's clip_norm, or None.

    For a channel that has the parameter clip_norm itself (imvu) it is both: its coordinates then
    lie within the norm to which updates are clipped.
    """
    parameters = given_parameters(options)
    clip_norm = parameters.get("clip_norm") if mechanism in channel_mechanisms() else None
    if clip_norm is not None and not takes(mechanism, "clip_norm"):
        del parameters["clip_norm"]
    return parameters, clip_norm


def takes(mechanism: str, parameter: str) -> bool:
    """Return whether a mechanism has a parameter; False for an unknown mechanism."""
    record = all_mechanisms().get(mechanism)
    return record is not None and parameter in record.signature


def flag(name: str) -> str:
    """Return the option of a parameter or field: `--clip-norm` for `clip_norm`."""
    return "--" + name.replace("_", "-")
