"""`randquant compare`: mechanisms side by side, privacy against error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from randquant._internal.declared import Mechanism, Search
from randquant.cli.options import Command, Output, given_channel, written_page


def run(
    *,
    clip: float | None = None,
    bits: list[int] | None = None,
    epsilon: float | None = None,
    mechanisms: list[str] | None = None,
    objective: Literal["mae", "mse"] | None = None,
    channel: Mechanism[Sequence[str] | None] = None,
    order: float = 2.0,
    curves: Search[bool] = False,
    output: str | None = None,
) -> Output:
    """Compare mechanisms at one epsilon, or given channels.

    Args:
        bits: bits per coordinate.
        epsilon: largest certified pure epsilon.
        objective: mae (default) or mse, input uniform.
        channel: compare this channel as it is, such as 'pbm clip=1 theta=0.2 trials=3'; may be
            repeated.
        order: Renyi order shown.
        curves: also search the curves of privacy against error.
    """
    from randquant.planning import compare
    from randquant.reports.comparison import as_json, as_text, page

    target = {"clip": clip, "bits": bits, "epsilon": epsilon, "mechanisms": mechanisms,
              "objective": objective, "curves": curves or None}  # fmt: skip
    if channel is not None:
        if conflicts := [f"--{name}" for name, value in target.items() if value is not None]:
            raise ValueError(
                f"Expected either --channel or a target, got --channel and {', '.join(conflicts)}: "
                "channels are compared as they are, not tuned."
            )
        comparison = compare.compare_channels([given_channel(text) for text in channel], order)
    elif clip is None or bits is None or epsilon is None:
        raise ValueError("Expected --clip, --bits and --epsilon, or at least one --channel.")
    else:
        comparison = compare.at_equal_epsilon(
            clip, bits, epsilon, objective or "mae", order, mechanisms
        )
        if curves:  # takes as long as many comparisons
            tradeoff = compare.tradeoffs(clip, bits, mechanisms)
            comparison = replace(comparison, tradeoff=tradeoff)
    written = written_page(output, lambda: page(comparison))
    result = {**as_json(comparison), "output": output}
    return Output(result, [*as_text(comparison), *written])


COMMAND = Command(
    run,
    example="randquant compare --clip 1 --bits 2 --epsilon 1 --output compare.html",
)
