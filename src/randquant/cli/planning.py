"""Commands that choose a mechanism.

`randquant plan`: which mechanism and parameters meet a target, ranked by error.

`randquant compare`: mechanisms side by side, privacy against error.

`randquant design`: the best unbiased channel, on given levels or with a search for levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from randquant._internal import declared
from randquant._internal.declared import Data, Files, Mechanism, Search
from randquant._internal.formatting import round_up
from randquant.channels.channel import moments
from randquant.channels.wire import bits_per_code
from randquant.cli.options import (
    Command,
    Output,
    function_options,
    given_channel,
    selected_fields,
    written_certificate,
    written_page,
)
from randquant.planning.planner import plan
from randquant.planning.plans import Privacy
from randquant.privacy.certificates.coordinate import save_channel

if TYPE_CHECKING:
    from randquant.mechanisms.design import Design

PRIVACY_FIELDS = (
    "bits", "clip_norm", "neighboring", "sampling", "max_participations", "coordinates",
    "noise",
)  # fmt: skip
"""Fields of `Privacy` that a plan uses; the others belong to a run."""


def run_plan(
    target: Mapping[str, Any],
    *,
    dimension: int,
    mechanisms: list[str] | None = None,
    output: str | None = None,
    certificate: str | None = None,
) -> Output:
    """Rank mechanisms that meet a target: the other options are those of `randquant.plan`."""
    from randquant.reports.plan import as_json, as_text, page
    from randquant.rounds.statement import certificate_file

    privacy = Privacy(**{name: target[name] for name in PRIVACY_FIELDS if name in target})
    others = {name: value for name, value in target.items() if name not in PRIVACY_FIELDS}
    ranked = plan(dimension, **others, privacy=privacy, mechanisms=mechanisms)
    written = written_page(output, lambda: page(ranked))
    written += written_certificate(certificate, lambda: certificate_file(ranked))
    result = {**as_json(ranked), "output": output}
    return Output(result, [*as_text(ranked), *written])


def run_compare(
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
    from randquant.reports.channels import comparison_json, comparison_page, comparison_text

    # Defaults are filled in below, not in the signature: an option next to --channel is then
    # noticed even if its value is the default.
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
    written = written_page(output, lambda: comparison_page(comparison))
    result = {**comparison_json(comparison), "output": output}
    return Output(result, [*comparison_text(comparison), *written])


def run_design(
    *,
    clip: float,
    values: Mechanism[list[float] | None] = None,
    levels: int | None = None,
    epsilon: float,
    objective: Literal["mae", "mse", "worst_variance"] = "mae",
    constraint: declared.Privacy[Literal["pure", "renyi", "l1", "l2", "fisher"]] = "pure",
    order: float | None = None,
    inputs: Search[int | None] = None,
    density: Data[list[float] | None] = None,
    reach: Search[float | None] = None,
    free: Search[bool] = False,
    lattice: Search[bool] = False,
    save: Files[str | None] = None,
    output: str | None = None,
) -> Output:
    """Design the best unbiased channel.

    Args:
        values: the values that the codes decode to.
        levels: search for this many levels instead, 2 to 32.
        epsilon: target per coordinate.
        constraint: what epsilon bounds; l1 and l2 in units of clip.
        order: Renyi order, for --constraint renyi.
        inputs: vertices; default 33, or 129 if levels are searched.
        density: samples of the input, as A,B,... or @FILE; uniform unless given.
        reach: largest magnitude of a searched level.
        free: levels need not be symmetric.
        lattice: evenly spaced levels.
        save: write the channel and its certificate to this file.
    """
    from randquant.mechanisms import design
    from randquant.planning import compare
    from randquant.reports.channels import comparison_page

    best = design.optimal(
        clip, values, constraint=design.named_constraint(constraint, epsilon, order),
        objective=objective, inputs=inputs, density=density, levels=levels, reach=reach,
        symmetric=not free, lattice=lattice,
    )  # fmt: skip
    channel = best.channel
    lines = _design_lines(best, searched=levels is not None)
    if save is not None:
        save_channel(save, channel, best.certificate)
        lines.append(f"channel        {save}")
    parameters = {"clip": clip, "values": channel.values.tolist()}
    # The page of a comparison with one entry: it has the pictures of a channel and its errors.
    comparison = compare.Comparison([compare.make_entry("optimal", channel, parameters)], 2.0)
    lines += written_page(output, lambda: comparison_page(comparison))
    return Output({**_design_result(best, constraint), "save": save, "output": output}, lines)


def _design_result(best: Design, constraint: str) -> dict[str, Any]:
    channel = best.channel
    return {
        **selected_fields(best, "objective", "value", "dual_bound", "gap"),
        **selected_fields(moments(channel), "bias_max", "variance_max", "mae", "mse"),
        "constraint": constraint,
        **selected_fields(best.certificate, "epsilon", "witness"),
        "levels": channel.levels,
        "values": channel.values.tolist(),
        "inputs": len(channel.inputs),
        "bits_per_coordinate": bits_per_code(channel.levels),
        "fingerprint": channel.fingerprint.hex(),
    }


def _design_lines(best: Design, searched: bool) -> list[str]:
    channel, measured = best.channel, moments(best.channel)
    # For given levels the optimum is proven, up to the gap; a search for levels proves nothing.
    note = " (levels: the best of several local optima)" * searched
    return [
        f"optimal {best.objective}: {best.value:.7g}, at most "
        f"{round_up(max(best.gap, 0.0), 2)} above the best unbiased channel on these levels with "
        f"{len(channel.inputs)} vertices{note}",
        "values " + ", ".join(f"{value:.6g}" for value in channel.values),
        str(best.certificate),
        f"bias at most {round_up(measured.bias_max, 3)}, MAE {measured.mae:.6g}, "
        f"MSE {measured.mse:.6g} (input uniform), variance at most "
        f"{round_up(measured.variance_max)}",
    ]


COMMANDS = {
    "plan": Command(
        run_plan,
        example="randquant plan --dimension 650 --population 200 --cohort 200 --rounds 50 "
        "--epsilon 8",
        settings=lambda words: [
            *(each for each in function_options(plan) if each.name not in ("privacy", "progress")),
            *(each for each in function_options(Privacy) if each.name in PRIVACY_FIELDS),
        ],
    ),
    "compare": Command(
        run_compare,
        example="randquant compare --clip 1 --bits 2 --epsilon 1 --output compare.html",
    ),
    "design": Command(
        run_design,
        example="randquant design --clip 1 --values -3,-0.5,0.5,3 --epsilon 1 --objective mae",
    ),
}
