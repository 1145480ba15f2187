"""From the settings of a sweep, by name, to a run's configuration and to its folder's name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from randquant._internal import declared
from randquant._internal.serialization import to_json
from randquant.aggregation.registry import all_mechanisms
from randquant.training.config import TrainConfig, as_before, check_config, upgraded
from randquant.training.configured import mechanism_of
from randquant.training.settings import DEFAULTS, FIELDS, parameters_of, with_full_paths


def config(settings: Mapping[str, Any], common: Collection[str] = ()) -> TrainConfig:
    """Build a run's configuration from flat settings.

    Args:
        settings: fields of TrainConfig and parameters of its mechanism, by name. A `clip_norm` is
            used for whichever of them has one, as on the command line. Parameters of other
            mechanisms are ignored.
        common: names of settings for all mechanisms, including those without privacy.

    Raises:
        ValueError, TypeError: the mechanism is unknown, or a setting has the wrong type.
    """
    settings = upgraded(settings)
    mechanism = settings["mechanism"]
    taken = parameters_of(mechanism)
    whole = all_mechanisms()[mechanism].whole_update
    of_run = {
        name: declared.check(name, FIELDS[name], value)
        for name, value in settings.items()
        if name in FIELDS and not (name == "clip_norm" and whole)
    }
    own = {name: value for name, value in settings.items() if name in taken}
    if mechanism == "clipped-sgd":  # it has neither
        for name in {"trust", "stop_at_epsilon"} & set(common):
            of_run.pop(name, None)
    of_run = with_full_paths(of_run)
    return TrainConfig(**of_run, parameters=own)


def check_valid(config: TrainConfig) -> None:
    """Refuse a configuration that cannot be trained, as far as can be told without its data.

    Raises:
        ValueError, TypeError: a number or the mechanism is not valid.
    """
    check_config(config)
    mechanism_of(config)


def folder(config: TrainConfig) -> str:
    """Return the name of a run's folder: the mechanism, and a digest of non-default settings.

    Guarantees:
        Equal configurations have equal names, and 1 equals 1.0. A setting that is added in a later
        version does not change the names of runs with its default.
    """
    fields = {
        name: getattr(config, name)
        for name in FIELDS
        if name not in DEFAULTS or getattr(config, name) != DEFAULTS[name]
    }
    text = json.dumps(
        _plain({**as_before(fields), "parameters": config.parameters}), sort_keys=True
    )
    return f"{config.mechanism}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def require(given: Collection[str]) -> None:
    """Raise unless all settings that every run needs are given."""
    for name in FIELDS:
        if name not in DEFAULTS and name not in given:
            raise ValueError(f"Expected {name} in [train], got none: every run needs one.")


def _plain(value: Any) -> Any:
    """Values as JSON in which whole floats are integers."""
    value = to_json(value)
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
