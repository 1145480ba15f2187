"""The JSON Schema of a TOML file that describes a run, for editors.

It is built from the declarations of settings and the records of mechanisms: what an editor shows
and what is checked when a file is read are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from randquant.aggregation.registry import all_mechanisms
from randquant.mechanisms.record import MechanismRecord, hint_of
from randquant.training import settings

DRAFT = "http://json-schema.org/draft-07/schema#"


def run_schema() -> dict[str, Any]:
    """Return the schema of a file with the settings of one run, `randquant train --config`.

    Example:
        >>> run_schema()["properties"]["rounds"]["minimum"]
        1
    """
    known = all_mechanisms()
    return {
        "$schema": DRAFT,
        "title": "the settings of a run",
        "type": "object",
        "properties": _properties(),
        "additionalProperties": False,
        "allOf": [_needs(record) for record in known.values() if _required(record)],
    }


def _properties() -> dict[str, Any]:
    """The schema of every setting of a run by name, and of every mechanism's parameters."""
    known = all_mechanisms()
    found = _of_hints(settings.given())
    texts: dict[str, list[str]] = {}
    kinds: dict[str, list[Any]] = {}
    for record in known.values():
        own = {name: hint_of(record.signature[name]) for name in record.parameters}
        for name, schema in _of_hints(own).items():
            texts.setdefault(name, []).append(f"{record.name}: {record.meaning(name)}")
            if schema not in kinds.setdefault(name, []):
                kinds[name].append(schema)
    for name, schemas in kinds.items():
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        found[name] = {**schema, "description": "; ".join(texts[name])}
    return found


def _of_hints(hints: Mapping[str, Any]) -> dict[str, Any]:
    schemas, _ = msgspec.json.schema_components(hints.values())
    return dict(zip(hints, schemas, strict=True))


def _required(record: MechanismRecord) -> list[str]:
    signature = record.signature
    return [name for name in record.parameters if signature[name].default is signature[name].empty]


def _needs(record: MechanismRecord) -> dict[str, Any]:
    chosen = {"properties": {"mechanism": {"const": record.name}}, "required": ["mechanism"]}
    return {"if": chosen, "then": {"required": _required(record)}}
