"""`randquant audit`: attack a mechanism's real pipeline and bound epsilon from below."""

from __future__ import annotations

from typing import Literal

from randquant._internal.declared import Data, Search
from randquant._internal.serialization import to_json
from randquant.aggregation.registry import all_mechanisms, update_mechanism
from randquant.channels.keys import Key
from randquant.cli.options import Command, NamedMechanism, Output
from randquant.mechanisms.registry import notes_on
from randquant.privacy.guarantee import Neighboring
from randquant.training.config import Delta


def run(
    chosen: NamedMechanism,
    *,
    dimension: int = 1,
    trust: Literal["local", "aggregate", "central"] | None = None,
    cohort: int = 2,
    coordinates: int | None = None,
    neighboring: Neighboring = "replace_one",
    x: Data[float | None] = None,
    other: Data[float | None] = None,
    audit_trials: Search[int] = 20_000,
    confidence: Search[float] = 0.99,
    delta: Delta = 1e-5,
    seed: Search[int] = 0,
) -> Output:
    """Attack a mechanism's real pipeline.

    Args:
        cohort: clients in a cohort.
        x: every coordinate of the update; by default the worst case.
        other: every coordinate of the other update.
        audit_trials: trials in each world.
        confidence: of the lower bound.
        seed: seed of all keys, and of a subset of coordinates.
    """
    from randquant.audit.attack import audit, cohort_inputs

    name = chosen.name
    parameters, clip_norm = chosen.split()
    mechanism = update_mechanism(
        name, parameters, trust=trust, cohort=cohort, clip_norm=clip_norm, coordinates=coordinates
    ).in_round(seed)
    # Two neighbouring updates, which the attack tries to distinguish by the releases they cause.
    update, against, others = cohort_inputs(mechanism, dimension, cohort, neighboring, x, other)
    finding = audit(
        mechanism, update, against, key=Key.from_seed(seed), delta=delta, confidence=confidence,
        trials=audit_trials, others=others, neighboring=neighboring,
    )  # fmt: skip
    result = {
        "mechanism": name, "parameters": parameters, "dimension": dimension, "cohort": cohort,
        "clip_norm": clip_norm, "neighboring": neighboring, "x": float(update[0]),
        "other": float(against[0]), "epsilon": finding.epsilon_stated,
        "contradicted": finding.contradicted, **to_json(finding),
        "notes": notes_on(name, parameters),
    }  # fmt: skip
    lines = [
        f"{name}, one release: {dimension} x {update[0]:g} against {dimension} x {against[0]:g}, "
        f"{cohort} clients",
        *finding.lines(),
        *notes_on(name, parameters),
    ]
    # An exit code for scripts: an audit that contradicts the guarantee is a fault to act on.
    return Output(result, lines, code=int(finding.contradicted))


COMMAND = Command(
    run,
    example="randquant audit rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 --delta 1e-5",
    mechanisms=all_mechanisms,
    whole_update=True,
)
