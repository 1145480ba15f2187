"""Options that several commands share, above all the parameters of mechanisms."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

from randquant.aggregate import BASELINES
from randquant.cli.help import PARAMETERS
from randquant.cli.values import reader
from randquant.mechanisms import MECHANISMS

TRUST = "who sees what: local, or aggregate (only sums of codes); default the mechanism's own"
NORM = "norm that --clip-norm is about: l2 (default) or l1"
NEIGHBORING = "what is hidden: replace_one (default: another update) or zero_out (zeros instead)"


def mechanism_options(parser: argparse.ArgumentParser, table: dict[str, Callable]) -> None:
    """An option for every parameter that some mechanism takes and that is its own."""
    users: dict[str, list[str]] = {}
    kinds: dict[str, Callable[[str], Any]] = {}
    for mechanism, constructor in table.items():
        for parameter in inspect.signature(constructor).parameters.values():
            if parameter.name in ("cohort", "norm"):  # settings of a run
                continue
            users.setdefault(parameter.name, []).append(mechanism)
            kinds[parameter.name] = reader(parameter)
    for name, mechanisms in users.items():
        parser.add_argument(
            flag(name), type=kinds[name], help=f"{meaning(name)} ({', '.join(mechanisms)})"
        )
    parser.set_defaults(parameter_names=list(users))


def given_parameters(options: argparse.Namespace) -> dict[str, Any]:
    """Return the mechanism parameters that were given, by name."""
    given = {name: getattr(options, name) for name in options.parameter_names}
    return {name: value for name, value in given.items() if value is not None}


def own_parameters(mechanism: str, options: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    """Split the given parameters into a mechanism's own and a channel's clip_norm, or None.

    A channel that takes clip_norm itself (imvu) has both: its coordinates then lie within the norm
    that updates are clipped to.
    """
    parameters = given_parameters(options)
    clip_norm = parameters.get("clip_norm") if mechanism in MECHANISMS else None
    if clip_norm is not None and not takes(mechanism, "clip_norm"):
        del parameters["clip_norm"]
    return parameters, clip_norm


def takes(mechanism: str, parameter: str) -> bool:
    """Return whether a mechanism has a parameter; False for an unknown mechanism."""
    constructor = {**MECHANISMS, **BASELINES}.get(mechanism)
    return constructor is not None and parameter in inspect.signature(constructor).parameters


def flag(name: str) -> str:
    """Return the option of a parameter or field: `--clip-norm` for `clip_norm`."""
    return "--" + name.replace("_", "-")


def meaning(name: str) -> str:
    """Return the help text of a mechanism's parameter."""
    return PARAMETERS.get(name, "see the mechanism's documentation")
