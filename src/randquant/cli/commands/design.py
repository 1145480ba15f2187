"""`randquant design`: the best unbiased channel, on given levels or with a search for levels."""

from __future__ import annotations

import argparse

from randquant._internal.rounding import round_up
from randquant.channels.exact_moments import moments
from randquant.channels.wire.block_codes import bits_per_code
from randquant.cli.command import Command, Output, written_page
from randquant.cli.values import numbers
from randquant.mechanisms.record import CLIP, DENSITY, REACH
from randquant.privacy.certificates.file import save_channel


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clip", type=float, required=True, help=CLIP)
    parser.add_argument(
        "--values", type=numbers, metavar="A,B,...", help="what the codes decode to"
    )
    parser.add_argument("--levels", type=int, help="search for so many levels instead, 2 to 32")
    parser.add_argument("--epsilon", type=float, required=True, help="target per coordinate")
    parser.add_argument("--objective", default="mae", help="mae (default), mse or worst_variance")
    parser.add_argument(
        "--constraint",
        default="pure",
        help="what epsilon bounds: pure (default), renyi, l1, l2 (in units of clip), fisher",
    )
    parser.add_argument("--order", type=float, help="Renyi order, for --constraint renyi")
    parser.add_argument(
        "--inputs", type=int, help="vertices; default 33, or 129 if levels are searched"
    )
    parser.add_argument("--density", type=numbers, metavar="A,B,...", help=DENSITY)
    parser.add_argument("--reach", type=float, help=REACH)
    parser.add_argument("--free", action="store_true", help="levels need not be symmetric")
    parser.add_argument("--lattice", action="store_true", help="evenly spaced levels")
    parser.add_argument("--save", metavar="FILE", help="write the channel and its certificate")
    parser.add_argument("--output", metavar="FILE", help="also write a page with the figures")


def _run(options: argparse.Namespace) -> Output:
    from randquant.mechanisms import design
    from randquant.planning import compare
    from randquant.planning.compare import page as compare_page

    best = design.optimal(
        options.clip,
        options.values,
        constraint=design.constraint_of(options.constraint, options.epsilon, options.order),
        objective=options.objective,
        inputs=options.inputs,
        density=options.density,
        levels=options.levels,
        reach=options.reach,
        symmetric=not options.free,
        lattice=options.lattice,
    )
    channel, measured = best.channel, moments(best.channel)
    result = {
        "objective": best.objective,
        "value": best.value,
        "dual_bound": best.dual_bound,
        "gap": best.gap,
        "constraint": options.constraint,
        "epsilon": best.certificate.epsilon,
        "bias_max": measured.bias_max,
        "variance_max": measured.variance_max,
        "mae": measured.mae,
        "mse": measured.mse,
        "levels": channel.levels,
        "values": channel.values.tolist(),
        "inputs": len(channel.inputs),
        "bits_per_coordinate": bits_per_code(channel.levels),
        "fingerprint": channel.fingerprint.hex(),
    }
    searched = "" if options.levels is None else " (levels: the best of several local optima)"
    lines = [
        f"optimal {best.objective}: {best.value:.7g}, at most "
        f"{round_up(max(best.gap, 0.0), 2)} above the best unbiased channel on these levels with "
        f"{len(channel.inputs)} vertices{searched}",
        "values " + ", ".join(f"{value:.6g}" for value in channel.values),
        str(best.certificate),
        f"bias at most {round_up(measured.bias_max, 3)}, MAE {measured.mae:.6g}, "
        f"MSE {measured.mse:.6g} (input uniform), variance at most "
        f"{round_up(measured.variance_max)}",
    ]
    if options.save is not None:
        save_channel(options.save, channel, best.certificate)
        lines.append(f"channel        {options.save}")
    parameters = {"clip": options.clip, "values": channel.values.tolist()}
    comparison = compare.Comparison([compare.entry_of("optimal", channel, parameters)], 2.0)
    lines += written_page(options.output, lambda: compare_page.as_page(comparison))
    return Output({**result, "save": options.save, "output": options.output}, lines)


COMMAND = Command(
    help="the best unbiased channel on given levels",
    example="randquant design --clip 1 --values -3,-0.5,0.5,3 --epsilon 1 --objective mae",
    add_options=_add_options,
    run=_run,
)
