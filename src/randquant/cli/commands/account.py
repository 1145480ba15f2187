"""`randquant account`: one guarantee for a client's whole participation."""

from __future__ import annotations

import argparse
import math

from randquant._internal.rounding import round_down
from randquant._internal.serialization import to_json
from randquant.aggregation.registry import all_mechanisms, update_mechanism
from randquant.cli.command import Command, Output
from randquant.cli.options import NEIGHBORING, NORM, TRUST, mechanism_options, own_parameters
from randquant.mechanisms.registry import build, channel_mechanisms
from randquant.privacy.accounting.accountant import account
from randquant.privacy.certificates.coordinate import certify


def _add_options(parser: argparse.ArgumentParser) -> None:
    protecting = {name: record for name, record in all_mechanisms().items() if record.trusts}
    parser.add_argument("mechanism", metavar="MECHANISM", help=", ".join(protecting))
    mechanism_options(parser, protecting)
    parser.add_argument("--dimension", type=int, required=True, help="coordinates of an update")
    parser.add_argument(
        "--rounds", type=int, required=True, help="rounds that the client takes part in"
    )
    parser.add_argument("--delta", type=float, default=1e-5, help="default 1e-5")
    parser.add_argument(
        "--cohort", type=int, help="fewest clients in a sum, for mechanisms that share the noise"
    )
    parser.add_argument("--trust", help=TRUST)
    parser.add_argument("--norm", default="l2", help=NORM)
    parser.add_argument("--neighboring", default="replace_one", help=NEIGHBORING)


def _run(options: argparse.Namespace) -> Output:
    parameters, clip_norm = own_parameters(options.mechanism, options)
    mechanism = update_mechanism(
        options.mechanism,
        parameters,
        trust=options.trust,
        cohort=options.cohort,
        clip_norm=clip_norm,
        norm=options.norm,
    )
    release = mechanism.release(options.dimension, options.rounds, options.neighboring)
    if release is None:
        raise ValueError(f"Expected a mechanism that protects, got {options.mechanism}.")
    guarantee = account([release], options.delta)
    result = {
        "mechanism": options.mechanism,
        "parameters": parameters,
        "dimension": options.dimension,
        "rounds": options.rounds,
        "cohort": options.cohort,
        "clip_norm": clip_norm,
        "norm": options.norm,
        **to_json(guarantee),
    }
    result["epsilon_lower"] = result.pop("lower")
    lines = [
        f"{options.mechanism}, {options.dimension} coordinates, {options.rounds} rounds of one "
        "client's participation:",
        str(guarantee),
    ]
    if 0 < guarantee.lower < math.inf:
        lines.append(
            f"epsilon >= {round_down(guarantee.lower)} under any accounting: the privacy loss of "
            "one pair of inputs"
        )
    if options.mechanism in channel_mechanisms():
        pure = certify(build(options.mechanism, parameters))
        result["per_coordinate"] = {"order": pure.order, "epsilon": pure.epsilon}
        lines.append(f"per coordinate and round: {pure}")
    return Output(result, lines)


COMMAND = Command(
    help="one guarantee for a client's whole participation",
    example="randquant account rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 "
    "--dimension 650 --rounds 20 --delta 1e-5",
    add_options=_add_options,
    run=_run,
)
