"""The JSON Schema of a sweep's TOML file, for editors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from randquant.training import run_schema


def sweep_schema() -> dict[str, Any]:
    """Return the schema of a sweep's file; the settings of a run are its `$defs`.

    Example:
        >>> sorted(sweep_schema()["properties"])
        ['case', 'grid', 'ranges', 'search', 'train']
    """
    run = run_schema()
    properties = run["properties"]
    one = {name: {"$ref": f"#/$defs/{name}"} for name in properties}
    grid = _table(
        {name: {"type": "array", "items": each, "minItems": 1} for name, each in one.items()}
    )
    ranges = _table({name: _range(each) for name, each in one.items()})
    whole, trials = {"type": "integer", "minimum": 0}, {"type": "integer", "minimum": 1}
    search = _table({"trials": trials, "seed": whole})
    return {
        "$schema": run["$schema"],
        "title": "a sweep",
        **_table(
            {
                "train": _table(one),
                "grid": grid,
                "ranges": ranges,
                "search": {**search, "required": ["trials"]},
                "case": {
                    "type": "array",
                    "items": _table({**one, "grid": grid, "ranges": ranges}),
                    "minItems": 1,
                },
            }
        ),
        "$defs": properties,
    }


def _table(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _range(value: Mapping[str, Any]) -> dict[str, Any]:
    number = {"type": "number"}
    ends = _table({"low": number, "high": number, "log": {"type": "boolean"}})
    choices = _table({"choices": {"type": "array", "items": value, "minItems": 1}})
    return {"anyOf": [{**ends, "required": ["low", "high"]}, {**choices, "required": ["choices"]}]}
