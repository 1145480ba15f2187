"""`randquant certify`: the worst pair of inputs, epsilon and moments of a mechanism."""

from __future__ import annotations

import math

from randquant._internal.declared import Clients, Privacy
from randquant._internal.rounding import round_up
from randquant.channels.channel import Channel
from randquant.channels.exact_moments import moments
from randquant.channels.wire.block_codes import bits_per_code
from randquant.cli.command import Command, Output
from randquant.cli.options import NamedMechanism
from randquant.mechanisms.registry import build, channel_mechanisms
from randquant.privacy.certificates.coordinate import certify, certify_pair
from randquant.privacy.certificates.sums.certificate import certify_sum
from randquant.privacy.guarantee import Neighboring


def run(
    chosen: NamedMechanism,
    *,
    order: Privacy[float] = math.inf,
    pair: Privacy[tuple[float, float] | None] = None,
    clients: Clients[int | None] = None,
    neighboring: Neighboring | None = None,
) -> Output:
    """Certify one coordinate, or a sum of codes.

    Args:
        order: Renyi order in (1, inf].
        pair: this pair of inputs only.
        clients: certify the sum of so many clients' codes instead.
        neighboring: with --clients: replace_one (default) or zero_out.
    """
    channel = build(chosen.name, chosen.parameters)
    if clients is not None:
        if pair is not None:
            raise ValueError(
                "Expected --pair or --clients, got both: a sum is certified for all pairs."
            )
        return _certify_sum(chosen, channel, clients, order, neighboring or "replace_one")
    if neighboring is not None:
        raise ValueError("Expected --neighboring together with --clients, got no --clients.")
    certificate = certify(channel, order) if pair is None else certify_pair(channel, *pair, order)
    measured = moments(channel)
    result = {
        "mechanism": chosen.name,
        "parameters": chosen.parameters,
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
        f"{chosen.name}: {channel.levels} codes, "
        f"{bits_per_code(channel.levels):.4g} bits per coordinate",
        str(certificate),
        f"covers {certificate.covers} of inputs; for a whole run see `randquant account`",
        f"bias at most {round_up(measured.bias_max, 3)}, MAE {measured.mae:.6g}, "
        f"MSE {measured.mse:.6g} (input uniform)",
    ]
    return Output(result, lines)


def _certify_sum(
    chosen: NamedMechanism, channel: Channel, clients: int, order: float, neighboring: Neighboring
) -> Output:
    certificate = certify_sum(channel, clients, order, neighboring)
    result = {
        "mechanism": chosen.name,
        "parameters": chosen.parameters,
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
        f"{chosen.name}: {channel.levels} codes, {certificate.clients} clients",
        str(certificate),
    ]
    return Output(result, lines)


COMMAND = Command(
    run,
    example="randquant certify rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 --order 8",
    mechanisms=channel_mechanisms,
)
