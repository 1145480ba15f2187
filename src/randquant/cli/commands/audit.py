"""`randquant audit`: attack a mechanism's real pipeline and bound epsilon from below."""

from __future__ import annotations

import argparse

from randquant._internal.serialization import to_json
from randquant.aggregation.registry import all_mechanisms, update_mechanism
from randquant.channels.keys import Key
from randquant.cli.command import Command, Output
from randquant.cli.options import TRUST, mechanism_options, own_parameters


def _add_options(parser: argparse.ArgumentParser) -> None:
    everything = all_mechanisms()
    parser.add_argument("mechanism", metavar="MECHANISM", help=", ".join(everything))
    mechanism_options(parser, everything)
    parser.add_argument("--dimension", type=int, default=1, help="coordinates; default 1")
    parser.add_argument("--trust", help=TRUST)
    parser.add_argument("--cohort", type=int, default=2, help="clients in a cohort; default 2")
    parser.add_argument(
        "--neighboring",
        default="replace_one",
        help="replace_one (default), or zero_out: the other update is zero",
    )
    parser.add_argument(
        "--x", type=float, help="every coordinate of the update; default the worst case"
    )
    parser.add_argument("--other", type=float, help="every coordinate of the other update")
    parser.add_argument(
        "--audit-trials", type=int, default=20_000, help="trials in each world; default 20,000"
    )
    parser.add_argument("--confidence", type=float, default=0.99, help="default 0.99")
    parser.add_argument("--delta", type=float, default=1e-5, help="default 1e-5")
    parser.add_argument("--seed", type=int, default=0, help="seed of all keys; default 0")


def _run(options: argparse.Namespace) -> Output:
    from randquant.audit.pipeline import audit, cohort_inputs

    parameters, clip_norm = own_parameters(options.mechanism, options)
    size, cohort = options.dimension, options.cohort
    mechanism = update_mechanism(
        options.mechanism, parameters, trust=options.trust, cohort=cohort, clip_norm=clip_norm
    )
    update, other, others = cohort_inputs(
        mechanism, size, cohort, options.neighboring, options.x, options.other
    )
    finding = audit(
        mechanism,
        update,
        other,
        key=Key.from_seed(options.seed),
        delta=options.delta,
        confidence=options.confidence,
        trials=options.audit_trials,
        others=others,
        neighboring=options.neighboring,
    )
    result = {
        "mechanism": options.mechanism,
        "parameters": parameters,
        "dimension": size,
        "cohort": cohort,
        "clip_norm": clip_norm,
        "neighboring": options.neighboring,
        "x": float(update[0]),
        "other": float(other[0]),
        "epsilon": finding.epsilon_stated,
        "contradicted": finding.contradicted,
        **to_json(finding),
    }
    lines = [
        f"{options.mechanism}, one release: {size} x {update[0]:g} against {size} x {other[0]:g}, "
        f"{cohort} clients",
        *finding.lines(),
    ]
    return Output(result, lines, code=int(finding.contradicted))


COMMAND = Command(
    help="attack a mechanism's real pipeline and bound epsilon from below",
    example="randquant audit rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 --delta 1e-5",
    add_options=_add_options,
    run=_run,
)
