"""`randquant schema`: the JSON Schema of a run's TOML file, for editors."""

from __future__ import annotations

import json

from randquant.cli.command import Command, Output
from randquant.training import schema


def run() -> Output:
    """Print the schema of a file for train --config."""
    found = schema.run_schema()
    return Output(found, [json.dumps(found, indent=2)])


COMMAND = Command(run, example="randquant schema")
