"""What the command line accepts: every command, its options, its help."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from randquant import run_arguments
from randquant.aggregate import all_mechanisms
from randquant.mechanisms import MechanismRecord, channel_mechanisms
from randquant.mechanisms.record import CLIP, CLIP_NORM, DENSITY, REACH
from randquant.option_texts import NEIGHBORING, NORM, TRAIN_FIELDS, TRUST
from randquant.reading import channel, names, numbers, reader, whole_numbers
from randquant.records import TrainConfig

PLAIN = TrainConfig("digits", "softmax", "", {"clip": 0.03}, learning_rate=1.0)
"""What `randquant train` begins with when a mechanism is named."""

DEMO = TrainConfig(
    dataset="digits",
    model="softmax",
    mechanism="stochastic-rounding",
    parameters={"clip": 0.05, "levels": 2, "margin": 0.275},
    clip_norm=0.5,
    trust="aggregate",
    cohort=200,
    rounds=50,
    learning_rate=2.0,
    stop_at_epsilon=8.0,
)
"""What it does when none is: one bit per coordinate, summed securely, epsilon 8 for the run."""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line as one line on standard error, exit code 2."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, allow_abbrev=False)
        # argparse takes -1e-3 and -3,3 for options unless told what numbers look like.
        self._negative_number_matcher = re.compile(r"^-[\d.][-+.,\de]*$", re.I)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def parser() -> argparse.ArgumentParser:
    """Build the parser of every command; the chosen one is in `options.command`."""
    top = _Parser(
        prog="randquant",
        description="Private federated learning in a few random bits per coordinate.",
    )
    top.add_argument("--version", action="version", version=f"randquant {_version()}")
    commands = top.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    _add_train(commands)
    run_arguments.add(commands, _command)
    _add_certify(commands)
    _add_design(commands)
    _add_account(commands)
    _add_audit(commands)
    _add_compare(commands)
    _add_plan(commands)
    _add_reproduce(commands)
    _add_bench(commands)
    return top


def _add_train(commands: Any) -> None:
    train = _command(
        commands, "train", "train a federated model on real data, with a report",
        "randquant train --dataset digits --mechanism rqm --clip 0.03 --rounds 100",
    )  # fmt: skip
    known = ", ".join(all_mechanisms())
    for name, (kind, text) in TRAIN_FIELDS.items():
        text = text.format(mechanisms=known) + _default(name)
        train.add_argument(_flag(name), type=kind, help=text)
    _mechanism_options(train, all_mechanisms())
    train.add_argument("--run", help="folder of the run (default: a new one in runs/)")
    train.add_argument("--overwrite", action="store_true", help="replace a run that is there")
    train.add_argument("--no-baseline", action="store_true", help="skip the run without privacy")
    train.add_argument(
        "--resume", metavar="RUN",
        help="go on with a run that was stopped, or longer with one that has ended, by --rounds, "
        "--stop-at-epsilon, --delta, --neighboring, --checkpoint-every or --evaluate-every",
    )  # fmt: skip
    train.add_argument("--quiet", action="store_true", help="no progress display")
    train.add_argument(
        "--tensorboard", action="store_true", help="also write RUN/tensorboard, round by round"
    )


def _add_certify(commands: Any) -> None:
    certify = _command(
        commands, "certify", "worst pair of inputs, epsilon and moments of a mechanism",
        "randquant certify rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 --order 8",
    )  # fmt: skip
    certify.add_argument("mechanism", metavar="MECHANISM", help=", ".join(channel_mechanisms()))
    _mechanism_options(certify, channel_mechanisms())
    certify.add_argument("--order", type=float, help="Renyi order in (1, inf]; default inf")
    certify.add_argument(
        "--pair", type=float, nargs=2, metavar=("X", "X'"), help="this pair of inputs only"
    )
    certify.add_argument(
        "--clients", type=int, help="of the sum of so many clients' codes, the others adversarial"
    )
    certify.add_argument("--neighboring", help="with --clients: replace_one (default) or zero_out")


def _add_design(commands: Any) -> None:
    design = _command(
        commands, "design", "the best unbiased channel on given levels",
        "randquant design --clip 1 --values -3,-0.5,0.5,3 --epsilon 1 --objective mae",
    )  # fmt: skip
    design.add_argument("--clip", type=float, required=True, help=CLIP)
    design.add_argument(
        "--values", type=numbers, metavar="A,B,...", help="what the codes decode to"
    )
    design.add_argument("--levels", type=int, help="search for so many levels instead, 2 to 32")
    design.add_argument("--epsilon", type=float, required=True, help="target per coordinate")
    design.add_argument("--objective", default="mae", help="mae (default), mse or worst_variance")
    design.add_argument(
        "--constraint",
        default="pure",
        help="what epsilon bounds: pure (default), renyi, l1, l2 (in units of clip), fisher",
    )
    design.add_argument("--order", type=float, help="Renyi order, for --constraint renyi")
    design.add_argument(
        "--inputs", type=int, help="vertices; default 33, and 129 where levels are searched"
    )
    design.add_argument("--density", type=numbers, metavar="A,B,...", help=DENSITY)
    design.add_argument("--reach", type=float, help=REACH)
    design.add_argument("--free", action="store_true", help="levels need not be symmetric")
    design.add_argument("--lattice", action="store_true", help="evenly spaced levels")
    design.add_argument("--save", metavar="FILE", help="write the channel and its certificate")
    design.add_argument("--output", metavar="FILE", help="also write a page with the figures")


def _add_account(commands: Any) -> None:
    account = _command(
        commands, "account", "one guarantee for a client's whole participation",
        "randquant account rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 "
        "--dimension 650 --rounds 20 --delta 1e-5",
    )  # fmt: skip
    protecting = {name: each for name, each in all_mechanisms().items() if each.trusts}
    account.add_argument("mechanism", metavar="MECHANISM", help=", ".join(protecting))
    _mechanism_options(account, protecting)
    account.add_argument("--dimension", type=int, required=True, help="coordinates of an update")
    account.add_argument(
        "--rounds", type=int, required=True, help="rounds that the client takes part in"
    )
    account.add_argument("--delta", type=float, default=1e-5, help="default 1e-5")
    account.add_argument(
        "--cohort", type=int, help="clients in a sum, at least; for noise that they share out"
    )
    account.add_argument("--trust", default="", help=TRUST)
    account.add_argument("--norm", default="l2", help=NORM)
    account.add_argument("--neighboring", default="replace_one", help=NEIGHBORING)


def _add_audit(commands: Any) -> None:
    audit = _command(
        commands, "audit", "attack a mechanism's real pipeline and bound epsilon from below",
        "randquant audit rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42 --delta 1e-5",
    )  # fmt: skip
    everything = all_mechanisms()
    audit.add_argument("mechanism", metavar="MECHANISM", help=", ".join(everything))
    _mechanism_options(audit, everything)
    audit.add_argument("--dimension", type=int, default=1, help="coordinates; default 1")
    audit.add_argument("--trust", default="", help=TRUST)
    audit.add_argument("--cohort", type=int, default=2, help="clients who send; default 2")
    audit.add_argument(
        "--neighboring",
        default="replace_one",
        help="replace_one (default), or zero_out: the other update is zero",
    )
    audit.add_argument(
        "--x", type=float, help="every coordinate of the update; default a worst one"
    )
    audit.add_argument("--other", type=float, help="every coordinate of the other update")
    audit.add_argument(
        "--audit-trials", type=int, default=20_000, help="runs with either update; default 20,000"
    )
    audit.add_argument("--confidence", type=float, default=0.99, help="default 0.99")
    audit.add_argument("--delta", type=float, default=1e-5, help="default 1e-5")
    audit.add_argument("--seed", type=int, default=0, help="seed of all keys; default 0")


def _add_compare(commands: Any) -> None:
    compare = _command(
        commands, "compare", "mechanisms side by side, privacy against error",
        "randquant compare --clip 1 --bits 2 --epsilon 1 --output compare.html",
    )  # fmt: skip
    compare.add_argument("--clip", type=float, help=CLIP)
    compare.add_argument("--bits", type=whole_numbers, metavar="B,...", help="bits per coordinate")
    compare.add_argument("--epsilon", type=float, help="largest certified pure epsilon")
    compare.add_argument("--mechanisms", type=names, metavar="A,B,...", help="default: all")
    compare.add_argument("--objective", help="mae (default) or mse, input uniform")
    compare.add_argument(
        "--channel", type=channel, action="append", metavar="'NAME key=value ...'",
        help="compare this channel as it is, such as 'pbm clip=1 theta=0.2 trials=3'; repeat it",
    )  # fmt: skip
    compare.add_argument("--order", type=float, default=2.0, help="Renyi order shown; default 2")
    compare.add_argument("--output", metavar="FILE", help="also write a page with the figures")


def _add_plan(commands: Any) -> None:
    plan = _command(
        commands, "plan", "which mechanism and parameters meet a target, ranked by error",
        "randquant plan --dimension 650 --population 200 --cohort 200 --rounds 50 --epsilon 8",
    )  # fmt: skip
    for name, text in {
        "dimension": "coordinates of an update",
        "population": "how many clients there are",
        "cohort": "how many clients take part in each round",
        "rounds": "how many rounds",
    }.items():
        plan.add_argument(_flag(name), type=int, required=True, help=text)
    plan.add_argument(
        "--epsilon", type=float, required=True, help="target for a client's whole participation"
    )
    plan.add_argument("--delta", type=float, default=1e-5, help="default 1e-5")
    plan.add_argument("--bits", type=int, default=4, help="most bits of a code; default 4")
    plan.add_argument(
        "--trust", default="aggregate", help="who sees what: aggregate (default) or local"
    )
    plan.add_argument("--clip-norm", type=float, default=1.0, help=CLIP_NORM)
    plan.add_argument(
        "--neighboring", default="replace_one", help="replace_one (default) or zero_out"
    )
    plan.add_argument(
        "--max-participations", type=int,
        help="most rounds a client takes part in; default: all equally often",
    )  # fmt: skip
    plan.add_argument("--mechanisms", type=names, metavar="A,B,...", help="default: all")
    plan.add_argument("--output", metavar="FILE", help="also write a page with the figures")


def _add_reproduce(commands: Any) -> None:
    reproduce = _command(
        commands, "reproduce", "a table or figure of a paper, beside the paper's numbers",
        "randquant reproduce rqm-fig8 --output rqm-fig8.html",
    )  # fmt: skip
    reproduce.add_argument("name", metavar="NAME", nargs="?", help="what to reproduce; see --list")
    reproduce.add_argument("--list", action="store_true", help="name everything there is")
    reproduce.add_argument("--output", metavar="FILE", help="also write a page with the figures")
    reproduce.add_argument(
        "--gallery", metavar="FOLDER", help="keep the result in this site of all of them"
    )
    reproduce.add_argument(
        "--all", action="store_true", help="everything, into the site (default: gallery)"
    )
    reproduce.add_argument(
        "--quick", action="store_true", help="train less than the papers do: minutes in all"
    )
    reproduce.add_argument("--data-dir", metavar="DIR", help=TRAIN_FIELDS["data_dir"][1])
    reproduce.add_argument(
        "--stand-in", metavar="NAME", help="data set to train on where the paper's is not there"
    )
    reproduce.add_argument(
        "--seeds", type=int, default=1, help="how often each curve is trained; default 1"
    )
    reproduce.add_argument("--jobs", type=int, default=2, help="runs at once; default 2")
    reproduce.add_argument(
        "--runs", metavar="FOLDER", default="runs/reproduce",
        help="where runs are kept, and gone on with; default runs/reproduce",
    )  # fmt: skip
    reproduce.add_argument("--quiet", action="store_true", help="no progress display")


def _add_bench(commands: Any) -> None:
    bench = _command(
        commands, "bench", "throughput on this machine, against the naive way",
        "randquant bench --coordinates 10000000 --json",
    )  # fmt: skip
    bench.add_argument("--coordinates", type=int, default=10_000_000, help="default 10 million")
    bench.add_argument("--levels", type=int, default=16, help="RQM levels; default 16")
    bench.add_argument("--repeats", type=int, default=5, help="the fastest counts; default 5")


def _command(commands: Any, name: str, text: str, example: str) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example: {example}",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    return command


def _mechanism_options(
    parser: argparse.ArgumentParser, records: Mapping[str, MechanismRecord]
) -> None:
    """An option for every parameter that some mechanism takes and that is its own."""
    texts: dict[str, dict[str, list[str]]] = {}
    kinds: dict[str, Callable[[str], Any]] = {}
    for name, record in records.items():
        for parameter in record.parameters:
            users = texts.setdefault(parameter, {})
            users.setdefault(record.meaning(parameter), []).append(name)
            kinds[parameter] = reader(record.signature[parameter])
    for parameter, users in texts.items():
        text = "; ".join(f"{meaning} ({', '.join(names)})" for meaning, names in users.items())
        parser.add_argument(_flag(parameter), type=kinds[parameter], help=text)
    parser.set_defaults(parameter_names=list(texts))


def given_parameters(options: argparse.Namespace) -> dict[str, Any]:
    """Return the mechanism parameters that were given, by name."""
    given = {name: getattr(options, name) for name in options.parameter_names}
    return {name: value for name, value in given.items() if value is not None}


def own_parameters(mechanism: str, options: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    """Split the given parameters into a mechanism's own and a channel's clip_norm, or None.

    A channel that takes clip_norm itself (imvu) has both: its coordinates then lie within the norm
    that updates are clipped to.
    """
    parameters = given_parameters(options)
    clip_norm = parameters.get("clip_norm") if mechanism in channel_mechanisms() else None
    if clip_norm is not None and not takes(mechanism, "clip_norm"):
        del parameters["clip_norm"]
    return parameters, clip_norm


def takes(mechanism: str, parameter: str) -> bool:
    """Return whether a mechanism has a parameter; False for an unknown mechanism."""
    record = all_mechanisms().get(mechanism)
    return record is not None and parameter in record.signature


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _default(name: str) -> str:
    plain, demo = (getattr(config, name) for config in (PLAIN, DEMO))
    parts = [f"default {plain}"] if plain not in ("", None) else []
    if demo != plain:
        parts.append(f"without --mechanism {demo}")
    return f" ({'; '.join(parts)})" if parts else ""


def _version() -> str:
    from importlib.metadata import version

    return version("randquant")
