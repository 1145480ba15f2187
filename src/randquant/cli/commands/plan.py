"""`randquant plan`: which mechanism and parameters meet a target, ranked by error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from randquant.cli.command import Command, Output, written_page
from randquant.cli.options import of_function
from randquant.planning.plan.planner import plan
from randquant.reports import plan as shown


def run(
    target: Mapping[str, Any],
    *,
    dimension: int,
    mechanisms: list[str] | None = None,
    output: str | None = None,
) -> Output:
    """Rank mechanisms that meet a target: the other options are those of `randquant.plan`."""
    ranked = plan(dimension, **target, mechanisms=mechanisms)
    written = written_page(output, lambda: shown.page(ranked))
    result = {**shown.as_json(ranked), "output": output}
    return Output(result, [*shown.as_text(ranked), *written])


COMMAND = Command(
    run,
    example="randquant plan --dimension 650 --population 200 --cohort 200 --rounds 50 --epsilon 8",
    settings=lambda words: [each for each in of_function(plan) if each.name != "progress"],
)
