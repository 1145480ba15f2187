"""The name of a run's folder in a sweep, from its configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from randquant_papers.configuration import PaperConfig
from randquant_papers.files import to_json


def folder(config: PaperConfig) -> str:
    """Return the name of a run's folder: the mechanism, and a digest of non-default settings.

    Guarantees:
        Equal configurations have equal names, and 1 equals 1.0. A setting that is added in a later
        version does not change the names of runs with its default.
    """
    fields = {
        each.name: getattr(config, each.name)
        for each in dataclasses.fields(config)
        if getattr(config, each.name) != default(each)
    }
    text = json.dumps(_plain({**fields, "parameters": config.stored_parameters}), sort_keys=True)
    return f"{config.mechanism}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def default(field: dataclasses.Field[Any]) -> Any:
    """Return a setting's default; MISSING if it has none."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def _plain(value: Any) -> Any:
    """Values as JSON in which whole floats are integers."""
    value = to_json(value)
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
