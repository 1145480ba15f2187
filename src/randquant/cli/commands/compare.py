"""`randquant compare`: mechanisms side by side, privacy against error."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from randquant._internal.declared import about
from randquant.cli.command import Command, Output, written_page
from randquant.cli.options import Names, Page, given_channel
from randquant.mechanisms.record import CLIP


def run(
    *,
    clip: Annotated[float | None, about(CLIP, "mechanism")] = None,
    bits: Annotated[list[int] | None, about("bits per coordinate", "mechanism", "B,...")] = None,
    epsilon: Annotated[float | None, about("largest certified pure epsilon", "privacy")] = None,
    mechanisms: Names = None,
    objective: Annotated[
        Literal["mae", "mse"] | None, about("mae (default) or mse, input uniform", "search")
    ] = None,
    channel: Annotated[
        list[str] | None,
        about(
            "compare this given channel, such as 'pbm clip=1 theta=0.2 trials=3'; may be repeated",
            "mechanism",
            "'NAME key=value ...'",
        ),
    ] = None,
    order: Annotated[float, about("Renyi order shown", "privacy")] = 2.0,
    curves: Annotated[
        bool, about("also search the curves of privacy against error", "search")
    ] = False,
    output: Page = None,
) -> Output:
    """Compare mechanisms at one epsilon, or given channels."""
    from randquant.planning import compare
    from randquant.planning.compare import page as compare_page

    tuned = (clip, bits, epsilon, mechanisms, objective)
    if channel is not None:
        if any(given is not None for given in tuned):
            raise ValueError(
                "Expected either --channel or a target, got both: given channels are not tuned."
            )
        comparison = compare.of_channels([given_channel(text) for text in channel], order)
    elif clip is None or bits is None or epsilon is None:
        raise ValueError("Expected --clip, --bits and --epsilon, or at least one --channel.")
    else:
        comparison = compare.at_equal_epsilon(
            clip, bits, epsilon, objective or "mae", order, mechanisms
        )
        if curves:
            tradeoff = compare.tradeoffs(clip, bits, mechanisms)
            comparison = replace(comparison, tradeoff=tradeoff)
    written = written_page(output, lambda: compare_page.as_page(comparison))
    result = {**compare.as_json(comparison), "output": output}
    return Output(result, [*compare.as_text(comparison), *written])


COMMAND = Command(
    run,
    example="randquant compare --clip 1 --bits 2 --epsilon 1 --output compare.html",
)
