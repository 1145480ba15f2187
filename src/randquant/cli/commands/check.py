"""`randquant check`: what a stated privacy figure is worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from randquant._internal.declared import Files
from randquant.audit.claims import PrivacyClaim, check
from randquant.cli.command import Command, Output
from randquant.cli.options import of_function


def run(target: Mapping[str, Any], configuration: Files[str | None] = None, /) -> Output:
    """Check a claim: the options are its fields.

    Args:
        configuration: read them from this file of Flower, NVFlare, pfl or Opacus: TOML, JSON or
            Python; options given here win.
    """
    checked = check(configuration, **target)
    result = {
        "claim": checked.claim,
        "readings": [{"assumptions": r.assumptions, "guarantees": r.guarantees}
                     for r in checked.readings],
        "verdicts": checked.verdicts, "saving": checked.saving, "notes": checked.notes,
    }  # fmt: skip
    return Output(result, checked.lines())


COMMAND = Command(
    run,
    example="randquant check --clip-norm 1 --sensitivity 1e-4 --sigma 4.845e-5 --epsilon 10",
    settings=lambda words: of_function(PrivacyClaim),
)
