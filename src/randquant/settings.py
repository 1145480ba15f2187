"""The settings of training runs as flat names and values, and those in which runs differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from randquant.records import TrainConfig


def flat(config: TrainConfig) -> dict[str, Any]:
    """Return every setting of a run by name, the mechanism's parameters among them.

    Example:
        >>> settings = flat(TrainConfig("digits", "mlp", "rqm", {"clip": 0.03}))
        >>> settings["mechanism"], settings["clip"], "parameters" in settings
        ('rqm', 0.03, False)
    """
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    parameters = fields.pop("parameters")
    # A baseline's own clip_norm and the one of a channel mean the same; only one of them is set.
    return {**fields, **parameters}


def differing(configs: Sequence[TrainConfig]) -> list[str]:
    """Return the names of the settings that are not the same in all runs, the mechanism first.

    Example:
        >>> differing([TrainConfig("digits", "mlp", "rqm", seed=seed) for seed in (1, 2)])
        ['seed']
    """
    settings = [flat(config) for config in configs]
    names = dict.fromkeys(name for each in settings for name in each)
    differ = [name for name in names if len({repr(each.get(name)) for each in settings}) > 1]
    return sorted(differ, key=lambda name: name != "mechanism")


def common(configs: Sequence[TrainConfig]) -> Mapping[str, Any]:
    """Return the settings that all runs share, by name."""
    differ = set(differing(configs))
    return {name: value for name, value in flat(configs[0]).items() if name not in differ}
