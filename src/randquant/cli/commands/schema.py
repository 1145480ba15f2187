"""`randquant schema`: the JSON Schema of a run's or a sweep's TOML file, for editors."""

from __future__ import annotations

import json
from typing import Literal

from randquant.cli.command import Command, Output
from randquant.training import schema


def run(file: Literal["train", "sweep"] = "train", /) -> Output:
    """Print a schema.

    Args:
        file: of which file: of train --config, or of sweep.
    """
    found = schema.run_schema() if file == "train" else schema.sweep_schema()
    return Output(found, [json.dumps(found, indent=2)])


COMMAND = Command(run, example="randquant schema sweep")
