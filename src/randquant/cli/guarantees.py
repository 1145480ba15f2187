"""Commands on what a mechanism reveals.

`randquant certify`: the worst pair of inputs, epsilon and moments of a mechanism.

`randquant account`: one guarantee for a client's whole participation.

`randquant audit`: attack a mechanism's real pipeline and bound epsilon from below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from randquant._internal import validate
from randquant._internal.declared import Clients, Data, Privacy, Search
from randquant._internal.formatting import count, round_up, to_json
from randquant.aggregation.additive import parties_notes
from randquant.aggregation.registry import all_mechanisms, update_mechanism
from randquant.channels.channel import Channel, moments
from randquant.channels.keys import Key
from randquant.channels.wire import bits_per_code
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
from randquant.privacy.accounting.release_protocol import Release
from randquant.privacy.accounting.sampling import HiddenCohorts, run_release
from randquant.privacy.certificates.coordinate import certify, certify_pair
from randquant.privacy.certificates.sum_certificate import certify_sum
from randquant.privacy.guarantee import DEFAULT_DELTA, MODEL_TERMS, Guarantee, Neighboring, Trust
from randquant.training.config import Delta


def run_certify(
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
        values, lines = _certified_coordinate(chosen.name, channel, pair, order)
    else:
        values, lines = _certified_sum(
            chosen.name, channel, clients, order, neighboring or "replace_one"
        )
    # Last, and in the JSON too: what a mechanism's figures do not say belongs wherever they are
    # read.
    notes = notes_on(chosen.name, chosen.parameters)
    return Output({**result, **values, "notes": notes}, [*lines, *notes])


def _certified_coordinate(
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


def _certified_sum(
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


Participation = Literal["seen", "poisson", "fixed"]

TERMS = "if nobody learns in which rounds a client takes part: docs/sampling.md has the terms"
"""The assumption of a guarantee for hidden cohorts, if the adversary sees more than the models."""


def run_account(
    chosen: NamedMechanism,
    *,
    dimension: int,
    rounds: int,
    delta: Delta = DEFAULT_DELTA,
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
        name, parameters, trust=trust, cohort=cohort, clip_norm=clip_norm, coordinates=coordinates
    )
    cohorts, counted = _cohorts(rounds, participation, of_rounds, everybody_sends, trust)

    def guarantees_for(examples: int | None) -> tuple[Guarantee, Guarantee | None]:
        def released(relation: Neighboring) -> Release | None:
            return run_release(
                mechanism, dimension, counted, relation, examples=examples, cohorts=cohorts
            )

        return _guarantees(name, released, neighboring, delta)

    # The client's own first: it holds of every run, that of one example only of means of clipped
    # gradients.
    guarantee, other = claims = guarantees_for(None)
    result = {
        "mechanism": name, "parameters": parameters, "dimension": dimension, "rounds": rounds,
        "participation": participation, "of_rounds": of_rounds, "cohort": cohort,
        "clip_norm": clip_norm, "coordinates": coordinates, **to_json(guarantee),
        "other_relation": to_json(other), "notes": _account_notes(name, parameters),
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
    written = _written(certificate, claims, mechanism, dimension, counted, examples, cohorts)
    return Output(result, [*lines, *result["notes"], *written])


def _written(certificate: str | None, claims: Iterable[Guarantee | None], *terms: Any) -> list[str]:
    # `terms` are those of ReleaseTerms, which other commands need not wait for.
    from randquant.rounds.statement import ReleaseTerms, Statement

    statement = Statement([[ReleaseTerms(*terms)]], [each for each in claims if each is not None])
    return written_certificate(certificate, statement.text)


def _account_notes(name: str, parameters: Mapping[str, Any]) -> list[str]:
    return [*parties_notes(name, parameters), *notes_on(name, parameters)]


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


def run_audit(
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
    delta: Delta = DEFAULT_DELTA,
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
    # In a round: a mechanism that sends a subset of coordinates encodes with a round's seed only.
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


COMMANDS = {
    "certify": Command(
        run_certify,
        example="randquant certify rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 --order 8",
        mechanisms=channel_mechanisms,
    ),
    "account": Command(
        run_account,
        example="randquant account rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 "
        "--dimension 650 --rounds 20 --delta 1e-5",
        mechanisms=all_mechanisms,
        whole_update=True,
    ),
    "audit": Command(
        run_audit,
        example="randquant audit rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 --delta 1e-5",
        mechanisms=all_mechanisms,
        whole_update=True,
    ),
}
