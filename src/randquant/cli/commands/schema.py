"""`randquant schema`: the JSON Schema of a run's TOML file, for editors."""

from __future__ import annotations

import json

from randquant.cli.command import Command, Output
from randquant.training import schema


def run() -> Output:
    """Print the schema of a file for train --config."""
    json_schema = schema.run_schema()
    return Output(json_schema, [json.dumps(json_schema, indent=2)])


COMMAND = Command(run, example="randquant schema")
