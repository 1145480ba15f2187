"""`randquant plan`: which mechanism and parameters meet a target, ranked by error."""

from __future__ import annotations

from typing import Literal

from randquant._internal.declared import Mechanism, Privacy
from randquant.cli.command import Command, Output, written_page
from randquant.privacy.guarantee import Neighboring
from randquant.training.config import Delta


def run(
    *,
    dimension: int,
    population: int,
    cohort: int,
    rounds: int,
    epsilon: Privacy[float],
    delta: Delta = 1e-5,
    bits: Mechanism[int] = 4,
    trust: Literal["local", "aggregate"] = "aggregate",
    clip_norm: float = 1.0,
    neighboring: Neighboring = "replace_one",
    max_participations: int | None = None,
    mechanisms: list[str] | None = None,
    output: str | None = None,
) -> Output:
    """Rank mechanisms that meet a target.

    Args:
        population: how many clients there are.
        rounds: how many rounds.
        epsilon: target for a client's whole participation.
        bits: most bits of a code.
        clip_norm: clipping threshold of a whole update's norm, > 0.
        max_participations: most rounds a client takes part in; by default all equally often.
    """
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
