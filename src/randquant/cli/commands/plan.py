"""`randquant plan`: which mechanism and parameters meet a target, ranked by error."""

from __future__ import annotations

from typing import Annotated, Literal

from randquant._internal import declared
from randquant._internal.declared import about
from randquant.cli.command import Command, Output, written_page
from randquant.cli.options import (
    DeltaOption,
    Dimension,
    Names,
    NeighboringOption,
    Page,
)
from randquant.mechanisms.record import CLIP_NORM
from randquant.training.config import TrainConfig


def run(
    *,
    dimension: Dimension,
    population: Annotated[int, about("how many clients there are", "clients")],
    cohort: Annotated[int, about("how many clients take part in each round", "clients")],
    rounds: Annotated[int, about("how many rounds", "server")],
    epsilon: Annotated[float, about("target for a client's whole participation", "privacy")],
    delta: DeltaOption = 1e-5,
    bits: Annotated[int, about("most bits of a code", "mechanism")] = 4,
    trust: Annotated[
        Literal["local", "aggregate"], declared.meta(TrainConfig, "trust")
    ] = "aggregate",
    clip_norm: Annotated[float, about(CLIP_NORM, "mechanism")] = 1.0,
    neighboring: NeighboringOption = "replace_one",
    max_participations: Annotated[
        int | None,
        about("most rounds a client takes part in; by default all equally often", "privacy"),
    ] = None,
    mechanisms: Names = None,
    output: Page = None,
) -> Output:
    """Rank mechanisms that meet a target."""
    from randquant.planning.plan import page
    from randquant.planning.plan.planner import plan

    ranked = plan(
        dimension,
        population,
        cohort,
        rounds,
        epsilon,
        delta,
        bits=bits,
        trust=trust,
        clip_norm=clip_norm,
        neighboring=neighboring,
        max_participations=max_participations,
        mechanisms=mechanisms,
    )
    written = written_page(output, lambda: page.as_page(ranked))
    result = {**page.as_json(ranked), "output": output}
    return Output(result, [*page.as_text(ranked), *written])


COMMAND = Command(
    run,
    example="randquant plan --dimension 650 --population 200 --cohort 200 --rounds 50 --epsilon 8",
)
