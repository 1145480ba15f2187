"""`randquant plan`: which mechanism and parameters meet a target, ranked by error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from randquant.cli.options import (
    Command,
    Output,
    function_options,
    written_certificate,
    written_page,
)
from randquant.planning.planner import plan
from randquant.planning.privacy import Privacy
from randquant.reports import plan as shown
from randquant.rounds.statement import certificate_file

PRIVACY_FIELDS = (
    "bits", "clip_norm", "neighboring", "sampling", "max_participations", "coordinates",
    "noise",
)  # fmt: skip
"""Fields of `Privacy` that a plan uses; the others belong to a run."""


def run(
    target: Mapping[str, Any],
    *,
    dimension: int,
    mechanisms: list[str] | None = None,
    output: str | None = None,
    certificate: str | None = None,
) -> Output:
    """Rank mechanisms that meet a target: the other options are those of `randquant.plan`."""
    privacy = Privacy(**{name: target[name] for name in PRIVACY_FIELDS if name in target})
    others = {name: value for name, value in target.items() if name not in PRIVACY_FIELDS}
    ranked = plan(dimension, **others, privacy=privacy, mechanisms=mechanisms)
    written = written_page(output, lambda: shown.page(ranked))
    written += written_certificate(certificate, lambda: certificate_file(ranked))
    result = {**shown.as_json(ranked), "output": output}
    return Output(result, [*shown.as_text(ranked), *written])


COMMAND = Command(
    run,
    example="randquant plan --dimension 650 --population 200 --cohort 200 --rounds 50 --epsilon 8",
    settings=lambda words: [
        *(each for each in function_options(plan) if each.name not in ("privacy", "progress")),
        *(each for each in function_options(Privacy) if each.name in PRIVACY_FIELDS),
    ],
)
