"""`randquant account`: one guarantee for a client's whole participation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from randquant._internal import validate
from randquant._internal.formatting import count
from randquant._internal.serialization import to_json
from randquant.aggregation.additive import parties_notes
from randquant.aggregation.registry import all_mechanisms, update_mechanism
from randquant.cli.options import (
    Command,
    NamedMechanism,
    Output,
    selected_fields,
    written_certificate,
)
from randquant.mechanisms.registry import build, channel_mechanisms, notes_on
from randquant.privacy.accounting.accountant import (
    account,
    other_relation_lines,
    under_other_relation,
)
from randquant.privacy.accounting.release import Release
from randquant.privacy.accounting.sampling import HiddenCohorts, run_release
from randquant.privacy.certificates.coordinate import certify
from randquant.privacy.guarantee import MODEL_TERMS, Guarantee, Neighboring, Trust
from randquant.rounds.statement import ReleaseTerms, Statement
from randquant.training.config import Delta

Participation = Literal["seen", "poisson", "fixed"]

TERMS = "if nobody learns in which rounds a client takes part: docs/sampling.md has the terms"
"""The assumption of a guarantee for hidden cohorts, if the adversary sees more than the models."""


def run(
    chosen: NamedMechanism,
    *,
    dimension: int,
    rounds: int,
    delta: Delta = 1e-5,
    cohort: int | None = None,
    trust: Trust | None = None,
    coordinates: int | None = None,
    neighboring: Neighboring = "replace_one",
    participation: Participation = "seen",
    of_rounds: int | None = None,
    everybody_sends: bool = False,
    examples: int | None = None,
    certificate: str | None = None,
) -> Output:
    """Account for a client's whole participation.

    Args:
        rounds: rounds that the client takes part in; with poisson and fixed, on average.
        cohort: fewest clients in a sum, for mechanisms that share the noise.
        participation: who sees in which rounds a client takes part: everybody (seen), or nobody,
            and each client draws each round by itself (poisson), or cohorts of one size are drawn
            (fixed).
        of_rounds: rounds of the run, unless participation is seen.
        trust: what the adversary sees; model: the published models only, see docs/sampling.md.
        everybody_sends: clients that do not take part send an update of zeros (not with fixed).
        examples: also state the guarantee for one example, such as a patient, of a client whose
            updates are means of at least this many examples' gradients, each clipped to clip_norm.
    """
    name, (parameters, clip_norm) = chosen.name, chosen.split()
    mechanism = update_mechanism(
        name, parameters, trust=trust, cohort=cohort, clip_norm=clip_norm,
        coordinates=coordinates,
    )  # fmt: skip
    cohorts, counted = _cohorts(rounds, participation, of_rounds, everybody_sends, trust)

    def guarantees_for(examples: int | None) -> tuple[Guarantee, Guarantee | None]:
        def released(relation: Neighboring) -> Release | None:
            return run_release(
                mechanism, dimension, counted, relation, examples=examples, cohorts=cohorts
            )

        return _guarantees(name, released, neighboring, delta)

    guarantee, other = claims = guarantees_for(None)
    result = {
        "mechanism": name, "parameters": parameters, "dimension": dimension, "rounds": rounds,
        "participation": participation, "of_rounds": of_rounds, "cohort": cohort,
        "clip_norm": clip_norm, "coordinates": coordinates, **to_json(guarantee),
        "other_relation": to_json(other), "notes": _notes(name, parameters),
    }  # fmt: skip
    lines = [
        f"{name}, {count(dimension, 'coordinate')}, {count(rounds, 'round')} of one client's "
        "participation:",
        str(guarantee),
        *other_relation_lines(other),
        *[MODEL_TERMS if trust == "model" else TERMS] * guarantee.hidden,
    ]
    if examples is not None:
        example_guarantee, other = guarantees_for(examples)
        claims += (example_guarantee, other)
        result["one_example"] = {**to_json(example_guarantee), "other_relation": to_json(other)}
        lines.append(f"one of a client's {examples} examples, in the same run: {example_guarantee}")
        lines += other_relation_lines(other)
    # A per-coordinate figure is not the run's guarantee: its line says so.
    if name in channel_mechanisms():
        pure = certify(build(name, parameters))
        result["per_coordinate"] = selected_fields(pure, "order", "epsilon", "witness")
        lines.append(f"per coordinate and round: {pure}")
    terms = ReleaseTerms(mechanism, dimension, counted, examples, cohorts)
    written = _written(certificate, terms, claims)
    return Output(result, [*lines, *result["notes"], *written])


def _notes(name: str, parameters: Mapping[str, Any]) -> list[str]:
    return [*parties_notes(name, parameters), *notes_on(name, parameters)]


def _written(
    certificate: str | None, terms: ReleaseTerms, claims: Sequence[Guarantee | None]
) -> list[str]:
    statement = Statement([[terms]], [each for each in claims if each is not None])
    return written_certificate(certificate, statement.text)


def _guarantees(
    name: str,
    released: Callable[[Neighboring], Release | None],
    neighboring: Neighboring,
    delta: float,
) -> tuple[Guarantee, Guarantee | None]:
    # Under a relation, and under the other one if that is derived.
    if (release := released(neighboring)) is None:
        raise ValueError(f"Expected a mechanism that protects, got {name}.")
    stated = account([release], delta)
    return stated, under_other_relation(stated, released)


def _refuse_hidden(of_rounds: int | None, everybody_sends: bool, trust: Trust | None) -> None:
    if trust == "model":
        raise ValueError(
            "Expected --participation poisson or fixed with --trust model, got seen: an adversary "
            "that sees the models only does not see who takes part; say how cohorts are drawn."
        )
    option = "--everybody-sends" if of_rounds is None else f"--of-rounds {of_rounds}"
    if of_rounds is not None or everybody_sends:
        raise ValueError(
            f"Expected no {option} with --participation seen: add --participation poisson or fixed."
        )


def _cohorts(
    rounds: int,
    participation: Participation,
    of_rounds: int | None,
    everybody_sends: bool,
    trust: Trust | None,
) -> tuple[HiddenCohorts | None, int]:
    # None if cohorts are seen: then no amplification by sampling may be claimed, and the rounds
    # that count are the client's; else those of the run.
    if participation == "seen":
        _refuse_hidden(of_rounds, everybody_sends, trust)
        return None, rounds
    if of_rounds is None:
        raise ValueError(
            f"Expected --of-rounds with --participation {participation}: the number of rounds of "
            "the run."
        )
    of_rounds = validate.whole("of_rounds", of_rounds, low=1, high=2**53)
    rounds = validate.whole(
        "rounds", rounds, low=1, high=of_rounds, why="the run has no more rounds"
    )
    # The sampling rate: a client's rounds are to all rounds as the cohort is to the population.
    models = trust == "model"
    cohorts = HiddenCohorts(participation, of_rounds, rounds, of_rounds, models, everybody_sends)
    return cohorts, of_rounds


COMMAND = Command(
    run,
    example="randquant account rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 "
    "--dimension 650 --rounds 20 --delta 1e-5",
    mechanisms=all_mechanisms,
    whole_update=True,
)
