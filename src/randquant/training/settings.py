"""The settings of training runs as flat names and values, and those in which runs differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from randquant.training.config import TrainConfig


def flat(config: TrainConfig) -> dict[str, Any]:
    """Return all settings of a run by name, including the mechanism's parameters.

    Example:
        >>> settings = flat(TrainConfig("digits", "mlp", "rqm", {"clip": 0.03}))
        >>> settings["mechanism"], settings["clip"], "parameters" in settings
        ('rqm', 0.03, False)
    """
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    parameters = fields.pop("parameters")
    # A baseline's own clip_norm and a channel's mean the same; only one of them is set.
    return {**fields, **parameters}


def differing(configs: Sequence[TrainConfig]) -> list[str]:
    """Return the names of the settings that are not the same in all runs, the mechanism first.

    Example:
        >>> differing([TrainConfig("digits", "mlp", "rqm", seed=seed) for seed in (1, 2)])
        ['seed']
    """
    settings = [flat(config) for config in configs]
    names = dict.fromkeys(name for run in settings for name in run)
    differ = [name for name in names if len({repr(run.get(name)) for run in settings}) > 1]
    return sorted(differ, key=lambda name: name != "mechanism")


def varied(configs: Sequence[TrainConfig]) -> list[str]:
    """Return `mechanism` and the settings in which runs of one mechanism differ.

    A setting that differs only between mechanisms is not included.

    Example:
        >>> rqm = [TrainConfig("digits", "mlp", "rqm", {"keep": keep}) for keep in (0.3, 0.4)]
        >>> varied([*rqm, TrainConfig("digits", "mlp", "pbm", {"theta": 0.2})])
        ['mechanism', 'keep']
    """
    mechanisms = dict.fromkeys(config.mechanism for config in configs)
    groups = [[c for c in configs if c.mechanism == mechanism] for mechanism in mechanisms]
    return list(
        dict.fromkeys(["mechanism", *(name for group in groups for name in differing(group))])
    )
