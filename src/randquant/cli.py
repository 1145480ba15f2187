"""The command line: runs a command, prints a table or one JSON object."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import randquant as rq
from randquant.aggregate import update_mechanism
from randquant.arguments import (
    given_parameters,
    own_parameters,
    parser,
)
from randquant.blocks import bits_per_code
from randquant.mechanisms import build, channel_mechanisms
from randquant.privacy import round_down, round_up
from randquant.records import to_json, write_atomic


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0, 2 for a wrong option, file or value.

    An audit that contradicts what is stated returns 1.
    """
    options = parser().parse_args(arguments)
    try:
        code = _COMMANDS[options.command](options)
    except (ValueError, TypeError, OSError, ImportError, ArithmeticError, MemoryError) as error:
        sentence = " ".join(str(error).split())
        print(f"randquant {options.command}: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        resumed = options.command in ("train", "sweep")
        hint = "; go on with --resume and the same folder" * resumed
        print(f"randquant {options.command}: stopped{hint}", file=sys.stderr)
        return 130
    return code or 0


def _certify(options: argparse.Namespace) -> None:
    channel = build(options.mechanism, given_parameters(options))
    order = math.inf if options.order is None else options.order
    if options.clients is not None:
        _certify_sum(options, channel, order)
        return
    if options.neighboring is not None:
        raise ValueError("Expected --neighboring together with --clients, got no --clients.")
    if options.pair is None:
        certificate = rq.certify(channel, order)
    else:
        x, other = options.pair
        certificate = rq.certify_pair(channel, x, other, order)
    measured = rq.moments(channel)
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
    _print(options, result, lines)


def _certify_sum(options: argparse.Namespace, channel: rq.Channel, order: float) -> None:
    if options.pair is not None:
        raise ValueError(
            "Expected --pair or --clients, got both: a sum is certified for all pairs."
        )
    neighboring = options.neighboring or "replace_one"
    certificate = rq.certify_sum(channel, options.clients, order, neighboring)
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
    _print(options, result, lines)


def _account(options: argparse.Namespace) -> None:
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
    guarantee = rq.account([release], options.delta)
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
            f"epsilon >= {round_down(guarantee.lower)} however it is accounted: what one pair of "
            "inputs loses"
        )
    if options.mechanism in channel_mechanisms():
        pure = rq.certify(build(options.mechanism, parameters))
        result["per_coordinate"] = {"order": pure.order, "epsilon": pure.epsilon}
        lines.append(f"per coordinate and round: {pure}")
    _print(options, result, lines)


def _audit(options: argparse.Namespace) -> int:
    from randquant.audit import audit, cohort_inputs

    parameters, clip_norm = own_parameters(options.mechanism, options)
    size, cohort = options.dimension, options.cohort
    mechanism = update_mechanism(
        options.mechanism, parameters, trust=options.trust, cohort=cohort, clip_norm=clip_norm
    )
    update, other, others = cohort_inputs(
        mechanism, size, cohort, options.neighboring, options.x, options.other
    )
    found = audit(
        mechanism,
        update,
        other,
        key=rq.Key.from_seed(options.seed),
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
        "epsilon": found.epsilon_stated,
        "contradicted": found.contradicted,
        **to_json(found),
    }
    lines = [
        f"{options.mechanism}, one release: {size} x {update[0]:g} against {size} x {other[0]:g}, "
        f"{cohort} clients",
        *found.lines(),
    ]
    _print(options, result, lines)
    return int(found.contradicted)


def _design(options: argparse.Namespace) -> None:
    from randquant import compare, compare_page, design  # slow to import

    found = design.optimal(
        options.clip,
        options.values,
        constraint=design.constraint_of(options.constraint, options.epsilon, options.order),
        objective=options.objective,
        inputs=options.inputs,
        density=options.density,
        levels=options.levels,
        reach=options.reach,
        symmetric=not options.free,
        lattice=options.lattice,
    )
    channel, measured = found.channel, rq.moments(found.channel)
    result = {
        "objective": found.objective,
        "value": found.value,
        "dual_bound": found.dual_bound,
        "gap": found.gap,
        "constraint": options.constraint,
        "epsilon": found.certificate.epsilon,
        "bias_max": measured.bias_max,
        "variance_max": measured.variance_max,
        "mae": measured.mae,
        "mse": measured.mse,
        "levels": channel.levels,
        "values": channel.values.tolist(),
        "inputs": len(channel.inputs),
        "bits_per_coordinate": bits_per_code(channel.levels),
        "fingerprint": channel.fingerprint.hex(),
    }
    searched = "" if options.levels is None else " (levels: the best of several local optima)"
    lines = [
        f"optimal {found.objective}: {found.value:.7g}, at most "
        f"{round_up(max(found.gap, 0.0), 2)} above the best unbiased channel on these levels with "
        f"{len(channel.inputs)} vertices{searched}",
        "values " + ", ".join(f"{value:.6g}" for value in channel.values),
        str(found.certificate),
        f"bias at most {round_up(measured.bias_max, 3)}, MAE {measured.mae:.6g}, "
        f"MSE {measured.mse:.6g} (input uniform), variance at most "
        f"{round_up(measured.variance_max)}",
    ]
    if options.save is not None:
        rq.save_channel(options.save, channel, found.certificate)
        lines.append(f"channel        {options.save}")
    shown = {"clip": options.clip, "values": channel.values.tolist()}
    alone = compare.Comparison([compare.entry_of("optimal", channel, shown)], 2.0)
    lines += _write_page(options.output, lambda: compare_page.as_page(alone))
    _print(options, {**result, "save": options.save, "output": options.output}, lines)


