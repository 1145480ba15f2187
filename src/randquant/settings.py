"""The settings of training runs as flat names and values, and those in which runs differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
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


def varied(configs: Sequence[TrainConfig]) -> list[str]:
    """Return the settings that tell the runs of some mechanism apart, and `mechanism` first.

    A setting that only follows from the mechanism is not among them.

    Example:
        >>> rqm = [TrainConfig("digits", "mlp", "rqm", {"keep": keep}) for keep in (0.3, 0.4)]
        >>> varied([*rqm, TrainConfig("digits", "mlp", "pbm", {"theta": 0.2})])
        ['mechanism', 'keep']
    """
    mechanisms = dict.fromkeys(config.mechanism for config in configs)
    groups = [[c for c in configs if c.mechanism == mechanism] for mechanism in mechanisms]
    return list(
        dict.fromkeys(["mechanism", *(name for each in groups for name in differing(each))])
    )
