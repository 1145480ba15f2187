"""Every registered mechanism in every way that it is applied to whole updates, for contracts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from randquant.aggregation import UpdateMechanism, all_mechanisms, update_mechanism
from randquant.channels import Key

CLIENTS, SOME = 3, 4
EXAMPLES = {name: each for name, each in all_mechanisms().items() if each.tuning.possible}
CHANNELS = {name: each.example for name, each in EXAMPLES.items() if not each.whole_update}
WHOLE = {name: each.example for name, each in EXAMPLES.items() if each.whole_update}


def built(cohort: int = CLIENTS, some: int = SOME) -> dict[str, UpdateMechanism]:
    """Every registered mechanism in every way that it is applied to whole updates, by name.

    Args:
        cohort: of those that are summed.
        some: how many coordinates are sent where not all are.
    """
    return dict(_built(cohort, some))


def _built(clients: int, count: int) -> Iterator[tuple[str, UpdateMechanism]]:
    for name, parameters in CHANNELS.items():
        cohort = None if "local" in EXAMPLES[name].trusts else clients
        yield name, update_mechanism(name, parameters, cohort=cohort)
        yield (
            f"{name}, as a whole",
            update_mechanism(name, parameters, cohort=cohort, clip_norm=1.0),
        )
    for trust in ("local", "aggregate"):
        options = {"trust": trust, "cohort": clients if trust == "aggregate" else None}
        bits = CHANNELS["stochastic-rounding"]
        yield f"{trust} bits", update_mechanism("stochastic-rounding", bits, **options)
        yield (
            f"{trust} bits of whole updates",
            update_mechanism("stochastic-rounding", bits, **options, clip_norm=1.0),
        )
    some = {"trust": "aggregate", "cohort": clients, "clip_norm": 1.0, "coordinates": count}
    yield (
        "bits of some coordinates",
        update_mechanism("stochastic-rounding", bits, **some).in_round(7),
    )
    for name, parameters in WHOLE.items():
        sizes = {"cohort", "clients"} & set(EXAMPLES[name].run_settings)
        parameters = {**parameters, **dict.fromkeys(sizes, clients)}
        yield name, update_mechanism(name, parameters)
        if "coordinates" in EXAMPLES[name].run_settings:
            some = update_mechanism(name, parameters, coordinates=count).in_round(7)
            yield f"{name} of some coordinates", some
    yield "clipped-sgd, each coordinate", update_mechanism("clipped-sgd", {"clip": 0.5})
    noise = {"clip": 0.5, "noise_multiplier": 4.0}
    yield "gaussian, each coordinate", update_mechanism("gaussian", noise)


def parties_noise(mechanism: UpdateMechanism, dimension: int, key: Key) -> np.ndarray | int:
    """What helper and server add to a sum of codes, by the key of `mechanism.mean`; 0 if they add
    nothing."""
    if not mechanism.helper_noise:
        return 0
    keys = [key.fold_in("party", party) for party in range(mechanism.noises)]
    return sum(mechanism.party_noise(dimension, each) for each in keys)
