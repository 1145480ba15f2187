"""`randquant account`: one guarantee for a client's whole participation."""

from __future__ import annotations

import math

from randquant._internal.rounding import round_down
from randquant._internal.serialization import to_json
from randquant.aggregation.registry import all_mechanisms, update_mechanism
from randquant.cli.command import Command, Output
from randquant.cli.options import NamedMechanism
from randquant.mechanisms.registry import build, channel_mechanisms
from randquant.privacy.accounting.accountant import account
from randquant.privacy.certificates.coordinate import certify
from randquant.privacy.guarantee import Neighboring, Trust
from randquant.training.config import Delta, NormName


def run(
    chosen: NamedMechanism,
    *,
    dimension: int,
    rounds: int,
    delta: Delta = 1e-5,
    cohort: int | None = None,
    trust: Trust | None = None,
    norm: NormName = "l2",
    neighboring: Neighboring = "replace_one",
) -> Output:
    """Account for a client's whole participation.

    Args:
        rounds: rounds that the client takes part in.
        cohort: fewest clients in a sum, for mechanisms that share the noise.
    """
    name = chosen.name
    parameters, clip_norm = chosen.split()
    mechanism = update_mechanism(
        name, parameters, trust=trust, cohort=cohort, clip_norm=clip_norm, norm=norm
    )
    release = mechanism.release(dimension, rounds, neighboring)
    if release is None:
        raise ValueError(f"Expected a mechanism that protects, got {name}.")
    guarantee = account([release], delta)
    result = {
        "mechanism": name,
        "parameters": parameters,
        "dimension": dimension,
        "rounds": rounds,
        "cohort": cohort,
        "clip_norm": clip_norm,
        "norm": norm,
        **to_json(guarantee),
    }
    result["epsilon_lower"] = result.pop("lower")
    lines = [
        f"{name}, {dimension} coordinates, {rounds} rounds of one client's participation:",
        str(guarantee),
    ]
    if 0 < guarantee.lower < math.inf:
        lines.append(
            f"epsilon >= {round_down(guarantee.lower)} under any accounting: the privacy loss of "
            "one pair of inputs"
        )
    if name in channel_mechanisms():
        pure = certify(build(name, parameters))
        result["per_coordinate"] = {"order": pure.order, "epsilon": pure.epsilon}
        lines.append(f"per coordinate and round: {pure}")
    return Output(result, lines)


COMMAND = Command(
    run,
    example="randquant account rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 "
    "--dimension 650 --rounds 20 --delta 1e-5",
    mechanisms=all_mechanisms,
    whole_update=True,
)
