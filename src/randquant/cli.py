"""The command line: arguments in, tables or one JSON object out."""

from __future__ import annotations

import argparse
import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import randquant as rq
from randquant.aggregate import BASELINES, update_mechanism
from randquant.mechanisms import MECHANISMS, build
from randquant.privacy import round_up
from randquant.records import TrainConfig, to_json

DEMO = TrainConfig(
    dataset="digits",
    model="softmax",
    mechanism="rqm",
    parameters={"clip": 0.03, "margin": 0.03, "levels": 16, "keep": 0.42},
    learning_rate=1.0,
)
"""What `randquant train` does when nothing else is asked for."""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line as one line on standard error, exit code 2."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, allow_abbrev=False)
        # argparse takes -1e-3 for an option unless told what a number looks like.
        self._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$", re.I)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0, or 2 for a wrong option, file or value."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        options.run_command(options)
    except (ValueError, TypeError, OSError, ImportError, ArithmeticError, MemoryError) as error:
        sentence = " ".join(str(error).split())
        print(f"randquant {options.command}: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hint = "; go on with --resume and the run's folder" if options.command == "train" else ""
        print(f"randquant {options.command}: stopped{hint}", file=sys.stderr)
        return 130
    return 0


def _certify(options: argparse.Namespace) -> None:
    channel = build(options.mechanism, _parameters(options))
    order = math.inf if options.order is None else options.order
    if options.pair is None:
        certificate = rq.certify(channel, order)
    else:
        x, other = options.pair
        certificate = rq.certify_pair(channel, x, other, order)
    measured = rq.moments(channel)
    result = {
        "mechanism": options.mechanism,
        "parameters": _parameters(options),
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
        "bits_per_coordinate": channel.bits,
        "levels": channel.levels,
        "fingerprint": channel.fingerprint.hex(),
    }
    lines = [
        f"{options.mechanism}: {channel.levels} codes, {channel.bits} bits per coordinate",
        str(certificate),
        f"covers {certificate.covers} of inputs; for a whole run see `randquant account`",
        f"bias at most {round_up(measured.bias_max, 3)}, MAE {measured.mae:.6g}, "
        f"MSE {measured.mse:.6g} (input uniform)",
    ]
    _print(options, result, lines)


def _account(options: argparse.Namespace) -> None:
    parameters = _parameters(options)
    mechanism = update_mechanism(options.mechanism, parameters)
    release = mechanism.release(options.dimension, options.rounds)
    if release is None:
        raise ValueError(f"Expected a mechanism that protects, got {options.mechanism}.")
    guarantee = rq.account([release], options.delta)
    result = {
        "mechanism": options.mechanism,
        "parameters": parameters,
        "dimension": options.dimension,
        "rounds": options.rounds,
        **to_json(guarantee),
    }
    lines = [
        f"{options.mechanism}, {options.dimension} coordinates, {options.rounds} rounds of one "
        "client's participation:",
        str(guarantee),
    ]
    if options.mechanism in MECHANISMS:
        pure = rq.certify(build(options.mechanism, parameters))
        result["per_coordinate"] = {"order": pure.order, "epsilon": pure.epsilon}
        lines.append(f"per coordinate and round: {pure}")
    _print(options, result, lines)


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
    try:
        from randquant import progress, runs
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Expected the packages that training needs, {error.name} is missing: "
            "install randquant with its train extra, pip install '.[train]'."
        ) from error
    if options.resume is None:
        config = _config(options)
        baseline = not options.no_baseline and config.mechanism != "clipped-sgd"
        folder = Path(options.run) if options.run else _new_folder(config)
        runs.create(folder, config, baseline=baseline, overwrite=options.overwrite)
    else:
        folder = Path(options.resume)
        given = [name for name in _TRAIN_FIELDS if getattr(options, name) is not None]
        if given or _parameters(options) or options.run or options.overwrite or options.no_baseline:
            raise ValueError(
                "Expected --resume RUN without other training options: a run goes on with the "
                "configuration it began with."
            )
    with progress.Display(quiet=options.quiet) as display:
        finished = runs.execute(folder, display.round)
    _print(options, progress.result(folder, finished), progress.table(folder, finished))


def _config(options: argparse.Namespace) -> TrainConfig:
    """The demo's configuration with the given options in place of its own."""
    given = {name: getattr(options, name) for name in _TRAIN_FIELDS}
    given = {name: value for name, value in given.items() if value is not None}
    if "data_dir" in given:  # a run may be resumed from another folder
        given["data_dir"] = str(Path(given["data_dir"]).expanduser().resolve())
    same = given.get("mechanism", DEMO.mechanism) == DEMO.mechanism
    parameters = {**(DEMO.parameters if same else {}), **_parameters(options)}
    parameters.setdefault("clip", DEMO.parameters["clip"])
    if same and "margin" not in _parameters(options):
        parameters["margin"] = parameters["clip"]
    return TrainConfig(
        **{
            "dataset": DEMO.dataset,
            "model": DEMO.model,
            "mechanism": DEMO.mechanism,
            "learning_rate": DEMO.learning_rate,
            **given,
            "parameters": parameters,
        }
    )


