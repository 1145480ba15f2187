"""`randquant certify`: the worst pair of inputs, epsilon and moments of a mechanism."""

from __future__ import annotations

import math

from randquant._internal.declared import Clients, Privacy
from randquant._internal.formatting import round_up
from randquant.channels.channel import Channel, moments
from randquant.channels.wire import bits_per_code
from randquant.cli.options import Command, NamedMechanism, Output, selected_fields
from randquant.mechanisms.registry import build, channel_mechanisms, notes_on
from randquant.privacy.certificates.coordinate import certify, certify_pair
from randquant.privacy.certificates.sum_certificate import certify_sum
from randquant.privacy.guarantee import Neighboring


def run(
    chosen: NamedMechanism,
    *,
    order: float = math.inf,
    pair: Privacy[tuple[float, float] | None] = None,
    clients: Clients[int | None] = None,
    neighboring: Neighboring | None = None,
) -> Output:
    """Certify one coordinate, or a sum of codes.

    Args:
        pair: this pair of inputs only.
        clients: certify the sum of this many clients' codes instead.
        neighboring: with --clients: replace_one (default) or zero_out.
    """
    channel = build(chosen.name, chosen.parameters)
    result = {
        **selected_fields(chosen, "name", "parameters"),
        "fingerprint": channel.fingerprint.hex(),
    }
    result["mechanism"] = result.pop("name")
    if clients is not None and pair is not None:
        raise ValueError(
            f"Expected --pair or --clients, got --pair {pair[0]:g} {pair[1]:g} and --clients "
            f"{clients}: a sum is certified for all pairs."
        )
    if clients is None and neighboring is not None:
        raise ValueError(
            f"Expected --neighboring with --clients, got --neighboring {neighboring} alone."
        )
    if clients is None:
        values, lines = _coordinate(chosen.name, channel, pair, order)
    else:
        values, lines = _sum(chosen.name, channel, clients, order, neighboring or "replace_one")
    notes = notes_on(chosen.name, chosen.parameters)
    return Output({**result, **values, "notes": notes}, [*lines, *notes])


def _coordinate(
    name: str, channel: Channel, pair: tuple[float, float] | None, order: float
) -> tuple[dict[str, object], list[str]]:
    # A pair's figure is no guarantee; the certificate says so in `covers`.
    certificate = certify(channel, order) if pair is None else certify_pair(channel, *pair, order)
    measured, bits = moments(channel), bits_per_code(channel.levels)
    values = {
        **selected_fields(
            certificate, "order", "epsilon", "witness", "code", "covers", "neighboring"
        ),
        **selected_fields(measured, "bias_max", "variance", "mae", "mse"),
        "unit": "one coordinate, one release",
        "bits_per_coordinate": bits,
        "levels": channel.levels,
    }
    return values, [
        f"{name}: {channel.levels} codes, {bits:.4g} bits per coordinate",
        str(certificate),
        f"covers {certificate.covers} of inputs; for a whole run see `randquant account`",
        f"bias at most {round_up(measured.bias_max, 3)}, MAE {measured.mae:.6g}, "
        f"MSE {measured.mse:.6g} (input uniform)",
    ]


def _sum(
    name: str, channel: Channel, clients: int, order: float, neighboring: Neighboring
) -> tuple[dict[str, object], list[str]]:
    certificate = certify_sum(channel, clients, order, neighboring)
    values = {
        **selected_fields(
            certificate, "clients", "order", "epsilon", "witness", "method", "neighboring"
        ),
        "others": [{"input": x, "count": count} for x, count in certificate.others.items()],
        "unit": "one coordinate, one sum",
    }
    head = f"{name}: {channel.levels} codes, {certificate.clients} clients"
    return values, [head, str(certificate)]


COMMAND = Command(
    run,
    example="randquant certify rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 --order 8",
    mechanisms=channel_mechanisms,
)
