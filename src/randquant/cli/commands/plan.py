"""`randquant plan`: which mechanism and parameters meet a target, ranked by error."""

from __future__ import annotations

import argparse

from randquant.cli.command import Command, Output, say, written_page
from randquant.cli.options import flag
from randquant.cli.values import names
from randquant.mechanisms.record import CLIP_NORM


def _add_options(parser: argparse.ArgumentParser) -> None:
    for name, text in {
        "dimension": "coordinates of an update",
        "population": "how many clients there are",
        "cohort": "how many clients take part in each round",
        "rounds": "how many rounds",
    }.items():
        parser.add_argument(flag(name), type=int, required=True, help=text)
    parser.add_argument(
        "--epsilon", type=float, required=True, help="target for a client's whole participation"
    )
    parser.add_argument("--delta", type=float, default=1e-5, help="default 1e-5")
    parser.add_argument("--bits", type=int, default=4, help="most bits of a code; default 4")
    parser.add_argument(
        "--trust", default="aggregate", help="what the server sees: aggregate (default) or local"
    )
    parser.add_argument("--clip-norm", type=float, default=1.0, help=CLIP_NORM)
    parser.add_argument(
        "--neighboring", default="replace_one", help="replace_one (default) or zero_out"
    )
    parser.add_argument(
        "--max-participations", type=int,
        help="most rounds a client takes part in; default: all equally often",
    )  # fmt: skip
    parser.add_argument("--mechanisms", type=names, metavar="A,B,...", help="default: all")
    parser.add_argument("--output", metavar="FILE", help="also write a page with the figures")


def _run(options: argparse.Namespace) -> Output:
    from randquant.planning.plan import page
    from randquant.planning.plan.planner import plan

    ranked = plan(
        options.dimension,
        options.population,
        options.cohort,
        options.rounds,
        options.epsilon,
        options.delta,
        bits=options.bits,
        trust=options.trust,
        clip_norm=options.clip_norm,
        neighboring=options.neighboring,
        max_participations=options.max_participations,
        mechanisms=options.mechanisms,
        say=say,
    )
    written = written_page(options.output, lambda: page.as_page(ranked))
    result = {**page.as_json(ranked), "output": options.output}
    return Output(result, [*page.as_text(ranked), *written])


COMMAND = Command(
    help="which mechanism and parameters meet a target, ranked by error",
    example="randquant plan --dimension 650 --population 200 --cohort 200 --rounds 50 --epsilon 8",
    add_options=_add_options,
    run=_run,
)
