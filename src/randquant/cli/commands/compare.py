"""`randquant compare`: mechanisms side by side, privacy against error."""

from __future__ import annotations

import argparse
from dataclasses import replace

from randquant.cli.command import Command, Output, say, written_page
from randquant.cli.values import channel, names, whole_numbers
from randquant.mechanisms.record import CLIP


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clip", type=float, help=CLIP)
    parser.add_argument("--bits", type=whole_numbers, metavar="B,...", help="bits per coordinate")
    parser.add_argument("--epsilon", type=float, help="largest certified pure epsilon")
    parser.add_argument("--mechanisms", type=names, metavar="A,B,...", help="default: all")
    parser.add_argument("--objective", help="mae (default) or mse, input uniform")
    parser.add_argument(
        "--channel", type=channel, action="append", metavar="'NAME key=value ...'",
        help="compare this given channel, such as 'pbm clip=1 theta=0.2 trials=3'; may be repeated",
    )  # fmt: skip
    parser.add_argument("--order", type=float, default=2.0, help="Renyi order shown; default 2")
    parser.add_argument("--output", metavar="FILE", help="also write a page with the figures")


def _run(options: argparse.Namespace) -> Output:
    from randquant.planning import compare
    from randquant.planning.compare import page as compare_page

    target = (options.clip, options.bits, options.epsilon)
    if options.channel is not None:
        if any(given is not None for given in (*target, options.mechanisms, options.objective)):
            raise ValueError(
                "Expected either --channel or a target, got both: given channels are not tuned."
            )
        comparison = compare.of_channels(options.channel, options.order)
    else:
        if any(given is None for given in target):
            raise ValueError("Expected --clip, --bits and --epsilon, or at least one --channel.")
        comparison = compare.at_equal_epsilon(
            *target, options.objective or "mae", options.order, options.mechanisms
        )
        if options.output is not None:
            curves = compare.tradeoffs(options.clip, options.bits, options.mechanisms, say)
            comparison = replace(comparison, tradeoff=curves)
    written = written_page(options.output, lambda: compare_page.as_page(comparison))
    result = {**compare.as_json(comparison), "output": options.output}
    return Output(result, [*compare.as_text(comparison), *written])


COMMAND = Command(
    help="mechanisms side by side, privacy against error",
    example="randquant compare --clip 1 --bits 2 --epsilon 1 --output compare.html",
    add_options=_add_options,
    run=_run,
)