def _new_folder(config: TrainConfig) -> Path:
    stem = f"{config.dataset}-{config.model}-{config.mechanism}"
    number = 1
    while (folder := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return folder


_PARAMETERS = {
    "clip": "per-coordinate clipping threshold, > 0",
    "margin": "how far the outermost level lies beyond clip, >= 0",
    "levels": "how many codes, 2 to 256",
    "keep": "probability that an inner level is kept, 0 to 1",
    "theta": "success probability is 1/2 + theta x / clip; 0 to 1/2",
    "trials": "binomial trials, 1 to 255; trials + 1 codes",
    "noise_multiplier": "deviation of the noise over the distance between neighbouring sums",
}

_TRAIN_FIELDS = {
    "dataset": (str, "data set: digits, breast-cancer, mnist, fashion-mnist, emnist"),
    "data_dir": (str, "folder of IDX files, for mnist, fashion-mnist, emnist"),
    "model": (str, "softmax, mlp or cnn"),
    "mechanism": (str, f"one of {', '.join([*MECHANISMS, *BASELINES])}"),
    "population": (int, "how many clients the data is split over"),
    "cohort": (int, "how many clients take part in each round"),
    "rounds": (int, "how many rounds"),
    "partition": (str, "how data is split over clients: iid, shards, dirichlet"),
    "concentration": (float, "Dirichlet concentration"),
    "learning_rate": (float, "the server's step size"),
    "delta": (float, "delta of the printed guarantee"),
    "seed": (int, "simulation seed: data split, weights, cohorts, simulated keys"),
    "checkpoint_every": (int, "rounds between checkpoints"),
    "evaluate_every": (int, "rounds between evaluations on test data"),
    "threads": (int, "threads to simulate clients on"),
}


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="randquant",
        description="Private federated learning in a few random bits per coordinate.",
    )
    parser.add_argument("--version", action="version", version=f"randquant {_version()}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    train = _command(
        commands, "train", _train, "train a federated model on real data, with a report",
        "randquant train --dataset digits --mechanism rqm --clip 0.03 --rounds 100",
    )  # fmt: skip
    for name, (kind, text) in _TRAIN_FIELDS.items():
        train.add_argument(_flag(name), type=kind, help=text + _default(name))
    _mechanism_options(train, {**MECHANISMS, **BASELINES})
    train.add_argument("--run", help="folder of the run (default: a new one in runs/)")
    train.add_argument("--overwrite", action="store_true", help="replace a run that is there")
    train.add_argument("--no-baseline", action="store_true", help="skip the run without privacy")
    train.add_argument("--resume", metavar="RUN", help="go on with a run that was stopped")
    train.add_argument("--quiet", action="store_true", help="no progress display")

    certify = _command(
        commands, "certify", _certify, "worst pair of inputs, epsilon and moments of a mechanism",
        "randquant certify rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 --order 8",
    )  # fmt: skip
    certify.add_argument("mechanism", metavar="MECHANISM", help=", ".join(MECHANISMS))
    _mechanism_options(certify, MECHANISMS)
    certify.add_argument("--order", type=float, help="Renyi order in (1, inf]; default inf")
    certify.add_argument(
        "--pair", type=float, nargs=2, metavar=("X", "X'"), help="this pair of inputs only"
    )

    account = _command(
        commands, "account", _account, "one guarantee for a client's whole participation",
        "randquant account rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 "
        "--dimension 650 --rounds 20 --delta 1e-5",
    )  # fmt: skip
    protecting = {**MECHANISMS, "gaussian": BASELINES["gaussian"]}
    account.add_argument("mechanism", metavar="MECHANISM", help=", ".join(protecting))
    _mechanism_options(account, protecting)
    account.add_argument("--dimension", type=int, required=True, help="coordinates of an update")
    account.add_argument(
        "--rounds", type=int, required=True, help="rounds that the client takes part in"
    )
    account.add_argument("--delta", type=float, default=1e-5, help="default 1e-5")

    bench = _command(
        commands, "bench", _bench, "throughput on this machine, against the naive way",
        "randquant bench --coordinates 10000000 --json",
    )  # fmt: skip
    bench.add_argument("--coordinates", type=int, default=10_000_000, help="default 10 million")
    bench.add_argument("--levels", type=int, default=16, help="RQM levels; default 16")
    bench.add_argument("--repeats", type=int, default=5, help="the fastest counts; default 5")
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str, example: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example: {example}",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run_command=run)
    return command


def _mechanism_options(parser: argparse.ArgumentParser, table: dict[str, Callable]) -> None:
    """An option for every parameter that some mechanism in the table takes."""
    users: dict[str, list[str]] = {}
    kinds: dict[str, type] = {}
    for mechanism, constructor in table.items():
        for parameter in inspect.signature(constructor).parameters.values():
            users.setdefault(parameter.name, []).append(mechanism)
            kinds[parameter.name] = int if parameter.annotation == "int" else float
    for name, mechanisms in users.items():
        parser.add_argument(
            _flag(name), type=kinds[name], help=_PARAMETERS[name] + f" ({', '.join(mechanisms)})"
        )
    parser.set_defaults(parameter_names=list(users))


def _parameters(options: argparse.Namespace) -> dict[str, float]:
    given = {name: getattr(options, name) for name in options.parameter_names}
    return {name: value for name, value in given.items() if value is not None}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _default(name: str) -> str:
    value = getattr(DEMO, name)
    return f" (default {value})" if value != "" else ""


def _millions(rate: float) -> str:
    return f"{rate / 1e6:.0f} million a second"


def _print(options: argparse.Namespace, result: dict[str, Any], lines: Sequence[str]) -> None:
    text = json.dumps(to_json(result), allow_nan=False) if options.json else "\n".join(lines)
    print(text)


def _version() -> str:
    from importlib.metadata import version

    return version("randquant")
