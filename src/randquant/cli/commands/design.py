"""`randquant design`: the best unbiased channel, on given levels or with a search for levels."""

from __future__ import annotations

from typing import Any, Literal

from randquant._internal.declared import Data, Files, Mechanism, Privacy, Search
from randquant._internal.formatting import round_up
from randquant.channels.channel import moments
from randquant.channels.wire import bits_per_code
from randquant.cli.options import Command, Output, selected_fields, written_page
from randquant.mechanisms.design import Design
from randquant.privacy.certificates.coordinate import save_channel


def run(
    *,
    clip: float,
    values: Mechanism[list[float] | None] = None,
    levels: int | None = None,
    epsilon: float,
    objective: Literal["mae", "mse", "worst_variance"] = "mae",
    constraint: Privacy[Literal["pure", "renyi", "l1", "l2", "fisher"]] = "pure",
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
    lines = _lines(best, searched=levels is not None)
    if save is not None:
        save_channel(save, channel, best.certificate)
        lines.append(f"channel        {save}")
    parameters = {"clip": clip, "values": channel.values.tolist()}
    # The page of a comparison with one entry: it has the pictures of a channel and its errors.
    comparison = compare.Comparison([compare.make_entry("optimal", channel, parameters)], 2.0)
    lines += written_page(output, lambda: comparison_page(comparison))
    return Output({**_result(best, constraint), "save": save, "output": output}, lines)


def _result(best: Design, constraint: str) -> dict[str, Any]:
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


def _lines(best: Design, searched: bool) -> list[str]:
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


COMMAND = Command(
    run,
    example="randquant design --clip 1 --values -3,-0.5,0.5,3 --epsilon 1 --objective mae",
)