def _compare(options: argparse.Namespace) -> None:
    from randquant import compare, compare_page

    asked = (options.clip, options.bits, options.epsilon)
    if options.channel is not None:
        if any(each is not None for each in (*asked, options.mechanisms, options.objective)):
            raise ValueError(
                "Expected either --channel or a target, got both: a channel is compared as it is."
            )
        found = compare.of_channels(options.channel, options.order)
    else:
        if any(each is None for each in asked):
            raise ValueError("Expected --clip, --bits and --epsilon, or at least one --channel.")
        found = compare.at_equal_epsilon(
            *asked, options.objective or "mae", options.order, options.mechanisms
        )
        if options.output is not None:
            curves = compare.tradeoffs(options.clip, options.bits, options.mechanisms, _say)
            found = replace(found, tradeoff=curves)
    written = _write_page(options.output, lambda: compare_page.as_page(found))
    result = {**compare.as_json(found), "output": options.output}
    _print(options, result, [*compare.as_text(found), *written])


def _say(text: str) -> None:
    """Show what is being done, where somebody looks."""
    if sys.stderr.isatty():
        print(f"working on {text}", file=sys.stderr)


def _plan(options: argparse.Namespace) -> None:
    from randquant.plan import page, plan

    found = plan(
        options.dimension,
        options.population,
        options.cohort,
        options.rounds,
        options.epsilon,
        options.delta,
        bits=options.bits,
        trust=options.trust,
        clip_norm=options.clip_norm,
        neighboring=options.neighboring,
        max_participations=options.max_participations,
        mechanisms=options.mechanisms,
        say=_say,
    )
    written = _write_page(options.output, lambda: page.as_page(found))
    result = {**page.as_json(found), "output": options.output}
    _print(options, result, [*page.as_text(found), *written])


def _reproduce(options: argparse.Namespace) -> int:
    from randquant.reproduce_command import reproduce

    result, lines, code = reproduce(options)
    _print(options, result, lines)
    return code


def _write_page(output: str | None, page: Callable[[], str]) -> list[str]:
    """Write a page where one was asked for, and say so."""
    if output is None:
        return []
    write_atomic(Path(output), page().encode("utf-8"))
    return ["", f"page           {output}"]


def _bench(options: argparse.Namespace) -> None:
    from randquant.bench import bench

    result = bench(options.coordinates, options.levels, options.repeats)
    encode, unpack = result["encode_pack"], result["unpack_sum"]
    ratio = encode["ratio_to_naive"]
    lines = [
        f"{result['coordinates']:,} float32, {result['levels']} levels, "
        f"on {result['machine']['processor']}",
        f"encode + pack  {_millions(encode['coordinates_per_second_per_core'])} per core, "
        f"{_millions(encode['coordinates_per_second'])} on {encode['threads']} threads",
        f"unpack + sum   {_millions(unpack['coordinates_per_second_per_core'])} per core",
        "plain torch    not installed"
        if ratio is None
        else f"plain torch    {_millions(result['naive']['coordinates_per_second_per_core'])} "
        f"per core: {ratio:.1f} times slower than encode + pack",
    ]
    _print(options, result, lines)


def _train(options: argparse.Namespace) -> None:
    from randquant.train_command import train

    _print(options, *train(options))


def _about_runs(options: argparse.Namespace) -> int:
    from randquant.run_commands import command

    result, lines, code = command(options)
    _print(options, result, lines)
    return code


def _millions(rate: float) -> str:
    return f"{rate / 1e6:.0f} million a second"


def _print(options: argparse.Namespace, result: dict[str, Any], lines: Sequence[str]) -> None:
    text = json.dumps(to_json(result), allow_nan=False) if options.json else "\n".join(lines)
    print(text)


_COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "train": _train,
    "sweep": _about_runs,
    "runs": _about_runs,
    "report": _about_runs,
    "certify": _certify,
    "design": _design,
    "account": _account,
    "audit": _audit,
    "compare": _compare,
    "plan": _plan,
    "reproduce": _reproduce,
    "bench": _bench,
}
