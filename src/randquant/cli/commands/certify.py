"""`randquant certify`: the worst pair of inputs, epsilon and moments of a mechanism."""

from __future__ import annotations

import argparse
import math

from randquant._internal.rounding import round_up
from randquant.channels.channel import Channel
from randquant.channels.exact_moments import moments
from randquant.channels.wire.block_codes import bits_per_code
from randquant.cli.command import Command, Output
from randquant.cli.options import given_parameters, mechanism_options
from randquant.mechanisms.registry import build, channel_mechanisms
from randquant.privacy.certificates.coordinate import certify, certify_pair
from randquant.privacy.certificates.sums.certificate import certify_sum


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mechanism", metavar="MECHANISM", help=", ".join(channel_mechanisms()))
    mechanism_options(parser, channel_mechanisms())
    parser.add_argument("--order", type=float, help="Renyi order in (1, inf]; default inf")
    parser.add_argument(
        "--pair", type=float, nargs=2, metavar=("X", "X'"), help="this pair of inputs only"
    )
    parser.add_argument(
        "--clients", type=int, help="certify the sum of so many clients' codes instead"
    )
    parser.add_argument("--neighboring", help="with --clients: replace_one (default) or zero_out")


def _run(options: argparse.Namespace) -> Output:
    channel = build(options.mechanism, given_parameters(options))
    order = math.inf if options.order is None else options.order
    if options.clients is not None:
        return _certify_sum(options, channel, order)
    if options.neighboring is not None:
        raise ValueError("Expected --neighboring together with --clients, got no --clients.")
    if options.pair is None:
        certificate = certify(channel, order)
    else:
        x, other = options.pair
        certificate = certify_pair(channel, x, other, order)
    measured = moments(channel)
    result = {
        "mechanism": options.mechanism,
        "parameters": given_parameters(options),
        "order": certificate.order,
        "epsilon": certificate.epsilon,
        "witness": certificate.witness,
        "code": certificate.code,
        "covers": certificate.covers,
        "unit": "one coordinate, one release",
        "neighboring": certificate.neighboring,
        "bias_max": measured.bias_max,
        "variance": measured.variance,
        "mae": measured.mae,
        "mse": measured.mse,
        "bits_per_coordinate": bits_per_code(channel.levels),
        "levels": channel.levels,
        "fingerprint": channel.fingerprint.hex(),
    }
    lines = [
        f"{options.mechanism}: {channel.levels} codes, "
        f"{bits_per_code(channel.levels):.4g} bits per coordinate",
        str(certificate),
        f"covers {certificate.covers} of inputs; for a whole run see `randquant account`",
        f"bias at most {round_up(measured.bias_max, 3)}, MAE {measured.mae:.6g}, "
        f"MSE {measured.mse:.6g} (input uniform)",
    ]
    return Output(result, lines)


def _certify_sum(options: argparse.Namespace, channel: Channel, order: float) -> Output:
    if options.pair is not None:
        raise ValueError(
            "Expected --pair or --clients, got both: a sum is certified for all pairs."
        )
    neighboring = options.neighboring or "replace_one"
    certificate = certify_sum(channel, options.clients, order, neighboring)
    result = {
        "mechanism": options.mechanism,
        "parameters": given_parameters(options),
        "clients": certificate.clients,
        "order": certificate.order,
        "epsilon": certificate.epsilon,
        "witness": certificate.witness,
        "others": [{"input": x, "count": count} for x, count in certificate.others.items()],
        "method": certificate.method,
        "unit": "one coordinate, one sum",
        "neighboring": certificate.neighboring,
        "fingerprint": channel.fingerprint.hex(),
    }
    lines = [
        f"{options.mechanism}: {channel.levels} codes, {certificate.clients} clients",
        str(certificate),
    ]
    return Output(result, lines)


COMMAND = Command(
    help="worst pair of inputs, epsilon and moments of a mechanism",
    example="randquant certify rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 --order 8",
    add_options=_add_options,
    run=_run,
)
