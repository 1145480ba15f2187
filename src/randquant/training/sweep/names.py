"""The name of a run's folder in a sweep, from its configuration."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from randquant._internal.serialization import to_json
from randquant.training.config import TrainConfig, as_before, check_config
from randquant.training.configured import mechanism_of
from randquant.training.settings import DEFAULTS, FIELDS


def check_valid(config: TrainConfig) -> None:
    """Refuse a configuration that cannot be trained, as far as can be told without its data.

    Raises:
        ValueError, TypeError: a number or the mechanism is not valid.
    """
    check_config(config)
    if config.coordinates != "auto":  # that is calibrated when the run begins
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


def _plain(value: Any) -> Any:
    """Values as JSON in which whole floats are integers."""
    value = to_json(value)
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
